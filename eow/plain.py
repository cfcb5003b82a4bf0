"""Words from elsewhere (names of classes, files and runs, whatever stands in a file) as text that does nothing."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

LONGEST = 60  # letters of a name in a sentence

# What is not shown but does something: line breaks, escape sequences, marks that turn the direction of writing, and
# halves of characters that no file can hold.
DOING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text as one line that commands no terminal: a ? for whatever would."""
    return DOING.sub("?", text)


def first_line(error: BaseException) -> str:
    """What an error says, for a sentence; its kind where it says nothing. What a file or somebody's module brings along
    may hold anything."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0][:200])


def encoded(text: str) -> bytes:
    """A whole text as bytes for a file, every line of it made printable."""
    return "\n".join(map(printable, text.split("\n"))).encode()


def brief(name: str) -> str:
    """A name of any length, for a sentence."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def shortened(names: Sequence[str], most: int = 3) -> str:
    """The first few of them, each brief, and that there are more."""
    return ", ".join(map(brief, names[:most])) + (", ..." if len(names) > most else "")


def near(name: str, names: Iterable[str]) -> str:
    """The beginning of a hint, where one of the names is probably meant; else nothing."""
    found = get_close_matches(str(name).lower(), list(names), 1)
    return f"did you mean {found[0]}? " if found else ""


def no_formula(cell: Any) -> Any:
    """A cell of a CSV file. A spreadsheet runs what begins with one of these signs; behind an apostrophe it is text.
    Numbers stay as they are."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
