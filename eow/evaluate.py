"""Figures from predictions on disk: calibration on known classes, and how unknowns are told apart. No network is run
here. The third setting, corruption, is in robustness.py; two methods are compared in compare.py."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eow import metrics
from eow.data.catalog import CATALOG
from eow.errors import EowError
from eow.metrics.binning import sums_by_class, sums_by_mass, sums_by_width
from eow.metrics.calibration import debiased_gap, largest_gap, mean_gap
from eow.metrics.nulls import closed_form, simulated
from eow.metrics.ood import THRESHOLDS, detection, scores
from eow.metrics.scores import parts_of
from eow.metrics.smooth import CELLS, smooth_gap
from eow.metrics.statistics import FEWEST
from eow.predictions import Predictions, file_name, losses, read
from eow.storage import IMPORTED, file_hash, read_json

KNOWN = "test"  # the name of the predictions on the known classes' test set
BINS = 15  # of the calibration errors
CERTIFY = "certify"  # those on which a threshold is certified: no figure is ever taken of them


def calibration(said: Predictions) -> dict[str, float]:
    """Accuracy, every calibration error with what a perfectly calibrated model would measure in its place (null), NLL
    of the raw K+1 and of the K-renormalised probabilities, Brier score and parts, AURC, mean confidence and unknown."""
    sure, right, probs, labels = said.confidence, said.correct, said.probs, said.labels
    # An error and its null are functions of the same sums, which by their names in eow.metrics each would count again.
    sums, of_known = sums_by_width(sure, right, BINS), sums_by_width(said.renormalised, right, BINS)
    by_mass, by_class = sums_by_mass(sure, right, BINS), sums_by_class(probs, labels, BINS)
    cells = sums_by_width(sure, right, CELLS)
    null, parts = closed_form(sums), parts_of(sums)
    return {
        "accuracy": metrics.accuracy(said.label, labels),
        "ece": float(mean_gap(sums)), "null_ece": null.mean, "null_ece_std": null.std,
        "ece_renormalised": float(mean_gap(of_known)), "null_ece_renormalised": closed_form(of_known).mean,
        "ece_paper_compat": metrics.ece(sure, right, paper_compat=True),
        "ece_equal_mass": float(mean_gap(by_mass)), "null_ece_equal_mass": closed_form(by_mass).mean,
        "ece_classwise": float(mean_gap(by_class).mean()), "null_ece_classwise": closed_form(by_class).mean,
        "smooth_ece": float(smooth_gap(cells)), "null_smooth_ece": simulated(smooth_gap, cells, draws=50).mean,
        "mce": float(largest_gap(sums)), "null_mce": simulated(largest_gap, sums).mean,
        "ece_l2_debiased": float(debiased_gap(sums)), "null_ece_l2_debiased": simulated(debiased_gap, sums).mean,
        "nll": metrics.nll(probs, labels), "nll_renormalised": float(losses(said, renormalised=True).mean()),
        "brier": metrics.brier(probs, labels), **{f"brier_{name}": part for name, part in parts._asdict().items()},
        "aurc": metrics.aurc(sure, right), "excess_aurc": metrics.excess_aurc(sure, right),
        "confidence": float(sure.mean(dtype=float)), "unknown": float(said.unknown.mean(dtype=float)),
    }  # fmt: skip


def scores_of(said: Predictions) -> dict[str, Any]:
    """Every score by which these predictions tell known from unknown; higher looks more known."""
    found = scores(said.probs, said.unknown, said.logits, said.confidence)
    if not said.open_world:  # what is left over of the probabilities counts in the entropy, but was not trained
        del found["unknown"]
    return found


def open_world(known: Predictions, outliers: Predictions, known_scores: dict[str, Any] | None = None) -> dict[str, Any]:
    """How well each score tells known samples from unknown ones: auroc_S, ap_known_S and ap_unknown_S (average
    precision with that side as the positive), fpr95_S and oscr_S for S among confidence, unknown, entropy, energy and
    max_logit; and the paper's table 2, the accuracy among the predictions of both above a threshold, with the share
    that is left."""
    ours, theirs = known_scores or scores_of(known), scores_of(outliers)
    figures: dict[str, Any] = {"kind": kind_of(outliers)}
    for name in [each for each in ours if each in theirs]:
        found = detection(ours[name], theirs[name], known.correct)
        figures.update({f"{figure}_{name}": value for figure, value in found.items()})
    figures["confidence"] = float(outliers.confidence.mean(dtype=float))
    figures["unknown"] = float(outliers.unknown.mean(dtype=float))
    at = metrics.accuracy_at_thresholds(*mixed(known, outliers), THRESHOLDS)
    names = [f"{threshold:g}" for threshold in THRESHOLDS]
    figures["accuracy_at"] = {name: float(value) if kept else None for name, value, kept in zip(names, at[1], at[2])}
    figures["coverage_at"] = {name: float(kept) for name, kept in zip(names, at[2])}
    return figures


def mixed(known: Predictions, outliers: Predictions) -> tuple[Any, Any]:
    """Confidence and correctness of both sets together, every unknown sample counted as wrong."""
    import numpy as np

    wrong = np.zeros(len(outliers.label), bool)
    return np.concatenate([known.confidence, outliers.confidence]), np.concatenate([known.correct, wrong])


def kind_of(outliers: Predictions) -> str:
    """ "unseen" for classes held out of training, "near" and "far" for the sets that the catalog so names beside the
    run's own, "other" for the rest."""
    name, config = outliers.manifest["name"], outliers.manifest.get("config") or {}
    entry = CATALOG.get(config.get("data", {}).get("name", ""))
    if name == "unknown":
        return "unseen"
    return "other" if entry is None else "near" if name in entry.near else "far" if name in entry.far else "other"


