"""The demo's promise: classes never seen are called unknown, at vanilla's accuracy, whatever the seed."""

from pathlib import Path

import pytest

from eow.demo import run_demo


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
    run_demo(tmp_path / "0", 0)  # a second demo replaces the first
