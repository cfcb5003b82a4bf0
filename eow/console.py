"""What a person sees in the terminal: one console, one progress bar, one way to print a table."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console()


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


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """A table whose first column is text and whose others are numbers. A pipe gets it whole, however wide it is."""
    table = Table(title=title, title_justify="left", title_style="bold", caption=note or None, caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    target = console if console.is_terminal else Console(width=200, file=console.file)
    target.print(table)