def intervals(known: Predictions, others: dict[str, Predictions], rounds: int = 1000) -> dict[str, dict[str, Any]]:
    """Intervals (95 %; Wilson's of the accuracy, else of the basic bootstrap) over the draw of the test samples:
    {"test": {"ece": (low, high), ...}, set: {"auroc_confidence": (low, high), ...}}. None of sets that are too small to
    be resampled."""
    if len(known.label) < FEWEST:
        return {KNOWN: {}}
    others = {name: each for name, each in others.items() if len(each.label) >= FEWEST}

    def interval(metric: str, *arrays: Any) -> tuple[float, float]:
        return metrics.bootstrap_interval(metric, *arrays, rounds=rounds)[1:]

    found: dict[str, dict[str, Any]] = {
        KNOWN: {
            "accuracy": interval("accuracy", known.correct),
            "ece": interval("ece", known.confidence, known.correct),
            "ece_renormalised": interval("ece", known.renormalised, known.correct),
            "nll": interval("nll", losses(known)),
            "nll_renormalised": interval("nll", losses(known, renormalised=True)),
        }
    }
    ours = scores_of(known) if others else {}
    for name, each in others.items():
        pairs = [("confidence", known.confidence, each.confidence)]
        pairs += [("unknown", -known.unknown, -each.unknown)] if known.open_world else []
        pairs += [("entropy", ours["entropy"], scores_of(each)["entropy"])]
        found[name] = {f"auroc_{score}": interval("auroc", ours, theirs) for score, ours, theirs in pairs}
    return found


