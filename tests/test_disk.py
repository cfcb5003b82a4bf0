"""Disks that are full and folders that cannot be written to: one sentence, the last good checkpoint intact, and once
there is room again the bytes of a run that never met any of it.

A small tmpfs is mounted where that is allowed (by root), for permission bits do not bind root.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from eow import runs, storage
from eow.bench import bench, engines
from eow.bench.grid import read_grid
from eow.config import RunConfig, resolve
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.importing import import_predictions

FILES = ("weights.safetensors", "predictions/test.safetensors", "predictions/unknown.safetensors", "config.json")


def config() -> RunConfig:
    return resolve({
        "train": {"epochs": 2, "checkpoint_every": 1}, "model": {"hidden": [16]},
        "data": {"unknown_classes": [8, 9]}, "method": {"start": "buffer", "buffer_size": 100, "start_epoch": 1},
    })  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.train(config(), folder, progress=False)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"there is no mount here ({error})")
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs is not allowed here ({done.stderr.strip()})")
    yield disk
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    assert os.statvfs(disk).f_bavail == 0
    return filler


def leave(disk: Path, size: int) -> Path:
    """A file that takes all the room there is but `size` bytes."""
    state, filler = os.statvfs(disk), disk / "filler"
    filler.write_bytes(bytes(state.f_bavail * state.f_bsize - size))
    return filler


@contextmanager
def full_before(number: int, disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The disk fills up before that write of a file. Yields the files whose writing began."""
    real, calls = storage.atomic, []

    def write(path: Path, *rest) -> None:
        calls.append(path)
        if len(calls) == number:
            fill(disk)
        real(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "atomic", write)
        yield calls


def refused_file(said: str) -> str:
    """The name of the file that the sentence says cannot be written."""
    found = re.fullmatch(r"(\S+) cannot be written: No space left on device; free the space.*", said)
    assert found, said
    return Path(found[1]).name


