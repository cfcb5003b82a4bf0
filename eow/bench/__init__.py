"""A grid of runs -> a table: `eow bench FILE`.

    grid.py      the TOML file: which cells there are            engines.py   local processes, Ray
    schedule.py  runs what is not there yet, in order            view.py      the grid while it runs
    hashes.py    what tells one cell from another                columns.py   what a table shows of a run
    beside.py    the paper's figure for a row and a column       table.py     means, marks, the paper beside ours
    records.py   a table with all that it takes to trust it

Killed at any moment and started again, it goes on where it was and ends in the same table: runs are found again by a
hash of their settings, the half-done go on from their checkpoints.
"""

import hashlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from eow.config import from_assignments
from eow.errors import EowError

ENGINES = ("local", "ray")


@contextmanager
def told_of_a_stop() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end in one line; workers, who are told to stop, keep their last whole epochs."""
    from eow.training import stopping

    try:
        with stopping.listening():
            yield
    except stopping.STOPS:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        raise


def check_folder(out: Path) -> None:
    """An error where a bench would write into another kind of folder: its table would take a file's place."""
    from eow import storage
    from eow.bench.table import TABLES

    present = [entry.name for entry in out.iterdir() if not entry.name.startswith(".")] if out.is_dir() else []
    present = [name for name in present if not name.endswith((".log", ".txt"))]  # what the shell writes beside it
    if present and not (out / "runs").is_dir():
        raise EowError(f"{out} is not empty and holds no bench: choose another folder for --out")
    if tables := [name for name in TABLES if name in present]:
        try:
            storage.read_json(out / TABLES[0], "name", "title", "size", "axes", "columns", "rows")
        except EowError:
            raise EowError(
                f"{out / tables[0]} is of no bench that eow can read: move it away, or choose another folder for --out"
            ) from None


def command_of(file: str | Path, size: str, changed: Sequence[tuple[str, str]]) -> str:
    """What is typed for the same table. Of an absolute path the name alone: where it lies is this machine's matter."""
    path = Path(file)
    shown = path.name if path.is_absolute() else path.as_posix()
    return shlex.join(["eow", "bench", shown, "--size", size, *(word for option in changed for word in option)])


def bench(
    file: str | Path,
    out: str | Path | None = None,
    *,
    size: str = "quick",
    jobs: int = 0,
    cpus: int = 0,
    engine: str = "local",
    address: str = "",
    record: bool = False,
    only: Sequence[str] = (),
    seeds: int = 0,
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the grid in `file` into `out`, print its table and return it. `out` is runs/NAME-SIZE, with a hash behind it
    where `only`, `seeds` or `settings` change the grid.

    `jobs` cells run at a time: by default one a GPU, or as many as there are cores, on `cpus` cores each (local:
    cores / jobs; Ray: 1). `only` some of its methods; another number of `seeds`; `settings` over all others, as --set
    takes them. `record` writes records/DATE_NAME-SIZE, with that hash too, and never over another command's. A failed
    cell is in the table's "failed".
    """
    from eow import storage
    from eow.bench import engines, schedule
    from eow.bench.grid import read_grid
    from eow.bench.records import record_folder, write_record
    from eow.bench.table import TABLES, make_table, show_table, write_table
    from eow.bench.view import watched
    from eow.console import console

    began = time.monotonic()
    if engine not in ENGINES:
        raise EowError(f"there is no engine {engine!r}: choose {' or '.join(ENGINES)}")
    if address and engine != "ray":
        raise EowError("an address is that of a Ray cluster: add --engine ray")
    if min(jobs, cpus, seeds) < 0:
        raise EowError("jobs, cpus and seeds must be at least 1, or left out")
    grid = read_grid(file, size, only=tuple(only), seeds=seeds, settings=from_assignments(list(settings)))
    changed = [("--seeds", str(seeds))] if seeds else []
    changed += [*(("--only", each) for each in only), *(("--set", each) for each in settings)]
    name, command = f"{grid.name}-{grid.size}", command_of(file, size, changed)
    if changed:  # another table than the grid's own, which must neither replace it nor pass for it
        words = [" ".join(option) for option in changed]
        grid = replace(grid, title=f"{grid.title} with {' '.join(words)}")
        name += f"-{hashlib.sha256(repr(words).encode()).hexdigest()[:6]}"
    recorded = record_folder(name, command) if record else None
    out = Path(out) if out is not None else Path("runs") / name
    check_folder(out)
    storage.make_folder(out)
    with told_of_a_stop(), storage.locked(out):
        storage.remove_temporary(out, *TABLES)
        runs = out.absolute() / "runs"
        storage.make_folder(runs)
        progress = schedule.start(grid, runs)
        if progress.waiting:
            if engine == "ray":
                opened = engines.on_ray(address, jobs, cpus or 1, runs)
            else:
                gpus = engines.own_gpus()
                count = jobs or len(gpus) or max(1, engines.cores() // (cpus or 1))
                opened = engines.local(count, cpus or max(1, engines.cores() // count), gpus)
            with opened as running, watched(progress, f"{grid.name}, {grid.size}") as tell:
                schedule.run(grid, progress, running, tell)
        table = make_table(grid, runs, progress.failed)
        show_table(table)  # first: a disk that is full for cells may be so for their table
        write_table(table, out)
    console.print(f"everything is in {out}/; as a page: eow report {shlex.quote(str(out))} -o report.html")
    if recorded is not None:
        write_record(recorded, grid, table, runs, command, time.monotonic() - began)
        console.print(f"recorded in {recorded}/")
    return table
