"""Figures of the training: what the log says epoch by epoch, and the energy along the chains."""

from typing import Any

import numpy as np

from eow.report.curves import BAND, dash_of, legend_of, over_seeds
from eow.report.gather import Bunch, Group, Loaded
from eow.report.parts import Axis, Figure, Panel, Series, around, places, ticks

BEFORE_TERMS = ("epoch", "steps")  # in a line of the log the loss terms stand behind these
AFTER_TERMS = "lr"  # and before the learning rate
COUNTERS = {"energy_start": "chains' energy at the start", "energy_end": "chains' energy at the end"}
TITLES = {"ce": "cross-entropy", "energy": "energy term, times λ", "lr": "learning rate", **COUNTERS}
FAR = 3  # mean norms of the features from which on the end of chains, in any seed, is worth a word
CLIMB = 0.5  # of the mean energy along the chains, in any seed, that is worth one too
STEEP = 30  # from this ratio on, positive values are drawn on a log scale


def training(bunch: Bunch) -> Figure | None:
    if all(run.imported for group in bunch.groups for run in group.runs):
        return None
    lines = {id(run): [line for line in run.log if AFTER_TERMS in line] for g in bunch.groups for run in g.runs}
    names = dict.fromkeys(name for group in bunch.groups for run in group.runs for line in lines[id(run)]
                          for name in curve_names(line))  # fmt: skip
    panels = []
    for name in sorted(names, key=lambda name: (name in COUNTERS, name == AFTER_TERMS)):
        series = []
        for group in bunch.groups:
            curves = [{line["epoch"]: line[name] for line in lines[id(run)] if name in line} for run in group.runs]
            epochs = sorted(set.intersection(*map(set, curves)))
            if epochs:
                epochs = [epochs[place] for place in places(len(epochs))]
                values = [np.array([curve[epoch] for epoch in epochs], float) for curve in curves]
                series.append(over_seeds(group, np.array(epochs) + 1, values))
        if series:
            panels.append(curve_panel(TITLES.get(name, name.replace("_", " ")), "epoch", series))
    caption = (
        "Means over each epoch, as the run's log has them: the terms of the loss, whose sum is minimised, the learning "
        f"rate at the epoch's end and, where there are chains, their mean energies. {BAND}"
    )
    used = [group for group in bunch.groups if any(lines[id(run)] for run in group.runs)]
    return Figure("training", "Training", caption, [*panels], legend_of(used), " ".join(events(bunch)))


def curve_names(line: dict[str, Any]) -> list[str]:
    """The loss terms, the rate and the chains' energies of one line."""
    keys = list(line)
    terms = [key for key in keys[: keys.index(AFTER_TERMS) + 1] if key not in BEFORE_TERMS and "event" not in line]
    return [*terms, *(key for key in COUNTERS if key in line)]


def curve_panel(title: str, x_label: str, series: list[Series]) -> Panel:
    """Axes that fit the curves, those with a wide range of positive values on a log scale."""
    x = [value for each in series for value in each.x if value is not None]
    values = [value for each in series for part in (each.y, each.low, each.high) for value in part or ()]
    known = [value for value in values if value is not None]
    steep = bool(known) and min(known) > 0 and max(known) > STEEP * min(known) and title != TITLES[AFTER_TERMS]
    low, high = (min(known), max(known)) if steep else around(values, least=0 if known and min(known) >= 0 else None)
    first, last = (min(x), max(x)) if max(x) > min(x) else (min(x) - 0.5, max(x) + 0.5)
    whole = tuple(value for value in ticks(first, last) if value == round(value))
    return Panel(title, Axis(x_label, first, last, ticks=whole), Axis("", low, high, log=steep), series)