def read_all(
    folder: str | Path, unknown_rate: float | None = None, *, finished: bool = True, without: Sequence[str] = ()
) -> tuple[Predictions, dict[str, Predictions]]:
    """A run's predictions on the known classes' test set, and on everything that is unknown to it, or all of it but
    some."""
    folder, left_out = Path(folder), {file_name(name) for name in without}
    files = [file for file in sorted((folder / "predictions").glob("*.safetensors")) if file.name not in left_out]
    if finished and not (folder / "summary.json").exists() and (files or (folder / "config.json").exists()):
        if is_imported(folder):
            raise EowError(f"there is no summary.json in {folder}: it is not the whole import, import it again")
        command = f"eow train --resume --out {shlex.quote(str(folder))}"
        raise EowError(f"the run in {folder} is not finished: resume it with `{command}` first")
    weights = file_hash(folder / "weights.safetensors") if (folder / "weights.safetensors").exists() else None
    found = {each.manifest["name"]: each for each in (read_own(file, weights) for file in files)}
    found.pop(CERTIFY, None)
    if KNOWN not in found:
        if is_imported(folder):
            raise EowError(f"there are no predictions on {KNOWN} in {folder}: import it again")
        raise EowError(f"there are no predictions in {folder}: is that the folder of a finished run?")
    for name, each in found.items():
        if (ours := width_of(found[KNOWN])) != (theirs := width_of(each)):
            raise EowError(
                f"the predictions on {name} in {folder} have {theirs} and those on {KNOWN} {ours}: they are not of one "
                "run, remove them"
            )
    if unknown_rate is not None:
        found = {name: each.at_unknown_rate(unknown_rate) for name, each in found.items()}
    return found.pop(KNOWN), found


def width_of(said: Predictions) -> str:
    return f"{said.probs.shape[1]} classes and {'no' if said.logits is None else said.logits.shape[1]} logits"


def is_imported(folder: Path) -> bool:
    """Whether the folder holds predictions alone, and no network that could be asked for more."""
    file = folder / "config.json"
    return file.exists() and read_json(file).get("recipe") == IMPORTED


def refuse_imported(folder: Path) -> None:
    if is_imported(folder):
        raise EowError(f"{folder} holds imported predictions, which cannot be trained: choose another --out")


def read_own(path: Path, weights: str | None) -> Predictions:
    """A run's predictions, which must be of its own weights, where these are available, and of what its name says."""
    said = read(path)
    if path.name != file_name(said.manifest["name"]):
        raise EowError(
            f"{path} holds the predictions on {said.manifest['name']}, which its name does not say: remove it"
        )
    if weights is not None and said.manifest.get("weights") != weights:
        raise EowError(f"{path} holds predictions of other weights than the run's: bring those back, or train again")
    return said


def evaluate(
    folder: str | Path, unknown_rate: float | None = None, *, bootstrap: bool = False, finished: bool = True
) -> dict[str, Any]:
    """All figures of a run, from the predictions in its folder: {"test": {...}, "unknown": {...}, outlier set: {...}},
    and with `bootstrap` their "intervals". `finished` is False only for the run that is about to end."""
    known, others = read_all(folder, unknown_rate, finished=finished)
    known_scores = scores_of(known) if others else None
    figures = {
        KNOWN: calibration(known),
        **{name: open_world(known, each, known_scores) for name, each in others.items()},
    }
    return {**figures, "intervals": intervals(known, others)} if bootstrap else figures


def stored_figures(folder: Path, *keys: str) -> dict[str, Any]:
    """The summary of a finished run, which has these keys too, and whose figures are numbers."""
    summary = read_json(folder / "summary.json", "metrics", "train_seconds", *keys)
    tables = summary["metrics"]
    sound = isinstance(tables, dict) and KNOWN in tables and all(isinstance(each, dict) for each in tables.values())
    for name, table in tables.items() if sound else ():
        for figure, value in table.items():
            nested = isinstance(value, dict) and all(each is None or is_number(each) for each in value.values())
            if not (nested or is_number(value) or (figure == "kind" and isinstance(value, str))):
                raise EowError(
                    f"{folder / 'summary.json'} is damaged ({figure} of {name} is {value!r:.40}): train the run again"
                )
    if not sound or not is_number(summary["train_seconds"]):
        raise EowError(f"{folder / 'summary.json'} is damaged (it has no figures): train the run again")
    return summary


def is_number(value: Any) -> bool:
    """An int or a float, NaN among them, that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)
