"""The command line as a user meets it: what it prints, and one sentence with exit code 2 for whatever is wrong."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from eow import cli
from eow.cli.options import ORDER
from eow.data import load as load_data
from eow.methods import METHODS
from eow.own.predict import predict as eow_predict
from eow.runs import load as load_run

TINY = ["--epochs", "2", "--set", "model.hidden=16", "--quiet"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    code, out, _ = call_plain("train", "--data", "digits", "--unknown-classes", "8,9", "--out", str(folder), *TINY)
    assert code == 0
    assert "accuracy %" in out
    assert f"eow report {folder} -o report.html" in out
    return folder


def call_plain(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "eow", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert code == 2, (out, err)
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in out + err
    for word in words:
        assert word in err


def test_evaluate_prints_a_table_or_json(run: Path, call) -> None:
    code, out, _ = call("evaluate", run)
    assert code == 0
    assert "ECE" in out
    assert "unknown" in out
    code, out, _ = call("evaluate", run, "--json", "--on", "noise")
    figures = json.loads(out)
    assert figures.keys() == {"test", "unknown", "noise"}
    assert figures["test"] == json.loads((run / "summary.json").read_text())["metrics"]["test"]
    _, out, _ = call("evaluate", run, "--json", "--unknown-rate", "0")
    assert json.loads(out)["test"]["unknown"] == 0
    assert json.loads(out)["test"]["nll"] == pytest.approx(figures["test"]["nll_renormalised"], rel=1e-5)


def test_evaluate_refuses_the_test_set_as_unknowns(run: Path, pictures: Path, call, tmp_path: Path) -> None:
    refused(call("evaluate", run, "--on", "digits"), "digits is what the run is tested on: choose other outliers")
    refused(call("evaluate", run, "--on", "test"), "test is a part of the run's own data: name another")
    refused(call("evaluate", run, "--on", f"npz:{pictures}"), "are of shape (1, 28, 28), but digits is (1, 8, 8)")
    assert {file.stem for file in (run / "predictions").iterdir()} <= {"test", "unknown", "noise"}
    folder = tmp_path / "run"
    assert call("train", "--data", f"npz:{pictures}", "--out", folder, *TINY)[0] == 0
    shutil.copy(pictures, tmp_path / "copy.npz")
    refused(call("evaluate", folder, "--on", f"npz:{tmp_path}/copy.npz"), "copy.npz is what the run is tested on")
    assert [file.name for file in (folder / "predictions").iterdir()] == ["test.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "x", "--root", "y"], "--root goes with --on or --corruptions: add that, or leave --root out"),
        (["evaluate", "x", "--device", "auto"], "--device goes with --on or --corruptions"),
        (["evaluate", "x", "--allow-unofficial"], "--allow-unofficial goes with --on"),
        (["evaluate", "x", "--allow-unofficial", "--corruptions"], "--allow-unofficial goes with --on"),
        (["evaluate", "x", "--seed", "0"], "--seed goes with --corruptions"),
        (["demo", "--all", "--seed", "0"], "--all has --seeds, from 0 on: leave --seed or --all out"),
        (["demo", "--seeds", "9"], "--seeds goes with --all"),
        (["demo", "--web", "--seeds", "3"], "--seeds goes with --all"),
        (["demo", "--root", "y"], "--root goes with --web or --build"),
        (["demo", "--all", "--root", "y"], "--root goes with --web or --build"),
        (["demo", "--data", "mnist"], "--data goes with --web or --build"),
        (["demo", "--port", "80"], "--port goes with --web"),
        (["demo", "--build", "y", "--port", "80"], "--port goes with --web"),
        (["demo", "--all", "--web"], "--all is a table, --web and --build a page"),
    ],
)
def test_options_that_nothing_would_read_are_refused(
    call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    for function in ("eow.demo.run_demo", "eow.demo.run_all", "eow.play.build", "eow.evaluate.evaluate"):
        monkeypatch.setattr(function, lambda *arguments, **options: pytest.fail("it was run"))
    refused(call(*arguments), words)


@pytest.mark.parametrize(
    ("arguments", "function", "seeds"),
    [
        ([], "run_demo", 0),
        (["--seed", "7"], "run_demo", 7),
        (["--all"], "run_all", 3),
        (["--all", "--seeds", "2"], "run_all", 2),
    ],
)
def test_the_seeds_of_a_demo(
    call, monkeypatch: pytest.MonkeyPatch, arguments: list[str], function: str, seeds: int
) -> None:
    asked: list[tuple] = []
    monkeypatch.setattr(f"eow.demo.{function}", lambda *given: asked.append(given))
    assert call("demo", "--out", "there", *arguments)[0] == 0
    assert asked == [(Path("there"), seeds)]


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_every_kind_of_device_is_named(command: str) -> None:
    shown = " ".join(CliRunner().invoke(cli.app, [command, "--help"], env={"COLUMNS": "200"}).output.split())
    assert "auto, cpu, cuda, cuda:1 or mps." in shown


def test_predict_images_and_arrays(run: Path, call, tmp_path: Path) -> None:
    pixels = load_data("digits", split="test").inputs[:3]  # of noise the unknown is 1 already: no rate would show
    np.save(tmp_path / "three.npy", pixels)
    Image.fromarray(pixels[1, 0]).save(tmp_path / "one.png")
    code, out, _ = call("predict", run, tmp_path / "three.npy", tmp_path / "one.png", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["index"] for row in rows] == [0, 1, 2, 0]
    for key in ("label", "confidence", "unknown"):
        assert rows[1][key] == pytest.approx(rows[3][key], abs=1e-6)  # the same picture, from two kinds of file
    code, out, _ = call("predict", run, tmp_path / "three.npy")
    assert code == 0
    assert "three.npy [2]" in out
    _, out, _ = call("predict", run, tmp_path / "three.npy", "--json", "--unknown-rate", "0.9")
    assert all(shifted["unknown"] > plain["unknown"] for shifted, plain in zip(json.loads(out), rows))


def test_predict_says_unknown_where_that_is_the_most_probable_answer(run: Path, call, tmp_path: Path) -> None:
    """By a run and by its file, in JSON and in the table: as eow.predict answers."""
    np.save(tmp_path / "x.npy", load_data("digits", split="test").inputs[:60])
    opened = load_run(run)
    wanted = eow_predict(opened.method, opened.transform(torch.from_numpy(np.load(tmp_path / "x.npy"))), 0.3).label
    assert 0 < (wanted < 0).sum() < 60
    assert call("export", run, "-o", tmp_path / "m.onnx", "--unknown-rate", "0.3")[0] == 0
    for source in (run, tmp_path / "m.onnx"):
        ask = ["predict", source, tmp_path / "x.npy", "--unknown-rate", "0.3"]
        rows = json.loads(call(*ask, "--json")[1])
        assert [row["label"] for row in rows] == wanted.tolist()
        assert all((row["class"] is None) == (row["unknown"] > row["confidence"]) for row in rows)
        shown = call(*ask)[1]
        cells = [line.split("│")[2].strip() for line in shown.splitlines() if "x.npy" in line]
        assert cells == ["- (unknown)" if row["class"] is None else row["class"] for row in rows]
        assert "more probable" not in shown
        always = json.loads(call(*ask, "--threshold", "0", "--json")[1])
        assert all(row["label"] >= 0 for row in always)
        assert f"more probable than the label in {int((wanted < 0).sum())} of 60" in call(*ask, "--threshold", "0")[1]


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros((2, 1, 9, 8), np.uint8), "shape"),
        (np.zeros((2, 3, 8, 8), np.uint8), "shape"),
        (np.zeros((2, 1, 8, 8), np.float32), "float32"),
        (np.zeros((0, 1, 8, 8), np.uint8), "shape"),
    ],
)
def test_predict_refuses_other_arrays(run: Path, call, tmp_path: Path, array: np.ndarray, word: str) -> None:
    np.save(tmp_path / "x.npy", array)
    refused(call("predict", run, tmp_path / "x.npy"), "x.npy", word)


def test_damaged_weights_predict_nothing(run: Path, call, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    data = bytearray((tmp_path / "run" / "weights.safetensors").read_bytes())
    data[-1] ^= 0x40
    (tmp_path / "run" / "weights.safetensors").write_bytes(data)
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    refused(call("predict", tmp_path / "run", tmp_path / "x.npy"), "weights.safetensors", "copy the run again")


def test_an_exported_file_may_end_in_capitals(run: Path, call, tmp_path: Path) -> None:
    assert call("export", run, "-o", tmp_path / "a.onnx")[0] == 0
    (tmp_path / "a.onnx").rename(tmp_path / "A.ONNX")
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    code, out, _ = call("predict", tmp_path / "A.ONNX", tmp_path / "x.npy", "--json")
    assert code == 0
    assert len(json.loads(out)) == 1


def test_a_reports_ending_says_what_it_is(run: Path, call, tmp_path: Path) -> None:
    for name in ("r.pdf", "r.docx"):
        refused(call("report", run, "-o", tmp_path / name), f"{name} does not fit a report", ".html", "--format")
        assert not (tmp_path / name).exists()
    for name, first in (("r", "<!doctype"), ("R.HTML", "<!doctype"), ("r.md", "# ")):
        assert call("report", run, "-o", tmp_path / name)[0] == 0
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(first)
    assert call("report", run, "-o", tmp_path / "r.pdf", "--format", "html")[0] == 0  # as it is asked for


def test_predict_refuses_other_files(run: Path, call, tmp_path: Path) -> None:
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    (tmp_path / "text.png").write_text("no image")
    np.save(tmp_path / "whole.npy", np.zeros((5, 1, 8, 8), np.uint8))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "whole.npy").read_bytes()[:-9])
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    refused(call("predict", run, tmp_path / "wide.png"), "wide.png is 9x8", "resize")
    refused(call("predict", run, tmp_path / "text.png"), "as an image (it is none of PNG, JPEG", "save it again")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    refused(call("predict", run, tmp_path / "rows.csv"), "rows.csv is a table, but this model takes images: give image")
    refused(call("predict", run, tmp_path / "cut.npy"), "cannot be read as a .npy array")
    refused(call("predict", run, tmp_path / "objects.npy"), "cannot be read as a .npy array")
    refused(call("predict", run, tmp_path / "none.png"), "there is no file")
    refused(call("predict", tmp_path / "none", tmp_path / "wide.png"), "no run folder")
    refused(call("predict", run, tmp_path / "whole.npy", "--unknown-rate", "1"), "unknown rate of 1.0")


def test_nan_features_are_refused(call, tmp_path: Path) -> None:
    rows = "a,b,label\n" + "".join(f"{i % 7},{i % 3},{'x' if i % 2 else 'y'}\n" for i in range(60))
    (tmp_path / "good.csv").write_text(rows)
    (tmp_path / "bad.csv").write_text(rows.replace("3,", "nan,", 1))
    folder = tmp_path / "run"
    refused(call("train", "--data", f"csv:{tmp_path / 'bad.csv'}", "--out", folder, *TINY), "bad.csv")
    assert not folder.exists()
    assert call("train", "--data", f"csv:{tmp_path / 'good.csv'}", "--out", folder, *TINY)[0] == 0
    lines = rows.splitlines()
    (tmp_path / "swapped.csv").write_text("".join(",".join([*line.split(",")[::-1]]) + "\n" for line in lines))
    said = json.loads(call("predict", folder, tmp_path / "swapped.csv", "--json")[1])
    np.save(tmp_path / "x.npy", np.array([line.split(",")[:2] for line in lines[1:]], float))
    wanted = json.loads(call("predict", folder, tmp_path / "x.npy", "--json")[1])
    assert [row["confidence"] for row in said] == [row["confidence"] for row in wanted]
    (tmp_path / "strange.csv").write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))
    assert call("evaluate", folder, "--on", f"csv:{tmp_path / 'strange.csv'}")[0] == 0  # outliers need no label
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [np.nan, 0.0]]))
    refused(call("predict", folder, tmp_path / "x.npy"), "row 1")
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0, 3.0]]))
    refused(call("predict", folder, tmp_path / "x.npy"), "shape")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--set", "train.epoch=3"], "did you mean train.epochs"),
        (["--set", "train.epochs=x"], "train.epochs"),
        (["--data", "digit"], "no data set named 'digit'"),
        (["--method", "eov"], "no method 'eov'"),
        (["--model", "resnet1"], "no model 'resnet1'"),
        (["--recipe", "old"], "no recipe 'old'"),
        (["--set", "model.cut=stage7"], "no cut 'stage7'"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
        (["--unknown-classes", "8,x"], "digits has no class"),
        (["--unknown-classes", "1,2,3,4,5,6,7,8,9"], "fewer than 2 known"),
        (["--data", "mnist", "--root", "nowhere"], "eow data fetch mnist"),
        (["--data", "noise:1x8x8"], "at least 2 classes"),
        (["--data", "digits", "--outliers", "digits"], "digits is what the run is tested on: choose other outliers"),
        (["--resident", "maybe"], "say yes or no"),
        (["--device", "moon"], "moon"),
        (["--device", "meta"], "meta"),
        (["--unknown-classes", "²"], "digits has no class"),
        (["--unknown-classes", "--5"], "digits has no class"),
        (["--seed", "99999999999999999999"], "below 2**63"),
    ],
)
def test_train_refuses_with_one_sentence_and_leaves_nothing(
    call, tmp_path: Path, arguments: list[str], word: str
) -> None:
    refused(call("train", "--out", tmp_path / "run", *TINY, *arguments), word)
    assert list(tmp_path.iterdir()) == []


def test_train_refuses_a_folder_that_is_taken(run: Path, call, tmp_path: Path) -> None:
    refused(
        call("train", "--data", "digits", "--unknown-classes", "8,9", "--out", run, *TINY),
        "already holds a run",
        "--resume",
    )
    code, _, _ = call("train", "--data", "digits", "--unknown-classes", "8,9", "--out", run, "--resume", *TINY)
    assert code == 0
    (tmp_path / "file").write_text("")
    refused(call("train", "--out", tmp_path / "file" / "run", *TINY), "cannot be written to")


def test_an_unfinished_run_is_resumed_by_the_command_that_its_refusal_names(run: Path, call, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    refusal = call("evaluate", folder)
    refused(refusal, "is not finished: resume it with `eow train --resume --out ")
    command = shlex.split(refusal[2].split("`")[1])
    assert call(*command[1:], "--quiet")[0] == 0
    assert json.loads((folder / "config.json").read_text()) == json.loads((run / "config.json").read_text())
    assert call("evaluate", folder)[0] == 0
    refused(call(*command[1:], "--seed", "1"), "holds a run with other settings")
    assert call(*command[1:], "--device", "cpu", "--quiet")[0] == 0  # where it happens may differ


def test_a_run_that_is_not_there_is_not_gone_on_with(call, tmp_path: Path) -> None:
    refused(call("train", "--resume", "--out", tmp_path / "typo"), "there is no run in", "typo to go on with: name its")
    refused(call("train", "--resume", "--out", tmp_path / "typo", "--device", "cpu"), "to go on with")
    assert not list(tmp_path.iterdir())
    assert call("train", "--resume", "--out", tmp_path / "new", *TINY)[0] == 0  # with settings it is begun


def test_no_seeds_are_refused(call, tmp_path: Path) -> None:
    grid = Path(__file__).parent.parent / "benchmarks" / "demo.toml"
    refused(call("bench", grid, "--seeds", "0", "--out", tmp_path / "out"), "--seeds")
    assert not (tmp_path / "out").exists()


def test_label_outside_its_classes(call, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "x.npz",
        x=np.zeros((6, 3), np.float32),
        y=np.array([0, 1, 2, 0, 1, 5]),
        classes=np.array(["a", "b", "c"]),
    )
    refused(call("train", "--data", f"npz:{tmp_path / 'x.npz'}", "--out", tmp_path / "run", *TINY), "label 5")


def test_truncated_data_files(call, tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (raw / name).write_bytes(b"\0\0\x08\x03\0\0")
    refused(
        call("train", "--data", "mnist", "--root", tmp_path, "--out", tmp_path / "run", *TINY),
        "not the official file",
        "--allow-unofficial",
    )
    refused(
        call("train", "--data", "mnist", "--root", tmp_path, "--allow-unofficial", "--out", tmp_path / "run", *TINY),
        "train-images",
    )
    assert not (tmp_path / "run").exists()


def test_evaluate_refuses_what_is_no_run(call, tmp_path: Path) -> None:
    refused(call("evaluate", tmp_path), "no predictions")
    refused(call("evaluate", tmp_path / "none"), "no predictions")


def test_an_unknown_rate_needs_an_unknown(call, tmp_path: Path) -> None:
    call("train", "--method", "vanilla", "--out", tmp_path / "run", *TINY)
    refused(call("evaluate", tmp_path / "run", "--unknown-rate", "0.1"), "vanilla has no unknown logit")
    report = call("report", tmp_path / "run", "--unknown-rate", "0.1", "-o", tmp_path / "r.html")
    refused(report, "none of these runs (vanilla) has an unknown logit: leave the unknown rate out")
    assert not (tmp_path / "r.html").exists()
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    refused(
        call("predict", tmp_path / "run", tmp_path / "x.npy", "--unknown-rate", "0.1"), "vanilla has no unknown logit"
    )


def test_names_are_printed_as_they_stand(run: Path, call, tmp_path: Path) -> None:
    for name in ("m[/b]", "[red]x:smile:", os.fsdecode(b"x\xff")):
        shutil.copytree(run, tmp_path / name)
        code, out, _ = call("evaluate", tmp_path / name)
        assert code == 0
        assert name.replace("\udcff", "?") in "".join(out.split())  # a title is folded to the table's width


@pytest.mark.parametrize("command", [["theory", "--help"], ["evaluate", "--help"], ["methods"]])
def test_a_terminal_without_greek_gets_the_rest(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eow", *command], capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
@pytest.mark.parametrize("command", ["methods", "--help", "--version"])
def test_an_output_that_takes_nothing_is_one_sentence(command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "eow", command], stdout=full, stderr=subprocess.PIPE, text=True)
    refused((done.returncode, "", done.stderr), "No space left on device")


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "eow", "methods"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize("lam", ["1e-300", "1e-10", "1e20", "0", "-1", "nan", "inf"])
def test_theory_refuses_a_weight_that_float64_cannot_draw(call, tmp_path: Path, lam: str) -> None:
    refused(call("theory", "--out", tmp_path / "theory.png", "--lam", lam), "λ is", "from 1e-06 to 1e+06")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lam", ["1e-6", "1.5", "1e6"])
def test_theory_says_where_nothing_rests(call, tmp_path: Path, lam: str) -> None:
    code, out, _ = call("theory", "--out", tmp_path / "new" / "theory.png", "--lam", lam)
    assert code == 0
    assert "nan" not in out
    assert (tmp_path / "new" / "theory.png").exists()  # with its folder, as a report is
    last = next(line for line in out.splitlines() if line.startswith("│ complement"))
    assert [cell.strip() == "-" for cell in last.split("│")[2:4]] == [float(lam) > 1] * 2
    assert ("complement: no fixed point at this λ" in out) == (float(lam) > 1)


def test_theory_draws(call, tmp_path: Path) -> None:
    code, out, _ = call("theory", "--out", tmp_path / "theory.png")
    assert code == 0
    assert "paper" in out
    assert Image.open(tmp_path / "theory.png").size[0] > 600
    refused(call("theory", "--out", tmp_path / "theory.png" / "theory.png"), "cannot be written to: File exists")
    refused(call("theory", "--out", tmp_path / "t.png", "--lam", "-1"))


def test_methods_are_listed_with_what_they_need_and_cost(call) -> None:
    code, out, _ = call("methods")
    assert code == 0
    rows = {
        cells[0]: cells[1:]
        for line in out.splitlines()
        if len(cells := [c.strip() for c in line.split("│")[1:-1]]) == 4
    }
    assert list(rows) == list(METHODS)
    assert rows["vanilla"] == ["softmax and cross-entropy", "no", "one pass"]
    assert rows["temperature"][1] == "yes"
    assert rows["ensemble"][1] == "no"
    assert "5 passes" in rows["ensemble"][2]


def test_evaluate_with_intervals_prints_them(run: Path, call) -> None:
    code, out, _ = call("evaluate", run, "--intervals")
    assert code == 0
    figures = json.loads(call("evaluate", run, "--intervals", "--json")[1])
    low, high = figures["intervals"]["test"]["accuracy"]
    assert low < figures["test"]["accuracy"] < high
    assert f"{100 * figures['test']['accuracy']:.2f}  [{100 * low:.2f}, {100 * high:.2f}]" in out
    assert f"(null {100 * figures['test']['null_ece']:.2f})" in out
    assert "unseen" in out


def test_intervals_of_a_handful_are_left_out(call, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {"x_train": random.normal(size=(60, 3)), "y_train": np.arange(60) % 2}
    np.savez(tmp_path / "x.npz", **arrays, x_test=random.normal(size=(9, 3)), y_test=np.arange(9) % 2)
    np.savez(tmp_path / "o.npz", x=random.normal(size=(9, 3)))
    settings = ["--data", f"npz:{tmp_path}/x.npz", "--outliers", f"npz:{tmp_path}/o.npz", "--method", "vanilla"]
    assert call("train", *settings, "--out", tmp_path / "run", *TINY)[0] == 0
    assert json.loads(call("evaluate", tmp_path / "run", "--intervals", "--json")[1])["intervals"] == {"test": {}}
    shown = call("evaluate", tmp_path / "run", "--intervals")[1]
    assert "[" not in shown.split("accuracy %")[1].split("NLL")[0]
    assert "no intervals: of fewer than 10 test samples" in " ".join(shown.split())
    assert call("report", tmp_path / "run", "-o", tmp_path / "r.html")[0] == 0


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has kept something for a threshold."""
    folder = tmp_path_factory.mktemp("certified") / "run"
    wishes = ["--set", "model.hidden=32", "--set", "data.certify=0.3", "--set", "train.batch=64"]
    assert call_plain("train", "--epochs", "6", *wishes, "--quiet", "--out", str(folder))[0] == 0
    return folder


