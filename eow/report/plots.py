"""Figures as matplotlib draws them, from numbers that are already there. Nothing is computed here but positions."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eow.plain import printable
from eow.storage import atomic

if TYPE_CHECKING:
    from eow.report.parts import Figure, Heat, Panel, Series
    from eow.report.sections import Section

PANELS = (("accuracy", "accuracy, %", 100, ".0f", "viridis"), ("ece", "ECE, %", 100, ".1f", "magma_r"),
          ("nll", "NLL", 1, ".2f", "magma_r"))  # fmt: skip
PALETTE = ("#0067a5", "#c65102", "#008a63", "#a9447f", "#a87900", "#2a93bd", "#7a2048", "#5e6470")  # as the page's
DASHES = ("-", "--", ":", "-.")
INK = "#1d2129"


def save(figure: Any, path: Path) -> None:
    """As the path's ending says, whole or not at all: drawing takes long, so the file is begun after it."""
    from matplotlib import pyplot

    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lstrip(".") or "png", dpi=150)
    pyplot.close(figure)
    atomic(path, lambda file: file.write(drawn.getvalue()))


def draw_corruptions(figures: dict[str, Any], path: Path) -> None:
    """The corruption × severity matrix as three heat maps side by side: accuracy, ECE, NLL."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names, severities = figures["corruptions"], figures["severities"]
    sheet, axes = pyplot.subplots(1, 3, figsize=(11, 1.2 + 0.3 * len(names)), layout="constrained", sharey=True)
    for axis, (key, title, factor, form, colours) in zip(axes, PANELS):
        values = [[factor * value for value in row] for row in figures[key]]
        draw_matrix(axis, title, [name.replace("_", " ") for name in names], severities, values, form, cmap=colours)
    sheet.suptitle(f"corruptions {figures['source']}", fontsize=11)
    save(sheet, path)


def draw_matrix(
    axis: Any, title: str, rows: list[str], columns: list[Any], values: list[list[float]], form: str, **scale: Any
) -> None:
    """A heat map with its numbers on it."""
    image = axis.imshow(values, aspect="auto", **scale)
    axis.set_title(title, fontsize=11, parse_math=False)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    axis.set_xlabel("severity")
    for side in axis.spines.values():
        side.set_visible(False)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            red, green, blue, _ = image.cmap(image.norm(value))
            light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            axis.text(x, y, format(value, form), ha="center", va="center", fontsize=8, color="k" if light else "w")


# The report's figures


def pictures(sections: "list[Section]", out: Path, many: bool) -> dict[Path, bytes]:
    """A file for every figure in the folder `out`, or all of them below one another in the one file `out`."""
    drawn = {
        figure.key if len(sections) == 1 else f"{section.slug}-{figure.key}": draw(figure, section.title)
        for section in sections for figure in section.figures if figure.panels
    }  # fmt: skip
    if many:
        return {out / f"{name}.png": content for name, content in drawn.items()}
    return {out: below_one_another(list(drawn.values()))}


def below_one_another(images: list[bytes]) -> bytes:
    from PIL import Image

    sheets = [Image.open(io.BytesIO(image)).convert("RGB") for image in images]
    whole = Image.new("RGB", (max(each.width for each in sheets), sum(each.height for each in sheets)), "white")
    top = 0
    for sheet in sheets:
        whole.paste(sheet, (0, top))
        top += sheet.height
    file = io.BytesIO()
    whole.save(file, "PNG")
    return file.getvalue()


def draw(figure: "Figure", where: str) -> bytes:
    """One of the report's figures as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from eow.report.parts import Heat

    columns = min(figure.columns or 3, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    tall = any(isinstance(panel, Heat) for panel in figure.panels)
    sheet, axes = pyplot.subplots(
        rows, columns, figsize=(3.8 * columns + 0.4, (5.6 if tall else 3.1) * rows + 0.7), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axis, panel in zip(axes.flat, figure.panels):
        if isinstance(panel, Heat):
            draw_heat(axis, panel)
        else:
            draw_panel(axis, panel)
    for axis in axes.flat[len(figure.panels) :]:
        axis.set_visible(False)
    sheet.suptitle(printable(f"{figure.title}: {where}"), fontsize=11, parse_math=False, wrap=True)
    add_legend(sheet, *handles_of(figure))
    file = io.BytesIO()
    sheet.savefig(file, format="png", dpi=150)
    pyplot.close(sheet)
    return file.getvalue()


def add_legend(sheet: Any, handles: list[Any], labels: list[str]) -> None:
    """Below the panels, in as many columns as the picture is wide enough for; its rows make the picture taller."""
    for columns in range(min(len(labels), 4), 0, -1):
        legend = sheet.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
        wide = legend.get_window_extent(sheet.canvas.get_renderer()).width
        if columns == 1 or wide <= sheet.bbox.width:
            sheet.set_figwidth(max(sheet.get_figwidth(), wide / sheet.dpi))
            sheet.set_figheight(sheet.get_figheight() + 0.19 * (-(-len(labels) // columns) - 1))
            return
        legend.remove()


def handles_of(figure: "Figure") -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for key in figure.legend:
        if key.kind in ("area", "bars"):
            handles.append(Patch(color=colour_of(key.colour), alpha=0.3 if key.kind == "area" else 1))
        else:
            cross = {"marker": "x", "linestyle": ""} if key.kind == "crosses" else {"linestyle": DASHES[key.dash % 4]}
            handles.append(Line2D([], [], color=colour_of(key.colour), **cross))  # type: ignore[arg-type]
    return handles, [printable(key.name).replace("$", r"\$") for key in figure.legend]


def colour_of(place: int | None) -> str:
    return INK if place is None else PALETTE[place % len(PALETTE)]


def draw_heat(axis: Any, panel: "Heat") -> None:
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("shades", ["#ffffff", colour_of(panel.colour)])
    title = printable(f"{panel.name}: {panel.title}")
    draw_matrix(axis, title, panel.rows, panel.columns, panel.values, f".{panel.digits}f", cmap=shades,
                vmin=panel.low, vmax=panel.high)  # fmt: skip


def draw_panel(axis: Any, panel: "Panel") -> None:
    axis.set_title(printable(panel.title), fontsize=10, loc="left", parse_math=False)
    axis.set_xlabel(panel.x.label)
    axis.set_ylabel(panel.y.label)
    axis.set_xlim(panel.x.low, panel.x.high)
    if panel.y.log:
        axis.set_yscale("log")
    axis.set_ylim(panel.y.low, panel.y.high)
    axis.grid(axis="y", color="#eceae4")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.diagonal:
        axis.plot([0, 1], [0, 1], ":", color="#5b6371", linewidth=1)
    bars = [series for series in panel.series if series.kind == "bars"]
    for series in panel.series:
        draw_series(axis, series, bars.index(series) if series in bars else 0, len(bars))
    if panel.strip:
        draw_counts(axis, panel.series[0])


def draw_series(axis: Any, series: "Series", turn: int, of: int) -> None:
    import numpy as np

    x, y = (np.array(values, float) for values in (series.x, series.y))
    style: dict[str, Any] = {"color": colour_of(series.colour)}
    low, high = (None if ends is None else np.array(ends, float) for ends in (series.low, series.high))
    spread = None if low is None or high is None else np.maximum([y - low, high - y], 0)
    if series.kind == "bars":
        width = 0.8 / of
        axis.bar(x - 0.4 + (turn + 0.5) * width, y, width * 0.94, yerr=spread, error_kw={"linewidth": 1}, **style)
    elif series.kind == "points":
        there = ~np.isnan(x)
        ends = None if spread is None else spread[:, there]
        axis.errorbar(x[there], y[there], ends, marker="o", markersize=4, linewidth=0.8, **style)
    elif series.kind == "crosses":
        axis.plot(x, y, "x", **style)
    elif series.kind in ("steps", "area"):
        half = (x[1] - x[0]) / 2
        edges = np.append(x - half, x[-1] + half)
        filled = {"fill": True, "alpha": 0.3, "linewidth": 0} if series.kind == "area" else {}
        axis.stairs(y, edges, linestyle=DASHES[series.dash % 4], **filled, **style)
    else:
        alone = "o" if np.isfinite(y).sum() == 1 else ""
        axis.plot(x, y, marker=alone, linestyle=DASHES[series.dash % 4], linewidth=1.5, **style)
        if low is not None and high is not None:
            axis.fill_between(x, low, high, alpha=0.14, linewidth=0, **style)


def draw_counts(axis: Any, series: "Series") -> None:
    """How many samples each bin has: pale bars at the foot, a fifth of the height at most, on a scale of roots."""
    import numpy as np

    counts = np.sqrt(np.array(series.samples, float))
    width = 1 / len(counts)
    places = (np.arange(len(counts)) + 0.5) * width
    axis.bar(places, 0.2 * counts / max(counts.max(), 1), width * 0.94, color=colour_of(series.colour), alpha=0.2)
