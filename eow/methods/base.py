"""What every method is: an nn.Module around a SplitModel that gives loss terms in training and a Prediction afterwards."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models import SplitModel


class Prediction(NamedTuple):
    """What a method says about a batch: probs.sum(1) + unknown == 1, with unknown 0 where a method has none.

    label and confidence are argmax and max of probs unless the method's paper says otherwise.
    """

    label: Tensor  # (N,) int64
    confidence: Tensor  # (N,)
    probs: Tensor  # (N, K)
    unknown: Tensor  # (N,)
    logits: Tensor | None  # (N, K) or (N, K+1), float32


@dataclass(frozen=True)
class NoOptions:
    """A method with nothing to set inherits this and gives it its name."""

    name: ClassVar[str] = ""


class Method(nn.Module):
    """Base of all methods. `forward(x, y)` returns loss terms whose sum is minimised, so that DDP can wrap the whole."""

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""  # a line for `eow methods`
    needs_holdout: ClassVar[bool] = False  # `finish` wants a part of the training set that training has not seen
    extra_outputs: ClassVar[int] = 0  # logits beyond the K classes

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__()
        if classes < 2:
            raise EowError(
                f"a classifier needs at least 2 classes, this data has {classes}: add a class or use another data set"
            )
        self.model, self.options, self.classes, self.in_shape, self.seed = (
            model,
            options,
            classes,
            tuple(in_shape),
            seed,
        )
        self.stream = torch.Generator()  # the method's own random numbers; the loop seeds it before every epoch

    def prepare(self, device: torch.device) -> None:
        """Called once, when the module is on its device and before the first epoch (or a checkpoint's state) comes."""
        self.stream = torch.Generator(device)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch, for methods whose loss depends on the time."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def finish(self, holdout: Any) -> None:
        """A post-hoc part, fitted on held-out training data after the last epoch."""

    def predict(self, x: Tensor) -> Prediction:
        raise NotImplementedError

    def counters(self) -> dict[str, float]:
        """What the method counted since the last call, for the log: the only place where it may read from the device."""
        return {}


def closed_prediction(logits: Tensor) -> Prediction:
    """The K-way softmax: all belief goes to the known classes."""
    logits = logits.float()
    probs = logits.softmax(1)
    confidence, label = probs.max(1)
    return Prediction(label, confidence, probs, torch.zeros_like(confidence), logits)


def open_prediction(logits: Tensor) -> Prediction:
    """The K+1-way softmax: the last logit is the unknown, and confidence is not renormalised over the K classes."""
    logits = logits.float()
    probs = logits.softmax(1)
    confidence, label = probs[:, :-1].max(1)
    return Prediction(label, confidence, probs[:, :-1], probs[:, -1], logits)