def test_a_threshold_is_certified_and_predict_abstains(certified: Path, call, tmp_path: Path) -> None:
    code, out, _ = call("threshold", certified, "--max-risk", "0.1", "--delta", "0.1", "--json")
    found = json.loads(out)
    assert code == 0
    assert found == json.loads((certified / "threshold.json").read_text())
    assert (found["max_risk"], found["delta"]) == (0.1, 0.1)
    code, out, _ = call("threshold", certified, "--max-risk", "0.1", "--delta", "0.1")
    assert code == 0
    assert f"answer at a confidence of {found['threshold']:.6g} or more: at most 10.00%" in out
    assert "with probability 0.9" in out
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).integers(0, 256, (200, 1, 8, 8), dtype=np.uint8))
    rows = json.loads(call("predict", certified, tmp_path / "noise.npy", "--json")[1])
    abstained = [row for row in rows if row["confidence"] < found["threshold"]]
    assert abstained
    assert all(row["label"] == -1 and row["class"] is None for row in abstained)
    assert all(row["label"] >= 0 for row in rows if row["confidence"] >= found["threshold"])
    shown = call("predict", certified, tmp_path / "noise.npy")[1]
    assert sum(
        line.split("│")[2].strip() == "- (unknown)" for line in shown.splitlines() if "noise.npy" in line
    ) == len(abstained)
    rows = json.loads(call("predict", certified, tmp_path / "noise.npy", "--threshold", "0", "--json")[1])
    assert all(row["label"] >= 0 for row in rows)
    refused(call("predict", certified, tmp_path / "noise.npy", "--threshold", "1.5"), "not a confidence")
    refused(call("predict", certified, tmp_path / "noise.npy", "--unknown-rate", "0.1"), "eow threshold --unknown-rate")


