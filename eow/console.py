"""What a person sees in the terminal: one console, one progress bar, one way to print a table. Text is printed as it
stands: a file's name may hold brackets and colons that rich would read as its own."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

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
    """Columns of numbers stand to the right, of words to the left. A pipe gets the table whole, however wide it is."""
    table = Table(
        title=printable(title) or None,
        title_justify="left",
        title_style="bold",
        caption=note or None,
        caption_justify="left",
    )
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        numbers = all(is_number(row[index]) for row in cells)
        table.add_column(printable(column), justify="right" if numbers else "left", no_wrap=index == 0)
    for row in cells:
        table.add_row(*row)
    target = console if console.is_terminal else PlainConsole(width=200, file=console.file)
    target.print(table)


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
