"""`eow.export_model`: what `eow export` does for a run, for a model that you upgraded and trained yourself."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eow import __version__
from eow.data.tables import lost_in_float32
from eow.deployed import Answers, Card
from eow.errors import EowError
from eow.export.run import TOLERANCE, in_batches, kept, named
from eow.export.traceable import answered
from eow.methods.base import Method, label_or_unknown, open_prediction, shifted_prediction
from eow.models import SplitModel
from eow.models.split import unwrapped
from eow.openworld import checked_policy, prior_shift, shifted_probabilities
from eow.own.batches import check_finite, inputs_of
from eow.own.predict import ask, check_answers
from eow.plain import first_line


class Answering(nn.Module):
    """The model with its unknown rate and threshold as one traceable function."""

    def __init__(self, model: nn.Module, shift: float | None, threshold: float | None) -> None:
        super().__init__()
        self.model, self.shift, self.threshold = model, shift, threshold

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        logits = self.model(inputs).float()
        said = open_prediction(logits) if self.shift is None else shifted_prediction(logits, self.shift)
        return answered(said, self.threshold)


class ForTables(nn.Module):
    """What `EOWClassifier.logits_of` does: rows standardised in double precision, the network for what is left of them
    within five deviations, and the fence for all of it."""

    mean: Tensor
    scale: Tensor

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(classifier.scaler_.mean_))
        self.register_buffer("scale", torch.tensor(classifier.scaler_.scale_))
        self.network, self.fence = copied(classifier.model_).float(), copy.deepcopy(classifier.fence_)

    def forward(self, rows: Tensor) -> Tensor:
        from eow.tabular.rows import FARTHEST, OUTERMOST  # scikit-learn is imported only where it is needed

        z = ((rows.double() - self.mean) / self.scale).clamp(-OUTERMOST, OUTERMOST)
        logits = self.network(z.clamp(-FARTHEST, FARTHEST).float())
        return torch.cat([logits[:, :-1], logits[:, -1:] + self.fence.rise(z)[:, None].float()], 1)


def export_model(
    model: Any,
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

    `model` is an upgraded model, or the method that `eow.fit` returned; it is written in float32, except for what its
    forward casts to another precision. The file takes inputs as the model takes them, any number at a time; it
    normalises nothing. `example` is an array or a tensor of real inputs: on these the file is compared with the model
    before it is kept, and a difference above 1e-5 is an error. `classes` are names for the metadata, else "0", "1" and
    so on. The format is onnx (.onnx) or torch (.pt2).

    A fitted `EOWClassifier` is written with its scaler and its fence: its file takes rows as `predict_open` takes them,
    in float32, and says what it says at the classifier's `unknown_rate` and a threshold of 0.5, unless others are
    given.
    """
    path, (unknown_rate, threshold) = named(path, format), checked_policy(unknown_rate, threshold)
    model = unwrapped(model)
    if hasattr(model, "predict_open"):
        return export_classifier(model, path, example, format, classes, unknown_rate, threshold)
    own = copied(model).float()
    odds = model.odds() if isinstance(model, Method) else float(getattr(model, "odds", 0.0))
    if odds <= 0 and (unknown_rate is not None or hasattr(own, "odds")):
        raise EowError("the model's unknown logit has not been trained, so it has no prior odds yet: eow.fit it first")
    example = example.to_numpy() if hasattr(example, "to_numpy") else example
    x = inputs_of(example, torch.float32, getattr(own, "integers", False)).detach().cpu()
    check_finite(x)
    if x.dim() < 2 or not len(x):
        raise EowError(f"the example is of shape {tuple(x.shape)}: pass a batch of inputs, x[None] for a single one")
    own = in_its_precision(own, model, x[:1])
    shift = None if unknown_rate is None else prior_shift(unknown_rate, odds)
    inputs, expected = in_batches(x.numpy()), []
    for part in inputs:
        said = ask(own, torch.from_numpy(part), shift)
        check_answers(said)
        label = label_or_unknown(said, threshold)
        expected.append(Answers(*(each.numpy() for each in (label, said.confidence, said.unknown, said.probs))))
    graph = Answering(own, shift, threshold)
    return written(graph, path, format, classes, unknown_rate, odds or None, inputs, expected)


