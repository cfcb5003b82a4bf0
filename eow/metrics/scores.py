"""Accuracy and the proper scores: negative log-likelihood and Brier.

K of K+1 probabilities may sum to less than one: the rest is the probability of "unknown", which is never the true
label. The raw scores charge for it, and where a renormalisation happens the function's name says so.
"""

from typing import Any, NamedTuple

import numpy as np

from eow.metrics.binning import BinSums, sums_by_width
from eow.metrics.checks import (
    as_integers,
    as_probs,
    as_table,
    finite,
    labels_of,
    over_rows,
    row_sums,
    same_length,
    sums_within_one,
)

FLOOR = float(np.finfo(np.float32).tiny)  # 1.2e-38: the smallest normal float32, in which predictions are stored


class BrierParts(NamedTuple):
    """score = reliability - resolution + uncertainty + within_variance - within_covariance."""

    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float
    score: float


def accuracy(label: Any, labels: Any) -> float:
    """The fraction of predictions `label` that equal the true `labels`. A prediction of -1 ("unknown") is wrong."""
    predicted, true = as_integers(label, "label"), as_integers(labels, "labels")
    same_length(predicted, true, "label", "labels")
    return float(np.mean(predicted == true))


def nll(probs: Any, labels: Any) -> float:
    """Raw negative log-likelihood, -mean log probs[true], in nats.

    `probs` is (N, K); a row may sum to less than 1: the rest is the probability of "unknown", which is never the true
    label. A probability under 1.2e-38 (float32's smallest normal number), 0 above all, counts as that number: a sample
    costs at most 87.3 nats and the mean stays finite.
    """
    table = as_probs(probs)
    true = labels_of(table, labels)

    def of_block(block: np.ndarray, rows: slice) -> tuple[float, float]:
        return float(row_sums(block).max()), float(np.log(np.clip(_of_labels(block, true[rows]), FLOOR, 1.0)).sum())

    highest, logs = zip(*over_rows(of_block, table))
    sums_within_one(max(highest), table, "nll_renormalised")
    return 0.0 - sum(logs) / len(true)


def nll_renormalised(probs: Any, labels: Any) -> float:
    """Negative log-likelihood over the K classes alone: every row of `probs` is divided by its sum first.

    Entries are floored at 1.2e-38 before the division, so a row of zeros says "no preference" and costs log K.
    """
    table = as_probs(probs)
    true = labels_of(table, labels)

    def of_block(block: np.ndarray, rows: slice) -> float:
        likelihood = np.maximum(block, FLOOR)
        return float((np.log(row_sums(likelihood)) - np.log(_of_labels(likelihood, true[rows]))).sum())

    return sum(over_rows(of_block, table)) / len(true)


def nll_from_logits(logits: Any, labels: Any) -> float:
    """Negative log-likelihood of softmax(logits), without the underflow of probabilities: no floor is needed.

    With the K+1 logits of EOW it equals `nll`, with the first K of them `nll_renormalised`.
    """
    table = as_table(logits, "logits")
    finite(table, "logits")
    true = labels_of(table, labels, "logits")

    def of_block(block: np.ndarray, rows: slice) -> float:
        above = block - block.max(1, keepdims=True)
        own = _of_labels(above, true[rows])
        return float((np.log(row_sums(np.exp(above, out=above))) - own).sum())

    return sum(over_rows(of_block, table)) / len(true)


def brier(probs: Any, labels: Any) -> float:
    """Brier score: the mean over samples of Σ_k (p_k - 1[y = k])² + unknown², between 0 and 2.

    "Unknown" is the outcome K+1 that never happens: its probability 1 - Σ_k p_k is a residual like the others. Where
    the K probabilities sum to one this is the usual multi-class Brier score (for two classes twice the binary one).
    """
    table = as_probs(probs)
    true = labels_of(table, labels)

    def of_block(block: np.ndarray, rows: slice) -> tuple[float, float]:
        total, own = row_sums(block), _of_labels(block, true[rows])
        squares = np.einsum("nk,nk->n", block, block) + (1 - own) ** 2 - own**2 + np.maximum(1 - total, 0.0) ** 2
        return float(total.max()), float(squares.sum())

    highest, squares = zip(*over_rows(of_block, table))
    sums_within_one(max(highest), table, "a softmax")
    return sum(squares) / len(true)


def brier_parts(confidence: Any, correct: Any, bins: int = 15) -> BrierParts:
    """The parts of the Brier score mean (confidence - correct)² (Murphy 1973), in the bins of `reliability`.

    Reliability is the mean squared gap between a bin's accuracy and its mean confidence (0 is calibrated), resolution
    the variance of accuracy between bins (high is good), uncertainty accuracy·(1 - accuracy). These three make up the
    score of confidences rounded to their bins' means; the variance of confidence within bins, and twice its covariance
    with correct, make the sum exact (Stephenson, Coelho and Jolliffe 2008).
    """
    return parts_of(sums_by_width(confidence, correct, bins))


def parts_of(sums: BinSums) -> BrierParts:
    size, filled = sums.counts.sum(), np.maximum(sums.counts, 1)
    sure, right, rate = sums.confidence / filled, sums.correct / filled, sums.correct.sum() / size
    weight, squares = sums.counts / size, sums.confidence - sums.variance  # p² = p - p(1 - p)
    return BrierParts(
        reliability=float((weight * (sure - right) ** 2).sum()),
        resolution=float((weight * (right - rate) ** 2).sum()),
        uncertainty=float(rate * (1 - rate)),
        within_variance=float((squares - sums.counts * sure**2).sum() / size),
        within_covariance=float(2 * (sums.products - sums.counts * sure * right).sum() / size),
        score=float((squares - 2 * sums.products + sums.correct).sum() / size),
    )


def _of_labels(block: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The entry of each row that its label names."""
    return block[np.arange(len(labels)), labels]
