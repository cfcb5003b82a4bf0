"""What a report is made of: tables and figures as plain values, which others draw, write or embed. The numbers of a
figure that can be downloaded are these very values, so nothing is drawn that cannot be had."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MOST_POINTS = 200  # of a curve: more than a screen shows
Values = Sequence[float | None]


@dataclass(frozen=True)
class Cell:
    """Text and the number behind it, by which a table is sorted; with several seeds their standard deviation, with one
    an interval."""

    text: str
    value: float | None = None
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    beside: str = ""  # the spread or interval as text
    colour: int | None = None


DASH = Cell("–")  # nothing there


@dataclass(frozen=True)
class Table:
    key: str
    title: str
    header: list[str]
    rows: list[list[Cell]]
    caption: str

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows), f"{self.key}: cells without a heading"


@dataclass(frozen=True)
class Series:
    """One line, row of bars or set of points. Nothing is drawn where a value is None."""

    name: str
    x: Values
    y: Values
    colour: int | None = None  # a place in the palette; None is the text's own colour
    low: Values | None = None
    high: Values | None = None
    samples: Values | None = None
    kind: Literal["line", "steps", "area", "bars", "points", "crosses"] = "line"
    dash: int = 0


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Panel:
    """Curves in one pair of axes. `strip` draws the samples of the first series below, as bars over (0, 1]."""

    title: str
    x: Axis
    y: Axis
    series: list[Series]
    diagonal: bool = False
    strip: bool = False


@dataclass(frozen=True)
class Heat:
    """A matrix of numbers; a deeper colour is a larger value."""

    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    digits: int
    colour: int
    label: str  # of the columns
    name: str  # of the matrix, where titles repeat
    low: float  # the scale's ends, where several matrices share one
    high: float


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    name: str
    colour: int | None
    dash: int = 0
    kind: str = "line"


@dataclass(frozen=True)
class Figure:
    """`missing` says in a sentence what is not there, and how it can be had."""

    key: str
    title: str
    caption: str
    panels: list[Panel | Heat]
    legend: list[Key] = field(default_factory=list)
    missing: str = ""
    columns: int = 0  # panels in a row, where they belong together; 0: as many as fit


# The numbers of each, as columns


@dataclass(frozen=True)
class Block:
    """Rows of a CSV that begin with the same words."""

    words: list[str]
    columns: list[list[Any]]


def numbers_of(part: Table | Figure) -> tuple[list[str], list[Block]]:
    """The header of the part's CSV, and its rows in blocks."""
    if isinstance(part, Table):
        return table_numbers(part)
    curves = [panel for panel in part.panels if isinstance(panel, Panel)]
    heats = [panel for panel in part.panels if isinstance(panel, Heat)]
    if heats:
        header = ["panel", "row", heats[0].label, "value"]
        blocks = [Block([f"{heat.name}: {heat.title}", row], [list(heat.columns), rounded(values)])
                  for heat in heats for row, values in zip(heat.rows, heat.values)]  # fmt: skip
        return header, blocks
    every = [series for panel in curves for series in panel.series]
    extras = [name for name in ("low", "high", "samples") if any(getattr(each, name) for each in every)]
    names = [{axis.label for axis in axes} for axes in ((p.x for p in curves), (p.y for p in curves))]
    axes = [each.pop() if len(each) == 1 and "" not in each else letter for each, letter in zip(names, "xy")]
    blocks = []
    for panel in curves:
        for series in panel.series:
            columns = [rounded(series.x), rounded(series.y)]
            columns += [rounded(getattr(series, name) or [None] * len(series.x)) for name in extras]
            blocks.append(Block([panel.title, series.name], columns))
    return ["panel", "series", *axes, *extras], blocks


def table_numbers(table: Table) -> tuple[list[str], list[Block]]:
    header, columns = [], []
    for title, cells in zip(table.header, zip(*table.rows)):
        header.append(title)
        columns.append([None if cell == DASH else cell.text if cell.value is None else cell.value for cell in cells])
        for name, key in (("std", "spread"), ("low", "low"), ("high", "high")):
            if any(getattr(cell, key) is not None for cell in cells):
                header.append(f"{title} {name}")
                columns.append([getattr(cell, key) for cell in cells])
    return header, [Block([], columns)]


def rows_of(part: Table | Figure) -> tuple[list[str], list[list[Any]]]:
    """The same as plain rows, nothing as an empty cell."""
    header, blocks = numbers_of(part)
    rows = [[*block.words, *line] for block in blocks for line in zip(*block.columns)]
    return header, [["" if value is None else value for value in row] for row in rows]


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """To six digits, as a page needs them."""
    return [value if value is None or isinstance(value, int) else float(f"{value:.6g}") for value in values]


def finite(values: Iterable[float]) -> list[float | None]:
    """Plain numbers; anything else becomes None."""
    return [float(value) if math.isfinite(value) else None for value in values]


def places(count: int, most: int = MOST_POINTS) -> list[int]:
    """At most so many indices of `count` values, evenly spread, first and last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high, about `count` of them."""
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    width = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9)
    return [float(f"{place * width:.10g}") for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between both; where there are too few, their halves and fifths as well."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) >= 3:
            break
    return found[:: -(-len(found) // 7)]


def around(values: Iterable[float | None], *, least: float | None = None) -> tuple[float, float]:
    """A range that holds all values, ends at round numbers and is never empty; from `least` where that is given."""
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    low = low if least is None else min(least, low)
    near = 1e-8 * max(abs(low), abs(high))  # closer than that, and the digits of a tick tell no two values apart
    if high - low < max(1e-12, near):
        reach = max(0.5, 100 * near)
        low, high = (low, low + 2 * reach) if least is not None else (low - reach, high + reach)
    width = ticks(low, high)
    step = width[1] - width[0] if len(width) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
