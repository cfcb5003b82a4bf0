"""Tables of what is claimed and how sure it is: differences from vanilla, and certified thresholds."""

from typing import Any

import numpy as np

from eow.compare import compare
from eow.metrics.statistics import FEWEST
from eow.report.gather import Bunch, Loaded
from eow.report.parts import Cell, Table
from eow.report.tables import figure_cell, name_of, rate_words

POINTS = ", points"
TITLES = {
    "accuracy": ("accuracy", POINTS), "ece": ("ECE", POINTS), "ece_renormalised": ("ECE of K", POINTS),
    "nll": ("NLL", ""), "nll_renormalised": ("NLL of K", ""),
}  # fmt: skip


def differences(bunch: Bunch, rate: float | None) -> Table | None:
    """Every method against vanilla, seed by seed on the same samples, where both have the same seeds."""
    vanilla = next((group for group in bunch.groups if group.first.method == "vanilla"), None)
    if vanilla is None or len(vanilla.first.known.label) < FEWEST:
        return None
    seeds = [run.seed for run in vanilla.runs]
    rows, found = [], []
    for group in bunch.groups:
        if group is vanilla or [run.seed for run in group.runs] != seeds:
            continue
        shifted = rate if group.first.open_world or vanilla.first.open_world else None
        first, second = ([run.folder for run in each.runs] for each in (group, vanilla))
        found = compare(first, second, shifted, unknowns=False)
        rows.append([name_of(group), *(cell for line in found for cell in difference_cells(line))])
    if not rows:
        return None
    header = ["method"]
    for title, unit in (TITLES[line.figure] for line in found):
        header += [f"{title}{unit}", f"p ({title})"]
    spread = "" if len(seeds) == 1 else " and, between the seeds, a t-test"
    caption = (
        f"The method minus {vanilla.label}, seed by seed, with 95 % intervals: both sides see the same resampled test "
        f"samples (paired bootstrap{spread}). p is not corrected for the number of comparisons." + rate_words(rate)
    )
    return Table("differences", f"Difference from {vanilla.label}", header, rows, caption)


def difference_cells(line: Any) -> list[Cell]:
    factor, digits = (100, 2) if TITLES[line.figure][1] == POINTS else (1, 3)
    value, low, high = (factor * number for number in (line.difference, line.low, line.high))
    beside = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return [
        Cell(f"{value:+.{digits}f}", float(value), low=float(low), high=float(high), beside=beside),
        Cell(f"{line.p_value:.3f}", float(line.p_value)),
    ]


def certified(bunch: Bunch, rate: float | None) -> Table | None:
    """The thresholds that `eow threshold` has promised, and what became of the promise on the test set."""
    rows = []
    for group in bunch.groups:
        for run in group.runs:
            if run.threshold is not None and run.threshold.unknown_rate == (rate if run.open_world else None):
                rows.append([name_of(group), Cell(str(run.seed), run.seed), *promise_cells(run)])
    if not rows:
        return None
    header = ["method", "seed", "threshold", "risk promised %", "with probability %", "test: answered %", "risk %"]
    caption = (
        "Found by `eow threshold` on training data that nothing was fitted on: of the answers on known classes with at "
        "least this confidence, at most the promised share is wrong. Beside it, what it does on the test set."
    )
    return Table("certified", "Certified thresholds", header, rows, caption)


def promise_cells(run: Loaded) -> list[Cell]:
    assert run.threshold is not None
    promise = run.threshold
    kept = run.known.confidence.astype(np.float64) >= promise.threshold
    answered, wrong = float(kept.mean()), float((~run.known.correct[kept]).mean()) if kept.any() else None
    return [
        Cell(f"{promise.threshold:.4g}", promise.threshold), figure_cell([promise.max_risk], 100, 1),
        figure_cell([1 - promise.delta], 100, 1), figure_cell([answered], 100, 1), figure_cell([wrong], 100, 2),
    ]  # fmt: skip