def events(bunch: Bunch) -> list[str]:
    """What happened on the way, in sentences: epochs that were undone, weights that were taken over, a training that
    was not quite the run's own."""
    told = []
    for group in bunch.groups:
        for run in group.runs:
            undone = [line["epoch"] + 1 for line in run.log if line.get("event") == "rollback"]
            if undone:
                words = ", ".join(map(str, undone))
                told.append(f"{group.label}, seed {run.seed}: epoch {words} diverged, was undone and tried again.")
            if source := next((line.get("source") for line in run.log if line.get("event") == "taken over"), None):
                told.append(f"{group.label}, seed {run.seed}: not trained itself, it takes the weights of {source}.")
            if reason := next((line.get("reason") for line in run.log if line.get("event") == "branched"), None):
                told.append(f"{group.label}, seed {run.seed}: a branch of another training, {reason}.")
    return told


def chains(bunch: Bunch) -> Figure | None:
    """The energy over the steps of the chains, as every run measured it after its training."""
    profiles = {group.label: [profile_of(run) for run in group.runs] for group in bunch.groups}
    able = [group for group in bunch.groups if all(profiles[group.label])]
    if not able:
        if not any(group.first.config["method"].get("steps") for group in bunch.groups):
            return None
        missing = "These runs have not kept their chains' energies, as newer ones do: train again to have them."
        return Figure(
            "chain", "The chains' energy", "The mean energy before each step of a chain.", [], missing=missing
        )
    series = [average(group, [profile for profile in profiles[group.label] if profile]) for group in able]
    caption = (
        "After training, one batch of chains that start as in training: the mean of their energy before each step and "
        "at the end, at 101 steps at most; the band holds the middle 80 % of the chains. Several seeds: the mean of "
        "each. Chains go downhill; the energy is the one the run was trained with (method.energy)."
    )
    panel = curve_panel("energy", "step", series)
    told = " ".join(filter(None, (runaway(able), climbing(able))))
    return Figure("chain", "The chains' energy", caption, [panel], legend_of(able), told)


def runaway(groups: list[Group]) -> str:
    """Where chains end far beyond the features, what that does and what to change; else nothing."""
    told = []
    for group in groups:
        found = [run.summary["chain"]["reach"] for run in group.runs if "reach" in run.summary["chain"]]
        if None in found:  # what was not finite
            told.append(f"those of {group.label} without any bound")
        elif found and max(found) >= FAR:
            told.append(f"those of {group.label} at {max(found):.3g} times their norm")
    if not told:
        return ""
    return (
        f"Chains end far beyond the features, where no sample lies: {'; '.join(told)}. Negatives so large keep the "
        "layers after the cut small, and these learn slowly. Chains that start from features (method.start) within a "
        "bound (method.trust) stay near."
    )


def climbing(groups: list[Group]) -> str:
    """Where chains end higher than they began, in any seed; else nothing."""
    told = []
    for group in groups:
        method = group.first.config["method"]
        if method.get("noise") == "langevin" or method.get("energy") == "proof":  # a sampler's chains may end anywhere
            continue
        ends = [(run.summary["chain"]["mean"][0], run.summary["chain"]["mean"][-1]) for run in group.runs]
        found = [(start, end) for start, end in ends if start is not None and end is not None and end > start + CLIMB]
        if found:
            start, end = max(found, key=lambda pair: pair[1] - pair[0])
            told.append(f"those of {group.label} from {start:.3g} to {end:.3g}")
    if not told:
        return ""
    return (
        f"Chains climb instead of falling: {'; '.join(told)}. Their steps throw them to where unknown is certain "
        "already, and the energy term teaches little. Lower method.step or method.lam."
    )


def profile_of(run: Loaded) -> dict[str, Any] | None:
    found = run.summary.get("chain")
    return found if isinstance(found, dict) and {"step", "mean", "low", "high"} <= found.keys() else None


def average(group: Group, found: list[dict[str, Any]]) -> Series:
    """Step by step over the seeds, which have the same steps; a step without a value in one has none."""

    def mean(name: str) -> list[float | None]:
        columns = zip(*(profile[name] for profile in found))
        return [None if None in column else float(np.mean(column)) for column in columns]

    steps = [float(step) for step in found[0]["step"]]
    return Series(group.label, steps, mean("mean"), group.colour, mean("low"), mean("high"), dash=dash_of(group))
