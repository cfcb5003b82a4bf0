"""Figures from predictions on disk: calibration on known classes, and how unknowns are told apart. No network is run
here."""

from pathlib import Path
from typing import Any

from eow.errors import EowError
from eow.metrics import accuracy, auroc, ece, nll, nll_renormalised
from eow.predictions import Predictions, read

KNOWN = "test"  # the name of the predictions on the known classes' test set


def calibration(predictions: Predictions) -> dict[str, float]:
    """Accuracy, ECE (15 bins), NLL of the raw K+1 and of the K-renormalised probabilities, mean unknown."""
    return {
        "accuracy": accuracy(predictions.label, predictions.labels),
        "ece": ece(predictions.confidence, predictions.correct),
        "nll": nll(predictions.probs, predictions.labels),
        "nll_renormalised": nll_renormalised(predictions.probs, predictions.labels),
        "confidence": float(predictions.confidence.mean()),
        "unknown": float(predictions.unknown.mean()),
    }


def open_world(known: Predictions, outliers: Predictions) -> dict[str, float]:
    """How well confidence (and, for methods that have it, the unknown) tells known samples from unknown ones."""
    figures = {
        "auroc_confidence": auroc(known.confidence, outliers.confidence),
        "confidence": float(outliers.confidence.mean()),
        "unknown": float(outliers.unknown.mean()),
    }
    if known.open_world:
        figures["auroc_unknown"] = auroc(-known.unknown, -outliers.unknown)
    return figures


def evaluate(folder: str | Path, unknown_rate: float | None = None, *, finished: bool = True) -> dict[str, Any]:
    """All figures of a run, from the predictions in its folder: {"test": {...}, "unknown": {...}, outlier set:
    {...}}. `finished` is False only for the run that is about to end."""
    folder = Path(folder)
    files = sorted((folder / "predictions").glob("*.safetensors"))
    if finished and not (folder / "summary.json").exists() and (files or (folder / "config.json").exists()):
        raise EowError(f"the run in {folder} is not finished: resume it with `eow train --resume` first")
    predictions = {each.manifest["name"]: each for each in map(read, files)}
    if KNOWN not in predictions:
        raise EowError(f"there are no predictions in {folder}: is that the folder of a finished run?")
    if unknown_rate is not None:
        predictions = {name: each.at_unknown_rate(unknown_rate) for name, each in predictions.items()}
    known = predictions.pop(KNOWN)
    return {KNOWN: calibration(known), **{name: open_world(known, each) for name, each in predictions.items()}}