def test_no_threshold_is_an_answer_too(certified: Path, call) -> None:
    call("threshold", certified, "--max-risk", "0.2")
    code, out, err = call("threshold", certified, "--max-risk", "0.0001")
    assert (code, err) == (0, "")
    assert "no threshold qualifies" in out
    assert "abstains only where unknown is the most probable answer" in out
    assert not (certified / "threshold.json").exists()
    assert call("threshold", certified, "--max-risk", "0.0001", "--json")[:2] == (0, "null\n")


def test_thresholds_that_would_promise_nothing_are_refused(run: Path, certified: Path, call, tmp_path: Path) -> None:
    refused(call("threshold", run, "--max-risk", "0.1"), "used by eow", "data.certify=0.1")
    everything = ["--set", "data.holdout=0", "--set", "method.calibrate=none", "--out", tmp_path / "all"]
    assert call("train", *everything, *TINY)[0] == 0
    refused(call("threshold", tmp_path / "all", "--max-risk", "0.1"), "seen all its training data", "data.certify=0.1")
    refused(call("threshold", certified, "--max-risk", "1.5"), "cannot be certified")
    refused(call("threshold", certified, "--max-risk", "0.1", "--delta", "0"), "cannot be certified")
    refused(call("threshold", tmp_path / "none", "--max-risk", "0.1"), "no run folder")


