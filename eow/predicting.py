"""`eow.predict`: what a model says about inputs, with -1 where it does not know."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from eow.batches import check_finite, dataset_loader, inputs_in, inputs_of
from eow.errors import EowError
from eow.methods.base import Method, Prediction, label_or_unknown, open_prediction, shifted_prediction
from eow.models import SplitModel, frozen_statistics
from eow.openworld import prior_shift

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
    array, or a loader or torch Dataset of inputs or (inputs, labels). `unknown_rate` is the share of unknowns to
    expect, in place of what training ended with. With a `threshold` the label is -1 where the confidence is below
    it; without one, where "unknown" is the most probable of the K+1 answers. The results lie where a tensor `x` lies,
    else on the CPU.
    """
    if not isinstance(model, SplitModel | Method):
        raise EowError(
            f"the model is a {type(model).__name__}: pass what eow.upgrade or eow.fit returned, or an eow.SplitModel"
        )
    if threshold is not None and not 0 <= threshold <= 1:
        raise EowError(f"a threshold of {threshold} is no confidence: give a number from 0 to 1")
    shift = None if unknown_rate is None or isinstance(model, Method) else prior_shift(unknown_rate, odds(model))
    device = x.device if isinstance(x, Tensor) else torch.device("cpu")
    parts = []
    for batch in inputs(model, x):
        said = model.predict(batch, unknown_rate) if isinstance(model, Method) else ask(model, batch, shift)
        parts.append([label_or_unknown(said, threshold), said.confidence, said.unknown, said.probs])
    if not parts:
        raise EowError("there is nothing to predict: pass at least one input")
    return Answer(*(torch.cat(column).to(device) for column in zip(*parts)))


def odds(model: SplitModel) -> float:
    """The prior odds of unknown that the model has learnt, which is what an unknown rate replaces."""
    learnt = float(getattr(model, "odds", 0.0))
    if learnt <= 0:
        raise EowError("an unknown rate replaces the prior odds of training, which this model does not know: eow.fit "
                       "it first, or pass the method that eow.fit returned")  # fmt: skip
    return learnt


def ask(model: SplitModel, x: Tensor, shift: float | None) -> Prediction:
    with frozen_statistics(model), torch.no_grad():
        try:
            logits = model(x).float()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise EowError(
                f"the model cannot take inputs of shape {tuple(x.shape)} ({str(error).splitlines()[0]}): pass a batch, "
                "x[None] for a single one"
            ) from error
    return open_prediction(logits) if shift is None else shifted_prediction(logits, shift)


def inputs(model: nn.Module, x: Any) -> Iterator[Tensor]:
    """Batches of `x` on the model's device and in its precision."""
    split = model.model if isinstance(model, Method) else model
    tensors = list(model.parameters())
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
    whole = isinstance(x, Tensor | np.ndarray)
    for batch in [x] if whole else dataset_loader(x, BATCH, "input", training=False):
        rows = inputs_of(batch if whole else inputs_in(batch, "loader"), dtype, getattr(split, "integers", False))
        check_finite(rows)
        yield from (part.to(device) for part in rows.split(BATCH) if len(part))
