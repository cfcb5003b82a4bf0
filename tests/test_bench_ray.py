"""The grid on a real Ray of this machine with two workers, one of which is killed in the middle of a run."""

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eow.bench import bench
from eow.bench.grid import read_grid
from eow.errors import EowError
from eow.runs import train

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")

GRID = """
[grid]
name = "small"
methods = ["temperature", "eow"]
seeds = 1
columns = ["accuracy", "ece", "nll", "seconds"]
[settings.data]
name = "digits"
[settings.model]
hidden = [16]
[settings.train]
epochs = 3
checkpoint_every = 1
[methods.eow.train]
epochs = 40
[quick]
"""

SCRIPT = """
import sys, threading
from pathlib import Path
from test_bench import kill_one_worker
from eow.bench import bench

threading.Thread(target=kill_one_worker, args=(Path("out/runs"),), daemon=True).start()
bench("small.toml", "out", engine="ray", jobs=2)
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For Ray, with a token of its own, so that nothing is written to the user's home. Its sockets have names of 107
    characters at most, which pytest's folders would use up."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    (folder / "token").write_text(secrets.token_hex(32))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@needs_ray
def test_a_killed_ray_worker_is_replaced_and_the_table_is_complete(tmp_path: Path, short_folder: Path) -> None:
    (tmp_path / "small.toml").write_text(GRID)
    tests = str(Path(__file__).parent)
    environment = {
        **os.environ, "RAY_TMPDIR": str(short_folder), "RAY_AUTH_TOKEN_PATH": str(short_folder / "token"),
        "RAY_worker_niceness": "0",  # else 15: beside other tests its workers would starve
        "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("its process died; it is run again") == 1
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert not table["failed"]
    assert [(row["method"], row["finished"]) for row in table["rows"]] == [("temperature", 1), ("eow", 1)]
    cell = read_grid(tmp_path / "small.toml", "quick").cells[-1]
    undisturbed = train(cell.config, tmp_path / "undisturbed", progress=False)["metrics"]["test"]
    assert table["rows"][1]["figures"]["NLL"]["mean"] == undisturbed["nll"]
    assert not list((tmp_path / "out" / "runs").glob(".shared*"))
    assert processes_with(str(short_folder)) == []


def processes_with(word: str) -> list[str]:
    """Command lines of processes that still hold on to a folder; Ray's own take a moment to go."""
    found: list[str] = []
    for _ in range(100):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(line)
        if not found:
            break
        time.sleep(0.1)
    return found


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_a_cluster_that_is_not_there_is_said_in_a_sentence(tmp_path: Path, address: str) -> None:
    (tmp_path / "small.toml").write_text(GRID)
    with pytest.raises(EowError, match=f"Ray at {address} cannot be reached"):
        bench(tmp_path / "small.toml", tmp_path / "out", engine="ray", address=address)


def test_without_ray_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(GRID)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EowError, match="pip install ray"):
        bench(tmp_path / "small.toml", tmp_path / "out", engine="ray")
