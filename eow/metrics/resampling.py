"""The bootstrap's engine: what metrics would have been on other draws of the samples, for many runs under the same
draws.

Accuracy, NLL and any other mean, and ECE's bins, are sums over samples: a round is a row of counts (how often was each
sample drawn), and all runs share it. No matrix product sums them: its threads wait for each other where the cores are
busy, and took sixteen times as long. AUROC is a sum over ranks. Any other metric is a callable, evaluated round by
round; for the named ones that is the slow twin which the tests hold the fast way against.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.binning import bin_numbers
from eow.metrics.checks import as_array, as_confidence, as_correct, finite, same_length, whole_number

BLOCK = 12_000  # sample draws held at a time: arrays below 128 KB, which malloc keeps, and larger ones are fetched anew
BINS = 15


class Named(NamedTuple):
    """What a metric is computed from, and the range that its values cannot leave."""

    arrays: tuple[str, ...]
    low: float
    high: float


METRICS = {
    "accuracy": Named(("correct",), 0.0, 1.0),
    "nll": Named(("losses",), 0.0, np.inf),  # -log of the true class's probability, one per sample
    "mean": Named(("values",), -np.inf, np.inf),
    "ece": Named(("confidence", "correct"), 0.0, 1.0),  # 15 bins of equal width, as in `ece`
    "auroc": Named(("known", "unknown"), 0.0, 1.0),  # known and unknown samples are drawn apart
}


def replicates(
    metric: str | Callable[..., float], runs: Sequence[tuple[Any, ...]], rounds: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The metric of each run, and of each run under `rounds` resamplings: (runs,) and (rounds, runs).

    A run is the tuple of arrays that the metric takes. All runs hold the same samples in the same order and are
    resampled alike, with replacement and to their own size.
    """
    check_call(metric, runs, rounds)
    if callable(metric):
        return of_callable(metric, runs, rounds, seed)
    if metric == "auroc":
        return of_ranks(runs, rounds, seed)
    return of_bins(runs, rounds, seed) if metric == "ece" else of_means(metric, runs, rounds, seed)


def check_call(metric: str | Callable[..., float], runs: Sequence[tuple[Any, ...]], rounds: int) -> None:
    whole_number(rounds, "rounds", "1000 is usual")
    if callable(metric):
        return
    if metric not in METRICS:
        raise EowError(f"there is no metric {metric!r} to resample: give a function, or one of {', '.join(METRICS)}.")
    names = METRICS[metric].arrays
    for run in runs:
        if len(run) != len(names):
            raise EowError(f"{metric} is computed from {' and '.join(names)}: {len(run)} arrays were given.")


