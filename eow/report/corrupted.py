"""Figures of the corrupted test set, from the numbers that `eow evaluate --corruptions` left in the runs."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from eow import storage
from eow.data.corruptions import SMALLEST_SIDE
from eow.errors import EowError
from eow.report.curves import legend_of
from eow.report.gather import Bunch, Group, Loaded
from eow.report.parts import Axis, Figure, Heat, Panel, Series, around, finite

MATRICES = (("accuracy", "accuracy, %", 100, 0), ("ece", "ECE, %", 100, 1), ("nll", "NLL", 1, 2))
BARS = (("ece", "ECE, %", 100), ("accuracy", "accuracy, %", 100), ("unknown", "mean unknown", 1))


def corruptions(bunch: Bunch, rate: float | None) -> list[Figure]:
    """The paper's figure 3 and the matrices behind it; where no run has been corrupted, the command that does it."""
    able = [group for group in bunch.groups if all(run.corruptions is not None for run in group.runs)]
    own = [run for group in bunch.groups for run in group.runs if not run.imported]
    if not own:
        return []
    lacking = [run for run in own if run.corruptions is None]
    missing = how_to_measure(lacking, len(own)) if lacking else ""
    if not able:
        words = "The test images under 19 corruptions at five severities, as in CIFAR-C (the paper's figure 3)."
        return [Figure("corruptions", "Corruptions", words, [], missing=missing)]
    for group in able:
        if len({str(run.corruptions["corruptions"]) for run in group.runs if run.corruptions}) > 1:
            raise EowError(
                f"the seeds of {group.label} differ in their corruptions: repeat `eow evaluate --corruptions` for them"
            )
    sources = sorted({run.corruptions["source"] for group in able for run in group.runs if run.corruptions})
    note = "" if rate is None else " At the runs' own λ, whatever unknown rate the rest of the report is for."
    return [bars(able, sources, note, missing), heat_maps(able, sources, note)]


def how_to_measure(lacking: list[Loaded], runs: int) -> str:
    """The command, where it would do it: the runs here are on the same data, but some may have lost their weights."""
    shapes = {run.folder: shape for run in lacking if (shape := input_shape(run.folder)) is not None}
    if not shapes:
        return f"Not measured for {len(lacking)} of {runs} runs here, and the weights it would need are gone."
    folder, shape = next(iter(shapes.items()))
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_SIDE:
        least = f"{SMALLEST_SIDE}×{SMALLEST_SIDE}"
        what = f"images of {shape[2]}×{shape[1]}" if len(shape) == 3 else "features"
        return f"Not available: corruptions need images of {least} or larger, and these are {what}."
    command = f"`eow evaluate {shlex.quote(str(folder))} --corruptions`"
    return f"Not measured for {len(lacking)} of {runs} runs here: {command} does it."


def input_shape(folder: Path) -> tuple[int, ...] | None:
    """Of one sample, as the weights file says; None where there is none."""
    path = folder / "weights.safetensors"
    if not path.is_file():
        return None
    with storage.tensor_file(path, "numpy") as (_, card):
        shape = card.get("in_shape")
    if not isinstance(shape, list) or len(shape) not in (1, 3) or not all(type(side) is int for side in shape):
        raise EowError(f"{path} does not say what its inputs are: train the run again")
    return tuple(shape)


def over_runs(group: Group, *path: str) -> np.ndarray:
    """The mean over the seeds of what lies at `path` in their corruption figures."""
    found = []
    for run in group.runs:
        value: Any = run.corruptions
        for key in path:
            value = value[key]
        found.append(value)
    return np.mean(np.array(found, float), axis=0)


def bars(groups: list[Group], sources: list[str], note: str, missing: str) -> Figure:
    severities = groups[0].first.corruptions["severities"]  # type: ignore[index]
    panels = []
    for figure, label, factor in BARS:
        series = []
        for group in groups:
            found = [run.corruptions["severity"][figure] for run in group.runs if run.corruptions]
            mean = factor * np.mean([[each["mean"] for each in one] for one in found], axis=0)
            std = factor * np.mean([[each["std"] for each in one] for one in found], axis=0)
            low, high = finite(np.maximum(mean - std, 0)), finite(mean + std)
            series.append(Series(group.label, severities, finite(mean), group.colour, low, high, kind="bars"))
        if not any(value for each in series for value in each.y):
            continue  # no method here has an unknown
        top = around([value for each in series for value in each.high or ()], least=0)[1]
        axis = Axis("severity", severities[0] - 0.5, severities[-1] + 0.5, ticks=tuple(severities))
        title = label.partition(",")[0]
        panels.append(Panel(title, axis, Axis("" if label == title else label, 0, min(top, factor)), series))
    caption = (
        "The paper's figure 3: mean over the corruptions at each severity, whiskers one standard deviation over the "
        f"corruptions (of several seeds, their mean). Test images {', '.join(sources)}.{note}"
    )
    return Figure("corruption-bars", "Corruptions by severity", caption, [*panels], legend_of(groups, "bars"), missing)


def heat_maps(groups: list[Group], sources: list[str], note: str) -> Figure:
    heats = []
    scales = {
        figure: (factor * min(tables.min() for tables in found), factor * max(tables.max() for tables in found))
        for figure, _, factor, _ in MATRICES if (found := [over_runs(group, figure) for group in groups])
    }  # fmt: skip
    for group in groups:
        first = group.first.corruptions
        assert first is not None
        rows = [name.replace("_", " ") for name in first["corruptions"]]
        columns = [str(severity) for severity in first["severities"]]
        for figure, title, factor, digits in MATRICES:
            table, (low, high) = factor * over_runs(group, figure), scales[figure]
            heats.append(
                Heat(title, rows, columns, table.tolist(), digits, group.colour, "severity", group.label, low, high)
            )
    caption = (
        "Each corruption at each severity; the deeper the colour, the larger the number, on one scale for all "
        f"methods. Several seeds: their mean. Test images {', '.join(sources)}.{note}"
    )
    return Figure("corruption-maps", "Corruptions one by one", caption, [*heats], columns=len(MATRICES))
