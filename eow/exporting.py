"""`eow.export_model`: what `eow export` does for a run, for a model of one's own that was upgraded and trained."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eow import __version__
from eow.batches import check_finite, inputs_of
from eow.config import convert, plain
from eow.deployed import Answers, Card, first_line
from eow.errors import EowError
from eow.export import in_batches, kept, named
from eow.methods.base import Method, label_or_unknown, open_prediction, shifted_prediction
from eow.models import SplitModel
from eow.openworld import prior_shift
from eow.predicting import ask
from eow.traceable import answered


class Answering(nn.Module):
    """The model with its unknown rate and threshold as one traceable function."""

    def __init__(self, model: SplitModel, shift: float | None, threshold: float | None) -> None:
        super().__init__()
        self.model, self.shift, self.threshold = model, shift, threshold

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        logits = self.model(inputs).float()
        said = open_prediction(logits) if self.shift is None else shifted_prediction(logits, self.shift)
        return answered(said, self.threshold)


def export_model(
    model: SplitModel | Method,
    path: str | Path,
    example: Any,
    *,
    format: str = "onnx",
    classes: Sequence[str] | None = None,
    unknown_rate: float | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Write the model to `path` as one file that says what `eow.predict` says at this unknown rate and threshold, and
    return what it was compared on and how far it was off.

    `model` is an upgraded model, or the method that `eow.fit` returned; it is written in float32. The file takes inputs
    as the model takes them, any number at a time: nothing is normalised in it. `example` is an array or a tensor of
    them, real ones: on these the file is compared with the model before it is kept, and a difference above 1e-5 is an
    error. `classes` are names for the metadata, else "0", "1" and so on. The format is onnx (.onnx) or torch (.pt2).
    """
    path, own = named(path, format), network(model)
    unknown_rate, threshold = (
        None if each is None else convert(plain(each), float, name)
        for name, each in (("unknown_rate", unknown_rate), ("threshold", threshold))
    )
    odds = model.odds() if isinstance(model, Method) else float(getattr(model, "odds", 0.0))
    if odds <= 0 and (unknown_rate is not None or hasattr(own, "odds")):
        raise EowError("the model's unknown logit has not been trained, so it has no prior odds yet: eow.fit it first")
    if threshold is not None and not 0 <= threshold <= 1:
        raise EowError(f"a threshold of {threshold} is no confidence: give a number from 0 to 1")
    x = inputs_of(example, torch.float32, getattr(own, "integers", False)).detach().cpu()
    check_finite(x)
    if x.dim() < 2 or not len(x):
        raise EowError(f"the example is of shape {tuple(x.shape)}: pass a batch of inputs, x[None] for a single one")
    shift = None if unknown_rate is None else prior_shift(unknown_rate, odds)
    inputs, expected = in_batches(x.numpy()), []
    for part in inputs:
        said = ask(own, torch.from_numpy(part), shift)
        label = label_or_unknown(said, threshold)
        expected.append(Answers(*(each.numpy() for each in (label, said.confidence, said.unknown, said.probs))))
    count = expected[0].probs.shape[1]
    names = tuple(map(str, range(count) if classes is None else classes))
    if len(names) != count:
        raise EowError(f"there are {len(names)} class names for the model's {count} classes: give one a class")
    made_with = {"exported_with": {"eow": __version__, "torch": torch.__version__}}
    dtype = str(x.dtype).removeprefix("torch.")
    card = Card("eow", names, tuple(x.shape[1:]), dtype, threshold, None, unknown_rate, odds or None, made_with)
    graph = Answering(own, shift, threshold).eval().requires_grad_(False)
    try:
        return {**kept(graph, card, path, format, inputs, expected), "compared_on": "the example"}
    except (EowError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch.export has many classes for what it cannot follow
        raise EowError(
            f"torch cannot trace this model ({first_line(error)}): its forward must not decide on a tensor's values"
        ) from error


def network(model: Any) -> SplitModel:
    """A copy of the network on the CPU in float32: the caller's stays as and where it is."""
    if isinstance(model, Method) and not model.extra_outputs:
        raise EowError(f"{model.options.name} has no unknown logit: export a run of it, or fit with method='eow'")
    if getattr(model, "fence", None) is not None:
        raise EowError(
            "the method has a fence, which is no part of its model: export its run's folder, as eow export does"
        )
    split = model.model if isinstance(model, Method) else model
    if not isinstance(split, SplitModel):
        raise EowError(
            f"the model is a {type(model).__name__}: pass what eow.upgrade or eow.fit returned, or a run's folder to "
            "eow.export.export"
        )
    try:
        return copy.deepcopy(split).cpu().float().eval()
    except (RuntimeError, TypeError) as error:
        raise EowError(f"the model cannot be copied ({first_line(error)}): delete tensors it keeps") from error
