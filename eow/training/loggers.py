"""The training log for other programs: log.csv for a spreadsheet, TensorBoard's event files.

    with loggers(["csv", "tensorboard"], folder) as pass_on:
        ...
        log.write(**line)
        pass_on(line)

log.jsonl stays the truth. When a run goes on from a checkpoint, what came after that checkpoint has left log.jsonl and
leaves these too.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from eow import storage
from eow.errors import EowError

Line = dict[str, Any]
NAMES = ("csv", "tensorboard")


def check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in NAMES:
            raise EowError(f"there is no logger {name!r}: choose csv, tensorboard or both")


@contextmanager
def loggers(names: Sequence[str], folder: Path) -> Iterator[Callable[[Line], None]]:
    """Opens the named loggers beside the log in `folder`. Yields what is to be called with every line of the log."""
    check_names(names)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(tensorboard(folder)) if name == "tensorboard" else table(folder)
            for name in dict.fromkeys(names)
        ]

        def pass_on(line: Line) -> None:
            for each in opened:
                each(line)

        yield pass_on


def table(folder: Path) -> Callable[[Line], None]:
    """log.csv, written anew from log.jsonl after every line: a loss term that comes late adds a column."""

    def write(line: Line | None = None) -> None:
        lines = storage.Log(folder / "log.jsonl").read()
        columns = list(dict.fromkeys(key for each in lines for key in each))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        storage.atomic(folder / "log.csv", lambda file: file.write(text.getvalue().encode()))

    write()
    return write


@contextmanager
def tensorboard(folder: Path) -> Iterator[Callable[[Line], None]]:
    """Every number of a line as a scalar, over epochs counted from 1; events as text."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise EowError("TensorBoard is not installed: pip install eow[tensorboard], or log to csv") from None
    done = [line["epoch"] for line in storage.Log(folder / "log.jsonl").read() if "event" not in line]
    # What a killed run wrote after its last checkpoint is hidden by TensorBoard from this step on.
    with SummaryWriter(folder / "tensorboard", purge_step=done[-1] + 2 if done else None) as writer:

        def write(line: Line) -> None:
            step = line["epoch"] + 1
            if "event" in line:
                writer.add_text(line["event"], str(line.get("reason", "")), step)
                return
            for key, value in line.items():
                if key != "epoch" and isinstance(value, int | float):
                    writer.add_scalar(key, value, step)
            writer.flush()

        yield write
