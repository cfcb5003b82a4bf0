"""Draws panels as SVG that stands in the page itself, so that its colours are the style sheet's and follow dark mode.
Text from outside is escaped; everything else is numbers."""

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from eow.report.gather import PALETTE
from eow.report.parts import Axis, Heat, Key, Panel, Series, Values, log_ticks, ticks

WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 38.0
STRIP = 48.0  # height of the bars that count samples
Scale = Callable[[float], float]


def draw(panel: Panel | Heat) -> Markup:
    return Markup(heat(panel) if isinstance(panel, Heat) else curves(panel))


def scale(axis: Axis, start: float, end: float) -> Scale:
    low, high = (math.log(axis.low), math.log(axis.high)) if axis.log else (axis.low, axis.high)

    def place(value: float) -> float:
        share = ((math.log(max(value, axis.low)) if axis.log else value) - low) / (high - low)
        return round(start + share * (end - start), 1)

    return place


def tick_values(axis: Axis) -> Sequence[float]:
    if axis.ticks:
        return axis.ticks
    return log_ticks(axis.low, axis.high) if axis.log else ticks(axis.low, axis.high)


def label(value: float) -> str:
    return f"{value:.6g}".replace("-", "−").replace("e−0", "e−")


def curves(panel: Panel) -> str:
    height = HEIGHT + (STRIP if panel.strip else 0)
    x, y = scale(panel.x, LEFT, WIDTH - RIGHT), scale(panel.y, HEIGHT - BOTTOM, TOP)
    parts = [opening(height, f"{panel.title}: {panel.y.label or panel.title} against {panel.x.label}")]
    foot = height - BOTTOM
    for value in tick_values(panel.y):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 3.5}" text-anchor="end">{label(value)}</text>')
    for value in tick_values(panel.x):
        parts.append(f'<text class="tick" x="{x(value)}" y="{foot + 15}" text-anchor="middle">{label(value)}</text>')
    base = HEIGHT - BOTTOM
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 5}" text-anchor="middle">'
                 f"{escape(panel.x.label)}</text>")  # fmt: skip
    middle = (TOP + base) / 2
    parts.append(f'<text class="name" transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
                 f"{escape(panel.y.label)}</text>")  # fmt: skip
    if panel.diagonal:
        parts.append(f'<line class="diagonal" x1="{x(0)}" y1="{y(0)}" x2="{x(1)}" y2="{y(1)}"/>')
    bars = [series for series in panel.series if series.kind == "bars"]
    for series in panel.series:
        turn = bars.index(series) if series in bars else 0
        body = {"bars": lambda s: columns(s, x, y, turn, len(bars)), "points": lambda s: points(s, x, y),  # noqa: B023
                "crosses": lambda s: crosses(s, x, y), "steps": lambda s: outline(s, x, y),
                "area": lambda s: outline(s, x, y, filled=True)}.get(series.kind, lambda s: line(s, x, y))  # fmt: skip
        parts.append(f'<g class="{colour_class(series.colour)} d{series.dash % 4}">{body(series)}</g>')
    if panel.strip:
        parts.append(counts(panel.series[0], x, height - BOTTOM, base + 14))
    return "".join([*parts, "</svg>"])


def opening(height: float, words: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(words)}">'


def colour_class(colour: int | None) -> str:
    return "ink" if colour is None else f"c{colour % PALETTE}"


def path(xs: Iterable[float | None], ys: Iterable[float | None], x: Scale, y: Scale) -> str:
    """The points joined by straight lines, with gaps where a value is missing."""
    words, pen = [], "M"
    for a, b in zip(xs, ys):
        if a is None or b is None:
            pen = "M"
        else:
            words.append(f"{pen}{x(a):g} {y(b):g}")
            pen = "L"
    return "".join(words)


def line(series: Series, x: Scale, y: Scale) -> str:
    band = ""
    if series.low and series.high:
        known = [(a, low, high) for a, low, high in zip(series.x, series.low, series.high)
                 if a is not None and low is not None and high is not None]  # fmt: skip
        there = path([a for a, _, _ in known], [high for _, _, high in known], x, y)
        back = path([a for a, _, _ in reversed(known)], [low for _, low, _ in reversed(known)], x, y)
        band = f'<path class="band" d="{there}{back.replace("M", "L", 1)}Z"/>' if known else ""
    body = f'<path class="line" d="{path(series.x, series.y, x, y)}"/>'
    if sum(value is not None for value in series.y) == 1:  # a path of one point shows nothing
        body = dots(series.x, series.y, x, y)
    return band + body


def dots(xs: Values, ys: Values, x: Scale, y: Scale) -> str:
    return "".join(
        f'<circle class="dot" cx="{x(a):g}" cy="{y(b):g}" r="3"><title>{a:.3g}: {b:.3g}</title></circle>'
        for a, b in zip(xs, ys) if a is not None and b is not None
    )  # fmt: skip


def points(series: Series, x: Scale, y: Scale) -> str:
    whiskers = "".join(
        f'<path class="whisker" d="M{x(a):g} {y(low):g}V{y(high):g}"/>'
        for a, low, high in zip(series.x, series.low or (), series.high or ())
        if a is not None and low is not None and high is not None
    )
    joined = [(a, b) for a, b in zip(series.x, series.y) if a is not None]
    thin = path([a for a, _ in joined], [b for _, b in joined], x, y)
    return f'{whiskers}<path class="thin" d="{thin}"/>{dots(series.x, series.y, x, y)}'


