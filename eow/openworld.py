"""What is done with answers after the network has spoken, without torch: the arithmetic of the K+1 softmax on stored
logits, for another expected share of unknowns."""

import math
from typing import Any

import numpy as np

from eow.errors import EowError
from eow.typed import as_python, convert

LEAST_ODDS, MOST_ODDS = 1e-30, 1e30  # of unknown, that a file may name: beyond, float32 says nothing else any more


def prior_shift(unknown_rate: float, lam: float) -> float:
    """What to add to the unknown logit so that predictions expect a share `unknown_rate` of unknowns.

    Training with weight λ on the negatives makes λ the prior odds of "unknown"; adding log(ρ/(1-ρ)) - log λ replaces
    them by ρ : 1-ρ. A rate of 0 gives minus infinity: the K classes renormalised.
    """
    if not 0 <= unknown_rate < 1:
        raise EowError(f"an unknown rate of {unknown_rate} is not a share: give a number from 0 to below 1")
    if unknown_rate == 0:
        return -math.inf
    return math.log(unknown_rate / (1 - unknown_rate)) - math.log(lam)


def checked_policy(unknown_rate: Any, threshold: Any) -> tuple[float | None, float | None]:
    """An unknown rate and a threshold as numbers, where they are given."""
    rate, lowest = (
        None if each is None else convert(as_python(each), float, name)
        for name, each in (("unknown_rate", unknown_rate), ("threshold", threshold))
    )
    if lowest is not None and not 0 <= lowest <= 1:
        raise EowError(f"a threshold of {lowest} is not a confidence: give a number from 0 to 1")
    return rate, lowest


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise, in float64. A logit of minus infinity has probability 0."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def shifted_probabilities(logits: np.ndarray, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """probs (N, K) and unknown (N,) of K+1 logits after `shift` is added to the last."""
    logits = logits.astype(np.float64)
    logits[:, -1] += shift
    h = softmax(logits)
    return h[:, :-1], h[:, -1]