def test_compare_prints_differences_and_p_values(run: Path, call, tmp_path: Path) -> None:
    other = tmp_path / "vanilla"
    call("train", "--method", "vanilla", "--unknown-classes", "8,9", "--out", other, *TINY)
    code, out, _ = call("compare", run, "--against", other)
    assert code == 0
    assert "one seed" in out
    rows = json.loads(call("compare", run, "--against", other, "--json")[1])
    assert [row["figure"] for row in rows] == [
        "accuracy", "ece", "ece_renormalised", "nll", "nll_renormalised", "auroc_confidence", "auroc_entropy",
    ]  # fmt: skip
    assert [row["unknowns"] for row in rows] == [None] * 5 + ["unknown"] * 2
    assert "auroc_confidence, unknown" in out
    assert "auroc_entropy, unknown" in out
    figures = [json.loads(call("evaluate", each, "--json")[1]) for each in (run, other)]
    for row in rows:
        ours, theirs = (each[row["unknowns"] or "test"][row["figure"]] for each in figures)
        assert row["difference"] == pytest.approx(ours - theirs, abs=1e-9)
        assert (f"{row['p_value']:.3f}" if row["p_value"] >= 0.001 else "<.001") in out
    refused(call("compare", run, "--against", other, "--against", other), "a seed is there twice")
    refused(call("compare", run, "--against", tmp_path / "none"), "no predictions")
    refused(call("compare", other, "--against", other), "stands on both sides")
    copy = shutil.copytree(other, tmp_path / "copy")
    refused(call("compare", other, "--against", copy, "--unknown-rate", "0.1"), "unknown logit")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images large enough to corrupt: two classes, dark and bright."""
    path = tmp_path_factory.mktemp("pictures") / "set.npz"
    labels = np.arange(60) % 2
    images = np.random.default_rng(0).integers(0, 100, (60, 28, 28)) + 120 * labels[:, None, None]
    np.savez(path, x=images.astype(np.uint8), y=labels)
    return path


def test_evaluate_with_corruptions_writes_the_matrix_and_a_picture(pictures: Path, call, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert call("train", "--data", f"npz:{pictures}", "--out", folder, *TINY)[0] == 0
    code, out, _ = call("evaluate", folder, "--corruptions", "--json", "--seed", "2")
    figures = json.loads(out)["corruptions"]
    assert code == 0
    assert figures == json.loads((folder / "corruptions.json").read_text())
    assert len(figures["corruptions"]) == len(figures["accuracy"]) == 19
    assert figures["source"] == "made with seed 2"
    assert Image.open(folder / "corruptions.png").size[0] > 600
    code, out, _ = call("evaluate", folder, "--corruptions", "--seed", "2")
    assert code == 0
    mean, std = (100 * figures["severity"]["accuracy"][4][key] for key in ("mean", "std"))
    assert f"{mean:.1f} ± {std:.1f}" in out
    assert f"written to {folder / 'corruptions.json'} and {folder / 'corruptions.png'}" in out
    refused(call("evaluate", folder, "--official", tmp_path), "--official goes with --corruptions")
    refused(call("evaluate", folder, "--seed", "1"), "--seed goes with --corruptions")
    refused(
        call("evaluate", folder, "--corruptions", "--official", tmp_path, "--seed", "0"),
        "made with their own seed",
        "leave --seed or --official out",
    )
    refused(call("evaluate", folder, "--corruptions", "--unknown-rate", "0.1"), "leave --unknown-rate or --corruptions")
    refused(call("evaluate", folder, "--corruptions", "--official", tmp_path), "no file", "zenodo")


def test_images_too_small_to_corrupt_are_said(run: Path, call) -> None:
    refused(call("evaluate", run, "--corruptions"), "8x8 are too small to corrupt")
    assert not (run / "corruptions.json").exists()
    assert not (run / "corrupted").exists()


def test_a_table_is_not_corrupted(call, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n" + "1,2,x\n2,3,y\n" * 5)
    sheet = call("data", "corruptions", "--data", f"csv:{tmp_path}/t.csv", "--out", tmp_path / "sheet.png")
    refused(sheet, "only images can be corrupted, and csv:", "has rows of numbers: name a set of images")


def test_a_contact_sheet_of_corruptions_is_drawn(pictures: Path, call, tmp_path: Path) -> None:
    code, out, _ = call("data", "corruptions", "--data", f"npz:{pictures}", "--index", "3", "--out", tmp_path / "s.png")
    assert code == 0
    assert str(tmp_path / "s.png") in "".join(out.split())
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.size[0] >= 6 * 28 * 3
        assert sheet.size[1] >= 19 * 28 * 3
    sheets = ["data", "corruptions", "--out", tmp_path / "t.png", "--data"]
    refused(call(*sheets, f"npz:{pictures}", "--index", "12"), "has 12 test images")
    refused(call(*sheets, "digits"), "too small")
    refused(call(*sheets, "cifar10", "--root", tmp_path), "eow data fetch cifar10")
    refused(call("data", "corruptions", "--data", f"npz:{pictures}", "--out", tmp_path / "s.jpg"), ".png")
    assert [path.name for path in tmp_path.iterdir()] == ["s.png"]


@pytest.mark.parametrize("command", [[], ["data"]])
def test_help_has_the_line_breaks_of_its_own_width(command: list[str]) -> None:
    """At any width, where a line is not the last of its command, the next word would not have fitted on it."""
    shown = CliRunner().invoke(cli.app, [*command, "--help"], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"}).output
    told = [line.strip("│ \n") for line in shown.split("Commands ─")[1].splitlines()[1:] if line.startswith("│")]
    listed = " ".join(" ".join(told).split())
    app = cli.app if not command else cli.data.data_app
    for each in app.registered_commands:
        assert each.callback is not None
        assert " ".join((each.callback.__doc__ or "").split()) in listed
    lines = [line[1:-1] for line in shown.split("Commands ─")[1].splitlines()[1:] if line.startswith("│")]
    indent = max(len(line) - len(line.lstrip()) for line in lines)
    for line, following in pairwise(lines):
        if following.startswith(" " * indent):
            assert len(line.rstrip()) + 1 + len(following.split()[0]) > len(line) - 1, (line, following)


def test_help_lists_commands_in_the_order_of_use(call) -> None:
    code, out, _ = call("--help")
    listed = re.findall(r"^│ ([a-z]+) +[A-Z]", out.partition("Commands")[2], re.MULTILINE)
    assert code == 0
    assert listed[:3] == ["demo", "train", "evaluate"]
    assert set(listed) == set(ORDER)


def test_a_name_that_is_nearly_right_is_told_what_was_meant(call, tmp_path: Path) -> None:
    def train(*options: object) -> tuple:
        return call("train", "--out", tmp_path / "run", *options)

    refused(train("--data", "digitz"), "no data set named 'digitz': did you mean digits? use one of digits, mnist")
    refused(train("--method", "EOW"), "no method 'EOW': did you mean eow? choose one of vanilla")
    refused(train("--recipe", "modem"), "no recipe 'modem': did you mean modern? choose one of")
    refused(train("--method", "k-means"), "no method 'k-means': choose one of vanilla")
    refused(train("--data", "mine.csv"), "to read that csv, write csv:mine.csv; else use one of digits")
    refused(train("--data", tmp_path), f"to read that folder, write folder:{tmp_path}; else")
    refused(call("data", "fetch", "cifar1"), "did you mean cifar10? use one of mnist")
    refused(
        call("import", tmp_path / "no.npz", "--out", tmp_path / "run"),
        "no.npz cannot be read (there is no such file): name",
    )


def test_data_list_and_verify(call, tmp_path: Path) -> None:
    code, out, _ = call("data", "list", "--root", tmp_path)
    assert f"looked for below {tmp_path}" in " ".join(out.split())
    assert code == 0
    assert "tiny_imagenet" in out
    code, out, _ = call("data", "verify", "mnist", "--root", tmp_path)
    assert code == 1
    assert "missing" in out
    assert f"looked for below {tmp_path}; fetch it with `eow data fetch mnist`" in " ".join(out.split())
    assert call("data", "verify", "digits") == (0, "digits is built in: there are no files to verify\n", "")
    for words, able in ((["verify", "nothing"], True), (["fetch", "nothing"], False)):
        refusal = call("data", *words, "--root", tmp_path)
        refused(refusal, "no data set named 'nothing' here: use one of mnist, ", "tiny_imagenet")
        assert "digits" not in refusal[2]
        assert "csv:" not in refusal[2]
        assert ("notmnist" in refusal[2]) == able
    refused(call("data", "fetch", "noise"), "noise has no official files")
    refused(call("data", "fetch", "notmnist", "--root", tmp_path), "notMNIST")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluat"], ["no such command", "evaluat", "eow --help"]),
        (["predict"], ["missing argument", "eow predict --help"]),
        (["evaluate", "x", "--foo"], ["no such option", "--foo", "eow evaluate --help"]),
        (["threshold", "x"], ["missing option", "--max-risk", "eow threshold --help"]),
        (["train", "--out", "x", "--epochs", "many"], ["invalid value", "--epochs", "eow train --help"]),
        (["data", "fetch"], ["missing argument", "eow data fetch --help"]),
        (["train", "--out"], ["--out", "requires an argument", "eow train --help"]),
        (["data", "fetch", "--root"], ["--root", "requires an argument", "eow data fetch --help"]),
        (["evaluate", "x", "--seed", "-1"], ["invalid value", "--seed", "eow evaluate --help"]),
        *(
            ([*command, ""], ["invalid value", "it is empty: name a path"])
            for command in (
                ["train", "--out"],
                ["demo", "--out"],
                ["demo", "--build"],
                ["bench", "x.toml", "--out"],
                ["report", "x", "-o"],
                ["export", "x", "-o"],
                ["theory", "--out"],
                ["data", "corruptions", "--out"],
            )
        ),
        (["methods", "a\x1b[31m\nb"], ["unexpected extra argument", "eow methods --help"]),
    ],
)
def test_a_wrong_call_is_one_sentence_too(call, arguments: list[str], words: list[str]) -> None:
    result = call(*arguments)
    refused(result, *words)
    assert result[1] == ""
    assert "\x1b" not in result[2]


@pytest.mark.parametrize("arguments", [[], ["data"]])
def test_no_command_at_all_shows_the_help(call, arguments: list[str]) -> None:
    code, out, err = call(*arguments)
    assert code == 2
    assert "Usage" in out + err
    assert "error" not in err


def test_one_step_is_one_step(tmp_path: Path) -> None:
    few = ["--epochs", "1", "--set", "data.limit=20", "--set", "model.hidden=8", "--set", "data.holdout=0"]
    code, _, err = call_plain("train", *few, "--method", "vanilla", "--quiet", "--out", str(tmp_path / "run"))
    assert code == 0
    assert err == "warning: only 1 step in all: a smaller train.batch or more train.epochs would teach more\n"


def test_warnings_go_to_standard_error_also_when_quiet(tmp_path: Path) -> None:
    small = ["--epochs", "1", "--set", "model.hidden=8", "--set", "train.batch=128"]
    code, out, err = call_plain("train", *small, "--quiet", "--out", str(tmp_path / "run"))
    assert code == 0
    assert "steps in all" not in out
    assert err == "warning: only 8 steps in all: a smaller train.batch or more train.epochs would teach more\n"


def test_every_command_has_help_with_an_example() -> None:
    for path in (
        ["train"],
        ["evaluate"],
        ["compare"],
        ["threshold"],
        ["predict"],
        ["demo"],
        ["theory"],
        ["methods"],
        ["data", "list"],
        ["data", "fetch"],
        ["data", "verify"],
        ["data", "corruptions"],
    ):
        shown = CliRunner().invoke(cli.app, [*path, "--help"])
        assert shown.exit_code == 0
        assert f"Example:  eow {' '.join(path)}" in " ".join(shown.output.split()).replace("Example: ", "Example:  ")
        assert "<bool>" not in shown.output  # a flag takes no word


def test_importing_eow_costs_nothing() -> None:
    code = "import sys, eow; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ["torch", "torchvision", "sklearn", "scipy", "matplotlib", "typer", "rich", "pooch", "PIL"]
    assert subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True).stdout.strip() == "[]"