def test_an_import_leaves_nothing_on_a_disk_that_fills_up_before_any_write(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    for number in range(1, 20):
        with full_before(number, small_disk, monkeypatch):
            said = sentence(
                lambda: import_predictions(small_disk / "new", np.eye(2), [0, 1], unknowns={"a": np.eye(2)})
            )
        (small_disk / "filler").unlink(missing_ok=True)
        if not said:
            break
        refused.append(refused_file(said))
        assert not [*small_disk.iterdir()]
    files = ["test.safetensors", "a.safetensors", "config.json", "environment.json", "summary.json"]
    assert refused == files
    assert evaluate(small_disk / "new")["test"]["accuracy"] == 1


def intact(folder: Path) -> int:
    """The epoch of the checkpoint, which must be whole; -1 where there is none yet."""
    if not (folder / "checkpoint.safetensors").exists():
        return -1
    return storage.read_tensors(folder / "checkpoint.safetensors")[1]["epoch"]


def sentence(work: Callable[[], object]) -> str:
    """What eow's own error says; nothing when there is none."""
    try:
        work()
    except EowError as error:
        return str(error)
    return ""


def test_a_disk_that_fills_up_before_any_write_costs_nothing_but_time(
    small_disk: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first write, the second, and so on until none is left to fail: config, environment, log, both
    checkpoints, weights, predictions, summary."""
    refused = []
    for number in range(1, 100):
        folder = small_disk / f"run{number}"
        with full_before(number, small_disk, monkeypatch) as calls:
            said = sentence(lambda folder=folder: runs.train(config(), folder, progress=False))
        if not said:
            break  # there are fewer writes than that
        refused.append(refused_file(said))
        assert not [file for file in folder.rglob(".*") if file.name != ".lock"]  # no half of a file
        tried = [path.name for path in calls].count("checkpoint.safetensors")
        assert intact(folder) == tried - (refused[-1] == "checkpoint.safetensors") - 1
        for look in (runs.load, evaluate):
            assert "\n" not in sentence(lambda look=look, folder=folder: look(folder))
        (small_disk / "filler").unlink()
        runs.train(config(), folder, resume=True, progress=False)
        for name in FILES:
            assert (whole / name).read_bytes() == (folder / name).read_bytes(), (refused[-1], name)
        subprocess.run(["rm", "-r", folder], check=True)
    assert refused == [
        "config.json", "environment.json", "log.jsonl", "checkpoint.safetensors", "checkpoint.safetensors",
        "weights.safetensors", "test.safetensors", "unknown.safetensors", "summary.json",
    ]  # fmt: skip


def test_a_log_that_meets_a_full_disk_is_cut_at_a_line(small_disk: Path) -> None:
    log = storage.Log(small_disk / "log.jsonl")
    log.write(epoch=0)
    fill(small_disk)
    with pytest.raises(EowError, match=r"log\.jsonl cannot be written: No space left on device"):
        log.write(epoch=1, text=10_000 * "x")
    assert log.read() == [{"epoch": 0}]
    (small_disk / "filler").unlink()
    log.keep(lambda line: True)
    log.write(epoch=1)
    assert log.read() == [{"epoch": 0}, {"epoch": 1}]


def test_a_disk_without_a_single_byte_left_refuses_a_new_run(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(EowError, match="No space left on device"):
        runs.train(config(), small_disk / "run", progress=False)
    assert not list((small_disk / "run").glob("[!.]*"))


def test_a_read_only_disk_is_said_to_be_one_and_finished_runs_on_it_are_read(small_disk: Path, whole: Path) -> None:
    subprocess.run(["cp", "-r", whole, small_disk / "finished"], check=True)
    (small_disk / "begun").mkdir()
    subprocess.run(["cp", whole / "config.json", small_disk / "begun"], check=True)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for name in ("new", "begun"):
        with pytest.raises(EowError, match=rf"the folder .*{name} cannot be written to: Read-only file system"):
            runs.train(config(), small_disk / name, resume=True, progress=False)
    assert evaluate(small_disk / "finished") == evaluate(whole)
    assert runs.load(small_disk / "finished").weights_hash == runs.load(whole).weights_hash


def test_a_folder_that_becomes_read_only_keeps_its_checkpoint(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder cannot be changed from its second checkpoint on, not even by root."""
    folder, real, saved = tmp_path / "run", runs.checkpoints.save, []

    def save(*arguments) -> None:
        saved.append(1)
        if len(saved) == 2 and subprocess.run(["chattr", "+i", folder], capture_output=True).returncode:
            pytest.skip("folders cannot be made immutable here")
        real(*arguments)

    monkeypatch.setattr(runs.checkpoints, "save", save)
    try:
        with pytest.raises(EowError, match=r"checkpoint\.safetensors cannot be written: Operation not permitted"):
            runs.train(config(), folder, progress=False)
        assert intact(folder) == 0
        with pytest.raises(EowError, match="cannot be written to: Operation not permitted"):
            runs.train(config(), folder, resume=True, progress=False)
        assert intact(folder) == 0
    finally:
        subprocess.run(["chattr", "-i", folder], capture_output=True)
    monkeypatch.undo()
    runs.train(config(), folder, resume=True, progress=False)
    assert all((whole / name).read_bytes() == (folder / name).read_bytes() for name in FILES)


# Several processes

GRID = """
[grid]
name = "x"
title = "X"
methods = ["vanilla"]
seeds = 2
columns = ["accuracy"]
[settings.data]
name = "digits"
[settings.model]
hidden = [16]
[settings.train]
epochs = 2
checkpoint_every = 1
[quick]
"""


def test_a_disk_that_fills_up_under_a_bench_fails_cells_and_not_the_next_bench(
    small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is room for one of two cells that train at once, and their checkpoints, at most."""
    file, out = tmp_path / "grid.toml", small_disk / "out"
    file.write_text(GRID)
    cells = read_grid(file, "quick").cells
    for cell in cells:
        runs.train(cell.config, tmp_path / cell.name, progress=False)
    filler, failed = leave(small_disk, 110_000), []
    said = sentence(lambda: failed.extend(bench(file, out, jobs=2)["failed"]))
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"failed: vanilla, seed [01]: \S+ cannot be \w+: No space left on device", shown), shown
    if not failed:  # then there was no room for the table either
        assert re.fullmatch(r"\S*table\.\w+ cannot be written: No space left on device; free the space.*", said)
    assert all(intact(out / "runs" / cell.name) >= -1 for cell in cells)
    filler.unlink()
    assert bench(file, out, jobs=2)["failed"] == []
    for cell in cells:
        for name in FILES[:2]:
            assert (out / "runs" / cell.name / name).read_bytes() == (tmp_path / cell.name / name).read_bytes()
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


def test_a_cell_does_not_wait_for_a_lock_that_nobody_holds(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_disk / "run").mkdir()
    fill(small_disk)
    monkeypatch.setattr(engines.time, "sleep", lambda _: pytest.fail("it waits"))
    engines.wait_for(small_disk / "run")


def test_a_disk_that_fills_up_under_two_processes_is_said_once(small_disk: Path, tmp_path: Path) -> None:
    """There is room for the first checkpoint of both, and not for a second beside it."""

    def begin(out: Path, *more: str) -> "subprocess.Popen[str]":
        words = ["--data", "digits", "--devices", "2", "--epochs", "3", "--quiet", "--out", str(out), *more]
        for setting in ("model.hidden=[16]", "method.start=buffer", "method.buffer_size=100", "method.start_epoch=1",
                        "train.checkpoint_every=1", "train.batch=32"):  # fmt: skip
            words += ["--set", setting]
        return subprocess.Popen([sys.executable, "-m", "eow", "train", *words], stderr=subprocess.PIPE, text=True)

    filler = leave(small_disk, 80_000)
    undisturbed, stopped = begin(tmp_path / "whole"), begin(small_disk / "run")
    said = stopped.communicate(timeout=200)[1]
    whole = undisturbed.communicate(timeout=200)[1]
    assert undisturbed.returncode == 0, whole
    assert "Traceback" not in said, said
    [error] = [line for line in said.splitlines() if line.startswith("error")]
    assert re.fullmatch(r"error: \S+checkpoint-rank1-1\.safetensors cannot be written: No space left .*", error), said
    assert stopped.returncode == 2
    assert intact(small_disk / "run") == 0
    filler.unlink()
    assert begin(small_disk / "run", "--resume").wait(200) == 0
    for name in ("weights.safetensors", "predictions/test.safetensors", "config.json"):
        assert (small_disk / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
