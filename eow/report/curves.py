"""Figures from the predictions: reliability, risk-coverage, accuracy versus threshold, histograms of unknown."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eow import metrics
from eow.evaluate import KNOWN, mixed
from eow.metrics.ood import THRESHOLDS
from eow.report.gather import PALETTE, Bunch, Group
from eow.report.parts import MOST_POINTS, Axis, Figure, Key, Panel, Series, around, finite
from eow.report.tables import has_unknown, paper_at, set_name

BINS = 15
BARS = 20  # of a histogram of unknown
ENDS = (0.1, 0.2, 0.5, 1.0)  # where its axis may end
SHARE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BAND = "With several seeds the line is their mean and the band reaches from the lowest to the highest."


def dash_of(group: Group) -> int:
    return group.colour // PALETTE


def legend_of(groups: Sequence[Group], kind: str = "line") -> list[Key]:
    return [Key(group.label, group.colour, dash_of(group), kind) for group in groups]


def over_seeds(group: Group, x: np.ndarray, curves: list[np.ndarray]) -> Series:
    """The mean of the seeds' curves, and from the lowest to the highest of them. Where a curve has no value, neither
    has the mean."""
    table = np.stack(curves)
    several = len(curves) > 1
    return Series(
        group.label, finite(x), finite(table.mean(0)), group.colour, finite(table.min(0)) if several else None,
        finite(table.max(0)) if several else None, dash=dash_of(group),
    )  # fmt: skip


def reliability(bunch: Bunch) -> Figure:
    axis = Axis("confidence", 0, 1, ticks=SHARE)
    panels = []
    for group in bunch.groups:
        parts = [metrics.reliability(run.known.confidence, run.known.correct, BINS) for run in group.runs]
        bins = metrics.merge_reliability(parts)
        # The seeds share their test samples: the interval is that of one test set, not of all predictions.
        low, high = metrics.reliability_interval(bins._replace(counts=bins.counts / len(parts)))
        curve = Series(
            group.label, finite(bins.confidence), finite(bins.accuracy), group.colour, finite(low), finite(high),
            [int(count) for count in bins.counts], "points",
        )  # fmt: skip
        accuracy = Axis("accuracy", 0, 1, ticks=SHARE)
        panels.append(Panel(group.label, axis, accuracy, [curve], diagonal=True, strip=True))
    caption = (
        f"Accuracy against mean confidence in {BINS} bins of equal width, in order, on the known classes' test set; a "
        "calibrated model lies on the diagonal, an overconfident one below it. Whiskers: Wilson's 95 % interval for "
        "one test set. Bars below: how many samples a bin has, on a scale of square roots. Several seeds are "
        "pooled."
    )
    return Figure("reliability", "Reliability", caption, [*panels])


def risk_coverage(bunch: Bunch) -> Figure:
    grid = np.arange(1, MOST_POINTS + 1) / MOST_POINTS
    series = []
    for group in bunch.groups:
        curves = []
        for run in group.runs:
            exact = metrics.risk_coverage(run.known.confidence, run.known.correct)
            # The risk at a coverage is that of the fewest samples that reach it.
            curves.append(exact.risk[np.searchsorted(exact.coverage, grid - 1e-12)])
        series.append(over_seeds(group, 100 * grid, [100 * curve for curve in curves]))
    low, high = around([value for each in series for value in (*each.y, *(each.high or ()))], least=0)
    axes = Axis("coverage, %", 0, 100, ticks=(0, 20, 40, 60, 80, 100)), Axis("wrong among answered, %", low, high)
    caption = (
        "Answer only the surest share of the test samples (coverage), by the method's own confidence: how many of "
        f"these answers are wrong (risk). Lower is better; at 100 % it is the error rate. The exact curve at "
        f"{MOST_POINTS} coverages, {100 / MOST_POINTS:g} % apart. {BAND}"
    )
    legend = legend_of(bunch.groups)
    return Figure("risk-coverage", "Risk and coverage", caption, [Panel("Known classes", *axes, series)], legend)


def thresholds(bunch: Bunch) -> Figure | None:
    """The paper's table 2 as curves: for every set of unknowns the accuracy, and what is left to have it."""
    if not bunch.sets:
        return None
    grid = np.arange(MOST_POINTS) / MOST_POINTS
    rates: list[Panel] = []
    shares: list[Panel] = []
    papers = False
    for name in bunch.sets:
        accuracy, kept = [], []
        for group in bunch.groups:
            if any(name not in run.others for run in group.runs):
                continue
            found = [
                metrics.accuracy_at_thresholds(*mixed(run.known, run.others[name]), grid) for run in group.runs
            ]  # fmt: skip
            accuracy.append(over_seeds(group, grid, [100 * curve.accuracy for curve in found]))
            kept.append(over_seeds(group, grid, [100 * curve.coverage for curve in found]))
            printed = [paper_at(group, name, threshold) for threshold in THRESHOLDS]
            if any(value is not None for value in printed):
                papers = True
                points = Series(f"{group.label}, paper", list(THRESHOLDS), printed, group.colour, kind="crosses")
                accuracy.append(points)
        x, title = Axis("threshold", 0, 1, ticks=SHARE), f"known and {set_name(bunch, name)}"
        low, high = around([value for each in accuracy for value in (*each.y, *(each.low or ()), *(each.high or ()))])
        rates.append(Panel(f"{title}: accuracy", x, Axis("accuracy, %", max(low, 0), min(high, 100)), accuracy))
        shares.append(Panel(f"{title}: kept", x, Axis("kept, %", 0, 100), kept))
    caption = (
        "The paper's table 2 as curves. The known test set and an unknown set together: of the predictions whose "
        "confidence is above the threshold, the share that is right, every unknown sample counting as wrong; and the "
        f"share of all predictions that is kept. At {MOST_POINTS} thresholds, {1 / MOST_POINTS:g} apart; no line where "
        f"nothing is kept. {BAND}" + (" Crosses: as printed in the paper." if papers else "")
    )
    legend = [*legend_of(bunch.groups), *([Key("paper", None, kind="crosses")] if papers else [])]
    columns = len(rates) if len(rates) <= 3 else 0
    return Figure("thresholds", "Accuracy and threshold", caption, [*rates, *shares], legend, columns=columns)


