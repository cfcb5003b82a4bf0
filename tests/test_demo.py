"""The demo's promise: classes never seen are called unknown, at vanilla's accuracy, whatever the seed."""

from pathlib import Path

import pytest

from eow import demo
from eow.config import RunConfig, resolve
from eow.demo import run_demo
from eow.errors import EowError
from eow.runs import train


def test_unseen_classes_are_unknown_over_three_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = [run_demo(tmp_path / str(seed), seed) for seed in range(3)]
    for figures in tables:
        assert figures["eow"]["unknown_unseen"] >= 3 * figures["eow"]["unknown_known"]
        assert abs(figures["eow"]["accuracy"] - figures["vanilla"]["accuracy"]) <= 0.01
        assert figures["vanilla"]["accuracy"] > 0.96
    mean = {
        name: {method: sum(figures[method][name] for figures in tables) / 3 for method in ("vanilla", "eow")}
        for name in ("ece", "nll")
    }
    assert mean["ece"]["eow"] <= mean["ece"]["vanilla"] + 0.005  # a default must not spoil what is calibrated already
    assert mean["nll"]["eow"] < mean["nll"]["vanilla"]  # with an eighth of the images held out
    printed = capsys.readouterr().out
    for column in ("accuracy", "ECE", "NLL", "AUROC", "unseen", "seconds", "vanilla", "eow"):
        assert column in printed
    assert max(len(line) for line in printed.splitlines() if line[0] in "┃│") <= 80  # a terminal shows it whole
    run_demo(tmp_path / "0", 0)  # a second demo replaces the first


def test_a_demo_replaces_demos_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "demo_config", lambda method, seed: small(method, seed, [8, 9]))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    run_demo(tmp_path / "mine", 1)
    (tmp_path / "mine" / "eow" / "predictions" / ".test.safetensors.0123abcd").touch()  # left by a kill
    (tmp_path / "mine" / "eow" / ".mine").touch()
    run_demo(tmp_path / "mine", 2)  # a folder with other things is fine, and an old demo of another seed
    assert (tmp_path / "mine" / "eow" / ".mine").exists()
    kept = tmp_path / "mine" / "eow" / "thesis.txt"
    kept.write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(EowError, match=r"eow holds thesis\.txt, which no demo makes: move it away"):
        run_demo(tmp_path / "mine", 3)
    assert contents(tmp_path) == before
    train(small("vanilla", 0, [7]), tmp_path / "runs" / "vanilla", progress=False)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "report.html").write_text("<p>mine")
    before = contents(tmp_path)
    with pytest.raises(EowError, match=r"vanilla holds no demo's run \(data.unknown_classes is \[7\] there"):
        run_demo(tmp_path / "runs")
    with pytest.raises(EowError, match=r"report\.html is of no demo"):
        run_demo(tmp_path / "page")
    assert contents(tmp_path) == before


def small(method: str, seed: int, unknown: list[int]) -> RunConfig:
    wishes = {"data": {"unknown_classes": unknown}, "method": {"name": method}, "seed": seed}
    return resolve(wishes, {"train": {"epochs": 2}, "model": {"hidden": [8]}})


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
