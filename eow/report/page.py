"""The report as one HTML page that needs nothing else: style, script, figures, pictures and numbers stand in it.

Whatever comes from outside (names of classes, runs, files) is escaped for the place where it stands, and the page's
own policy lets no other script run and nothing be fetched.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from eow import __version__
from eow.report.gather import PALETTE
from eow.report.parts import Figure, Heat, Panel, Table, numbers_of
from eow.report.sections import Section
from eow.report.svg import draw, swatch


def page(sections: list[Section]) -> str:
    """The page's text. The same runs give the same bytes."""
    from jinja2 import Environment, StrictUndefined

    source = files("eow.report")
    style, script = (source.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["code"] = code
    template = environment.from_string(source.joinpath("template.html.j2").read_text(encoding="utf-8"))
    text = template.render(
        sections=sections, title=title_of(sections), version=__version__, style=Markup(style), script=Markup(script),
        policy=policy(script), numbers=Markup(script_json(downloads(sections))), draw=draw, swatch=swatch,
        colour_of=colour_of, palette=PALETTE, heat_title=lambda panel: isinstance(panel, Heat),
    )  # fmt: skip
    return text.lstrip()


def title_of(sections: list[Section]) -> str:
    """The data of a report on one or two sets, else how many there are."""
    return " and ".join(section.title for section in sections) if len(sections) < 3 else f"{len(sections)} data sets"


def code(text: str) -> Markup:
    """What stands between backquotes as code."""
    forms = Markup("{}"), Markup("<code>{}</code>")
    return Markup("").join(forms[place % 2].format(part) for place, part in enumerate(text.split("`")))


def policy(script: str) -> str:
    """Nothing is fetched, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def downloads(sections: list[Section]) -> dict[str, Any]:
    """The numbers of every table and figure by the name of their file, as the script turns them into CSV."""
    return {f"{section.slug}-{part.key}": compact(part) for section in sections for part in section.with_numbers}


def compact(part: Table | Figure) -> list[Any]:
    header, blocks = numbers_of(part)
    return [header, [[block.words, block.columns] for block in blocks]]


def colour_of(panel: Panel | Heat) -> int | None:
    """The one method's colour that a panel shows; None where it shows several."""
    if isinstance(panel, Heat):
        return panel.colour
    colours = {series.colour for series in panel.series if series.colour is not None}
    return colours.pop() if len(colours) == 1 else None


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: without a "<" there is no "</script>" and no "<!--"."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
