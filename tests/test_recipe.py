"""benchmarks/recipe.py: a variant that goes on from a shared prefix is the run it would have been by itself."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from eow.config import resolve
from eow.data.sets import load_sets
from eow.distributed import Place
from eow.metrics import nll
from eow.runs import begin

spec = importlib.util.spec_from_file_location("recipe", Path(__file__).parent.parent / "benchmarks" / "recipe.py")
assert spec is not None
assert spec.loader is not None
recipe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipe)

DATA = {"name": "digits", "holdout": 0.3}
HIDDEN = {"hidden": [16, 16]}


@pytest.mark.parametrize(("cut", "unknown"), [("penultimate", "linear"), ("stage1", "quadratic")])
def test_a_variant_from_a_prefix_is_the_whole_run(cut: str, unknown: str) -> None:
    place = Place(torch.device("cpu"))
    common = {"data": DATA, "train": {"epochs": 3}}
    earlier = resolve({**common, "model": HIDDEN, "method": {"start_epoch": 2}})
    config = resolve({**common, "model": {**HIDDEN, "cut": cut, "unknown": unknown}, "method": {"start_epoch": 1}})
    data = load_sets(config.data, 0)
    state = recipe.prefix(earlier, data, place, 1)
    branch, whole = begin(config, data, place), begin(config, data, place)
    recipe.go_on(branch, state, 1)
    for _ in whole.epochs():
        pass
    found, expected = branch.state(), whole.state()
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, msg=name)
    assert any(name.endswith("square") for name in found) == (unknown == "quadratic")


def test_figures_are_those_of_the_logits(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    labels = stream.integers(0, 3, 200)
    logits = stream.normal(size=(200, 4)) + 2 * np.eye(4)[labels]
    outlier = {"far": {"logits": logits + np.array([0, 0, 0, 50.0])}}
    found = recipe.measured({"logits": logits, "labels": labels}, outlier, 0.1)
    h = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found["raw"]["nll"] == pytest.approx(nll(h[:, :3], labels))
    assert found["raw"]["unknown"] == pytest.approx(h[:, 3].mean())
    assert found["K"]["nll"] == pytest.approx(nll(h[:, :3] / h[:, :3].sum(1, keepdims=True), labels))
    assert found["auroc"]["far"]["unknown"] == 1
    assert found["auroc"]["far"]["confidence"] == 0.5
