"""Run folders: complete, resumable to the same bytes, locked, and never half-written."""

import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs

import eow
from eow import predictions, runs, storage
from eow.answering import predict_files
from eow.config import RunConfig, resolve
from eow.data import load
from eow.data.loader import on_device
from eow.errors import EowError
from eow.export.run import export
from eow.methods import METHODS
from eow.models.split import only_counted
from eow.switches import float32_default

FAST = {
    "train": {"epochs": 4, "checkpoint_every": 1},
    "model": {"hidden": [16]},
    "data": {"unknown_classes": [8, 9], "outliers": ["noise"]},
}


def config(*layers: dict, method: str = "eow") -> RunConfig:
    return resolve(FAST, {"method": {"name": method}}, *layers)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "eow"
    runs.train(config(), folder, progress=False)
    return folder


def test_a_run_folder_holds_everything(finished: Path) -> None:
    names = {
        str(path.relative_to(finished))
        for path in finished.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    assert names == {
        "config.json", "environment.json", "log.jsonl", "summary.json", "weights.safetensors",
        "predictions/test.safetensors", "predictions/unknown.safetensors", "predictions/noise.safetensors",
    }  # fmt: skip
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["metrics"].keys() == {"test", "unknown", "noise"}
    assert summary["weights"] == storage.file_hash(finished / "weights.safetensors")
    assert summary["versions"]["torch"] == torch.__version__
    assert [line["epoch"] for line in storage.Log(finished / "log.jsonl").read()] == [0, 1, 2, 3]
    assert "capped" in storage.Log(finished / "log.jsonl").read()[-1]


def test_a_loaded_run_predicts_what_was_stored(finished: Path) -> None:
    run = runs.load(finished)
    stored = predictions.read(finished / "predictions" / "test.safetensors")
    test, _ = eow.data.known_unknown(eow.data.load("digits", split="test"), (8, 9))
    said = run.method.predict(run.transform(torch.from_numpy(test.inputs)))
    np.testing.assert_allclose(said.probs.numpy(), stored.probs, atol=1e-6)
    np.testing.assert_allclose(stored.probs.sum(1) + stored.unknown, 1, atol=1e-6)
    assert (stored.labels == test.labels).all()
    assert run.classes == tuple("01234567")


def test_predictions_are_reused_by_content_alone(finished: Path) -> None:
    run = runs.load(finished)
    noise = eow.data.load("noise", split="test", shape=(1, 8, 8))
    path = finished / "predictions" / "noise.safetensors"
    before = path.stat().st_mtime_ns
    predictions.predict_set(run, "noise", noise)
    assert path.stat().st_mtime_ns == before
    predictions.predict_set(run, "noise", noise.subset(range(100)))  # the same name, other data
    assert len(predictions.read(path).labels) == 100
    predictions.predict_set(run, "noise", noise)
    assert len(predictions.read(path).labels) == len(noise)


@pytest.mark.parametrize("start", ["noise:0.5,mixed:0.5", "buffer"])
def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    wanted = config({"method": {"start": start, "start_epoch": 1}})
    runs.train(wanted, tmp_path / "whole", resume=True, progress=False)  # --resume starts where nothing is there yet
    real, saved = runs.checkpoints.save, []

    def stop_after_two(*arguments) -> None:
        real(*arguments)
        saved.append(1)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.checkpoints, "save", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        runs.train(wanted, tmp_path / "parts", progress=False)
    monkeypatch.undo()
    assert not (tmp_path / "parts" / "summary.json").exists()
    runs.train(wanted, tmp_path / "parts", resume=True, progress=False)
    for name in (
        "weights.safetensors",
        "predictions/test.safetensors",
        "predictions/unknown.safetensors",
        "config.json",
    ):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name
    logs = [storage.Log(tmp_path / each / "log.jsonl").read() for each in ("whole", "parts")]
    timeless = [[{k: v for k, v in line.items() if "second" not in k} for line in log] for log in logs]
    assert timeless[0] == timeless[1]


def test_a_finished_run_is_not_trained_again(finished: Path) -> None:
    before = (finished / "weights.safetensors").stat().st_mtime_ns
    summary = runs.train(config(), finished, resume=True, progress=False)
    assert summary == json.loads((finished / "summary.json").read_text())
    assert (finished / "weights.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["gone", "cut", "all gone"])
def test_predictions_of_a_finished_run_that_are_lost_are_made_again(
    finished: Path, tmp_path: Path, damage: str
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    file = folder / "predictions" / "test.safetensors"
    if damage == "all gone":
        shutil.rmtree(file.parent)
    elif damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:1000])
    runs.train(config(), folder, resume=True, progress=False)
    for each in (finished / "predictions").iterdir():
        assert (folder / "predictions" / each.name).read_bytes() == each.read_bytes()


def test_a_finished_run_may_have_left_its_weights_elsewhere(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "weights.safetensors").unlink()
    assert runs.train(config(), folder, resume=True, progress=False)["method"] == "eow"
    (folder / "predictions" / "test.safetensors").unlink()
    with pytest.raises(EowError, match=r"there is no file .*weights\.safetensors"):
        runs.train(config(), folder, resume=True, progress=False)


def test_a_finished_run_whose_weights_or_figures_are_damaged_is_not_called_whole(
    finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    whole = json.loads((folder / "summary.json").read_text())
    for name, figure, value in (("test", "ece_equal_mass", "x"), ("test", "nll", None), ("noise", "auroc_unknown", [])):
        edited = {**whole, "metrics": {**whole["metrics"], name: {**whole["metrics"][name], figure: value}}}
        storage.write_json(folder / "summary.json", edited)
        with pytest.raises(EowError, match=f"is damaged \\({figure} of {name} is .*: train the run again"):
            runs.train(config(), folder, resume=True, progress=False)
    for metrics in ({}, 3, {"test": 1.0}):
        storage.write_json(folder / "summary.json", {**whole, "metrics": metrics})
        with pytest.raises(EowError, match="has no figures"):
            runs.train(config(), folder, resume=True, progress=False)
    storage.write_json(folder / "summary.json", whole)
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(EowError, match="damaged or replaced since"):
        runs.train(config(), folder, resume=True, progress=False)


@pytest.mark.parametrize("byte", [0, 255])
def test_a_damaged_checkpoint_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte: int) -> None:
    """Its header is whole, what it holds is zeros or NaN."""
    real = runs.checkpoints.save

    def save_and_stop(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.checkpoints, "save", save_and_stop)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config(), tmp_path / "run", progress=False)
    monkeypatch.undo()
    file = tmp_path / "run" / "checkpoint.safetensors"
    data = file.read_bytes()
    first = 8 + int.from_bytes(data[:8], "little")
    file.write_bytes(data[:first] + bytes([byte]) * (len(data) - first))
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    with pytest.raises(EowError, match=r"is damaged .*its sum is another one.*: start again in another folder"):
        runs.train(config(), tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log


def test_folders_that_cannot_be_used(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(EowError, match="already holds a run"):
        runs.train(config(), finished, progress=False)
    with pytest.raises(EowError, match=r"other settings \(seed is 0 there and 5 now\)"):
        runs.train(config({"seed": 5}), finished, resume=True, progress=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(EowError, match="not empty and holds no run"):
        runs.train(config(), tmp_path / "other", resume=True, progress=False)
    with pytest.raises(EowError, match="cannot be written to"):
        runs.train(config(), tmp_path / "other" / "thesis.tex" / "run", progress=False)


def test_a_folder_in_use_names_its_user(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, eow.storage as s\n"
        "with s.locked(pathlib.Path(sys.argv[1])):\n print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(EowError, match=f"in use by process {other.pid} on "):
        runs.train(config(), tmp_path, resume=True, progress=False)
    other.kill()  # a dead process's lock is taken over
    other.wait()
    runs.train(config(), tmp_path, resume=True, progress=False)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"data": {"unknown_classes": [10]}}, "digits has no class '10'"),
        ({"data": {"unknown_classes": list(range(9))}}, "fewer than 2 known"),
        ({"data": {"outliers": ["noise:3x32x32"]}}, "outliers noise:3x32x32 are of shape"),
        ({"data": {"outliers": ["moon"]}}, "no data set named 'moon'"),
        ({"data": {"name": "mnist", "root": "nowhere"}}, "mnist"),
        ({"model": {"cut": "stage9"}}, "no cut 'stage9'"),
        ({"model": {"name": "resnet1"}}, "no model 'resnet1'"),
        ({"train": {"device": "cuda:99"}}, "cannot be used here"),
        ({"data": {"holdout": 5000}}, "hold out 5000"),
        ({"train": {"graph": "on"}}, "graph=on"),
        ({"method": {"start_epoch": 8}}, "never start"),
        ({"method": {"start": "buffer", "buffer_size": 10}}, "buffer of 10 slots"),
    ],
)
def test_what_is_wrong_is_found_before_the_folder_is_made(tmp_path: Path, wish: dict, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        runs.train(config({"data": {"unknown_classes": [], "outliers": []}}, wish), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_diverged_run_keeps_its_last_checkpoint(tmp_path: Path) -> None:
    wild = config({"train": {"optimizer": "sgd", "lr": 1e25, "schedule": "constant"}}, method="vanilla")
    with pytest.raises(EowError, match="became"):
        runs.train(wild, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_a_run_that_diverges_at_once_says_that_nothing_is_kept(tmp_path: Path) -> None:
    wild = config({"train": {"optimizer": "sgd", "lr": 1e30, "schedule": "constant", "rollbacks": 1}}, method="vanilla")
    with pytest.raises(EowError, match="Given up after 1 rollbacks; no epoch was completed"):
        runs.train(wild, tmp_path / "run", progress=False)


def features(path: Path, scale: float, seed: int = 0) -> str:
    x, y = blobs(120, seed=seed)
    np.savez(path, x=scale * x, y=y)
    return f"npz:{path}"


def test_changed_data_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wish = {"data": {"name": features(tmp_path / "x.npz", 1.0), "unknown_classes": [], "outliers": []}}
    real = runs.checkpoints.save

    def stop(*arguments) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config(wish), tmp_path / "run", progress=False)
    monkeypatch.undo()
    (tmp_path / "run" / ".weights.safetensors.abc12345").write_text("left by a kill")
    features(tmp_path / "x.npz", -3.0)
    with pytest.raises(EowError, match="training data is not that of the checkpoint"):
        runs.train(config(wish), tmp_path / "run", resume=True, progress=False)
    features(tmp_path / "x.npz", 1.0)
    runs.train(config(wish), tmp_path / "run", resume=True, progress=False)
    assert [file.name for file in (tmp_path / "run").glob(".*")] == [".lock"]


def test_an_empty_name_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EowError, match="is an empty text: name one"):
        runs.train(config(), "", progress=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_hidden_files_is_fine_and_keeps_them(tmp_path: Path) -> None:
    wish = {"data": {"name": features(tmp_path / "x.npz", 1.0), "unknown_classes": [], "outliers": []}}
    theirs = [".env.local", ".pre-commit-config.yaml", ".gitignore", ".config.json.orig"]
    folder = tmp_path / "run"
    folder.mkdir()
    for name in theirs:
        (folder / name).write_text("mine")
    runs.train(config(wish), folder, progress=False)
    mine = [folder / "checkpoint notes.txt", *(folder / "predictions" / name for name in theirs)]
    for file in mine:
        file.write_text("mine")
    (folder / "summary.json").unlink()
    runs.train(config(wish), folder, resume=True, progress=False)
    assert {file.read_text() for file in [*mine, *(folder / name for name in theirs)]} == {"mine"}


def test_only_a_vanilla_run_on_the_same_data_is_taken_over(tmp_path: Path) -> None:
    wish = {"data": {"name": features(tmp_path / "x.npz", 1.0), "unknown_classes": [], "outliers": [], "holdout": 0.2}}
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "config.json").write_text("{")
    runs.train(config(wish, method="vanilla"), tmp_path / "runs" / "vanilla", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few samples may have no error
        runs.train(config(wish, method="temperature"), tmp_path / "runs" / "same", progress=False)
        features(tmp_path / "x.npz", -3.0)
        runs.train(config(wish, method="temperature"), tmp_path / "runs" / "other", progress=False)
    logs = {name: storage.Log(tmp_path / "runs" / name / "log.jsonl").read() for name in ("same", "other")}
    assert logs["same"][0]["event"] == "taken over"
    assert [line["epoch"] for line in logs["other"]] == [0, 1, 2, 3]


def test_changed_test_data_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y), name, real = blobs(120), tmp_path / "x.npz", runs.checkpoints.save
    wish = {"data": {"name": f"npz:{name}", "unknown_classes": [], "outliers": []}}

    def write(change: float) -> None:
        tested = x[80:].copy()
        tested[-1] += change
        np.savez(name, x_train=x[:80], y_train=y[:80], x_test=tested, y_test=y[80:])

    def stop(*arguments) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    write(0.0)
    monkeypatch.setattr(runs.checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config(wish), tmp_path / "run", progress=False)
    monkeypatch.undo()
    write(1.0)
    with pytest.raises(EowError, match=r"the test data is not that of the checkpoint in .*: bring it back"):
        runs.train(config(wish), tmp_path / "run", resume=True, progress=False)
    write(0.0)
    runs.train(config(wish), tmp_path / "run", resume=True, progress=False)
    assert (tmp_path / "run" / "summary.json").exists()


def test_training_and_test_sets_must_be_alike(tmp_path: Path) -> None:
    x, y = blobs(60)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x[:, :3], y_test=y)
    wish = {"data": {"name": f"npz:{tmp_path / 'x.npz'}", "unknown_classes": [], "outliers": []}}
    with pytest.raises(EowError, match="make them alike"):
        runs.train(config(wish), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "swap"])
