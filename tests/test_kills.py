"""Kills and signals: whatever ends a run, it goes on to the bytes of one that nobody disturbed.

The long forms, fifty kills of a training and of a bench, are in benchmarks/stress.py; test_bench_kill.py kills a bench.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from scripts import script

from eow import opening, runs, storage
from eow.bench import bench
from eow.cli.training import told_how_to_go_on
from eow.config import RunConfig, resolve
from eow.errors import EowError
from eow.methods import METHODS
from eow.report import plots
from eow.robustness import predict_corrupted
from eow.training import stopping
from eow.training.loop import Training

ROOT = Path(__file__).parent.parent
TINY = ["--data", "digits", "--unknown-classes", "8,9", "--device", "cpu", "--set", "model.hidden=16", "--quiet"]


def config(epochs: int = 4) -> RunConfig:
    return resolve({
        "train": {"epochs": epochs, "checkpoint_every": 100, "device": "cpu"}, "model": {"hidden": [16]},
        "data": {"unknown_classes": [8, 9]}, "method": {"start": "buffer", "buffer_size": 100, "start_epoch": 1},
    })  # fmt: skip


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """SIGINT, also where the tests run in the background of a script, which ignores it for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    runs.train(config(), folder, progress=False)
    return folder


def same(whole: Path, other: Path) -> bool:
    names = ["weights.safetensors", "predictions/test.safetensors", "predictions/unknown.safetensors", "config.json"]
    return all((whole / name).read_bytes() == (other / name).read_bytes() for name in names)


def epoch_kept(folder: Path) -> int:
    return storage.read_tensors(folder / "checkpoint.safetensors")[1]["epoch"]


def test_a_training_killed_three_times_ends_in_the_same_bytes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        ROOT / "benchmarks" / "stress.py",
        "train",
        "--kills",
        "3",
        "--json",
        tmp_path / "x.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "x.json").read_text())["train"]
    assert found["kills"] == 3 == sum(found["folders left"].values())
    assert found["finished runs"] >= 1
    assert found["different"] == []


def signal_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, call: int, *numbers: int) -> None:
    """Signals to this process itself, in the middle of things: before a certain call of a function."""
    real, calls = getattr(owner, name), []

    def called(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            for number in numbers:
                os.kill(os.getpid(), number)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("number", "owner", "name", "call", "kept"),
    [
        (signal.SIGINT, Training, "step", 40, 1),  # in the third epoch of four, of 15 steps each
        (signal.SIGTERM, Training, "step", 40, 1),
        (signal.SIGHUP, Training, "step", 40, 1),  # a terminal that is closed
        (signal.SIGINT, Training, "step", 1, -1),  # before anything was learnt
        (signal.SIGTERM, Training, "means", 3, 1),  # in the look after the third epoch's last step
        (signal.SIGINT, storage.Log, "write", 2, 1),  # the second epoch is whole, its line not yet there
        (signal.SIGTERM, storage.Log, "write", 4, 3),  # there is no fifth epoch to stop in
        (signal.SIGINT, runs, "predict_set", 2, 3),
    ],
)
def test_a_signal_keeps_the_last_whole_epoch(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, number, owner, name: str, call: int, kept: int
) -> None:
    folder, handlers = tmp_path / "run", [signal.getsignal(each) for each in stopping.SIGNALS]
    signal_at(monkeypatch, owner, name, call, number)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else stopping.Terminated) as stopped:
        runs.train(config(), folder, progress=False)
    assert number == signal.SIGINT or stopped.value.code == 128 + number
    assert (epoch_kept(folder) if kept >= 0 else -1) == kept
    assert (folder / "checkpoint.safetensors").exists() == (kept >= 0)
    assert not (folder / "summary.json").exists()
    monkeypatch.undo()
    runs.train(config(), folder, resume=True, progress=False)
    assert same(whole, folder)
    assert [line["epoch"] for line in storage.Log(folder / "log.jsonl").read()] == [0, 1, 2, 3]
    assert [signal.getsignal(each) for each in stopping.SIGNALS] == handlers


