"""Calibration metrics: accuracy, reliability, expected calibration error, negative log-likelihood.

Pure functions of arrays, a float (or a small tuple of arrays) out. Tensors are taken as well, through their own
methods: nothing here imports torch. All sums are in float64.

K of K+1 probabilities do not sum to one, so calibration takes (confidence, correct) and never sees the probabilities;
where a renormalisation happens, the function's name says so.
"""

from typing import Any, NamedTuple

import numpy as np

from ..errors import EowError

SLACK = 1e-6  # float32 softmax outputs leave [0, 1] by rounding; anything further out is a mistake
SUM_SLACK = 1e-4  # the same for a row's sum, which collects K roundings
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


def as_array(values: Any, name: str, dimensions: int) -> np.ndarray:
    """`values` as a non-empty float64 array. A tensor is detached and brought to the CPU; the caller keeps its own."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
    try:
        array = np.asarray(values).astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise EowError(f"{name} is not an array of numbers ({error}).") from None
    if array.ndim != dimensions:
        expected = "one value per sample" if dimensions == 1 else "one row per sample and one column per class"
        raise EowError(f"{name} has shape {array.shape}: give {expected}.")
    if array.size == 0:
        raise EowError(f"{name} is empty: a metric needs at least one sample.")
    return array


def finite(array: np.ndarray, name: str) -> None:
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise EowError(f"{name} has {bad} values that are nan or infinite: find out where the model produced them.")


def as_integers(values: Any, name: str) -> np.ndarray:
    array = as_array(values, name, 1)
    finite(array, name)
    if np.any(array != np.floor(array)):
        raise EowError(f"{name} holds fractions: give class numbers.")
    return array.astype(np.int64)


def as_confidence(values: Any) -> np.ndarray:
    array = as_array(values, "confidence", 1)
    within_unit(array, "confidence")
    return np.clip(array, 0.0, 1.0)


def as_correct(values: Any) -> np.ndarray:
    array = as_array(values, "correct", 1)
    if np.any((array != 0) & (array != 1)):
        raise EowError("correct holds something other than True/False or 0/1: give label == labels.")
    return array


def as_probs(values: Any) -> np.ndarray:
    array = as_array(values, "probs", 2)
    within_unit(array, "probs")
    return array


def within_unit(array: np.ndarray, name: str) -> None:
    finite(array, name)
    low, high = float(array.min()), float(array.max())
    if low < -SLACK or high > 1 + SLACK:
        raise EowError(
            f"{name} ranges from {low:.6g} to {high:.6g}: give values in [0, 1] (no logits, no percentages)."
        )


def same_length(one: np.ndarray, other: np.ndarray, name: str, other_name: str) -> None:
    if len(one) != len(other):
        raise EowError(
            f"{name} has {len(one)} samples and {other_name} has {len(other)}: they must be the same samples."
        )


def of_labels(table: np.ndarray, labels: np.ndarray, name: str = "probs") -> np.ndarray:
    """The entry of each row of `table` that its label names."""
    same_length(table, labels, name, "labels")
    low, high, classes = int(labels.min()), int(labels.max()), table.shape[1]
    if low < 0 or high >= classes:
        raise EowError(
            f"labels range from {low} to {high}, but {name} has {classes} columns: labels are 0 to {classes - 1}."
        )
    return table[np.arange(len(labels)), labels]
