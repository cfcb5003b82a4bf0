"""The null of each calibration error: what a perfectly calibrated model with these confidences would measure.

Calibration errors are biased upwards: |accuracy - confidence| is not 0 in a bin of n samples but about sqrt(p(1-p)/n).
With 10,000 samples and 15 bins a perfect model of 74 % accuracy scores an ECE of 1.04 ± 0.23 points. So an error means
nothing without its null beside it: the same error when every sample is correct with exactly the probability that its
confidence says.

`null_of` is the definition: draw, measure, repeat. The others are the same numbers from sums over bins, in
milliseconds: the number of correct samples in a bin is taken as binomial at the bin's mean confidence, its spread
shrunk to the true Σ p(1-p). That is exact where a bin's confidences are equal (and in a bin of one sample).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.binning import BinSums, sums_by_class, sums_by_mass, sums_by_width
from eow.metrics.calibration import debiased_gap, largest_gap
from eow.metrics.checks import NOTHING, as_confidence, whole_number
from eow.metrics.smooth import CELLS, smooth_gap


class Null(NamedTuple):
    """Mean and standard deviation of the error of a perfectly calibrated model, over the chance in the labels."""

    mean: float
    std: float


def null_of(
    metric: Callable[[np.ndarray, np.ndarray], float], confidence: Any, *, draws: int = 200, seed: int = 0
) -> Null:
    """The null of any metric(confidence, correct), by simulation: `draws` times, correct is drawn from confidence."""
    draw = np.random.default_rng(seed)
    sure = as_confidence(confidence)
    return _of_draws(np.array([metric(sure, draw.random(len(sure)) < sure) for _ in range(_several(draws))]))


def null_ece(confidence: Any, bins: int = 15) -> Null:
    """The null of `ece`, in closed form: E|X| of each bin's X = Σ (correct - confidence), which for many samples is
    sqrt(2/π · Σ p(1-p))."""
    return closed_form(sums_by_width(confidence, NOTHING, bins))


def null_ece_equal_mass(confidence: Any, bins: int = 15) -> Null:
    """The null of `ece_equal_mass`, in closed form. The std takes the bins as independent, which those that share
    equal confidences are not: with few different confidences it is too small. The mean is rough where fewer than a
    hundred samples tie: it may be a third of what it should be (all equally sure, nearly 0 or 1), and a third more
    (seven pairs at about 1/2: .353 for .258)."""
    return closed_form(sums_by_mass(confidence, NOTHING, bins))


def null_ece_classwise(probs: Any, bins: int = 15) -> Null:
    """The null of `ece_classwise`, in closed form: y = k with probability p_k.

    The std takes the classes as independent, which they nearly are if there are many; with two, which are mirror
    images, it is too small by sqrt(2).
    """
    return closed_form(sums_by_class(probs, NOTHING, bins))


def null_mce(confidence: Any, bins: int = 15, *, draws: int = 1000, seed: int = 0) -> Null:
    """The null of `mce`, from draws of the bins' sums."""
    return simulated(largest_gap, sums_by_width(confidence, NOTHING, bins), draws, seed)


def null_ece_l2_debiased(confidence: Any, bins: int = 15, *, draws: int = 1000, seed: int = 0) -> Null:
    """The null of `ece_l2_debiased`, from draws of the bins' sums. It is not 0: half of the squares are negative and
    count as 0, the other half stay."""
    return simulated(debiased_gap, sums_by_width(confidence, NOTHING, bins), draws, seed)


def null_smooth_ece(confidence: Any, *, draws: int = 50, seed: int = 0) -> Null:
    """The null of `smooth_ece`, from draws of the cells' sums."""
    return simulated(smooth_gap, sums_by_width(confidence, NOTHING, CELLS), draws, seed)


# What follows takes sums, whose `correct` does not matter: who has them for the error itself needs no others.


def closed_form(sums: BinSums) -> Null:
    """Of `mean_gap`."""
    spread = _mean_absolute_deviation(sums)
    total = sums.counts.sum()  # for (K, bins) that is N·K: the mean over classes
    return Null(float(spread.sum() / total), float(np.sqrt((sums.variance - spread**2).clip(0.0).sum()) / total))


def _mean_absolute_deviation(sums: BinSums) -> np.ndarray:
    """E|X| of each bin: de Moivre's 2 ν q P(S = ν) with ν = ⌊np⌋ + 1 for the binomial S, its spread shrunk."""
    from scipy.special import gammaln, xlog1py, xlogy  # lazy: the other metrics do without scipy

    n, p, shrink = _binomial(sums)
    v = np.minimum(np.floor(n * p) + 1, np.maximum(n, 1))
    log_ways = gammaln(n + 1) - gammaln(v + 1) - gammaln(np.maximum(n - v, 0) + 1)
    return np.where(shrink > 0, 2 * v * np.exp(log_ways + xlogy(v, p) + xlog1py(n - v + 1, -p)) * shrink, 0.0)


def simulated(formula: Callable[[BinSums], np.ndarray], sums: BinSums, draws: int = 1000, seed: int = 0) -> Null:
    n, p, shrink = _binomial(sums)
    drawn = np.random.default_rng(seed).binomial(n.astype(np.int64), p, size=(_several(draws), len(n)))
    return _of_draws(formula(sums._replace(correct=sums.confidence + (drawn - n * p) * shrink)))


def _binomial(sums: BinSums) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count and mean confidence of each bin, and the factor from the binomial's standard deviation to the true one."""
    n = sums.counts
    p = np.clip(sums.confidence / np.maximum(n, 1), 0.0, 1.0)
    wide = n * p * (1 - p)
    return n, p, np.sqrt(np.divide(sums.variance, wide, out=np.zeros_like(wide), where=wide > 0).clip(0.0, 1.0))


def _of_draws(values: np.ndarray) -> Null:
    return Null(float(values.mean()), float(values.std(ddof=1)))


def _several(draws: int) -> int:
    whole_number(draws, "draws", "200 give the mean to a fourteenth of its std")
    if draws < 2:
        raise EowError("draws is 1: a standard deviation needs at least 2.")
    return draws
