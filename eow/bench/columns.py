"""What a table shows of a run: columns, and where their figures lie.

A column is named by a figure of the test set ("ece"), by a figure of an outlier set ("svhn.auroc_unknown"), or spelled
out as a table with a `path` into what a run left behind: its summary, the summary's metrics, `corruptions.json`, and
`log` (what the training's log says). A figure that a run does not have is None and becomes a dash.
"""

import math
import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eow import storage
from eow.config import Table
from eow.errors import EowError
from eow.evaluate import stored_figures
from eow.metrics.ood import SCORES
from eow.typed import build


@dataclass(frozen=True)
class Column:
    title: str
    path: str
    factor: float = 1.0
    digits: int = 3
    better: str = ""  # high, low, or neither: then there is nothing to win and no mark
    paper: str = ""  # the column of the paper's CSV that stands beside it
    match: dict[str, Any] = field(default_factory=dict)  # what the paper's row must have beside the grid's own keys
    timing: bool = False  # differs from run to run of the same cell
    absent: float | None = None  # the value that says that a method does not have this at all


# Figures by name: title, factor, digits, which direction is better, the paper's name for it.
FIGURES: dict[str, tuple[str, float, int, str, str]] = {
    "accuracy": ("accuracy %", 100, 2, "high", "acc_pct"),
    "ece": ("ECE %", 100, 2, "low", "ece_pct"),
    "null_ece": ("null ECE %", 100, 2, "", ""),
    "null_ece_std": ("null ECE's deviation %", 100, 2, "", ""),
    "ece_renormalised": ("ECE of K %", 100, 2, "low", ""),
    "null_ece_renormalised": ("null ECE of K %", 100, 2, "", ""),
    "ece_paper_compat": ("ECE as released %", 100, 2, "low", ""),
    "ece_equal_mass": ("ECE of equal mass %", 100, 2, "low", ""),
    "null_ece_equal_mass": ("null ECE of equal mass %", 100, 2, "", ""),
    "ece_classwise": ("classwise ECE %", 100, 2, "low", ""),
    "null_ece_classwise": ("null classwise ECE %", 100, 2, "", ""),
    "smooth_ece": ("smooth ECE %", 100, 2, "low", ""),
    "null_smooth_ece": ("null smooth ECE %", 100, 2, "", ""),
    "mce": ("MCE %", 100, 2, "low", ""),
    "null_mce": ("null MCE %", 100, 2, "", ""),
    "ece_l2_debiased": ("debiased L2 ECE %", 100, 2, "low", ""),
    "null_ece_l2_debiased": ("null debiased L2 ECE %", 100, 2, "", ""),
    "nll": ("NLL", 1, 3, "low", "nll"),
    "nll_renormalised": ("NLL of K", 1, 3, "low", ""),
    "brier": ("Brier", 1, 4, "low", ""),
    "brier_reliability": ("Brier reliability", 1, 4, "low", ""),
    "brier_resolution": ("Brier resolution", 1, 4, "high", ""),
    "brier_uncertainty": ("Brier uncertainty", 1, 4, "", ""),
    "brier_within_variance": ("Brier variance in bins", 1, 4, "", ""),
    "brier_within_covariance": ("Brier covariance in bins", 1, 4, "", ""),
    "brier_score": ("Brier of confidence", 1, 4, "low", ""),
    "aurc": ("AURC %", 100, 3, "low", ""),
    "excess_aurc": ("excess AURC %", 100, 3, "low", ""),
    "confidence": ("confidence", 1, 3, "", ""),
    "unknown": ("unknown", 1, 3, "", ""),
}
# Of an outlier set there are these two, and how well each score tells it from the test set.
OF_OUTLIERS = ("confidence", "unknown")
RANKINGS = {
    "auroc": ("AUROC", "high"), "ap_known": ("AP of known", "high"), "ap_unknown": ("AP of unknown", "high"),
    "fpr95": ("FPR95", "low"), "oscr": ("OSCR", "high"),
}  # fmt: skip
SECONDS = Column("seconds", "train_seconds", digits=1, timing=True)
SECONDS_PER_STEP = Column("s/iteration", "log.seconds_per_iteration", digits=4, better="low", timing=True)


def column_of(spec: Any) -> Column:
    """A column from how a grid file names it."""
    if isinstance(spec, dict):
        if missing := [key for key in ("title", "path") if key not in spec]:
            raise EowError(f"a column has no {missing[0]}: spell it {{ title = ..., path = ... }}")
        match = spec.get("match", {})
        column: Column = build(Column, {key: value for key, value in spec.items() if key != "match"}, "column")
        if not isinstance(match, dict) or column.better not in ("", "high", "low"):
            raise EowError(f"the column {column.title!r} needs a table for match and high, low or nothing for better")
        if not 0 <= column.digits <= 15:
            raise EowError(
                f"the column {column.title!r} has digits = {column.digits}: give 0 to 15, those behind the point"
            )
        return replace(column, match=match)
    if not isinstance(spec, str):
        raise EowError(f"a column is {spec!r}: give a figure's name or a table with title and path")
    if spec == "seconds":
        return SECONDS
    if spec == "seconds_per_iteration":
        return SECONDS_PER_STEP
    where, _, name = spec.rpartition(".")
    known, where = where in ("", "test"), where or "test"
    kind, score = next(((k, s) for k in RANKINGS for s in SCORES if name == f"{k}_{s}"), ("", ""))
    if name in (FIGURES if known else OF_OUTLIERS):
        title, factor, digits, better, paper = FIGURES[name]
        return Column(
            title if known else f"{title}: {where}", f"{where}.{name}", factor, digits, better, paper if known else "",
            absent=0.0 if name == "unknown" else None,
        )  # fmt: skip
    if kind and not known:
        title, better = RANKINGS[kind]
        return Column(f"{title} {score} %: {where}", f"{where}.{name}", 100, 1, better)
    raise EowError(
        f"there is no column {spec!r}: use {', '.join(FIGURES)}, seconds, seconds_per_iteration, of a set of unknowns "
        f"SET.confidence, SET.unknown and SET.FIGURE_SCORE (FIGURE: {', '.join(RANKINGS)}; SCORE: "
        f"{', '.join(SCORES)}), or a table with title and path"
    )


def figures_of(folder: Path) -> Table:
    """All that columns may point into, of a finished run."""
    summary = stored_figures(folder)
    found: Table = {**summary, **summary["metrics"], "log": log_figures(folder)}
    if (folder / "corruptions.json").exists():
        found["corruptions"] = storage.read_json(folder / "corruptions.json")
    return found


def log_figures(folder: Path) -> Table:
    """Seconds of one step: the median over the epochs that had all their loss terms, where the energy comes late."""
    lines = [line for line in storage.Log(folder / "log.jsonl").read() if line.get("steps")]
    lines = [line for line in lines if "energy" in line] or lines
    if not lines:  # nothing was trained here, or by an eow that did not count
        return {}
    return {"seconds_per_iteration": statistics.median(line["seconds"] / line["steps"] for line in lines)}


def value_at(table: Any, path: str) -> float | None:
    """The number at a dotted path; a key may itself hold dots ("svhn.accuracy_at.0.25")."""
    if isinstance(table, list):
        table = {str(place): value for place, value in enumerate(table)}
    if not isinstance(table, dict):
        return None
    if path in table:
        value = table[path]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if number else None
    for place, letter in enumerate(path):
        if letter == "." and (found := value_at(table.get(path[:place]), path[place + 1 :])) is not None:
            return found
    return None
