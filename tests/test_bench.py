"""A grid from its file to its table: order, failures, deaths, what is skipped, what is recorded."""

import io
import json
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from eow import cli, storage
from eow.bench import bench, check_folder, engines, schedule, view
from eow.bench.grid import Grid, read_grid
from eow.bench.records import record_folder, write_record
from eow.bench.table import make_table
from eow.bench.view import duration, epochs_of, picture
from eow.config import to_table
from eow.errors import EowError
from eow.runs import train
from eow.training.stopping import Terminated

TEXT = """
[grid]
name = "small"
title = "Small"
methods = ["vanilla", "temperature", "jem", "eow"]
seeds = 2
columns = ["accuracy", "ece", "nll", "unknown", "seconds"]
[settings.data]
name = "digits"
[settings.model]
hidden = [16]
[settings.train]
epochs = 3
checkpoint_every = 1
[methods.jem.method]
buffer_size = 10
[methods.eow.train]
epochs = 16
[quick]
"""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    (tmp_path / "small.toml").write_text(TEXT)
    return read_grid(tmp_path / "small.toml", "quick")


def kill_one_worker(runs: Path) -> None:
    """Wait for a run that is in the middle of its training and kill the process that holds its folder."""
    ends = time.monotonic() + 500
    while time.monotonic() < ends:
        for folder in runs.glob("*-eow-*"):
            halfway = (folder / "checkpoint.safetensors").exists() and not (folder / "summary.json").exists()
            if halfway and len(storage.Log(folder / "log.jsonl").read()) >= 2:
                os.kill(int((folder / ".lock").read_text().split()[1]), signal.SIGKILL)
                return
        time.sleep(0.005)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    """The grid, run by real processes, one of which is killed in the middle of a run."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "small.toml").write_text(TEXT)
    killer = threading.Thread(target=kill_one_worker, args=(folder / "out" / "runs",), daemon=True)
    killer.start()
    with redirect_stdout(io.StringIO()) as printed:
        table = bench(folder / "small.toml", folder / "out", jobs=2)
    killer.join()
    return folder, table, printed.getvalue()


def test_a_killed_worker_costs_nothing_but_time(finished: tuple[Path, dict, str], tmp_path: Path) -> None:
    folder, table, printed = finished
    assert printed.count("its process died; it is run again") == 1
    rows = {row["method"]: row for row in table["rows"]}
    assert [rows[method]["finished"] for method in ("vanilla", "temperature", "jem", "eow")] == [2, 2, 0, 2]
    for cell in read_grid(folder / "small.toml", "quick").cells:
        if (
            cell.config.method.name == "eow"
        ):  # one of them was killed halfway: the figures are those of an undisturbed run
            summary = train(cell.config, tmp_path / cell.name, progress=False)
            assert rows["eow"]["figures"]["NLL"]["by_seed"][str(cell.seed)] == summary["metrics"]["test"]["nll"]


def test_a_failed_cell_is_told_and_the_others_go_on(finished: tuple[Path, dict, str]) -> None:
    folder, table, printed = finished
    assert [each["cell"] for each in table["failed"]] == ["jem, seed 0", "jem, seed 1"]
    assert "buffer_size" in table["failed"][0]["reason"]
    assert "failed" in (folder / "out" / "table.md").read_text()
    assert "jem, seed 0: method.chains is 64" in printed


def test_post_hoc_runs_take_the_shared_vanilla_run_over(finished: tuple[Path, dict, str]) -> None:
    folder, _, _ = finished
    for cell in read_grid(folder / "small.toml", "quick").cells:
        if cell.config.method.name == "temperature":
            [line] = storage.Log(folder / "out" / "runs" / cell.name / "log.jsonl").read()
            assert (line["event"], line["source"]) == ("taken over", cell.needs)


def test_what_is_there_is_not_run_again(finished: tuple[Path, dict, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, table, _ = finished
    monkeypatch.setattr(engines, "local", None)  # nothing is left to run, so no process may be started
    again = bench(folder / "small.toml", folder / "out", only=["vanilla", "temperature", "eow"])
    assert again["rows"] == [row for row in table["rows"] if row["method"] != "jem"]


def test_a_run_that_only_has_the_name_is_not_taken_for_the_cell(grid: Grid, tmp_path: Path) -> None:
    cell = grid.cells[-1]
    folder = tmp_path / cell.name
    folder.mkdir()
    summary = {"metrics": {"test": {"ece": 0.1}}, "train_seconds": 1.0, "method": "eow", "data": "digits"}
    storage.write_json(folder / "summary.json", summary)
    other = to_table(cell.config)
    storage.write_json(folder / "config.json", other)
    assert schedule.is_finished(folder, cell.hash, False)
    assert not schedule.is_finished(folder, cell.hash, True)  # no corruptions.json yet
    for text, whole in (('{"half', False), ('{"severity": {}}', True)):
        (folder / "corruptions.json").write_text(text)
        assert schedule.is_finished(folder, cell.hash, True) == whole
    other["train"]["lr"] *= 2
    storage.write_json(folder / "config.json", other)
    assert not schedule.is_finished(folder, cell.hash, False)
    storage.write_json(folder / "config.json", to_table(cell.config))
    assert schedule.is_finished(folder, cell.hash, False)
    storage.write_json(folder / "summary.json", {**summary, "metrics": {"test": {"ece": "x"}}})
    assert not schedule.is_finished(folder, cell.hash, False)


def test_a_cell_with_a_damaged_figure_fails_by_name(finished: tuple[Path, dict, str], tmp_path: Path) -> None:
    folder = finished[0]
    shutil.copy(folder / "small.toml", tmp_path / "small.toml")
    shutil.copytree(folder / "out" / "runs", tmp_path / "out" / "runs")
    cell = next(each for each in read_grid(tmp_path / "small.toml", "quick").cells if each.config.method.name == "eow")
    file = tmp_path / "out" / "runs" / cell.name / "summary.json"
    summary = storage.read_json(file)
    summary["metrics"]["test"]["ece"] = "x"
    storage.write_json(file, summary)
    table = bench(tmp_path / "small.toml", tmp_path / "out", only=["vanilla", "eow"])
    [failed] = table["failed"]
    assert "ece of test is 'x'" in str(failed)
    assert cell.title in str(failed)


def test_a_record_holds_what_it_takes_and_no_weights(finished: tuple[Path, dict, str], tmp_path: Path) -> None:
    folder, table, _ = finished
    read, runs = read_grid(folder / "small.toml", "quick"), folder / "out" / "runs"
    record = record_folder("small-quick", "eow bench small.toml", tmp_path / "records")
    write_record(record, read, table, runs, "eow bench small.toml", 12.0)
    assert record.name == f"{time.strftime('%Y-%m-%d')}_small-quick"
    assert {file.name for file in record.iterdir()} == {
        "grid.toml", "environment.json", "runs.json", "log.jsonl", "table.json", "table.md", "table.csv", "record.md"
    }  # fmt: skip
    assert (record / "grid.toml").read_text() == TEXT
    assert json.loads((record / "table.json").read_text()) == table
    recorded = json.loads((record / "runs.json").read_text())
    assert len(recorded) == 8  # vanilla, temperature, eow and the hidden vanilla, twice each
    for name, each in recorded.items():
        assert each["weights"] == storage.file_hash(runs / name / "weights.safetensors")
        assert len(each["sets"]["train"]["hash"]) == 64
    lines = storage.Log(record / "log.jsonl").read()
    assert sum(line["run"].startswith("digits-mlp-eow-s0") for line in lines) == 16
    text = (record / "record.md").read_text()
    assert "eow bench small.toml" in text
    assert "failed: jem, seed 0" in text
    for file in record.iterdir():
        assert str(folder) not in file.read_text(), file.name  # no path of this machine


def test_a_record_says_where_runs_differ_and_which_data_is_not_official(
    finished: tuple[Path, dict, str], tmp_path: Path
) -> None:
    folder, table, _ = finished
    runs, command = tmp_path / "runs", "eow bench small.toml"
    shutil.copytree(folder / "out" / "runs", runs)
    grid = read_grid(folder / "small.toml", "quick", only=("vanilla",))
    record = record_folder("small-quick", command, tmp_path / "records")
    write_record(record, grid, table, runs, command, 1.0)
    plain = (record / "record.md").read_text()
    assert "environment(s)" not in plain
    assert "official" not in plain
    assert "others" not in storage.read_json(record / "environment.json")
    other = runs / grid.cells[-1].name
    made_with, summary = (storage.read_json(other / f"{name}.json") for name in ("environment", "summary"))
    storage.write_json(other / "environment.json", {**made_with, "torch": "0.4.1"})
    summary["sets"]["train"]["official"] = False
    storage.write_json(other / "summary.json", summary)
    write_record(record, grid, table, runs, command, 1.0)
    text = (record / "record.md").read_text()
    assert "; 1 more environment(s), see `environment.json`" in text
    assert [each["torch"] for each in storage.read_json(record / "environment.json")["others"]] == ["0.4.1"]
    assert "\nNot the official bytes: digits (train).\n" in text


MADE = ["vanilla", "temperature", "eow"]  # of the finished grid: nothing is left to run


def recorded() -> set[str]:
    return {folder.name.removeprefix(f"{time.strftime('%Y-%m-%d')}_") for folder in Path("records").iterdir()}


def test_a_changed_grid_has_a_record_of_its_own_that_says_its_command(
    finished: tuple[Path, dict, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _ = finished
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "local", None)
    Path("grids").mkdir()
    Path("grids/small.toml").write_text(TEXT)
    for _ in range(2):  # the same command again replaces its own
        bench("grids/small.toml", folder / "out", only=MADE, settings=["data.name= digits"], record=True)
    [name] = recorded()
    assert name.startswith("small-quick-")
    typed = ["eow", "bench", "grids/small.toml", "--size", "quick"]
    typed += [*(word for each in MADE for word in ("--only", each)), "--set", "data.name= digits"]
    text = Path("records", f"{time.strftime('%Y-%m-%d')}_{name}", "record.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("`")]
    assert shlex.split(line.split("`")[1]) == typed
    bench(folder / "small.toml", folder / "out", only=["eow"], record=True)
    [other] = recorded() - {name}
    assert other.startswith("small-quick-")
    text = Path("records", f"{time.strftime('%Y-%m-%d')}_{other}", "record.md").read_text()
    assert "`eow bench small.toml --size quick --only eow`" in text  # of an absolute path the name alone


def test_the_record_of_another_command_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "local", None)  # it is said before anything is run
    Path("small.toml").write_text(TEXT)
    folder = Path("records") / f"{time.strftime('%Y-%m-%d')}_small-quick"
    folder.mkdir(parents=True)
    kept = "`eow bench small.toml --size quick --only eow`, commit `0`.\n"  # begins as the command does
    (folder / "record.md").write_text(kept)
    with pytest.raises(EowError, match=f"{folder} is the record of another command than .*: move it away"):
        bench("small.toml", record=True)
    assert not Path("runs").exists()
    assert [file.name for file in folder.iterdir()] == ["record.md"]
    assert (folder / "record.md").read_text() == kept


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_a_stop_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: type[BaseException]
) -> None:
    def stopped(*arguments: Any) -> None:
        raise stop

    monkeypatch.setattr(schedule, "start", stopped)
    (tmp_path / "small.toml").write_text(TEXT)
    command = ["eow", "bench", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == (130 if stop is KeyboardInterrupt else 143)
    assert capsys.readouterr().err.strip() == "stopped; the same command goes on from here"
    with pytest.raises(stop):
        bench(tmp_path / "small.toml", tmp_path / "out")
    assert capsys.readouterr().err.strip() == "stopped; the same command goes on from here"


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ("auto", [("4", "auto"), ("7", "auto")]),
        ("cuda", [("4", "cuda"), ("7", "cuda")]),
        ("cuda:1", [("7", "cuda")]),  # the one that a worker sees is its cuda:0
        ("cuda:2", []),
        ("cpu", []),
    ],
)
def test_a_worker_sees_one_gpu_and_is_told_of_no_other(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, seen: list[tuple[str, str]]
) -> None:
    def told(task: engines.Task, threads: int) -> tuple[str, str]:
        time.sleep(0.5)  # so that each worker has one
        assert threads == int(os.environ["OMP_NUM_THREADS"]) == 3
        return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["EOW_DEVICE"]

    monkeypatch.setenv("EOW_DEVICE", wanted)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(engines, "run_task", told)
    gpus = engines.own_gpus()
    assert gpus == [name for name, _ in seen]
    task = engines.Task(to_table(grid.cells[0].config), tmp_path / "run", None, False, False)
    with engines.local(max(1, len(gpus)), 3, gpus) as engine:
        futures: list[Any] = [engine.submit(task) for _ in range(engine.slots())]
        wait(futures)
    assert [future.result() for future in futures] == (seen or [("4,7", wanted)])


def test_gpus_without_a_list_of_them_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for wanted, names in {"cuda": ["0", "1"], "cuda:1": ["1"], "cuda:9": [], "cpu": []}.items():
        monkeypatch.setenv("EOW_DEVICE", wanted)
        assert engines.own_gpus() == names


def fake(grid: Grid, runs: Path, behave) -> tuple[schedule.Progress, list[str], list[str]]:
    """Schedule the grid on an engine that finishes a cell when `behave(its name, its count)` returns."""
    ran: list[str] = []
    told: list[str] = []

    def submit(task: engines.Task) -> Future:
        future: Future = Future()
        ran.append(task.folder.name)
        try:
            future.set_result(behave(task, ran.count(task.folder.name)))
        except RuntimeError as death:
            future.set_exception(death)
        return future

    progress = schedule.start(grid, runs)
    engine = engines.Engine(lambda: 1, submit)
    schedule.run(grid, progress, engine, lambda cell, trouble: told.append(f"{cell.title}: {trouble}"))
    return progress, ran, told


def test_vanilla_runs_come_before_those_that_take_them_over(grid: Grid, tmp_path: Path) -> None:
    progress, ran, _ = fake(grid, tmp_path, lambda task, count: engines.Outcome())
    assert sorted(ran) == sorted(cell.name for cell in grid.cells)
    for cell in grid.cells:
        if cell.needs:
            assert ran.index(cell.needs) < ran.index(cell.name)
    assert not progress.failed


def test_a_dead_process_is_replaced_once_and_then_the_cell_has_failed(grid: Grid, tmp_path: Path) -> None:
    def die(task: engines.Task, count: int) -> engines.Outcome:
        method, seed = task.config["method"]["name"], task.config["seed"]
        if method == "eow" and (seed == 1 or count == 1):  # seed 1 dies every time, seed 0 once
            raise RuntimeError("killed by signal 9")
        return engines.Outcome()

    progress, ran, told = fake(grid, tmp_path, die)
    cells = {cell.seed: cell for cell in grid.cells if cell.config.method.name == "eow"}
    assert [ran.count(cells[seed].name) for seed in (0, 1)] == [2, 2]
    assert cells[0].name in progress.finished
    assert progress.failed == {cells[1].name: "its process died 2 times: killed by signal 9"}
    assert len(progress.finished) == len(grid.cells) - 1
    assert told.count("eow, seed 0: its process died; it is run again") == 1


def test_a_failed_vanilla_run_fails_those_that_wait_for_it(grid: Grid, tmp_path: Path) -> None:
    def fail(task: engines.Task, count: int) -> engines.Outcome:
        hidden = task.config["method"]["name"] == "vanilla" and task.config["data"]["holdout"]
        full = hidden and task.config["seed"] == 0
        return engines.Outcome("the disk is full", "Traceback ...") if full else engines.Outcome()

    progress, ran, _ = fake(grid, tmp_path / "runs", fail)
    waiting = next(c for c in grid.cells if c.config.method.name == "temperature" and c.seed == 0)
    assert waiting.name not in ran
    assert progress.failed[waiting.name] == "its vanilla run failed: the disk is full"
    assert len(progress.failed) == 2
    assert (tmp_path / "failed" / f"{waiting.needs}.txt").read_text() == "Traceback ..."


def test_any_exception_of_a_cell_becomes_one_line(grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(*arguments, **others) -> None:
        raise ZeroDivisionError("a line\nand another")

    monkeypatch.setattr("eow.runs.train", burst)
    task = engines.Task(to_table(grid.cells[0].config), tmp_path / "run", None, False, False)
    outcome = engines.run_task(task, 1)
    assert outcome.error == "ZeroDivisionError: a line and another"
    assert "Traceback" in outcome.trace


def test_a_machine_without_our_disk_sends_the_files_back(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run_remote` where the mark of our disk cannot be seen: for a vanilla run, then for one that takes it over."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "far"))
    (tmp_path / "far").mkdir()
    cell = next(cell for cell in grid.cells if cell.config.method.name == "temperature")
    vanilla = next(each for each in grid.cells if each.name == cell.needs)
    here, absent = tmp_path / "here" / "runs", str(tmp_path / "no-mark")
    task = engines.Task(to_table(vanilla.config), here / vanilla.name, None, True, False)
    outcome = engines.run_remote(task, 1, absent, [])
    assert outcome.error == ""
    assert not here.exists()
    assert outcome.files is not None
    engines.write_files(here / vanilla.name, outcome.files)
    assert schedule.is_finished(here / vanilla.name, vanilla.hash, False)
    assert "weights.safetensors" in outcome.files  # another cell takes them over
    assert not any(name.startswith("checkpoint") for name in outcome.files)
    task = engines.Task(to_table(cell.config), here / cell.name, here / vanilla.name, False, False)
    second = engines.run_remote(task, 1, absent, [])  # the vanilla run lies there, so that nothing needs to be lent
    assert second.error == ""
    assert second.files is not None
    assert "weights.safetensors" not in second.files
    assert json.loads(second.files["log.jsonl"])["event"] == "taken over"
    assert "predictions/test.safetensors" in second.files


def test_a_run_is_also_evaluated_under_corruption_where_the_grid_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EOW_DEVICE", "cuda:99")  # which is what auto would be, and the cell's own setting is not
    random = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (random.integers(0, 80, (60, 1, 28, 28)) + 80 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "own.npz", x=images, y=labels)
    text = TEXT.replace('"digits"', f'"npz:{tmp_path}/own.npz"').replace("seeds = 2", "seeds = 1\ncorruptions = true")
    text = text.replace('"seconds"]', '{ title = "severity 5", path = "corruptions.severity.ece.4.mean" }]')
    (tmp_path / "small.toml").write_text(text)
    grid = read_grid(tmp_path / "small.toml", "quick", only=("vanilla",), settings={"train": {"device": "cpu"}})
    [cell] = grid.cells
    folder = tmp_path / "runs" / cell.name
    outcome = engines.run_task(engines.Task(to_table(cell.config), folder, None, False, grid.corruptions), 1)
    assert outcome == engines.Outcome()
    assert schedule.is_finished(folder, cell.hash, True)
    [row] = make_table(grid, tmp_path / "runs", {})["rows"]
    matrix = json.loads((folder / "corruptions.json").read_text())["ece"]
    assert np.shape(matrix) == (19, 5)
    assert row["figures"]["severity 5"]["mean"] == pytest.approx(np.mean(matrix, 0)[4])


def test_a_folder_held_by_a_dying_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "LOCK_SECONDS", 30.0)
    began = time.monotonic()
    with storage.locked(tmp_path):
        timer = threading.Timer(0.3, lambda: freed.set())
        freed = threading.Event()
        waiter = threading.Thread(target=engines.wait_for, args=(tmp_path,))
        timer.start()
        waiter.start()
        freed.wait()
        assert waiter.is_alive()
    waiter.join(10)
    assert not waiter.is_alive()
    assert time.monotonic() - began < 30


def test_the_view_shows_how_far_the_running_cells_are(grid: Grid, tmp_path: Path) -> None:
    progress = schedule.start(grid, tmp_path)
    cell = next(cell for cell in grid.cells if cell.config.method.name == "eow")
    progress.waiting.remove(cell)
    progress.running[cell.name] = time.monotonic() - 75
    progress.failed[grid.cells[2].name] = "no memory"
    (tmp_path / cell.name).mkdir()
    log = storage.Log(tmp_path / cell.name / "log.jsonl")
    for epoch in range(10):
        log.write(epoch=epoch, seconds=2.0)
    log.write(epoch=10, event="rollback", seconds=1.0)
    assert epochs_of(progress, cell) == (10, 16, 12.0)
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    console.print(picture(progress, "small", time.monotonic()))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    counts = ("0 of 10 done", "1 running", "9 waiting", "1 failed")
    for words in (*counts, "10/16", "1 min 15 s", "12.0 s", "no memory"):
        assert words in shown, words
    assert [duration(seconds) for seconds in (7.26, 245, 12000)] == ["7.3 s", "4 min 05 s", "3 h 20 min"]


def test_the_view_fits_a_narrow_terminal(grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit would be cut, and what is wiped before the next picture would not be all of the last one."""
    cell = replace(grid.cells[0], title=f"{'a label of a point, ' * 5}vanilla, seed 0")
    progress = schedule.start(replace(grid, cells=(cell, *grid.cells[1:])), tmp_path)
    progress.running[cell.name] = time.monotonic() - 75
    console = Console(width=80, file=io.StringIO(), force_terminal=False)
    monkeypatch.setattr(view, "console", console)
    console.print(picture(progress, "small", time.monotonic()), crop=False)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert "0/3" in "".join(lines)
    folded = " ".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert cell.title in folded


