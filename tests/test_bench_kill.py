"""`eow bench` is killed at ten random moments, and ends in the table of an undisturbed run.

The bench runs in a child of a small process that has imported everything before, so that a new attempt costs no import
but that of the workers. Kills go to the bench alone: its workers have to notice by themselves and let their folders go.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from problems import blobs

GRID = """
[grid]
name = "small"
methods = ["vanilla", "temperature", "eow"]
seeds = 1
columns = ["accuracy", "ece", "nll", "unknown", "seconds"]
[settings.data]
name = "npz:own.npz"
[settings.model]
hidden = [16]
[settings.train]
epochs = 3
checkpoint_every = 1
[quick]
"""

ATTEMPTS = """
import os, random, signal, sys, time
from pathlib import Path
import eow.bench, eow.bench.engines, eow.bench.grid, eow.bench.table, eow.bench.view, eow.runs

def start(out):
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")
        eow.bench.bench("small.toml", out, jobs=2)
        os._exit(0)
    return child

began = time.monotonic()
assert os.waitpid(start("whole"), 0)[1] == 0
usual = time.monotonic() - began
moments, kills, round_ = random.Random(0), 0, 0
while kills < 10:  # when a round is over before its kill, its table is there to be compared, and another is begun
    child = start(f"killed{round_}")
    ends = time.monotonic() + moments.uniform(0, usual)
    while time.monotonic() < ends and os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.01)
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
    except (ProcessLookupError, ChildProcessError):
        round_ += 1
assert os.waitpid(start(f"killed{round_}"), 0)[1] == 0
"""


def without_seconds(table: dict) -> dict:
    timed = {column["title"] for column in table["columns"] if column["timing"]}
    for row in table["rows"]:
        row["figures"] = {title: figure for title, figure in row["figures"].items() if title not in timed}
    return table


def test_killed_ten_times_and_still_the_same_table(tmp_path: Path) -> None:
    inputs, labels = blobs()
    np.savez(tmp_path / "own.npz", x=inputs, y=labels)
    (tmp_path / "small.toml").write_text(GRID)
    done = subprocess.run([sys.executable, "-c", ATTEMPTS], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    whole = without_seconds(json.loads((tmp_path / "whole" / "table.json").read_text()))
    assert not whole["failed"]
    assert [row["finished"] for row in whole["rows"]] == [1, 1, 1]
    killed = sorted(tmp_path.glob("killed*/table.json"))
    assert killed
    for table in killed:
        assert without_seconds(json.loads(table.read_text())) == whole
        # No half-written file is left, nor a checkpoint of a run that has ended.
        for folder in (table.parent, *table.parent.glob("runs/*")):
            left = [file.name for file in folder.iterdir()]
            assert not [name for name in left if name.startswith(".") and name != ".lock"], folder
            assert not [name for name in left if name.startswith("checkpoint")], folder
