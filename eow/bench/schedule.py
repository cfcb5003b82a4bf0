"""Runs the cells of a grid: what is finished is left alone, a vanilla run comes before those who take it over, a cell
whose process died is run again, and one that fails is noted while the others go on."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from eow import config as configs
from eow import storage
from eow.bench.engines import Engine, Outcome, Task, write_files
from eow.bench.grid import Cell, Grid
from eow.bench.hashes import config_hash
from eow.errors import EowError
from eow.evaluate import stored_figures

ATTEMPTS = 2  # for a cell whose process dies; one that raises an error would raise it again
TICK = 0.25  # seconds between two looks at the cells


@dataclass
class Progress:
    """Where a grid stands."""

    cells: dict[str, Cell]  # by name, each once
    runs: Path
    waiting: list[Cell] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)  # name: when it was started
    finished: dict[str, float] = field(default_factory=dict)  # name: seconds it took here, 0 for what was there
    failed: dict[str, str] = field(default_factory=dict)  # name: why
    slots: int = 1


def start(grid: Grid, runs: Path) -> Progress:
    """What is already there, and what is left to do: first the runs that others wait for."""
    progress = Progress({}, runs)
    for cell in grid.cells:
        progress.cells.setdefault(cell.name, cell)  # two rows may show one run
    needed = {cell.needs for cell in grid.cells}
    files: dict[str, str] = {}
    for cell in sorted(progress.cells.values(), key=lambda cell: cell.name not in needed):
        if is_finished(runs / cell.name, cell.hash, grid.corruptions and not cell.hidden, files):
            progress.finished[cell.name] = 0.0
        else:
            progress.waiting.append(cell)
    return progress


def is_finished(folder: Path, wanted: str, corruptions: bool, files: dict[str, str] | None = None) -> bool:
    """Whether the folder holds a complete run with exactly these settings, whatever it is called. `files`: hashes of a
    user's files that other runs have asked for already."""
    try:
        stored_figures(folder)
        if corruptions:
            storage.read_json(folder / "corruptions.json", "severity")
        config = configs.from_table(storage.read_json(folder / "config.json"))
        return config_hash(configs.to_table(config), files) == wanted
    except EowError:
        return False


def run(grid: Grid, progress: Progress, engine: Engine, tell: Callable[[Cell, str], None]) -> None:
    """Until no cell is waiting or running. `tell` hears of every cell that ends, "" or what went
    wrong, and of those that are run again."""
    needed = {cell.needs for cell in grid.cells}
    deaths: dict[str, int] = {}
    futures: dict[Future[Outcome], Cell] = {}
    while progress.waiting or futures:
        progress.slots = engine.slots()
        for cell in [cell for cell in progress.waiting if cell.needs in progress.failed]:
            progress.waiting.remove(cell)
            fail(progress, cell, f"its vanilla run failed: {progress.failed[cell.needs]}", tell)
        ready = [cell for cell in progress.waiting if not cell.needs or cell.needs in progress.finished]
        for cell in ready[: max(0, progress.slots - len(futures))]:
            progress.waiting.remove(cell)
            progress.running[cell.name] = time.monotonic()
            source = progress.runs / cell.needs if cell.needs else None
            give, folder = cell.name in needed, progress.runs / cell.name
            task = Task(configs.to_table(cell.config), folder, source, give, grid.corruptions and not cell.hidden)
            futures[engine.submit(task)] = cell
        for future in wait(futures, TICK, FIRST_COMPLETED).done:
            cell = futures.pop(future)
            seconds = time.monotonic() - progress.running.pop(cell.name)
            if future.exception() is not None:
                deaths[cell.name] = deaths.get(cell.name, 0) + 1
                if deaths[cell.name] < ATTEMPTS:
                    progress.waiting.insert(0, cell)
                    tell(cell, "its process died; it is run again")
                else:
                    why = " ".join(str(future.exception()).split())[:200]
                    fail(progress, cell, f"its process died {deaths[cell.name]} times: {why}", tell)
                continue
            outcome = future.result()
            if outcome.error:
                fail(progress, cell, outcome.error, tell, outcome.trace)
                continue
            if outcome.files is not None:
                write_files(progress.runs / cell.name, outcome.files)
            progress.finished[cell.name] = seconds
            trace_file(progress, cell).unlink(missing_ok=True)
            tell(cell, "")


def fail(progress: Progress, cell: Cell, reason: str, tell: Callable[[Cell, str], None], trace: str = "") -> None:
    # Without the folder's own path, so that a table is the same wherever it was made.
    progress.failed[cell.name] = reason.replace(f"{progress.runs}/", "")
    if trace:
        file = trace_file(progress, cell)
        storage.make_folder(file.parent)
        storage.atomic(file, lambda opened: opened.write(trace.encode()))
    tell(cell, progress.failed[cell.name])


def trace_file(progress: Progress, cell: Cell) -> Path:
    """Where the traceback of a cell that failed with an unforeseen error is kept."""
    return progress.runs.parent / "failed" / f"{cell.name}.txt"
