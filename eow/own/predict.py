"""`eow.predict`: what a model says about inputs, with -1 where it does not know."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.methods.base import Method, Prediction, label_or_unknown, open_prediction, shifted_prediction
from eow.models import SplitModel, frozen_statistics
from eow.models.split import unwrapped
from eow.openworld import checked_policy, prior_shift
from eow.own.batches import check_finite, dataset_loader, depth, inputs_in, inputs_of
from eow.plain import first_line

BATCH = 256  # rows of an array that are predicted at a time


class Answer(NamedTuple):
    """One row a sample: probs.sum(1) + unknown == 1."""

    label: Tensor  # (N,) int64, -1 where the model abstains
    confidence: Tensor  # (N,) of the most probable class, also where the model abstains
    unknown: Tensor  # (N,)
    probs: Tensor  # (N, K)


def predict(
    model: SplitModel | Method, x: Any, unknown_rate: float | None = None, threshold: float | None = None
) -> Answer:
    """Labels with -1 for "unknown", confidence, unknown and probs: in evaluation mode, without gradients, in batches.

    `model` is an upgraded model, a SplitModel of K+1 logits, or the method that `eow.fit` returns; `x` a tensor, an
    array, a list of numbers, a data frame, or a loader or torch Dataset of inputs or (inputs, labels). `unknown_rate`
    is the share of unknowns to expect, in place of what training ended with. With a `threshold` the label is -1 where
    the confidence is below it; without one, where "unknown" is the most probable of the K+1 answers. The results lie
    where a tensor `x` lies, else on the CPU. Logits that are not finite are an error. Inside
    torch.compile's or DataParallel's wrapper the model itself is used; `model.compile()` needs no wrapper.
    """
    model = unwrapped(model)  # type: ignore[assignment]
    if not isinstance(model, SplitModel | Method):
        raise EowError(
            f"the model is a {type(model).__name__}: pass what eow.upgrade or eow.fit returned, or an eow.SplitModel"
        )
    unknown_rate, threshold = checked_policy(unknown_rate, threshold)
    shift = None if unknown_rate is None or isinstance(model, Method) else prior_shift(unknown_rate, odds(model))
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    parts: list[list[Tensor]] = []
    for batch in inputs(model, x):
        said = asked(model, batch, unknown_rate) if isinstance(model, Method) else ask(model, batch, shift)
        check_answers(said, sum(len(each[0]) for each in parts))
        parts.append([label_or_unknown(said, threshold), said.confidence, said.unknown, said.probs])
    if not parts:
        raise EowError("there is nothing to predict: pass at least one input")
    return Answer(*(torch.cat(column).to(device) for column in zip(*parts)))


def check_answers(said: Prediction, before: int = 0) -> None:
    """An error that names the rows whose probabilities are none; `before` is how many rows came earlier."""
    wrong = ~(said.probs.isfinite().all(1) & said.unknown.isfinite()).cpu()
    if wrong.any():
        first = before + int(wrong.int().argmax())
        raise EowError(
            f"the model's logits are not finite for {int(wrong.sum())} of {len(wrong)} inputs, first for row {first}: "
            "look for NaN in its weights, for inputs that are too large, or use float32 in place of half precision"
        )


def odds(model: SplitModel) -> float:
    """The prior odds of unknown that the model has learnt, which is what an unknown rate replaces."""
    learnt = float(getattr(model, "odds", 0.0))
    if learnt <= 0:
        raise EowError("an unknown rate replaces the prior odds of training, which this model does not know: eow.fit "
                       "it first, or pass the method that eow.fit returned")  # fmt: skip
    return learnt


@contextmanager
def as_sentence(cannot: Callable[[str], str]) -> Iterator[None]:
    """What somebody's forward raises inside the block, as a sentence about what the model cannot do, and why."""
    try:
        yield
    except (EowError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, AssertionError, ArithmeticError) as error:
        raise EowError(f"the model cannot {cannot(first_line(error))}") from error


def takes(x: Tensor) -> AbstractContextManager[None]:
    """The same about its inputs."""

    def cannot(why: str) -> str:
        ids = "" if x.is_floating_point() or x.is_cuda else f", whole numbers from {int(x.min())} to {int(x.max())},"
        remedy = "pass a batch as it wants it, x[None] for a single one"
        return f"take inputs of shape {tuple(x.shape)}{ids} ({why}): {remedy}"

    return as_sentence(cannot)


def check_rows(logits: Any, x: Tensor) -> None:
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise EowError(
            f"the model gives {shape} for inputs of shape {tuple(x.shape)}, and not one row of logits for each: pass a "
            "batch, x[None] for a single one"
        )


def asked(method: Method, x: Tensor, unknown_rate: float | None) -> Prediction:
    with takes(x):
        said = method.predict(x, unknown_rate)
    check_rows(said.probs, x)
    return said


def ask(model: SplitModel, x: Tensor, shift: float | None) -> Prediction:
    with frozen_statistics(model), torch.no_grad(), takes(x):
        logits = model(x)
    check_rows(logits, x)
    logits = logits.float()
    return open_prediction(logits) if shift is None else shifted_prediction(logits, shift)


def inputs(model: nn.Module, x: Any) -> Iterator[Tensor]:
    """Batches of `x` on the model's device and in its precision."""
    split = model.model if isinstance(model, Method) else model
    tensors = list(model.parameters())
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    x = x.to_numpy() if hasattr(x, "to_numpy") else x
    whole = isinstance(x, Tensor | np.ndarray | Number | np.generic) or depth(x) > 0
    for batch in [x] if whole else dataset_loader(x, BATCH, "input", training=False):
        rows = inputs_of(batch if whole else inputs_in(batch, "loader"), dtype, getattr(split, "integers", False))
        check_finite(rows)
        yield from (part.to(device) for part in rows.split(BATCH) if len(part))