def unknown_histograms(bunch: Bunch) -> Figure | None:
    """How the unknown is spread on known and on unknown samples: one panel a method, known filled, others outlined."""
    able = [group for group in bunch.groups if has_unknown(group)]
    if not able:
        return None
    most = max(float(each.unknown.max()) for g in able for run in g.runs for each in (run.known, *run.others.values()))
    top = next(end for end in ENDS if most <= end + 1e-6)
    edges = np.linspace(0, top, BARS + 1)
    panels: list[Panel] = []
    names = {KNOWN: "known", **{name: f"{kind}: {set_name(bunch, name)}" for name, kind in bunch.sets.items()}}
    for group in able:
        series = []
        for place, (name, label) in enumerate(names.items()):
            said = [run.known if name == KNOWN else run.others.get(name) for run in group.runs]
            values = [each.unknown for each in said if each is not None]
            if len(values) < len(said):
                continue
            pooled = np.clip(np.concatenate(values), 0, top)
            counts = np.histogram(pooled, edges)[0]
            series.append(Series(
                label, finite((edges[:-1] + edges[1:]) / 2), finite(100 * counts / len(pooled)),
                group.colour if name == KNOWN else None, samples=[int(count) for count in counts],
                kind="area" if name == KNOWN else "steps", dash=max(place - 1, 0),
            ))  # fmt: skip
        panels.append(Panel(group.label, Axis("unknown", 0, top), Axis("samples, %", 0, 100), series))
    share = around([value for panel in panels for each in panel.series for value in each.y], least=0)[1]
    panels = [replace(panel, y=replace(panel.y, high=share)) for panel in panels]
    # The known are filled with their panel's own colour.
    known = {group.label: "known" if len(able) == 1 else f"known, {group.label}" for group in able}
    legend = [Key(known[group.label], group.colour, 0, "area") for group in able]
    legend += [Key(label, None, place, "steps") for place, label in enumerate([*names.values()][1:])]
    without = [group.label for group in bunch.groups if group not in able]
    caption = (
        f"The share of samples whose unknown lies in each of {BARS} bins of width {top / BARS:g}, for the known test "
        "set (filled) and every set of unknowns: classes held out of training (unseen), and other data near to it "
        "or far from it. Several seeds are pooled."
    )
    missing = f"Without a panel, because they have no unknown: {', '.join(without)}." if without else ""
    return Figure("unknown", "The unknown", caption, [*panels], legend, missing)
