"""A grid while it runs: in a terminal a live table of what is running, how far it is and how long it will take; where
the output is not a terminal, a line for every cell that ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from eow import storage
from eow.bench.grid import Cell
from eow.bench.schedule import Progress
from eow.console import console

SHOWN = 12  # running cells, and failures, at most
WIDE = 100  # columns of a terminal that has room for a bar as well


class Epochs(NamedTuple):
    """How far a running cell is, by its log."""

    done: int
    total: int
    seconds_left: float | None


@contextmanager
def watched(progress: Progress, title: str) -> Iterator[Callable[[Cell, str], None]]:
    """Shows the grid while the block runs. Yields the function to call with every cell that ends, and its trouble."""
    began = time.monotonic()

    def say(cell: Cell, trouble: str) -> None:
        count = f"[{len(progress.finished) + len(progress.failed)}/{len(progress.cells)}]"
        took = duration(progress.finished[cell.name]) if not trouble else ""
        console.print(f"{count} {cell.title}: {trouble or took}")

    there = len(progress.finished)
    if there:
        console.print(f"{there} of {len(progress.cells)} runs are there already")
    if not console.is_terminal:
        yield say
        return

    def say_trouble(cell: Cell, trouble: str) -> None:
        if trouble:
            say(cell, trouble)  # above the live table, where it stays

    with Live(
        get_renderable=lambda: picture(progress, title, began), console=console, refresh_per_second=4, transient=True
    ):
        yield say_trouble


def picture(progress: Progress, title: str, began: float) -> Group:
    """The grid at this moment."""
    done, failed, total = len(progress.finished), len(progress.failed), len(progress.cells)
    grid_left = time_left(progress)
    words = [f"{done} of {total} done", f"{len(progress.running)} running", f"{len(progress.waiting)} waiting"]
    words += [f"{failed} failed"] if failed else []
    words += [duration(time.monotonic() - began) + (f", about {duration(grid_left)} left" if grid_left else "")]
    table = RichTable(title=f"{title}: {' · '.join(words)}", title_justify="left", title_style="bold", expand=False)
    wide = console.width >= WIDE
    table.add_column("running", overflow="fold")
    if wide:
        table.add_column("", no_wrap=True)
    for column in ("epoch", "time", "left"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, start in list(progress.running.items())[:SHOWN]:
        cell, passed = progress.cells[name], duration(time.monotonic() - start)
        epochs = epochs_of(progress, cell)
        left = "" if epochs.seconds_left is None else duration(epochs.seconds_left)
        bar = [ProgressBar(total=epochs.total, completed=epochs.done, width=24)] if wide else []
        table.add_row(Text(cell.title), *bar, f"{epochs.done}/{epochs.total}", passed, left)
    if len(progress.running) > SHOWN:
        table.add_row(Text(f"and {len(progress.running) - SHOWN} more"))
    troubles = list(progress.failed.items())[-SHOWN:]
    lines = [Text(f"failed: {progress.cells[name].title}: {why}", style="red") for name, why in troubles]
    return Group(table, *lines) if progress.running else Group(*lines)


def epochs_of(progress: Progress, cell: Cell) -> Epochs:
    """From the log of a running cell; the last epoch's pace is the best guess at the next, since a term may come
    late."""
    train = cell.config.train
    total = train.epochs + (train.holdout_epochs if cell.config.data.holdout else 0)
    lines = [line for line in storage.Log(progress.runs / cell.name / "log.jsonl").read() if "event" not in line]
    left = (total - len(lines)) * lines[-1]["seconds"] if lines and "seconds" in lines[-1] else None
    return Epochs(min(len(lines), total), total, left)


def time_left(progress: Progress) -> float | None:
    """What is left of the grid, if the cells to come take as long as those of their method have, or as all have."""
    took: dict[str, list[float]] = {}
    for name, seconds in progress.finished.items():
        if seconds:
            took.setdefault(progress.cells[name].config.method.name, []).append(seconds)
    if not took:
        return None
    means = {method: sum(each) / len(each) for method, each in took.items()}
    usual = sum(map(sum, took.values())) / sum(map(len, took.values()))
    now = time.monotonic()
    left = sum(means.get(cell.config.method.name, usual) for cell in progress.waiting)
    for name, start in progress.running.items():
        left += max(0.0, means.get(progress.cells[name].config.method.name, usual) - (now - start))
    return left / max(1, progress.slots)


def duration(seconds: float) -> str:
    """ "7.3 s", "4 min 05 s", "3 h 20 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
