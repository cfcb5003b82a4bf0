"""Telling known samples from unknown ones by one score, which should be HIGHER for known samples everywhere here.

Every figure is a function of how many known, right and unknown samples are accepted at each threshold: one sort of
the pooled scores (`counts_at_thresholds`) gives them all, and samples of equal score are accepted together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.metrics.checks import (
    NOTHING,
    as_array,
    as_confidence,
    as_correct,
    as_probs,
    as_table,
    finite,
    over_rows,
    row_sums,
    same_length,
    within_unit,
)

THRESHOLDS = (0.0, 0.25, 0.5, 0.75)  # the columns of the paper's table 2
SCORES = ("confidence", "unknown", "entropy", "energy", "max_logit")  # what `scores` gives, in this order
ROUNDING = 0.05  # more than log sum exp of log-probabilities deviates from 0: 3e-6 in float32, .04 in bfloat16
TINY = float(np.finfo(np.float64).tiny)  # keeps p log p at 0 where p is 0


class Counts(NamedTuple):
    """How many samples score at least a threshold. The first entry is 0, for a threshold above every score; then one
    entry per distinct score, from the highest to the lowest."""

    known: np.ndarray
    right: np.ndarray  # the known ones that are also classified correctly
    unknown: np.ndarray


class ThresholdCurve(NamedTuple):
    """Accuracy among the predictions kept, and their share of all. Accuracy is nan where none is kept."""

    threshold: np.ndarray
    accuracy: np.ndarray
    coverage: np.ndarray


def counts_at_thresholds(known: Any, unknown: Any, known_correct: Any = NOTHING) -> Counts:
    high, low = as_array(known, "known", 1), as_array(unknown, "unknown", 1)
    finite(high, "known")
    finite(low, "unknown")
    parts = [high, low]
    if known_correct is not NOTHING:
        right = as_correct(known_correct) == 1
        same_length(high, right, "known", "known_correct")
        parts = [high[right], high[~right], low]
    # Sorting values is several times faster than sorting indices, and merging sorted runs costs next to nothing.
    pooled = np.concatenate([np.sort(narrow(part)) for part in parts])
    order = np.argsort(pooled, kind="stable")[::-1]
    ordered = pooled[order]
    last_of_ties = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    accepted = np.r_[0, last_of_ties + 1]
    known_accepted = np.r_[0, np.cumsum(order < len(high))[last_of_ties]]
    right_accepted = np.r_[0, np.cumsum(order < len(parts[0]))[last_of_ties]]
    return Counts(known_accepted, right_accepted, accepted - known_accepted)


def narrow(scores: np.ndarray) -> np.ndarray:
    """As float32 where that loses nothing, as it does not for scores of stored predictions: they sort twice as fast."""
    with np.errstate(over="ignore"):
        single = scores.astype(np.float32)
    return single if np.array_equal(single, scores) else scores


def area(height: np.ndarray, width: np.ndarray) -> float:
    """Under the straight lines between the points. Sums of half integers are exact, in any order."""
    return float(np.sum((height[1:] + height[:-1]) * np.diff(width)) / 2)


def auroc(known: Any, unknown: Any) -> float:
    """P(known > unknown) + ½ P(known = unknown), over all pairs of a known and an unknown sample.

    The scores of KNOWN samples should be the higher ones, as confidence is; of the probability of "unknown", give the
    negative. The positive class is "known", 0.5 is chance, and swapping the two gives one minus the value.
    """
    return auroc_of(counts_at_thresholds(known, unknown))


def average_precision(known: Any, unknown: Any, positive: str = "known") -> float:
    """The sum over thresholds of precision times the step in recall: no trapezoid, no interpolation.

    positive="known": a sample is called known when its score is at least the threshold. positive="unknown": it is
    called unknown when its score is at most the threshold. Either way KNOWN samples should score higher, and chance
    is the share of positives.
    """
    if positive not in ("known", "unknown"):
        raise EowError(f'positive is {positive!r}: give "known" or "unknown", the class that is to be found.')
    return average_precision_of(counts_at_thresholds(known, unknown), positive)


def fpr_at_tpr(known: Any, unknown: Any, tpr: float = 0.95) -> float:
    """The share of unknown samples accepted at the highest threshold that accepts at least a share `tpr` of the known.

    Accepted is a score of at least the threshold, so samples that tie with it come in together: the true share of
    known may exceed `tpr`, and nothing is interpolated. The positive class is "known"; 0 is perfect.
    """
    return fpr_of(counts_at_thresholds(known, unknown), tpr)


def oscr(known_score: Any, known_correct: Any, unknown_score: Any) -> float:
    """Area under the open-set classification rate curve (Dhamija, Günther & Boult 2018).

    At a threshold, the correct classification rate is the share of KNOWN samples that score at least as much and are
    classified correctly, the false positive rate the share of unknown samples that score at least as much. The points
    at the distinct scores and (0, 0) are joined by straight lines, so the area is, over all pairs, the mean of
    [known is right] · ([known > unknown] + ½ [known = unknown]). With every known sample right it is the AUROC; it
    never exceeds the accuracy.
    """
    return oscr_of(counts_at_thresholds(known_score, unknown_score, known_correct))


def detection(known_score: Any, unknown_score: Any, known_correct: Any) -> dict[str, float]:
    """AUROC, average precision of finding the known and of finding the unknown, FPR at 95 % TPR and OSCR of one score,
    from one sort. KNOWN samples should score higher."""
    counts = counts_at_thresholds(known_score, unknown_score, known_correct)
    return {
        "auroc": auroc_of(counts),
        "ap_known": average_precision_of(counts, "known"),
        "ap_unknown": average_precision_of(counts, "unknown"),
        "fpr95": fpr_of(counts, 0.95),
        "oscr": oscr_of(counts),
    }


def auroc_of(counts: Counts) -> float:
    return area(counts.known, counts.unknown) / (float(counts.known[-1]) * float(counts.unknown[-1]))


def oscr_of(counts: Counts) -> float:
    return area(counts.right, counts.unknown) / (float(counts.known[-1]) * float(counts.unknown[-1]))


def average_precision_of(counts: Counts, positive: str) -> float:
    found, mistaken = counts.known, counts.unknown
    if positive == "unknown":  # what lies below a threshold is all that is not accepted above it
        found, mistaken = (of_class[-1] - of_class[::-1] for of_class in (counts.unknown, counts.known))
    precision = found[1:] / (found[1:] + mistaken[1:])
    return float(np.sum(np.diff(found) * precision) / found[-1])


def fpr_of(counts: Counts, tpr: float) -> float:
    if isinstance(tpr, str) or not 0 < tpr <= 1:
        raise EowError(f"tpr is {tpr!r}: give a share above 0 and at most 1.")
    enough = np.searchsorted(counts.known / counts.known[-1], tpr)  # 95/100 and 0.95 are the same float64 number
    return float(counts.unknown[enough] / counts.unknown[-1])


def accuracy_at_thresholds(
    confidence: Any, correct: Any, thresholds: Sequence[float] | np.ndarray = THRESHOLDS
) -> ThresholdCurve:
    """The paper's table 2: accuracy among the predictions with a confidence strictly ABOVE each threshold.

    Give the known test set and the unknown samples in one array, the unknown ones with correct = False: the paper
    says that its test set is the combination of both, that "only predictions with confidence higher than this
    threshold are kept", and no more; its figures at threshold 0 (half of the accuracy beside as many CIFAR-10 images)
    fit with every unknown sample counting as wrong. Where it is silent: a confidence equal to the threshold is
    dropped, at 0 as well, confidence is the method's own, of K of the K+1 probabilities without renormalisation, and
    the sets are mixed as large as they are. The comparison is made in float64 with the values as given. Coverage is
    the share kept, without which the accuracy says little: high thresholds may keep almost nothing.
    """
    sure, right = as_confidence(confidence), as_correct(correct)
    same_length(sure, right, "confidence", "correct")
    at = as_array(thresholds, "thresholds", 1)
    finite(at, "thresholds")
    order = np.argsort(sure)[::-1]
    kept = len(sure) - np.searchsorted(sure[order[::-1]], at, side="right")
    right_so_far = np.r_[0, np.cumsum(right[order])]
    with np.errstate(invalid="ignore"):
        return ThresholdCurve(at, right_so_far[kept] / kept, kept / len(sure))


def threshold_curve(confidence: Any, correct: Any) -> ThresholdCurve:
    """The whole curve of `accuracy_at_thresholds`: at 0 and at every distinct confidence below the highest, which are
    all the places where it changes. From the highest confidence on nothing is kept."""
    levels = np.unique(np.append(as_confidence(confidence), 0.0))
    return accuracy_at_thresholds(confidence, correct, levels[:-1] if len(levels) > 1 else levels)


def scores(probs: Any, unknown: Any, logits: Any, confidence: Any) -> dict[str, np.ndarray]:
    """The scores a model's outputs offer for telling KNOWN from unknown, all higher for what looks known.

    "confidence" as given; "unknown": its negative; "entropy": the negative entropy, in nats, of `probs` (N, K) with
    the share of `unknown` spread evenly over the K classes, since of what is unknown nothing is known (as one more
    outcome a certain unknown would have no entropy, and look as familiar as a certain class); "energy": log of the
    sum of exp over the K class logits; "max_logit": the highest of these. `logits` may have K columns, or K+1 with the
    unknown's last, which is left out. Give None for `logits` or `unknown` where a method has none: its scores are then
    absent (a constant would score a meaningless 0.5), and so is "energy" where the logits are log-probabilities, as
    an ensemble's are: its sums are all 1, and rounding would be ranked.
    Tables are worked on in float64 blocks of rows, and never copied whole.
    """
    table, sure = as_probs(probs), as_array(confidence, "confidence", 1)
    finite(sure, "confidence")
    same_length(sure, table, "confidence", "probs")
    found = {"confidence": sure}
    rest = np.zeros(len(table)) if unknown is None else as_array(unknown, "unknown", 1)
    if unknown is not None:
        within_unit(rest, "unknown")
        same_length(rest, table, "unknown", "probs")
        found["unknown"] = -rest
    evenly = rest / table.shape[1]
    negative_entropy = over_rows(lambda block, rows: plogp_sums(block + evenly[rows, None]), table)
    found["entropy"] = np.concatenate(list(negative_entropy))
    if logits is not None:
        raw, classes = as_table(logits, "logits"), table.shape[1]
        same_length(raw, table, "logits", "probs")
        if raw.shape[1] not in (classes, classes + 1):
            raise EowError(f"logits has {raw.shape[1]} columns for {classes} classes: give {classes} or one more.")
        energies, tops = zip(*over_rows(energy_and_top, raw[:, :classes]))
        energy = np.concatenate(energies)
        finite(energy, "logits")
        if np.abs(energy).max(initial=0.0) > ROUNDING:
            found["energy"] = energy
        found["max_logit"] = np.concatenate(tops)
    return found


def plogp_sums(probs: np.ndarray) -> np.ndarray:
    logs = np.maximum(probs, TINY)
    np.log(logs, out=logs)
    logs *= probs
    return row_sums(logs)


def energy_and_top(logits: np.ndarray, _: slice) -> tuple[np.ndarray, np.ndarray]:
    top = logits.max(1)
    with np.errstate(invalid="ignore"):  # infinite logits become nan, and `scores` says so
        shifted = logits - top[:, None]
    np.exp(shifted, out=shifted)
    return top + np.log(row_sums(shifted)), top
