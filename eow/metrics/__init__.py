"""Metrics: pure functions of arrays, on the CPU, with their conventions in their docstrings."""

from .calibration import Reliability, accuracy, ece, nll, nll_from_logits, nll_renormalised, reliability
from .ood import auroc

__all__ = ["Reliability", "accuracy", "auroc", "ece", "nll", "nll_from_logits", "nll_renormalised", "reliability"]
