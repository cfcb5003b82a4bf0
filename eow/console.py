"""What a person sees in the terminal: one console, one progress bar, one way to print a table. Text is printed as it
stands: a file's name may hold brackets and colons that rich would read as its own."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from eow.errors import EowError
from eow.plain import printable

PlainConsole = partial(Console, highlight=False, markup=False, emoji=False)
console = PlainConsole(soft_wrap=True)


def plain_warnings() -> None:
    """A warning as one line for a user, without the place in the source it came from. Like an error it may quote a
    file, whose names command no terminal."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {printable(str(message))}", file=sys.stderr)


def training_bar(show: bool = True) -> Progress:
    """A bar with the loss terms and the images per second; silent where the output is no terminal."""
    return Progress(
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=24),
        TextColumn("epoch {task.fields[epoch]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[status]}"),
        console=console,
        transient=True,
        disable=not (show and console.is_terminal),
    )


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """Columns of numbers stand to the right, of words to the left. A pipe gets the table whole, however wide it is; in
    a terminal it loses its frame, then its cells are folded between words. No word or number is ever cut."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    heads = [printable(column) for column in columns]
    framed, widths = arrange(
        [list(column) for column in zip(heads, *cells)], console.width if console.is_terminal else None
    )
    table = Table(
        title=printable(title) or None,
        title_justify="left",
        title_style="bold",
        caption=note or None,
        caption_justify="left",
        box=HEAVY_HEAD if framed else SIMPLE_HEAD,
        show_edge=framed,
        padding=(0, 1) if framed else 0,
    )
    for index, (head, width) in enumerate(zip(heads, widths)):
        numbers = all(is_number(row[index]) for row in cells)
        table.add_column(folded(head, width), justify="right" if numbers else "left", width=width)
    for row in cells:
        table.add_row(*(folded(cell, width) for cell, width in zip(row, widths)))
    needed = sum(widths) + frame(len(widths), framed)
    width = max(console.width, needed) if console.is_terminal else max(200, needed)
    PlainConsole(width=width, file=console.file).print(table)


def frame(columns: int, framed: bool) -> int:
    return 3 * columns + 1 if framed else columns - 1


def arrange(columns: Sequence[Sequence[str]], room: int | None) -> tuple[bool, list[int]]:
    """Whether the table has a frame, and how wide each column is. Without room to keep to, all are as wide as their
    cells; where the frameless table is too wide with every cell folded, it stays so."""
    whole = [max(map(cell_len, column)) for column in columns]
    least = [max(cell_len(piece) for cell in column for piece in pieces(cell)) for column in columns]
    least[0] = whole[0]  # what the row is about stays on its line
    if room is None:
        return True, whole
    for framed in (True, False):
        if sum(whole) + frame(len(columns), framed) <= room:
            return framed, whole
    framed = sum(least) + frame(len(columns), True) <= room
    spare = max(0, room - frame(len(columns), framed) - sum(least))
    wishes = [wide - narrow for wide, narrow in zip(whole, least)]
    return framed, [narrow + spare * wish // max(1, sum(wishes)) for narrow, wish in zip(least, wishes)]


def pieces(cell: str) -> list[str]:
    """What of a cell stays together: its words, and ± with the number behind it."""
    return re.split(r"(?<!±)\s+", cell)


def folded(cell: str, width: int) -> str:
    if cell_len(cell) <= width:
        return cell
    lines: list[str] = []
    for piece in pieces(cell):
        if lines and cell_len(f"{lines[-1]} {piece}") <= width:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return "\n".join(lines)


def is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text in ("-", "")
    return True


@contextmanager
def in_one_line() -> Iterator[None]:
    """What the user can put right, for a command or a script: one line on standard error and exit code 2."""
    try:
        yield
    except EowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: reading or writing failed: {error}", file=sys.stderr)
        # What is still to be printed must go somewhere, or Python complains of it after the sentence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
