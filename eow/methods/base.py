"""What every method is: an nn.Module around a SplitModel that gives loss terms in training and a Prediction
afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from eow.data.loader import Episode
from eow.errors import EowError
from eow.models import SplitModel, frozen_statistics
from eow.openworld import prior_shift


class Prediction(NamedTuple):
    """What a method says about a batch: probs.sum(1) + unknown == 1, with unknown 0 where a method has none.

    label and confidence are argmax and max of probs unless the method's paper says otherwise; where probs are too small
    to be told apart, label is the largest logit's.
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
    """Base of all methods. `forward(x, y)` returns loss terms whose sum is minimised, so that DDP can wrap the
    whole."""

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""  # a line for `eow methods`
    needs_holdout: ClassVar[bool] = False  # `finish` wants a part of the training set that training has not seen
    post_hoc: ClassVar[bool] = False  # all but `finish` is vanilla's: a vanilla run's weights can be taken over
    capturable: ClassVar[bool] = False  # `forward` neither waits for the device nor branches on a tensor's value
    steadier: ClassVar[str] = ""  # what may keep it from diverging, for the message
    costlier: ClassVar[str] = ""  # how a prediction costs more than one forward pass, for `eow methods`
    extra_outputs: ClassVar[int] = 0  # logits beyond the K classes

    @classmethod
    def uses_holdout(cls, options: Any) -> bool:
        """Whether `finish` will be fitted on held-out data with these options."""
        return cls.needs_holdout

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__()
        if classes < 2:
            raise EowError(
                f"a classifier needs at least 2 classes, this data has {classes}: add a class or use another data set"
            )
        self.model, self.options, self.seed = model, options, seed
        self.classes, self.in_shape = classes, tuple(in_shape)
        self.stream = torch.Generator()  # the method's own random numbers; the loop seeds it before every epoch
        self.world = 1  # processes that train it together

    @classmethod
    def create(
        cls, make_model: Callable[[int], SplitModel], options: Any, classes: int, in_shape: tuple[int, ...], seed: int
    ) -> "Method":
        """The method around a new model; `make_model(seed)` gives one with the right number of outputs."""
        return cls(make_model(seed), options, classes, in_shape, seed)

    def prepare(self, device: torch.device, rank: int = 0, world: int = 1) -> None:
        """Called once, when the module is on its device and before the first epoch (or a checkpoint's state) comes;
        `rank` of the `world` processes that train it together."""
        self.stream, self.world = torch.Generator(device), world

    def episode(self) -> Episode | None:
        """How training batches are to be made, where they are not just shuffled samples."""
        return None

    def phase(self) -> Any:
        """What `forward` does at the moment, for methods that change over time: each phase is captured for itself."""
        return None

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before every epoch, for methods whose loss depends on the time."""

    def first_batch(self, x: Tensor, y: Tensor) -> None:
        """Called with the first batch of every epoch, before its step and outside of anything captured."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        raise NotImplementedError

    def finish(self, train: Any, holdout: Any) -> None:
        """A post-hoc part after the last epoch, or after the last good one of a run that is given up. Both are
        data.loader.Batches, `holdout` the part of the training set that training has not seen, or None where the run
        has none; no method is ever given test data."""

    def diagnose(self, train: Any) -> dict[str, Any] | None:
        """What a report may show of the trained method beside its predictions, as plain JSON values; nothing is
        changed. `train` is data.loader.Batches."""
        return None

    def answer(self, x: Tensor) -> Prediction:
        """The method's prediction; `predict` calls it in evaluation mode and without gradients."""
        raise NotImplementedError

    def predict(self, x: Tensor, unknown_rate: float | None = None) -> Prediction:
        """What the method says about inputs as the network wants them, for an expected share of unknowns where one is
        given."""
        with frozen_statistics(self), torch.no_grad():
            said = self.answer(x)
        if unknown_rate is None:
            return said
        if said.logits is None or not self.extra_outputs:
            raise EowError(f"{self.options.name} has no unknown logit: leave the unknown rate out, or train with eow")
        return shifted_prediction(said.logits, prior_shift(unknown_rate, self.odds()))

    def odds(self) -> float:
        """The prior odds of "unknown" in what the network says: those that an upgraded model remembers of its last
        fit, else those of the options."""
        return float(getattr(self.model, "odds", 0.0)) or self.options.odds

    def trouble(self, means: dict[str, float]) -> str | None:
        """Why training must not go on like this, seen in the means of the loss terms; None when all is well. A loss
        that is not finite is found without this."""
        return None

    def counters(self) -> dict[str, float]:
        """What the method counted since the last call, for the log: the only place where it may read from the
        device."""
        return {}


def closed_prediction(logits: Tensor) -> Prediction:
    """The K-way softmax: all belief goes to the known classes."""
    logits = logits.float()
    probs = logits.softmax(1)
    confidence = probs.amax(1)
    return Prediction(logits.argmax(1), confidence, probs, torch.zeros_like(confidence), logits)


def open_prediction(logits: Tensor) -> Prediction:
    """The K+1-way softmax: the last logit is the unknown, and confidence is not renormalised over the K classes. The
    label is of the logits: where unknown is certain, the probabilities of all classes may be 0."""
    logits = logits.float()
    probs = logits.softmax(1)
    return Prediction(logits[:, :-1].argmax(1), probs[:, :-1].amax(1), probs[:, :-1], probs[:, -1], logits)


def label_or_unknown(said: Prediction, threshold: float | None) -> Tensor:
    """The labels, with -1 for "unknown": below the threshold or, where there is none, where unknown is more probable
    than every class. A threshold of 0 always answers. Where the confidence is NaN there is no answer either."""
    if threshold is None:
        return torch.where(said.confidence >= said.unknown, said.label, -1)
    # In float64: rounded to float32, the threshold could fall to the other side.
    return torch.where(said.confidence.double() >= threshold, said.label, -1)


def shifted_prediction(logits: Tensor, shift: float | Tensor) -> Prediction:
    """The same with `shift`, one number or a column of one a sample, added to the unknown logit: another prior, say."""
    return open_prediction(torch.cat([logits[:, :-1], logits[:, -1:] + shift], 1))