def crosses(series: Series, x: Scale, y: Scale) -> str:
    return "".join(
        f'<path class="cross" d="M{x(a) - 4:g} {y(b) - 4:g}l8 8m0 -8l-8 8">'
        f"<title>{escape(series.name)}: {b:g}</title></path>"
        for a, b in zip(series.x, series.y) if a is not None and b is not None
    )  # fmt: skip


def columns(series: Series, x: Scale, y: Scale, turn: int, of: int) -> str:
    """Bars beside those of the other series, with whiskers."""
    unit = x(1) - x(0)
    width = 0.8 * unit / of
    parts = []
    for place, (a, b) in enumerate(zip(series.x, series.y)):
        if a is None or b is None:
            continue
        left = x(a) - 0.4 * unit + turn * width
        parts.append(f'<rect class="bar" x="{left:.1f}" y="{y(b)}" width="{max(width - 1, 0.5):.1f}" '
                     f'height="{max(y(0) - y(b), 0):.1f}">'
                     f"<title>{escape(series.name)}, {a:g}: {b:.4g}</title></rect>")  # fmt: skip
        if series.low and series.high and series.low[place] is not None and series.high[place] is not None:
            ends = y(series.low[place] or 0.0), y(series.high[place] or 0.0)
            parts.append(f'<path class="stem" d="M{left + width / 2:.1f} {ends[0]}V{max(ends[1], TOP)}"/>')
    return "".join(parts)


def outline(series: Series, x: Scale, y: Scale, filled: bool = False) -> str:
    """A histogram's outline; bins are as wide as their centres are apart."""
    half = ((series.x[1] or 0.0) - (series.x[0] or 0.0)) / 2
    xs = [value for a in series.x if a is not None for value in (a - half, a + half)]
    ys = [value for b in series.y if b is not None for value in (b, b)]
    shape = path(xs, ys, x, y)
    if filled:
        return f'<path class="area" d="{shape}L{x(xs[-1]):g} {y(0):g}L{x(xs[0]):g} {y(0):g}Z"/>'
    return f'<path class="line" d="{shape}"/>'


def counts(series: Series, x: Scale, base: float, top: float) -> str:
    """How many samples each of the equal bins over (0, 1] has."""
    values = [value or 0.0 for value in series.samples or ()]
    most = math.sqrt(max([*values, 1]))
    unit = (x(1) - x(0)) / len(values)
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>']
    for place, value in enumerate(values):
        tall = (base - top) * math.sqrt(value) / most
        words = f"{value:g} samples in ({place / len(values):.3g}, {(place + 1) / len(values):.3g}]"
        parts.append(f'<rect class="count" x="{x(0) + place * unit + 0.5:.1f}" y="{base - tall:.1f}" '
                     f'width="{unit - 1:.1f}" height="{tall:.1f}"><title>{words}</title></rect>')  # fmt: skip
    parts.append(f'<text class="tick" x="{LEFT - 6}" y="{top + 6}" text-anchor="end">{max(values):,.0f}</text>')
    return f'<g class="{colour_class(series.colour)}">{"".join(parts)}</g>'


def heat(panel: Heat) -> str:
    """One rectangle a cell, its number on it; the stronger the colour, the larger the number."""
    side, row_height, head = 100.0, 17.0, 16.0
    width = (WIDTH - side) / len(panel.columns)
    height = head + row_height * len(panel.rows) + 24
    parts = [opening(height, f"{panel.name}: {panel.title}"), f'<g class="{colour_class(panel.colour)}">']
    for row, (name, values) in enumerate(zip(panel.rows, panel.values)):
        top = head + row * row_height - 14
        parts.append(f'<text class="tick" x="{side - 6}" y="{top + 12.5}" text-anchor="end">{escape(name)}</text>')
        for column, value in enumerate(values):
            share = (value - panel.low) / (panel.high - panel.low) if panel.high > panel.low else 0.5
            left = side + column * width
            parts.append(f'<rect class="cell" x="{left:.1f}" y="{top}" width="{width - 1:.1f}" '
                         f'height="{row_height - 1}" fill-opacity="{0.06 + 0.88 * share:.3f}"/>')  # fmt: skip
            parts.append(f'<text class="number{" over" if share > 0.5 else ""}" x="{left + width / 2:.1f}" '
                         f'y="{top + 12}" text-anchor="middle">{value:.{panel.digits}f}</text>')  # fmt: skip
    for column, name in enumerate(panel.columns):
        parts.append(f'<text class="tick" x="{side + (column + 0.5) * width:.1f}" y="{height - 22}" '
                     f'text-anchor="middle">{escape(name)}</text>')  # fmt: skip
    parts.append(f'<text class="name" x="{side + (WIDTH - side) / 2}" y="{height - 7}" text-anchor="middle">'
                 f"{escape(panel.label)}</text>")  # fmt: skip
    return "".join([*parts, "</g></svg>"])


def swatch(key: Key) -> Markup:
    """The mark of a legend's entry."""
    body = {
        "area": '<path class="area" d="M1 1H25V11H1Z"/>',
        "bars": '<path class="bar" d="M7 0H19V12H7Z"/>',
        "crosses": '<path class="cross" d="M9 2l8 8m0 -8l-8 8"/>',
    }.get(key.kind, '<path class="line" d="M1 6H25"/>')
    return Markup(
        f'<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true"><g class="{colour_class(key.colour)} '
        f'd{key.dash % 4}">{body}</g></svg>'
    )