def test_damaged_files_are_refused(finished: Path, tmp_path: Path, damage: str) -> None:
    data = bytearray((finished / "weights.safetensors").read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "flip":
        data[9] ^= 0xFF
    else:
        data = bytearray((finished / "predictions" / "test.safetensors").read_bytes())
    (tmp_path / "weights.safetensors").write_bytes(data)
    with pytest.raises(EowError):
        runs.load(tmp_path)


def flip(folder: Path, tensor: str) -> None:
    """A bit of one number's exponent, as a disk or a cable may: 0.1 becomes 1e37, and the file stays well formed."""
    data = bytearray((folder / "weights.safetensors").read_bytes())
    first = 8 + int.from_bytes(data[:8], "little")
    data[first + json.loads(data[8:first])[tensor]["data_offsets"][0] + 3] ^= 0x40
    (folder / "weights.safetensors").write_bytes(data)


def test_weights_that_are_not_those_of_the_summary_answer_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    real, hashed = storage.file_hash, []
    monkeypatch.setattr(storage, "file_hash", lambda path: hashed.append(path.name) or real(path))
    assert runs.load(tmp_path / "run").weights_hash == real(finished / "weights.safetensors")
    assert hashed == ["weights.safetensors"]  # once: weights may be large
    flip(tmp_path / "run", "model.tail.head.weight")
    sentence = (
        r"run/weights\.safetensors is not the file that .*summary\.json was written for: it was damaged or replaced"
    )
    with pytest.raises(EowError, match=sentence):
        runs.load(tmp_path / "run")
    with pytest.raises(EowError, match=sentence):
        export(tmp_path / "run", tmp_path / "run.pt2", format="torch", on="random")
    assert not (tmp_path / "run.pt2").exists()
    summary = storage.read_json(tmp_path / "run" / "summary.json")
    del summary["weights"]
    storage.write_json(tmp_path / "run" / "summary.json", summary)
    with pytest.raises(EowError, match=r"summary\.json has no weights: it is damaged"):
        runs.load(tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()  # as after a training that diverged
    runs.load(tmp_path / "run")


def test_damaged_weights_are_not_taken_over(tmp_path: Path) -> None:
    wish = {"train": {"epochs": 1}, "data": {"holdout": 0.1}}
    runs.train(config(wish, method="vanilla"), tmp_path / "vanilla", progress=False)
    flip(tmp_path / "vanilla", "model.tail.head.weight")
    for folder in (tmp_path / "beside", tmp_path / "apart" / "alone"):
        folder.parent.mkdir(exist_ok=True)
        runs.train(config(wish, method="temperature"), folder, progress=False)
    log = storage.Log(tmp_path / "beside" / "log.jsonl").read()
    assert [line["epoch"] for line in log] == [0]  # and no line of what was taken over
    beside, alone = ((tmp_path / name / "weights.safetensors").read_bytes() for name in ("beside", "apart/alone"))
    assert beside == alone


def test_the_callers_type_comes_back_with_the_last_of_several_threads() -> None:
    inside, leave = threading.Barrier(2), threading.Event()

    def stay() -> None:
        with float32_default():
            inside.wait()
            leave.wait()

    torch.set_default_dtype(torch.float64)
    try:
        other = threading.Thread(target=stay)
        with float32_default():  # begins first, ends first
            other.start()
            inside.wait()
        assert torch.get_default_dtype() == torch.float32
        leave.set()
        other.join()
        assert torch.get_default_dtype() == torch.float64
    finally:
        leave.set()
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("method", ["vanilla", "eow", "dble", "ova_dm"])
def test_a_run_is_float32_whatever_torch_makes_by_default(tmp_path: Path, method: str) -> None:
    wish = {"train": {"epochs": 1}, "data": {"outliers": []}}
    np.save(tmp_path / "x.npy", load("digits", split="test").inputs[:20])
    said = {}
    for kind in (torch.float32, torch.float64):
        folder = tmp_path / str(kind)
        on_device.cache_clear()  # as in a process of its own
        torch.set_default_dtype(kind)
        try:
            runs.train(config(wish, method=method), folder, progress=False)
            on_device.cache_clear()
            said[kind] = predict_files(runs.load(folder), [tmp_path / "x.npy"])
            runs.load(tmp_path / "torch.float32")  # a good run of another process
            assert torch.get_default_dtype() == kind
        finally:
            torch.set_default_dtype(torch.float32)
        assert {value.dtype for value in runs.load(folder).method.parameters()} == {torch.float32}
    assert said[torch.float32] == said[torch.float64]
    first, second = (storage.file_hash(tmp_path / str(kind) / "weights.safetensors") for kind in said)
    assert first == second


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_without_gradients_is_refused_before_the_folder_is_made(tmp_path: Path, mode) -> None:
    with mode(), pytest.raises(EowError, match=r"gradients are switched off here, .*: call eow\.train outside it"):
        eow.train(config(), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_held_out_epochs_come_last(tmp_path: Path) -> None:
    wanted = config({"data": {"holdout": 0.1}, "train": {"holdout_epochs": 2}, "method": {"calibrate": "none"}})
    summary = runs.train(wanted, tmp_path / "run", progress=False)
    known = int((eow.data.load("digits").labels < 8).sum())
    assert summary["sets"]["holdout"]["samples"] == round(known / 10)
    assert summary["sets"]["train"]["samples"] == known - round(known / 10)
    lines = storage.Log(tmp_path / "run" / "log.jsonl").read()
    assert [line["epoch"] for line in lines] == list(range(6))
    assert lines[-1]["lr"] == lines[3]["lr"]


def in_processes(count: int, *arguments: object) -> None:
    command = [sys.executable, "-m", "eow", "train", "--data", "digits", "--device", "cpu", "--quiet"]
    command += ["--devices", str(count), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr


def test_two_processes_train_as_torchrun_starts_them(tmp_path: Path) -> None:
    """Replay buffers of their own, checkpoints of every rank, and one summary."""
    settings = ["--epochs", 2, "--set", "train.checkpoint_every=1", "--set", "method.start=buffer"]
    in_processes(2, "--out", tmp_path / "two", *settings)
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["metrics"]["test"]["accuracy"] > 0.8
    assert not list((tmp_path / "two").glob("checkpoint*"))


def test_what_is_wrong_is_said_once_before_processes_start(tmp_path: Path) -> None:
    for flags, word in ((["--data", "npz:none.npz"], "none.npz"), (["--set", "train.batch=33"], "cannot be shared")):
        command = [sys.executable, "-m", "eow", "train", "--devices", "2", "--out", str(tmp_path / "run"), *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert word in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "run").exists()


def test_two_processes_equal_one_with_the_whole_batch(tmp_path: Path) -> None:
    """A net without norm, chains from every feature of the batch and no noise: nothing depends on who computes what."""
    settings = {
        "train.epochs": 3, "train.batch": 32, "train.optimizer": "sgd", "train.lr": 0.05, "model.hidden": 32,
        "method.start": "features", "method.start_epoch": 0, "method.noise": 0.0, "method.trust": 0.0,
        "method.steps": 5,
    }  # fmt: skip
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    in_processes(2, "--out", tmp_path / "two", *flags, "--set", "method.chains=16")
    in_processes(1, "--out", tmp_path / "one", *flags, "--set", "method.chains=32")
    two, one = (storage.read_tensors(tmp_path / name / "weights.safetensors")[0] for name in ("two", "one"))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, atol=1e-5, rtol=1e-4)
    lines = [storage.Log(tmp_path / name / "log.jsonl").read() for name in ("two", "one")]
    for a, b in zip(*lines, strict=True):
        assert a["ce"] == pytest.approx(b["ce"], rel=1e-4)
        assert a["energy"] == pytest.approx(b["energy"], rel=1e-4)


UNUSED = """
import torch
from eow.config import TrainConfig
from eow.data import load
from eow.data.loader import Batches, Transform
from eow.training.distributed import process_group
from eow.methods.vanilla import Vanilla, VanillaOptions
from eow.models import build
from eow.training.loop import Training

class Forgetful(Vanilla):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.extra, self.calls = torch.nn.Parameter(torch.ones(3)), 0
    def forward(self, x, y):
        self.calls += 1
        terms = super().forward(x, y)
        return {**terms, "extra": self.extra.square().sum()} if self.calls % 2 else terms

with process_group("cpu") as place:
    method = Forgetful(build("mlp", 10, (1, 8, 8), hidden=(8,)), VanillaOptions(), 10, (1, 8, 8), 0)
    method.prepare(place.device)
    batches = Batches(load("digits"), 64, Transform((0.0,), (1.0,)), place.device, rank=place.rank, world=place.world)
    list(Training(method, batches, TrainConfig(epochs=1, lr=0.01), place, 0).epochs())
    assert method.extra.abs().max() < 1
"""


def test_parameters_unused_in_a_step_do_not_hang_it(tmp_path: Path) -> None:
    (tmp_path / "unused.py").write_text(UNUSED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        tmp_path / "unused.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_quadratic_unknown_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    wishes = {"train": {"epochs": 3}, "model": {"hidden": [16], "unknown": "quadratic"}, "method": {"start_epoch": 1}}
    runs.train(resolve(wishes), tmp_path / "run", progress=False)
    run = runs.load(tmp_path / "run")
    assert run.method.model.head.square.abs().max() > 0
    stored = predictions.read(tmp_path / "run" / "predictions" / "test.safetensors")
    x = run.transform(torch.from_numpy(load("digits", split="test").inputs[:20]))
    torch.testing.assert_close(run.method.predict(x).unknown, torch.from_numpy(np.array(stored.unknown[:20])))


def test_a_quadratic_unknown_needs_an_unknown(tmp_path: Path) -> None:
    with pytest.raises(EowError, match=r"vanilla has no unknown logit: leave model\.unknown out"):
        runs.train(resolve({"method": {"name": "vanilla"}, "model": {"unknown": "quadratic"}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


WRONG_CARDS = {
    "std 0": {"transform": {"mean": [0.3], "std": [0.0]}},
    "std 0 in float32": {"transform": {"mean": [0.3], "std": [1e-60]}},
    "a negative std": {"transform": {"mean": [0.3], "std": [-1.0]}},
    "std NaN": {"transform": {"mean": [0.3], "std": [float("nan")]}},
    "two stds": {"transform": {"mean": [0.3], "std": [0.3, 0.3]}},
    "no mean": {"transform": {"mean": [], "std": [0.3]}},
    "words": {"transform": {"mean": [0.3], "std": ["0.3"]}},
    "a word": {"transform": {"mean": "3", "std": [0.3]}},
    "an endless mean": {"transform": {"mean": [1e300], "std": [0.3]}},
    "a whole number without end": {"transform": {"mean": [10**400], "std": [0.3]}},
    "truth": {"transform": {"mean": [0.3], "std": [True]}},
    "no transform": {"transform": None},
    "classes None": {"classes": [None] * 8},
    "numbered classes": {"classes": list(range(8))},
    "an input of two sizes": {"in_shape": [1, 8]},
    "an input of halves": {"in_shape": [1, 8.0, 8]},
    "an input of nothing": {"in_shape": []},
}


@pytest.mark.parametrize("wrong", WRONG_CARDS)
def test_a_card_that_cannot_be_is_refused(finished: Path, tmp_path: Path, wrong: str) -> None:
    state, card = storage.read_tensors(finished / "weights.safetensors")
    storage.write_tensors(tmp_path / "weights.safetensors", state, card)
    assert runs.load(tmp_path).classes == tuple("01234567")
    storage.write_tensors(tmp_path / "weights.safetensors", state, {**card, **WRONG_CARDS[wrong]})
    with pytest.raises(EowError, match="do not fit what they say they are"):
        runs.load(tmp_path)


def test_a_network_larger_than_its_file_is_not_made(finished: Path, tmp_path: Path) -> None:
    state, card = storage.read_tensors(finished / "weights.safetensors")
    huge = {**card["config"], "model": {**card["config"]["model"], "hidden": [1_000_000, 1_000_000]}}  # 4 TB
    storage.write_tensors(tmp_path / "weights.safetensors", state, {**card, "config": huge})
    with pytest.raises(EowError, match="other parameters than its settings want"):
        runs.load(tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_asked_of_a_file_is_what_the_method_has(name: str) -> None:
    """`load` counts its weights where no network is run."""
    wanted = resolve({"method": {"name": name}, "model": {"name": "resnet18", "norm": "none"}})
    with only_counted():
        counted = runs.make_method(wanted, 4, (3, 32, 32))
    made = runs.make_method(wanted, 4, (3, 32, 32))
    described = [
        {key: (each.shape, each.dtype) for key, each in method.named_parameters()} for method in (counted, made)
    ]
    assert described[0] == described[1]
    types = [{key: each.dtype for key, each in method.state_dict().items()} for method in (counted, made)]
    assert types[0] == types[1]


def test_a_run_is_opened_without_torchs_compiler(finished: Path) -> None:
    """Its imports take as long as torch's own."""
    code = "import sys; from eow.runs import load; load(sys.argv[1]); sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code, str(finished)], check=True, timeout=120)


@pytest.mark.parametrize("kind", [torch.int32, torch.float64, torch.bfloat16])
def test_weights_of_another_type_are_not_cast(finished: Path, tmp_path: Path, kind: torch.dtype) -> None:
    state, card = storage.read_tensors(finished / "weights.safetensors")
    name = next(name for name in state if name.endswith("weight"))
    storage.write_tensors(tmp_path / "weights.safetensors", {**state, name: state[name].to(kind)}, card)
    with pytest.raises(EowError, match="numbers of another type than its settings want"):
        runs.load(tmp_path)


def test_a_resumed_run_keeps_what_it_was_begun_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eow import runfolder

    monkeypatch.setattr(runfolder, "commit", lambda: "first")
    runfolder.note_environment(tmp_path, torch.device("cpu"))
    runfolder.note_environment(tmp_path, torch.device("cpu"))
    assert "earlier" not in storage.read_json(tmp_path / "environment.json")
    monkeypatch.setattr(runfolder, "commit", lambda: "second")
    runfolder.note_environment(tmp_path, torch.device("cpu"))
    found = storage.read_json(tmp_path / "environment.json")
    assert found["commit"] == "second"
    assert [each["commit"] for each in found["earlier"]] == ["first"]


def test_a_commit_is_that_of_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a + where the source has been changed, and none where the package lies in somebody else's checkout."""
    from eow import runfolder

    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    def package(folder: Path) -> Path:
        storage.make_folder(folder)
        source = folder / "runfolder.py"
        source.write_text("")
        monkeypatch.setattr(runfolder, "__file__", str(source))
        return source

    source = package(tmp_path / "eow")
    assert runfolder.commit() is None  # no checkout
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    head = git("rev-parse", "HEAD").strip()
    assert runfolder.commit() == head
    source.write_text("# changed")
    assert runfolder.commit() == f"{head}+"
    package(tmp_path / "vendor" / "eow")
    assert runfolder.commit() is None


def test_a_run_does_not_go_on_in_another_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` is the device's own: a checkpoint of a GPU is not taken up on a CPU."""
    wanted = config({"train": {"precision": "bf16", "epochs": 2}}, method="vanilla")
    monkeypatch.setattr(runs, "complete_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        runs.train(wanted, tmp_path / "run", progress=False)
    settings = storage.read_json(tmp_path / "run" / "config.json")
    settings["train"]["precision"] = "auto"
    storage.write_json(tmp_path / "run" / "config.json", settings)
    with pytest.raises(EowError, match="was trained in bf16 and would go on in fp32 on this device"):
        runs.train(config({"train": {"epochs": 2}}, method="vanilla"), tmp_path / "run", resume=True, progress=False)


def stopped(*words: object) -> None:
    raise KeyboardInterrupt


def test_one_process_of_several_writes_of_a_take_over(tmp_path: Path) -> None:
    from eow.training.distributed import Place

    held = {"data": {"holdout": 0.1}, "train": {"epochs": 1}}
    runs.train(config(held, method="vanilla"), tmp_path / "vanilla", progress=False)
    (tmp_path / "new").mkdir()
    place = Place(torch.device("cpu"), 1, 2)
    _, training = runs.prepare(config(held, method="temperature"), Place(torch.device("cpu")), progress=False)
    before = training.method.model.head.weight.clone()
    runs.take_over(training.method, tmp_path / "vanilla", tmp_path / "new", place)
    assert not torch.equal(training.method.model.head.weight, before)
    assert not (tmp_path / "new" / "log.jsonl").exists()


def test_a_setting_that_nothing_reads_is_told_of(tmp_path: Path) -> None:
    """Not refused: a run that has one is opened and resumed, and the rows of a grid may share it."""
    idle = {"train": {"epochs": 1, "warmup_steps": 10, "milestones": [1], "momentum": 0.5}}
    with pytest.warns(RuntimeWarning) as caught:
        runs.train(config(idle, method="vanilla"), tmp_path / "run", progress=False)
    told = "\n".join(str(each.message) for each in caught)
    assert "train.warmup_steps is 10 and changes nothing: it goes with train.schedule=step or constant" in told
    assert "train.milestones is (1,) and changes nothing: it goes with train.schedule=step" in told
    assert "train.momentum is 0.5 and changes nothing: it goes with train.optimizer=sgd" in told
    assert "gamma" not in told
    runs.load(tmp_path / "run")
