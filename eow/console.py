"""What a person sees in the terminal: one console, one progress bar, one way to print a table. Text is printed as it
stands: a file's name may hold brackets and colons that rich would read as its own."""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from eow.errors import EowError
from eow.plain import printable

PlainConsole = partial(Console, highlight=False, markup=False, emoji=False)
console = PlainConsole(soft_wrap=True)
PIPE = 200  # columns of a table where the output is not a terminal
WHOLE = 24  # letters of a figure, or of a word, that are never broken


def plain_warnings() -> None:
    """A warning as one line for a user, without the place in the source it came from. Like an error it may quote a
    file, whose names command no terminal."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {printable(str(message))}", file=sys.stderr)


def training_bar(show: bool = True) -> Progress:
    """A bar with the loss terms and the images per second; silent where the output is not a terminal."""
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


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "", *, keys: int = 1
) -> None:
    """Columns of numbers stand to the right, of words to the left; the first `keys` say whose row it is. What is too
    wide is laid out anew, and nothing is left out: see `laid_out`."""
    text = [[printable(str(cell)) for cell in line] for line in (columns, *rows)]
    room = (console.width or 80) if console.is_terminal else PIPE  # a shell may say 0
    tables = [(each, widths_of(each, room)) for each in laid_out(text, keys, room)]
    target = PlainConsole(width=max(room, *(framed(widths) for _, widths in tables)), file=console.file)
    if title:
        target.print(Text(printable(title), style="bold"), width=room)
    for (header, *lines), widths in tables:
        table = Table()
        for index, (heading, width) in enumerate(zip(header, widths)):
            numbers = all(is_number(line[index]) for line in lines)
            table.add_column(heading, justify="right" if numbers else "left", width=width, overflow="fold")
        for line in lines:
            table.add_row(*line)
        target.print(table)
    if note:
        target.print(Text(note, style="table.caption"), width=room)


def laid_out(text: list[list[str]], keys: int, room: int) -> list[list[list[str]]]:
    """The table, if it fits; else turned, a figure a row, if that does; else several tables of the same rows."""
    least = least_of(text)
    if framed(least) <= room:
        return [text]
    turned = [["\n".join(line[:keys]), *line[keys:]] for line in text]
    turned = [list(line) for line in zip(*turned)]
    if len(turned) > 2 and framed(least_of(turned)) <= room:
        return [turned]
    first, parts = [*range(keys)], [[*range(min(keys + 1, len(least)))]]
    for index in range(keys + 1, len(least)):
        if framed([least[at] for at in (*parts[-1], index)]) <= room:
            parts[-1].append(index)
        else:
            parts.append([*first, index])
    return [[[line[at] for at in part] for line in text] for part in parts]


def framed(widths: list[int]) -> int:
    """How wide a table is: its columns, a blank on either side of each, and the lines between."""
    return sum(widths) + 3 * len(widths) + 1


def least_of(text: list[list[str]]) -> list[int]:
    """How narrow each column can be before a word or a figure would break."""
    return [max(1, words(head), *map(unbroken, column)) for head, *column in zip(*text)]


def widths_of(text: list[list[str]], room: int) -> list[int]:
    """How wide each column is: as its text where there is room, else narrower where that adds the fewest lines, down to
    the longest word."""

    def added(at: int) -> int:
        return sum(-(-size // (widths[at] - 1)) - -(-size // widths[at]) for size in sizes[at])

    sizes = [[cell_len(cell) for cell in column] for column in zip(*text)]
    widths = [max(cell_len(part) for cell in column for part in cell.split("\n")) for column in zip(*text)]
    least = least_of(text)
    while framed(widths) > room and (wide := [at for at, width in enumerate(widths) if width > least[at]]):
        widths[min(wide, key=lambda at: (added(at), -widths[at]))] -= 1
    return widths


def unbroken(cell: str) -> int:
    """How much of a cell stays on one line: a figure with all that belongs to it, of a text its words."""
    return words(cell) if cell[:1].isalpha() else min(WHOLE, cell_len(cell))


def words(text: str) -> int:
    """The longest word, unless it is one of those paths without an end."""
    return min(WHOLE, max(map(cell_len, text.split()), default=0))


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
