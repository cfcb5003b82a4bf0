"""Calibration: reliability, and the calibration error in its binned forms (smooth.py has the one without bins).

Pure functions of arrays or tensors, a float (or a small tuple of arrays) out. All sums are in float64, and a large
array is read in blocks. K of K+1 probabilities do not sum to one, so calibration takes (confidence, correct) and never
renormalises; `ece_classwise`, which has to see the probabilities, takes each class by itself.

Every error here is biased upwards on a finite sample: read it beside its null (nulls.py). Only the debiased one tries
to take the bias out.
"""

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.binning import BinSums, checked, sums_by_class, sums_by_mass, sums_by_width
from eow.metrics.checks import block_of, over_rows


class Reliability(NamedTuple):
    """One entry per bin. An empty bin has a count of 0 and nan for both means."""

    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability(confidence: Any, correct: Any, bins: int = 15) -> Reliability:
    """Counts, mean confidence and accuracy in `bins` bins of equal width.

    Bin i, counted from 1, is (lo, hi] = ((i-1)/bins, i/bins]; 0 belongs to the first bin, and 1 to the last. The edges
    are the float64 numbers nearest to i/bins, and a confidence is compared in float64 with the value it was given: the
    float64 number 0.2 is the edge 3/15 and falls in (2/15, 3/15], while float32(0.2) = 0.2000000030 lies above it and
    falls in the next bin. Confidences outside [0, 1] by at most 1e-6 are rounding and are moved to the nearer end.
    """
    sums = sums_by_width(confidence, correct, bins)
    with np.errstate(invalid="ignore"):
        return Reliability(sums.counts.astype(np.int64), sums.confidence / sums.counts, sums.correct / sums.counts)


def merge_reliability(parts: Iterable[Reliability]) -> Reliability:
    """The reliability of all samples from that of disjoint shards of them, all with the same bins."""
    shards = list(parts)
    if len({len(each.counts) for each in shards}) != 1:
        raise EowError("give at least one reliability, and give them all the same number of bins.")
    counts = np.sum([each.counts for each in shards], axis=0)
    with np.errstate(invalid="ignore"):
        confidence, right = (
            np.sum([np.where(each.counts > 0, each.counts * each[i], 0.0) for each in shards], axis=0) / counts
            for i in (1, 2)
        )
    return Reliability(counts, confidence, right)


def reliability_interval(bins: Reliability, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval for the accuracy of each bin: (low, high), nan where the bin is empty."""
    return wilson(bins.accuracy, bins.counts, level)


def wilson(rate: np.ndarray, counts: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) for the probability of what happened at this rate in so many independent samples: all p from which
    the rate lies at most z standard errors sqrt(p(1-p)/counts) away. nan where there was no sample."""
    if not 0 < level < 1:
        raise EowError(f"level is {level!r}: give a probability between 0 and 1, such as 0.95.")
    z = NormalDist().inv_cdf((1 + level) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        widening = 1 + z * z / counts
        centre = (rate + z * z / (2 * counts)) / widening
        half = z * np.sqrt(rate * (1 - rate) / counts + (z / (2 * counts)) ** 2) / widening
    # A rate of 0 or 1 is an end of its own interval, which rounding would miss.
    return np.clip(centre - half, 0.0, rate), np.clip(centre + half, rate, 1.0)


def ece(confidence: Any, correct: Any, bins: int = 15, *, paper_compat: bool = False) -> float:
    """Expected calibration error: the sum over bins of count/N · |accuracy - mean confidence|, a fraction in [0, 1].

    Bins as in `reliability`. `paper_compat` counts as the paper's released code does: bins are [lo, hi), which leaves
    confidence 1.0 in none of them, and such samples are dropped from the errors and from N. If all are dropped it is 0.
    The ECE of a model that is overconfident in every bin is mean confidence less accuracy, at most its error rate. The
    paper's for MNIST is higher than that: dropped samples would explain it, and so would an underconfident model.
    """
    if paper_compat:
        return _ece_of_the_release(confidence, correct, bins)
    return float(mean_gap(sums_by_width(confidence, correct, bins)))


def ece_equal_mass(confidence: Any, correct: Any, bins: int = 15) -> float:
    """ECE with bins of equal mass: the sorted confidences, cut into `bins` pieces whose sizes differ by at most one.

    Where a cut falls among equal confidences, each side gets its share of their correctness: the value is the same, to
    the last bit, for every order of the samples. With fewer samples than bins every sample is a bin of its own (and
    equal confidences still share).
    """
    return float(mean_gap(sums_by_mass(confidence, correct, bins)))


def ece_classwise(probs: Any, labels: Any, bins: int = 15) -> float:
    """Classwise ECE (Kull et al. 2019): for each class k the ECE of the confidence p_k in y = k, averaged over classes.

    That is mean_k Σ_bins |Σ (1[y = k] - p_k)| / N, bins as in `reliability`. Nothing is renormalised: with K of K+1
    probabilities, mass put on "unknown" is missing from the classes and counts as underconfidence.
    """
    return float(np.mean(mean_gap(sums_by_class(probs, labels, bins))))


def mce(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Maximum calibration error: the largest |accuracy - mean confidence| of the bins that have samples."""
    return float(largest_gap(sums_by_width(confidence, correct, bins)))


def ece_l2_debiased(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Root of the debiased squared calibration error of Kumar, Liang and Ma (2019), bins as in `reliability`.

    A bin's (accuracy - mean confidence)² exceeds its expectation by the variance of the accuracy; the estimate
    accuracy·(1 - accuracy)/(count - 1) of it is subtracted. A bin of one sample has no such estimate and contributes 0.
    The sum, weighted by count/N, estimates a square and can be negative all the same: then the error is 0.
    """
    return float(debiased_gap(sums_by_width(confidence, correct, bins)))


def mean_gap(sums: BinSums) -> np.ndarray:
    """Σ_bins |Σ (correct - confidence)| / N, over the last axis."""
    return np.abs(sums.correct - sums.confidence).sum(-1) / sums.counts.sum(-1)


def largest_gap(sums: BinSums) -> np.ndarray:
    return (np.abs(sums.correct - sums.confidence) / np.maximum(sums.counts, 1)).max(-1)


def debiased_gap(sums: BinSums) -> np.ndarray:
    several = np.maximum(sums.counts, 2)  # where there are fewer, the result is masked
    rate = sums.correct / several
    squares = ((sums.correct - sums.confidence) / several) ** 2 - rate * (1 - rate) / (several - 1)
    total = np.where(sums.counts > 1, sums.counts * squares, 0.0).sum(-1) / sums.counts.sum(-1)
    return np.sqrt(np.maximum(total, 0.0))


def _ece_of_the_release(confidence: Any, correct: Any, bins: int) -> float:
    sure, right = checked(confidence, correct, bins)
    inner_edges = np.arange(1, bins) / bins

    def of_block(block: np.ndarray, rows: slice) -> np.ndarray:
        kept = block < 1
        where = np.searchsorted(inner_edges, block[kept], side="right")
        gaps = (block_of(right, rows) - block.clip(0.0))[kept]
        return np.stack([np.bincount(where, minlength=bins), np.bincount(where, weights=gaps, minlength=bins)])

    counts, gaps = np.sum(list(over_rows(of_block, sure)), axis=0)
    return float(np.abs(gaps).sum() / max(counts.sum(), 1))
