"""Sums over bins of confidence: all that a binned calibration error, its null and Brier's parts need of the samples.

The sums of two sets of samples add up to the sums of their union, and they are small: this is where a million
predictions become fifteen numbers.
"""

from typing import Any, NamedTuple

import numpy as np

from eow.metrics.checks import (
    NOTHING,
    as_probs,
    as_table,
    block_of,
    labels_of,
    over_rows,
    same_length,
    whole_number,
    within_unit,
    zero_or_one,
)


class BinSums(NamedTuple):
    """One entry per bin, in float64. The last axis is the bins; rows before it are several classes, or several draws.

    `variance` is Σ confidence·(1 - confidence): the variance of Σ correct if every confidence were true.
    """

    counts: np.ndarray
    confidence: np.ndarray
    correct: np.ndarray
    variance: np.ndarray
    products: np.ndarray  # Σ confidence·correct


def bin_numbers(values: np.ndarray, bins: int) -> np.ndarray:
    """The bin of each value in [0, 1], from 0: bin i is (i/bins, (i+1)/bins], and 0 is in the first.

    Equal to a search among the float64 edges, in a third of its time: multiplying finds the bin up to a rounding, and
    the two comparisons with its edges take that back.
    """
    upper = np.ceil(values * bins)
    upper += values > upper / bins
    upper -= values <= (upper - 1) / bins
    return np.maximum(upper - 1, 0).astype(np.intp)


def checked(confidence: Any, correct: Any, bins: int) -> tuple[Any, Any]:
    """Both in their own type, found fit for counting. With NOTHING for `correct`, no sample is."""
    whole_number(bins, "bins", "the paper uses 15")
    sure = as_table(confidence, "confidence", 1)
    right = np.broadcast_to(False, len(sure)) if correct is NOTHING else as_table(correct, "correct", 1)
    same_length(sure, right, "confidence", "correct")
    within_unit(sure, "confidence")
    zero_or_one(right)
    return sure, right


def sums_by_width(confidence: Any, correct: Any, bins: int) -> BinSums:
    """Sums over bins of equal width, (lo, hi]. Confidences outside [0, 1] by rounding count as the nearer end."""
    sure, right = checked(confidence, correct, bins)

    def of_block(block: np.ndarray, rows: slice) -> np.ndarray:
        share, hit = np.clip(block, 0.0, 1.0), block_of(right, rows)
        where = bin_numbers(share, bins)
        weights = (None, share, hit, share * (1 - share), share * hit)
        return np.stack([np.bincount(where, weights=each, minlength=bins) for each in weights])

    return BinSums(*np.sum(list(over_rows(of_block, sure)), axis=0))


def sums_by_mass(confidence: Any, correct: Any, bins: int) -> BinSums:
    """Sums over bins of equal mass: the sorted confidences cut into `bins` pieces whose sizes differ by at most one.

    Samples of equal confidence have no order among themselves, so where a cut falls between them each side gets its
    share of their correctness, in proportion: the result does not depend on the order of the samples. With fewer
    samples than bins, every sample is a bin.
    """
    sure, right = checked(confidence, correct, bins)
    # A confidence's bits order as the number does, and leave room for one more: a plain sort carries both along.
    share = np.empty(len(sure))
    keys = share.view(np.uint64)  # the same memory

    def fill(block: np.ndarray, rows: slice) -> None:
        share[rows] = np.clip(block, 0.0, 1.0) + 0.0  # -0.0 becomes 0.0, whose bits are zero
        keys[rows] = keys[rows] << np.uint64(1) | block_of(right, rows).astype(np.uint64)

    for _ in over_rows(fill, sure):
        pass
    keys.sort()
    hits = keys & np.uint64(1)
    np.cumsum(hits, out=hits)
    keys >>= np.uint64(1)

    size = len(share)
    bins = min(bins, size)
    cuts = np.r_[0, np.cumsum([size // bins + (i < size % bins) for i in range(bins)])]  # as np.array_split cuts
    values = share[np.minimum(cuts, size - 1)]
    first, last = np.searchsorted(share, values, side="left"), np.searchsorted(share, values, side="right")
    equals = last - first  # at every cut: how many samples have the confidence of the first sample behind it
    until_first, until_last = (np.where(at > 0, hits[at - 1], 0).astype(np.float64) for at in (first, last))
    below = until_first + (cuts - first) / equals * (until_last - until_first)

    # Of n equals a bin that gets m has m/n of their sum: its variance is m²/n and not m times that of one of them.
    start, end = cuts[:-1], cuts[1:]
    leading = np.minimum(last[:-1], end) - start
    trailing = np.where(first[1:] > start, end - first[1:], 0)  # 0 where the bin's equals are all one group
    single = values * (1 - values)
    shared = leading * (1 - leading / equals[:-1]) * single[:-1] + trailing * (1 - trailing / equals[1:]) * single[1:]

    totals = np.add.reduceat(share, start)
    share *= share
    variance = np.maximum(totals - np.add.reduceat(share, start) - shared, 0.0)
    nothing = np.full(bins, np.nan)  # a shared correctness has no products
    return BinSums(np.diff(cuts).astype(np.float64), totals, np.diff(below), variance, nothing)


def sums_by_class(probs: Any, labels: Any, bins: int) -> BinSums:
    """For each class k, (K, bins): its probability p_k as the confidence, and y = k as correct."""
    whole_number(bins, "bins", "the paper uses 15")
    table = as_probs(probs)
    true = None if labels is NOTHING else labels_of(table, labels)
    classes, size = table.shape[1], table.shape[1] * bins

    def of_block(block: np.ndarray, rows: slice) -> np.ndarray:
        # Most entries lie in the first bin. Only the others are placed; the first has what is left of the column.
        above = np.flatnonzero(block > 1 / bins)
        few = np.minimum(block.ravel()[above], 1.0)
        cells = above % classes * bins + bin_numbers(few, bins)
        total = block.sum(0)
        columns = (len(block), total, total - np.einsum("nk,nk->k", block, block))
        sums = np.zeros((5, classes, bins))
        for i, weight, column in zip((0, 1, 3), (None, few, few * (1 - few)), columns):
            sums[i] = np.bincount(cells, weight, size).reshape(classes, bins)
            sums[i, :, 0] = np.maximum(column - sums[i, :, 1:].sum(1), 0.0)
        if true is not None:
            label = true[rows]
            of_label = np.clip(block[np.arange(len(label)), label], 0.0, 1.0)
            cells = label * bins + bin_numbers(of_label, bins)
            for i, weight in ((2, None), (4, of_label)):
                sums[i] = np.bincount(cells, weight, size).reshape(classes, bins)
        return sums

    totals = np.zeros((5, classes, bins))
    for sums in over_rows(of_block, table):
        totals += sums
    return BinSums(*totals)
