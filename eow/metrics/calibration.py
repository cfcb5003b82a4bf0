"""Calibration metrics: accuracy, reliability, expected calibration error, negative log-likelihood.

Pure functions of arrays, a float (or a small tuple of arrays) out. Tensors are taken as well, through their own
methods: nothing here imports torch. All sums are in float64.

K of K+1 probabilities do not sum to one, so calibration takes (confidence, correct) and never sees the probabilities;
where a renormalisation happens, the function's name says so.
"""

from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.checks import (
    as_array,
    as_confidence,
    as_correct,
    as_integers,
    as_probs,
    finite,
    of_labels,
    same_length,
)

SUM_SLACK = 1e-4  # float32 softmax outputs leave 1 by rounding; a row's sum collects K of them
FLOOR = float(np.finfo(np.float32).tiny)  # 1.2e-38: the smallest normal float32, in which predictions are stored


class Reliability(NamedTuple):
    """One entry per bin. An empty bin has a count of 0 and nan for both means."""

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def accuracy(label: Any, labels: Any) -> float:
    """The fraction of predictions `label` that equal the true `labels`. A prediction of -1 ("unknown") is wrong."""
    predicted, true = as_integers(label, "label"), as_integers(labels, "labels")
    same_length(predicted, true, "label", "labels")
    return float(np.mean(predicted == true))


def reliability(confidence: Any, correct: Any, bins: int = 15) -> Reliability:
    """Counts, mean confidence and accuracy in `bins` bins of equal width.

    Bin i, counted from 1, is (lo, hi] = ((i-1)/bins, i/bins]; 0 belongs to the first bin, and 1 to the last. The edges
    are the float64 numbers nearest to i/bins, and a confidence is compared in float64 with the value it was given: the
    float64 number 0.2 is the edge 3/15 and falls in (2/15, 3/15], while float32(0.2) = 0.2000000030 lies above it and
    falls in the next bin. Confidences outside [0, 1] by at most 1e-6 are rounding and are moved to the nearer end.
    """
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise EowError(f"bins is {bins!r}: give a whole number of at least 1 (the paper uses 15).")
    sure, right = as_confidence(confidence), as_correct(correct)
    same_length(sure, right, "confidence", "correct")
    inner_edges = np.arange(1, bins) / bins  # a division is correctly rounded; linspace's multiples of 1/bins are not
    where = np.searchsorted(inner_edges, sure, side="left")
    counts = np.bincount(where, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(where, weights=sure, minlength=bins) / counts
        mean_correct = np.bincount(where, weights=right, minlength=bins) / counts
    return Reliability(counts, mean_confidence, mean_correct)


def ece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Expected calibration error: the sum over bins of count/N · |accuracy - mean confidence|, a fraction in [0, 1].

    Bins as in `reliability`. The estimate is biased upwards: a perfectly calibrated model scores above 0 on a finite
    sample.
    """
    counts, mean_confidence, mean_correct = reliability(confidence, correct, bins)
    gap = np.where(counts > 0, np.abs(mean_correct - mean_confidence), 0.0)
    return float(np.sum(counts * gap) / counts.sum())


def nll(probs: Any, labels: Any) -> float:
    """Raw negative log-likelihood, -mean log probs[true], in nats.

    `probs` is (N, K); a row may sum to less than 1: the rest is the probability of "unknown", which is never the true
    label. A probability under 1.2e-38 (float32's smallest normal number), 0 above all, counts as that number: a sample
    costs at most 87.3 nats and the mean stays finite.
    """
    likelihood, true = as_probs(probs), as_integers(labels, "labels")
    worst = float(likelihood.sum(1).max())
    if worst > 1 + SUM_SLACK:
        raise EowError(f"probs has a row that sums to {worst:.6g}: give probabilities, or use nll_renormalised.")
    return float(-np.mean(np.log(np.maximum(of_labels(likelihood, true), FLOOR))))


def nll_renormalised(probs: Any, labels: Any) -> float:
    """Negative log-likelihood over the K classes alone: every row of `probs` is divided by its sum first.

    Entries are floored at 1.2e-38 before the division, so a row of zeros says "no preference" and costs log K.
    """
    likelihood, true = np.maximum(as_probs(probs), FLOOR), as_integers(labels, "labels")
    return float(-np.mean(np.log(of_labels(likelihood, true)) - np.log(likelihood.sum(1))))


def nll_from_logits(logits: Any, labels: Any) -> float:
    """Negative log-likelihood of softmax(logits), without the underflow of probabilities: no floor is needed.

    With the K+1 logits of EOW it equals `nll`, with the first K of them `nll_renormalised`.
    """
    scores, true = as_array(logits, "logits", 2), as_integers(labels, "labels")
    finite(scores, "logits")
    top = scores.max(1)
    log_total = top + np.log(np.exp(scores - top[:, None]).sum(1))
    return float(np.mean(log_total - of_labels(scores, true, "logits")))
