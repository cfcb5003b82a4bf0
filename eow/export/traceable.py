"""A finished run as one traceable function: raw inputs in, label, confidence, unknown and probs out.

`Graph` does what Transform, `Method.predict`, an unknown rate and a threshold do one after another, with everything
decided beforehand in Python. Most methods' `answer` is traced as it stands; three are written out because theirs asks a
tensor for its value or draws numbers. run.py compares every graph with `Method.predict` on data before it is kept.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.methods.base import Method, Prediction, closed_prediction, label_or_unknown, shifted_prediction
from eow.methods.dble import DBLE
from eow.methods.distances import distances
from eow.methods.shrink import Shrink
from eow.methods.temperature import Temperature
from eow.models import GaussianNoise
from eow.openworld import prior_shift

# Why a method's answer is not a function of its input alone.
REFUSED = {
    "mc_dropout": "draws new dropout masks for every batch",
    "trust_score": "searches the training features for neighbours",
}


class Graph(nn.Module):
    """For a run (opening.Run) on the CPU in evaluation mode."""

    def __init__(self, run: Any, unknown_rate: float | None = None, threshold: float | None = None) -> None:
        super().__init__()
        name = run.config.method.name
        if name in REFUSED:
            raise EowError(
                f"{name} cannot be exported, because it {REFUSED[name]} at every prediction: export a run of another "
                "method, such as temperature or ensemble, or predict with the run itself"
            )
        if any(isinstance(module, GaussianNoise) and module.std > 0 for module in run.method.modules()):
            raise EowError(
                "this run's network adds noise at prediction (model.input_noise, model.stage_noise), so no file can "
                "repeat its answers: train it without noise, or predict with the run itself"
            )
        self.method: Method = run.method
        self.shift = None if unknown_rate is None else prior_shift(unknown_rate, run.config.method.odds)
        self.threshold = threshold
        shape = (1, -1) + (1,) * (len(run.in_shape) - 1)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(run.transform.mean).view(shape))
        self.register_buffer("std", torch.tensor(run.transform.std).view(shape))
        if isinstance(run.method, DBLE):
            stream = torch.Generator().manual_seed(run.method.seed)
            draws = torch.randn(run.method.options.draws, run.method.sums.shape[1], generator=stream)
            self.draws: Tensor
            self.register_buffer("draws", draws)

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        x = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
        said = self.answer((x - self.mean) / self.std)
        if self.shift is not None:
            assert said.logits is not None
            said = shifted_prediction(said.logits, self.shift)
        return answered(said, self.threshold)

    def answer(self, x: Tensor) -> Prediction:
        method = self.method
        if isinstance(method, Temperature):
            return closed_prediction(method.model(x).float() / method.temperature.float())
        if isinstance(method, Shrink):
            said, factor = closed_prediction(method.model(x)), method.factor.float()
            unknown = (1 - method.factor).float() * torch.ones_like(said.confidence)
            return Prediction(said.label, factor * said.confidence, factor * said.probs, unknown, None)
        if isinstance(method, DBLE):
            h, centres = method.model(x).float(), method.centres
            deviation = method.deviation(h)
            probs = torch.stack([(-distances(h + e * deviation, centres)).softmax(1) for e in self.draws]).mean(0)
            label = distances(h, centres).argmin(1)
            confidence = probs.gather(1, label[:, None]).squeeze(1)
            return Prediction(label, confidence, probs, torch.zeros_like(confidence), None)
        return method.answer(x)


def answered(said: Prediction, threshold: float | None) -> dict[str, Tensor]:
    """What every file gives."""
    label = label_or_unknown(said, threshold)
    return {"label": label, "confidence": said.confidence, "unknown": said.unknown, "probs": said.probs}


def distance_by_differences(first: Tensor, second: Tensor, p: float = 2, compute_mode: int | None = None) -> Tensor:
    """torch.cdist for ONNX, which has none. By differences, as the methods ask for it, so K times the memory of a
    batch."""
    return (first[:, None] - second).square().sum(2).sqrt()


DECOMPOSITIONS = {
    torch.ops.aten.cdist.default: distance_by_differences,
    torch.ops.aten._cdist_forward.default: distance_by_differences,
}
