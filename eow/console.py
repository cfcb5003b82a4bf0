"""What a person sees in the terminal: one console, one progress bar, one way to print a table."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

console = Console(highlight=False, soft_wrap=True)


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
        title=title or None, title_justify="left", title_style="bold", caption=note or None, caption_justify="left"
    )
    cells = [[str(cell) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        numbers = all(is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=index == 0)
    for row in cells:
        table.add_row(*map(Text, row))  # Text, because a cell may hold brackets that are not meant as markup
    target = console if console.is_terminal else Console(width=200, file=console.file)
    target.print(table)


def is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return text in ("-", "")
    return True