def test_what_cannot_be_run_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(TEXT)
    mistakes = {"choose local or ray": {"engine": "cloud"}, "--engine ray": {"address": "far"}, "least 1": {"jobs": -1}}
    for words, wrong in mistakes.items():
        with pytest.raises(EowError, match=words):
            bench(tmp_path / "small.toml", tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with storage.locked(tmp_path / "out"), pytest.raises(EowError, match="in use by process"):
        bench(tmp_path / "small.toml", tmp_path / "out")


def test_a_folder_that_is_no_benchs_is_left_alone(tmp_path: Path, finished: tuple[Path, dict, str]) -> None:
    (tmp_path / "small.toml").write_text(TEXT)
    out = tmp_path / "out"
    out.mkdir()
    for make, words in (
        (lambda: (out / "table.csv").write_text("mine"), "out is not empty and holds no bench"),
        (lambda: (out / "runs").mkdir(), r"table\.csv is of no bench"),
        (lambda: (out / "table.json").write_text('{"vanilla": 1}'), r"table\.json is of no bench"),
    ):
        make()
        before = {path: path.read_bytes() for path in out.iterdir() if path.is_file()}
        with pytest.raises(EowError, match=words):
            bench(tmp_path / "small.toml", out)
        assert {path: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    begun = tmp_path / "begun"
    (begun / "runs").mkdir(parents=True)
    for folder in (tmp_path / "new", begun, finished[0] / "out"):  # none, interrupted, finished
        check_folder(folder)