def of_means(metric: str, runs: Sequence[tuple[Any, ...]], rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    values = [per_sample(metric, *run) for run in runs]
    count, table = same_samples(values), np.stack(values)

    def sums(drawn: np.ndarray) -> np.ndarray:
        if len(runs) == 1:  # counting pays for several
            return table[0].take(drawn).sum(1)[:, None]
        return np.einsum("rn,kn->rk", times_drawn(drawn, count).astype(np.float64), table)

    parts = [sums(drawn) / count for drawn in draws(count, rounds, (seed, 0), BLOCK // count)]
    return table.sum(1) / count, np.concatenate(parts)


def of_bins(runs: Sequence[tuple[Any, ...]], rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    binned = [bin_gaps(*run) for run in runs]
    count = same_samples([each.gaps for each in binned])

    def errors(counts: np.ndarray) -> np.ndarray:
        sums = [np.add.reduceat(counts.take(each.order, 1) * each.gaps, each.starts, axis=1) for each in binned]
        return np.stack([np.abs(of_run).sum(1) for of_run in sums], 1) / count

    parts = [
        errors(times_drawn(drawn, count).astype(np.float64))
        for drawn in draws(count, rounds, (seed, 0), BLOCK // count)
    ]
    return errors(np.ones((1, count)))[0], np.concatenate(parts)


def per_sample(metric: str, values: Any) -> np.ndarray:
    column = as_correct(values) if metric == "accuracy" else as_array(values, METRICS[metric].arrays[0], 1)
    finite(column, METRICS[metric].arrays[0])
    if column.min() < METRICS[metric].low:
        raise EowError("losses has negative values: give -log of the true class's probability of each sample.")
    return column


class Gaps(NamedTuple):
    """correct - confidence, bin after bin: ECE is the sum over bins of |their sum|, over N."""

    order: np.ndarray  # the samples, sorted by bin
    gaps: np.ndarray  # theirs, in that order
    starts: np.ndarray  # of the bins that have any


def bin_gaps(confidence: Any, correct: Any) -> Gaps:
    sure, right = as_confidence(confidence), as_correct(correct)
    same_length(sure, right, "confidence", "correct")
    numbers = bin_numbers(sure, BINS)
    order = np.argsort(numbers, kind="stable")
    return Gaps(order, (right - sure)[order], np.flatnonzero(np.diff(numbers[order], prepend=-1)))


def of_ranks(runs: Sequence[tuple[Any, ...]], rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    known = [as_array(run[0], "known", 1) for run in runs]
    unknown = [as_array(run[1], "unknown", 1) for run in runs]
    counts = same_samples(known), same_samples(unknown)
    levels = []  # of each run: how many distinct scores, and which of them each known and unknown sample has
    for high, low in zip(known, unknown):
        finite(high, "known")
        finite(low, "unknown")
        distinct, level = np.unique(np.concatenate([high, low]), return_inverse=True)
        levels.append((len(distinct), level[: counts[0]], level[counts[0] :]))

    def areas(known_drawn: np.ndarray, unknown_drawn: np.ndarray) -> np.ndarray:
        found = []
        for size, known_level, unknown_level in levels:
            of_known = times_drawn(known_level[known_drawn], size)
            of_unknown = times_drawn(unknown_level[unknown_drawn], size)
            beaten_twice = 2 * np.cumsum(of_unknown, axis=1) - of_unknown  # a tie counts half, in whole numbers
            found.append(np.einsum("rs,rs->r", of_known, beaten_twice) / (2 * counts[0] * counts[1]))
        return np.stack(found, 1)

    block = BLOCK // sum(counts)
    pairs = zip(*(draws(count, rounds, (seed, stream), block) for stream, count in enumerate(counts)))
    as_given = areas(*(np.arange(count)[None] for count in counts))
    return as_given[0], np.concatenate([areas(*pair) for pair in pairs])


def of_callable(
    metric: Callable[..., float], runs: Sequence[tuple[Any, ...]], rounds: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    arrays = [[as_numpy(values) for values in run] for run in runs]
    count = same_samples([values for run in arrays for values in run])
    as_given = np.array([metric(*run) for run in arrays], dtype=np.float64)
    parts = [
        [metric(*(values[chosen] for values in run)) for run in arrays]
        for drawn in draws(count, rounds, (seed, 0), BLOCK // count)
        for chosen in drawn
    ]
    return as_given, np.array(parts, dtype=np.float64)


def as_numpy(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
    return np.asarray(values)


def same_samples(arrays: Sequence[np.ndarray]) -> int:
    counts = {len(array) for array in arrays}
    if len(counts) != 1:
        raise EowError(f"arrays of {sorted(counts)} samples are to be compared: they must be the same samples.")
    if 0 in counts:
        raise EowError("the arrays are empty: the bootstrap needs at least one sample.")
    return counts.pop()


def draws(count: int, rounds: int, key: tuple[int, int], block: int) -> Iterator[np.ndarray]:
    """Indices of `rounds` resamplings of `count` samples, at most `block` (and at least one) at a time. The key alone
    decides them, not the block."""
    generator = np.random.default_rng(key)
    block = max(1, block)
    for first in range(0, rounds, block):
        yield generator.integers(count, size=(min(block, rounds - first), count))


def times_drawn(chosen: np.ndarray, size: int) -> np.ndarray:
    """How often each of 0 to size-1 occurs in each row."""
    cells = chosen + size * np.arange(len(chosen))[:, None]
    return np.bincount(cells.ravel(), minlength=size * len(chosen)).reshape(len(chosen), size)
