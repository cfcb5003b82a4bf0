"""A record: a table that can be trusted later. `records/DATE_NAME/` gets

    grid.toml          the grid file as it stood            table.json, .md, .csv   what came out
    environment.json   machine, versions, commit            runs.json               hashes of settings, data and weights
    log.jsonl          every epoch of every run             record.md               all of it in a few lines

and no weights. Uncommitted changes do not keep a record from being written; it names the files, so that nobody takes
it for one of the commit alone.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from eow import storage
from eow.bench.grid import Grid
from eow.bench.table import markdown, write_table
from eow.config import Table
from eow.errors import EowError

ENVIRONMENT = ("eow", "commit", "python", "torch", "numpy", "system", "device", "cores", "threads")


def record_folder(name: str, command: str, root: Path = Path("records")) -> Path:
    """Where today's record of that name goes. One that another command has left there is not to be replaced."""
    folder = root / f"{time.strftime('%Y-%m-%d')}_{name}"
    there = folder / "record.md"
    if there.exists() and f"`{command}`" not in there.read_text(encoding="utf-8", errors="replace"):
        raise EowError(
            f"{folder} is the record of another command than `{command}`: move it away, or leave --record out"
        )
    return folder


def write_record(folder: Path, grid: Grid, table: Table, runs: Path, command: str, wall: float) -> None:
    """Write the record of a finished grid into the folder."""
    storage.make_folder(folder)
    found = {cell.name: runs / cell.name for cell in grid.cells if (runs / cell.name / "summary.json").exists()}
    summaries = {name: storage.read_json(each / "summary.json") for name, each in found.items()}
    made_with = distinct([storage.read_json(each / "environment.json") for each in found.values()])
    if not made_with:
        raise EowError(f"no run of {grid.name} has finished: there is nothing to record")
    changes = uncommitted()
    environment = {**made_with[0], "uncommitted": changes}
    if len(made_with) > 1:
        environment["others"] = made_with[1:]  # of runs made with another commit or on another machine
    hashes = {cell.name: cell.hash for cell in grid.cells}
    storage.write_json(folder / "environment.json", environment)
    storage.write_json(folder / "runs.json", {
        name: {"settings": hashes[name], "weights": each["weights"], "seconds": each["train_seconds"],
               "commit": each["versions"]["commit"], "sets": each["sets"]}
        for name, each in summaries.items()
    })  # fmt: skip
    write_text(folder / "grid.toml", grid.text)
    write_table(table, folder)
    lines = [{"run": name, **line} for name, each in found.items() for line in storage.Log(each / "log.jsonl").read()]
    write_text(folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_text(folder / "record.md", describe(table, environment, command, wall, summaries))


def describe(table: Table, environment: Table, command: str, wall: float, summaries: dict[str, Table]) -> str:
    """record.md: the command, the machine, the minutes and the numbers together."""
    state = f"commit `{environment['commit']}`" if environment["commit"] else "no commit (not run from a checkout)"
    if environment["uncommitted"]:
        state += f", with uncommitted changes in {', '.join(environment['uncommitted'])}"
    if "others" in environment:
        others = len(environment["others"])
        state += f"; {others} more environment(s), see `environment.json`: the commit or the machine changed meanwhile"
    training = sum(each["train_seconds"] for each in summaries.values())
    unofficial = sorted({
        f"{each['data']} ({name})" for each in summaries.values() for name, found in each["sets"].items()
        if found.get("official") is False
    })  # fmt: skip
    data = f"Not the official bytes: {', '.join(unofficial)}.\n" if unofficial else ""
    return (
        f"{markdown(table)}\n"
        f"`{command}`, {state}.\n"
        f"{environment['device']}, {environment['cores']} cores, {environment['threads']} thread(s) a run, torch "
        f"{environment['torch']}, Python {environment['python']}.\n"
        f"{len(summaries)} runs, {training:.0f} s of training in all, {wall:.0f} s for this command "
        f"(less where runs were there already).\n{data}"
    )


def distinct(environments: list[Table]) -> list[Table]:
    kept: list[Table] = []
    for each in environments:
        short = {key: each.get(key) for key in ENVIRONMENT}
        if short not in kept:
            kept.append(short)
    return kept


def uncommitted() -> list[str]:
    """Files of the package and the benchmarks that differ from the commit; empty outside a checkout."""
    root = Path(__file__).parent.parent.parent
    command = ["git", "status", "--porcelain", "--", "eow", "benchmarks", "pyproject.toml"]
    try:
        found: Any = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [line[3:] for line in found.splitlines()]


def write_text(path: Path, text: str) -> None:
    storage.atomic(path, lambda file: file.write(text.encode()))
