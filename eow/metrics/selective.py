"""Selective prediction: answer only when the confidence is high enough, and say how often that goes wrong.

A sample is accepted when its confidence is at least the threshold, so samples of equal confidence are accepted
together. Confidence may be any finite score that is higher where the model is surer. Risk is the share of wrong
answers among the accepted, coverage the share accepted.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.checks import as_array, as_correct, finite, same_length


class RiskCoverage(NamedTuple):
    """One entry per distinct confidence, from the highest (least coverage) to the lowest (coverage 1)."""

    threshold: np.ndarray
    coverage: np.ndarray
    risk: np.ndarray


class CertifiedThreshold(NamedTuple):
    """Accept where confidence >= threshold. `coverage` and `risk` are those of the samples it was found on; `bound`
    is the upper bound on the true risk, at most the risk that was asked for."""

    threshold: float
    coverage: float
    risk: float
    bound: float


def accepted_counts(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct confidences from high to low, and how many samples, and how many wrong ones, each accepts."""
    sure, right = as_array(confidence, "confidence", 1), as_correct(correct)
    finite(sure, "confidence")
    same_length(sure, right, "confidence", "correct")
    order = np.argsort(sure)[::-1]
    ordered = sure[order]
    last_of_ties = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    errors = np.cumsum(right[order] == 0)[last_of_ties]
    return ordered[last_of_ties], last_of_ties + 1, errors


def risk_coverage(confidence: Any, correct: Any) -> RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener 2010), exact: it changes at the distinct confidences alone."""
    threshold, accepted, errors = accepted_counts(confidence, correct)
    return RiskCoverage(threshold, accepted / accepted[-1], errors / accepted)


def aurc(confidence: Any, correct: Any) -> float:
    """Area under the risk-coverage curve: the sum over distinct confidences of risk times the step in coverage.

    Every sample is thus charged the risk of accepting all that are at least as sure, which without ties is the usual
    mean over n of the risk of the n surest (no trapezoid). All samples of one confidence: the error rate.
    """
    _, accepted, errors = accepted_counts(confidence, correct)
    return float(np.sum(np.diff(accepted, prepend=0) * errors / accepted) / accepted[-1])


def excess_aurc(confidence: Any, correct: Any) -> float:
    """AURC minus that of the same answers in the best order, every right one surer than every wrong one: what the
    confidence, not the accuracy, is to blame for. At least 0."""
    right = as_correct(correct)
    count, errors = len(right), int(np.sum(right == 0))
    best = np.sum(np.arange(1, errors + 1) / np.arange(count - errors + 1, count + 1)) / count
    return max(aurc(confidence, correct) - float(best), 0.0)  # the two sums round apart in the best order itself


def clopper_pearson(errors: int, count: int, delta: float) -> float:
    """The exact upper bound on an error rate after `errors` in `count` independent samples: the rate at which so few
    errors have probability `delta`. It lies below the true rate with probability at most `delta`."""
    from scipy.special import betaincinv

    if not (0 <= errors <= count and 0 < delta < 1):
        raise EowError(f"{errors} errors of {count} and delta {delta}: give 0 <= errors <= count and 0 < delta < 1.")
    return 1.0 if errors == count else float(betaincinv(errors + 1, count - errors, 1 - delta))


def certified_threshold(
    confidence: Any, correct: Any, max_risk: float, delta: float = 0.05
) -> CertifiedThreshold | None:
    """The threshold of most coverage found whose risk is at most `max_risk`, with probability at least 1 - `delta`
    over the draw of these samples; None when no threshold qualifies. SGR, Geifman & El-Yaniv 2017.

    The samples must be independent draws of what will come (known classes), on which nothing was fitted: no weight,
    no temperature, no link. A binary search over the m sorted confidences makes at most ceil(log2 m) tests, each with
    the Clopper-Pearson bound at delta / ceil(log2 m). Where the true risk grows with coverage, the search can only go
    wrong at one of the at most ceil(log2 m) nodes on the path of right decisions, so the union bound over these
    holds although later nodes depend on earlier results; where it does not grow, that argument is missing.

    Three things differ from the paper's listing, none of them touching the promise. Thresholds that accept so few that
    not even a faultless record would qualify are left out of the search, which else starts in the middle, fails there
    for want of samples and never sees the thresholds that do qualify. What is returned passed its own test (the paper
    returns the last one tested, passed or not). Full coverage is a candidate, a single sample is none unless m = 1.

    The threshold is one of the confidences to the last bit: float32 confidences accept the same samples whether they
    are compared in float32 or in float64. A `max_risk` of 0 never qualifies: a finite sample cannot certify it.
    """
    if not 0 <= max_risk <= 1:
        raise EowError(f"max_risk is {max_risk!r}: give a share of wrong answers from 0 to 1, such as 0.01.")
    if not 0 < delta < 1:
        raise EowError(f"delta is {delta!r}: give a probability between 0 and 1, such as 0.05.")
    threshold, accepted, errors = accepted_counts(confidence, correct)
    samples = int(accepted[-1])
    per_test = delta / max(1, math.ceil(math.log2(samples)))
    faultless = 1 - per_test ** (1 / accepted)  # the bound if every answer were right: it depends on no answer
    candidates = np.flatnonzero((faultless <= max_risk) & (accepted > min(1, samples - 1)))
    found, low, high = None, 0, len(candidates)  # the answer is among candidates[low:high], or was found before
    while low < high:
        middle = (low + high) // 2
        at = candidates[middle]
        wrong, count = int(errors[at]), int(accepted[at])
        bound = clopper_pearson(wrong, count, per_test)
        if bound <= max_risk:
            found, low = CertifiedThreshold(float(threshold[at]), count / samples, wrong / count, bound), middle + 1
        else:
            high = middle
    return found