def export_classifier(
    model: Any,
    path: Path,
    example: Any,
    format: str,
    classes: Sequence[str] | None,
    unknown_rate: float | None,
    threshold: float | None,
) -> dict[str, Any]:
    if not hasattr(model, "model_"):
        raise EowError("the classifier is not fitted: call its fit(X, y) first")
    rows = model.checked_rows(example)
    unknown_rate = model.expected_rate() if unknown_rate is None else unknown_rate
    threshold = 0.5 if threshold is None else threshold
    shift = prior_shift(unknown_rate, model.lam_)

    def answers(part: np.ndarray) -> Answers:
        logits = model.logits_of(part)
        probs, unknown = shifted_probabilities(logits, shift)
        confidence, label = probs.max(1), logits[:, :-1].argmax(1)
        return Answers(np.where(confidence >= threshold, label, -1), confidence, unknown, probs)

    parts = in_batches(rows)
    with np.errstate(over="ignore"):
        inputs = [part.astype(np.float32) for part in parts]
    expected = [answers(part) for part in parts]
    for part, wanted in zip(inputs, expected):
        if max(np.abs(a - b).max() for a, b in zip(answers(part.astype(np.float64))[1:], wanted[1:])) > TOLERANCE:
            lost = lost_in_float32(rows, model.scaler_.scale_)
            raise EowError(
                f"a file takes float32, which is too coarse for column {int(lost.argmax())} of X (counted from 0): "
                "subtract an offset from it, or rescale it, before fitting"
            )
    graph = Answering(ForTables(model), shift, threshold)
    names = list(map(str, model.classes_)) if classes is None else classes
    return written(graph, path, format, names, unknown_rate, model.lam_, inputs, expected)


def written(
    graph: Answering,
    path: Path,
    format: str,
    classes: Sequence[str] | None,
    unknown_rate: float | None,
    odds: float | None,
    inputs: list[np.ndarray],
    expected: list[Answers],
) -> dict[str, Any]:
    """Write the graph with its card, if it gives the expected answers."""
    count = expected[0].probs.shape[1]
    names = tuple(map(str, range(count) if classes is None else classes))
    if len(names) != count:
        raise EowError(f"there are {len(names)} class names for the model's {count} classes: give one a class")
    made_with = {"exported_with": {"eow": __version__, "torch": torch.__version__}}
    shape, dtype = inputs[0].shape[1:], str(inputs[0].dtype)
    card = Card("eow", names, shape, dtype, graph.threshold, None, unknown_rate, odds, made_with)
    graph.eval().requires_grad_(False)
    try:
        return {**kept(graph, card, path, format, inputs, expected), "compared_on": "the example"}
    except (EowError, OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch.export has many classes for what it cannot follow
        raise EowError(
            f"torch cannot trace this model ({first_line(error)}): its forward must not decide on a tensor's values"
        ) from error


def in_its_precision(single: SplitModel, model: Any, x: Tensor) -> SplitModel:
    """The network in float32, or as it is where its forward casts to a precision that it then does not have."""
    try:
        ask(single, x, None)
        return single
    except EowError as error:
        mixed = copied(model)
        dtype = next((each.dtype for each in mixed.parameters() if each.is_floating_point()), torch.float32)
        try:
            ask(mixed, x.to(dtype) if x.is_floating_point() else x, None)
        except EowError:
            raise error from None  # it is not the precision
        if dtype == torch.float32:
            return mixed
        raise EowError(
            f"the model computes in {dtype} and cannot be written in float32 ({first_line(error.__cause__ or error)}): "
            "let its forward cast to the precision of its weights, x.to(self.head.weight.dtype), and to no other"
        ) from error


def copied(model: Any) -> SplitModel:
    """A copy of the network on the CPU: the caller's stays as and where it is."""
    if isinstance(model, Method) and not model.extra_outputs:
        raise EowError(f"{model.options.name} has no unknown logit: export a run of it, or fit with method='eow'")
    if getattr(model, "fence", None) is not None:
        raise EowError(
            "the method has a fence, which is not part of its model: export the run's folder with `eow export`"
        )
    split = model.model if isinstance(model, Method) else model
    if not isinstance(split, SplitModel):
        raise EowError(
            f"the model is a {type(model).__name__}: pass what eow.upgrade or eow.fit returned, or a run's folder to "
            "eow.export.run.export"
        )
    try:
        return copy.deepcopy(split).cpu().eval()
    except (RuntimeError, TypeError) as error:
        raise EowError(
            f"the model cannot be copied ({first_line(error)}): call it once inside torch.no_grad(), so that it keeps "
            "no tensors of an earlier forward pass with gradients"
        ) from error
