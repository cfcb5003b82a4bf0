"""Metrics: pure functions of arrays, on the CPU, with their conventions in their docstrings.

scores.py       accuracy, NLL, Brier               ood.py         known against unknown
calibration.py  calibration errors in bins         selective.py   answering only when sure
smooth.py       one without bins                   statistics.py  intervals and paired differences
nulls.py        what each would be by chance       resampling.py  the bootstrap under these
binning.py      sums over bins, under all errors   checks.py      what all ask of their arrays
"""

from .calibration import (
    Reliability,
    ece,
    ece_classwise,
    ece_equal_mass,
    ece_l2_debiased,
    mce,
    merge_reliability,
    reliability,
    reliability_interval,
)
from .nulls import (
    Null,
    null_ece,
    null_ece_classwise,
    null_ece_equal_mass,
    null_ece_l2_debiased,
    null_mce,
    null_of,
    null_smooth_ece,
)
from .ood import accuracy_at_thresholds, auroc, average_precision, detection, fpr_at_tpr, oscr, threshold_curve
from .scores import BrierParts, accuracy, brier, brier_parts, nll, nll_from_logits, nll_renormalised
from .selective import aurc, certified_threshold, clopper_pearson, excess_aurc, risk_coverage
from .smooth import smooth_ece
from .statistics import bootstrap_interval, paired_difference, paired_t

__all__ = [
    "BrierParts",
    "Null",
    "Reliability",
    "accuracy",
    "accuracy_at_thresholds",
    "aurc",
    "auroc",
    "average_precision",
    "bootstrap_interval",
    "brier",
    "brier_parts",
    "certified_threshold",
    "clopper_pearson",
    "detection",
    "ece",
    "ece_classwise",
    "ece_equal_mass",
    "ece_l2_debiased",
    "excess_aurc",
    "fpr_at_tpr",
    "mce",
    "merge_reliability",
    "nll",
    "nll_from_logits",
    "nll_renormalised",
    "null_ece",
    "null_ece_classwise",
    "null_ece_equal_mass",
    "null_ece_l2_debiased",
    "null_mce",
    "null_of",
    "null_smooth_ece",
    "oscr",
    "paired_difference",
    "paired_t",
    "reliability",
    "reliability_interval",
    "risk_coverage",
    "smooth_ece",
    "threshold_curve",
]