def test_more_signals_do_not_disturb_the_end_that_the_first_began(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signal_at(monkeypatch, Training, "step", 40, signal.SIGINT)
    signal_at(monkeypatch, Training, "restore", 1, signal.SIGINT, signal.SIGTERM)
    signal_at(monkeypatch, runs.checkpoints, "save", 1, signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config(), tmp_path / "run", progress=False)
    assert epoch_kept(tmp_path / "run") == 1
    monkeypatch.undo()
    runs.train(config(), tmp_path / "run", resume=True, progress=False)
    assert same(whole, tmp_path / "run")


def test_a_stop_in_a_second_attempt_repeats_the_first_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch that was undone is part of what is gone on with: seeds and rate depend on how many there were."""
    wild = resolve({"train": {"epochs": 4, "checkpoint_every": 100}, "model": {"hidden": [16]}})

    real = Training.one_epoch

    def one_epoch(training: Training, epoch: int, *rest):
        # Trouble that depends on the state alone, as a divergence does: in the third epoch's first attempt.
        humming = epoch == 2 and training.rollbacks == 0
        training.method.trouble = lambda means: "it hums" if humming else None  # type: ignore[method-assign]
        return real(training, epoch, *rest)

    monkeypatch.setattr(Training, "one_epoch", one_epoch)
    runs.train(wild, tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        signal_at(patch, Training, "one_epoch", 4, signal.SIGTERM)  # the second attempt at the third epoch
        with pytest.raises(stopping.Terminated):
            runs.train(wild, tmp_path / "run", progress=False)
    assert epoch_kept(tmp_path / "run") == 1
    runs.train(wild, tmp_path / "run", resume=True, progress=False)
    logs = [storage.Log(tmp_path / name / "log.jsonl").read() for name in ("whole", "run")]
    assert [line.get("event") for line in logs[0]] == [None, None, "rollback", None, None]
    timeless = [[{k: v for k, v in line.items() if "second" not in k} for line in log] for log in logs]
    assert timeless[0] == timeless[1]
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("whole", "run")]
    assert weights[0] == weights[1]


def test_signals_that_somebody_else_handles_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        signal_at(monkeypatch, Training, "step", 5, signal.SIGTERM)
        runs.train(config(2), tmp_path / "run", progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_training_in_another_thread_needs_no_handlers(tmp_path: Path) -> None:
    thread = threading.Thread(target=runs.train, args=(config(2), tmp_path / "run"), kwargs={"progress": False})
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "summary.json").exists()


def test_the_line_says_whether_there_is_something_to_go_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    for kept, word in ((False, "no epoch is finished yet in"), (True, "its last whole epoch is in")):
        if kept:
            (tmp_path / "checkpoint.safetensors").touch()
        with pytest.raises(typer.Exit) as ended, told_how_to_go_on(tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.exit_code == 143
        said = capsys.readouterr().err.strip()
        assert word in said
        assert said.count("\n") == 0


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.01)


def begin(*arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "eow", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def lines(folder: Path) -> int:
    return len(storage.Log(folder / "log.jsonl").read())


@pytest.mark.parametrize(("devices", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_stopped_command_says_how_to_go_on(tmp_path: Path, devices: int, number: signal.Signals) -> None:
    folder, flags = tmp_path / "run", ["--epochs", 5000, "--set", "train.checkpoint_every=5000", "--devices", devices]
    process = begin("train", *TINY, *flags, "--out", folder)
    wait_for(lambda: lines(folder) >= 3, process)
    holder = (folder / ".lock").read_text()
    if devices == 1:
        assert holder.startswith(f"process {process.pid} on ")
    # A second process refuses the folder and names the first.
    with pytest.raises(EowError, match=f"in use by {holder}"):
        runs.train(config(), folder, resume=True, progress=False)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.strip() == (
        f"stopped; go on with the same command and --resume (its last whole epoch is in {folder})"
    ), err
    assert out == ""
    assert epoch_kept(folder) + 1 == lines(folder)
    with storage.locked(folder):  # nobody is left behind
        pass
    ranks = [f"checkpoint-rank1-{epoch_kept(folder)}.safetensors"] if devices == 2 else []
    assert sorted(file.name for file in folder.glob("checkpoint?*-*")) == ranks


GRID = """
[grid]
name = "small"
methods = ["vanilla", "eow"]
seeds = 1
columns = ["accuracy", "seconds"]
[settings.data]
name = "digits"
[settings.model]
hidden = [16]
[settings.train]
epochs = 200
checkpoint_every = 5000
[quick]
"""


def test_a_stopped_bench_keeps_what_its_workers_have_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(GRID)
    out = tmp_path / "out"
    process = begin("bench", tmp_path / "small.toml", "--jobs", 2, "--out", out)
    wait_for(lambda: any(lines(run) >= 3 for run in out.glob("runs/*")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err.strip().splitlines()[-1] == "stopped; the same command goes on from here"
    stopped = [run for run in out.glob("runs/*") if not (run / "summary.json").exists()]
    for run in stopped:  # a worker that had just begun has no whole epoch to keep
        assert (epoch_kept(run) + 1 if (run / "checkpoint.safetensors").exists() else 0) == lines(run)
    kept = [run for run in stopped if lines(run)]
    assert kept
    seconds = {run: [line["seconds"] for line in storage.Log(run / "log.jsonl").read()] for run in kept}
    table = bench(tmp_path / "small.toml", out, jobs=1, cpus=1)
    assert not table["failed"]
    for run, before in seconds.items():  # the epochs that were kept were not trained again
        assert [line["seconds"] for line in storage.Log(run / "log.jsonl").read()][: len(before)] == before


# Corruptions


def test_a_figure_is_drawn_before_its_file_is_begun(tmp_path: Path) -> None:
    """Drawing takes a second, in which a kill would leave a temporary file."""
    seen: list[list[str]] = []

    class Slow:
        def savefig(self, file: IO[bytes], **_: object) -> None:
            seen.append([path.name for path in tmp_path.iterdir()])
            file.write(b"drawn")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("matplotlib.pyplot.close", lambda figure: None)
        plots.save(Slow(), tmp_path / "x.png")
    assert seen == [[]]
    assert (tmp_path / "x.png").read_bytes() == b"drawn"


def test_what_a_kill_left_of_corruptions_is_swept_by_the_next(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 256, (60, 1, 28, 28), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "set.npz", x=x, y=y)
    wanted = {"data": {"name": f"npz:{tmp_path / 'set.npz'}"}, "method": {"name": "vanilla"}}
    folder = tmp_path / "run"
    runs.train(resolve(wanted, {"model": {"hidden": [4]}, "train": {"epochs": 1}}), folder, progress=False)
    run = runs.load(folder)
    (folder / "corrupted").mkdir()
    left = [folder / ".corruptions.png.1234abcd", folder / "corrupted" / ".contrast.safetensors.1234abcd"]
    for path in left:
        path.write_bytes(b"half")
    steps = predict_corrupted(run, opening.own_test_set(run), names=["contrast", "brightness"])
    assert next(steps) == "contrast"
    assert not any(path.exists() for path in left)
    in_use = pytest.raises(EowError, match="in use by process")  # and who is at work is not disturbed
    with in_use:
        next(predict_corrupted(run, opening.own_test_set(run)))
    assert list(steps) == ["brightness"]
    assert sorted(path.name for path in (folder / "corrupted").iterdir()) == [
        "brightness.safetensors", "contrast.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_soaked(method: str) -> None:
    """benchmarks/stress.py trains each for half an hour; what its settings lack would be said at once."""
    assert script("benchmarks/stress.py").soaked(method, 3).method.name == method


def test_a_soak_tells_of_what_grows() -> None:
    left_behind = script("benchmarks/stress.py").left_behind
    quiet = {"MiB": [444.5, 446.8], "files": [6, 6], "threads": [1, 1]}
    assert left_behind(quiet, 0.023, 30.1) == []
    assert left_behind(quiet, 5.0, 2.0) == []  # too short to tell
    assert left_behind(quiet, 1.5, 30.1) == ["memory grows by 1.50 MiB a minute: less than 1 is allowed"]
    assert left_behind({**quiet, "files": [6, 9]}, 0.0, 2.0) == ["6 to 9 files in the second half"]


def test_the_tracker_of_semaphores_says_nothing() -> None:
    """One is left to it that nobody has any more, as when a worker was told to stop: it would warn of that."""
    code = "from eow.bench.engines import quiet_tracker as quiet; quiet(); "
    code += "from joblib.externals.loky.backend import resource_tracker; resource_tracker.register('/lost', 'semlock')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    loud = code.replace("quiet(); ", "")
    assert "resource_tracker" in subprocess.run([sys.executable, "-c", loud], capture_output=True, text=True).stderr


def test_where_no_terminal_hangs_up_the_other_signals_do() -> None:
    """Windows has no SIGHUP."""
    code = "import signal; del signal.SIGHUP; from eow.training.stopping import SIGNALS; print(*SIGNALS)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "15"], done.stderr
