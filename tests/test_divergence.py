"""Chains that run away are caught in the epoch in which they do, by the trust region or by the tally on the device; the
run goes back three times at most, then ends with a sentence and the last good weights.

Before a linear head log h[K+1] has no lower bound: a chain without a trust region goes as far as its step carries it.
"""

import math
from pathlib import Path

import pytest
import torch
from problems import blobs, small_model

import eow
from eow import predictions, runs, storage
from eow.config import RunConfig, resolve
from eow.data import load
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.training.distributed import Place


def config(**method: object) -> RunConfig:
    return resolve({
        "data": {"holdout": 0},
        "train": {"epochs": 4, "checkpoint_every": 1},
        "model": {"hidden": [16, 16], "cut": "penultimate", "unknown": "linear"},
        "method": {
            "start_epoch": 2, "onset": "as_is", "trust": 0.0, "calibrate": "none", "unknown_rate": "trained",
            "fence": 0, **method,
        },
    })  # fmt: skip


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every checkpoint, as it was written."""
    real, files = runs.checkpoints.save, []

    def save(training, folder: Path, *rest) -> None:
        real(training, folder, *rest)
        files.append((folder / "checkpoint.safetensors").read_bytes())

    monkeypatch.setattr(runs.checkpoints, "save", save)
    return files


@pytest.mark.parametrize(
    ("step", "energy"),
    [
        (1e38, "nan"),
        (1e20, "e+2[0-9]"),  # finite, as are all loss terms: only the energies show it
        (1e5, "e+0[56]"),
    ],
)
def test_a_chain_that_runs_away_ends_the_run_with_the_last_good_weights(
    tmp_path: Path, saved: list[bytes], step: float, energy: str
) -> None:
    folder, wild = tmp_path / "run", config(step=step)
    sentence = (
        rf"the chains' mean energy reached .*{energy.replace('+', '[+]')}.* in epoch 3, by step 19: .*"
        r"Given up after 3 rollbacks; the last good weights, of epoch 2, are in "
    )
    with pytest.raises(EowError, match=sentence):
        runs.train(wild, folder, progress=False)
    log = storage.Log(folder / "log.jsonl").read()
    assert [(line["epoch"], line.get("event"), line.get("rate_factor")) for line in log] == [
        (0, None, None), (1, None, None), (2, "rollback", 0.5), (2, "rollback", 0.25), (2, "rollback", 0.125),
    ]  # fmt: skip
    # The weights are those of the second epoch, can be opened and say something about the test set.
    run = runs.load(folder)
    (tmp_path / "second").write_bytes(saved[1])
    good, _ = storage.read_tensors(tmp_path / "second")
    for name, tensor in run.method.state_dict().items():
        assert torch.equal(tensor, good[f"method.{name}"]), name
    said = predictions.predict_set(run, "test", load("digits", split="test"))
    assert said.correct.mean() > 0.15  # two epochs' worth, and no NaN
    with pytest.raises(EowError, match="not finished"):
        eow.evaluate.evaluate(folder)
    # Going on with it ends in the same way, at once, and leaves what is good alone.
    with pytest.raises(EowError, match="Given up after 3 rollbacks; the last good weights, of epoch 2"):
        runs.train(wild, folder, resume=True, progress=False)
    assert all(torch.equal(a, b) for a, b in zip(run.method.parameters(), runs.load(folder).method.parameters()))


def test_a_trust_region_holds_the_same_chain(tmp_path: Path) -> None:
    """Its first move is not finite: it is put back where it started."""
    folder = tmp_path / "run"
    runs.train(config(step=1e38, trust=1.0), folder, progress=False)
    chains = [line for line in storage.Log(folder / "log.jsonl").read() if "chains" in line]
    assert [line["epoch"] for line in chains] == [2, 3]
    for line in chains:
        assert line["capped"] == line["chains"] > 0
        assert all(math.isfinite(value) for value in line.values())
        assert abs(line["energy_end"]) < 1000
    assert all(tensor.isfinite().all() for tensor in runs.load(folder).method.state_dict().values())


def test_long_chains_of_a_usual_step_are_left_alone(tmp_path: Path) -> None:
    """The paper's own setting has no trust region, and goes far without going wrong."""
    runs.train(config(step=2.0, steps=100), tmp_path / "run", progress=False)
    assert [line.get("event") for line in storage.Log(tmp_path / "run" / "log.jsonl").read()] == [None] * 4


def test_fit_gives_the_model_back_as_it_was_when_chains_run_away() -> None:
    model = small_model()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    with pytest.raises(EowError, match="the chains' mean energy reached"):
        eow.fit(model, blobs(), epochs=2, batch=30, step=1e20, trust=0.0, start_epoch=0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values()))


def test_pixels_that_run_away_are_told_apart_from_data(tmp_path: Path) -> None:
    wild = resolve({
        "method": {"name": "jem", "step": 1e30, "chains": 8, "buffer_size": 64}, "model": {"hidden": [16, 16]},
        "train": {"epochs": 1, "rollbacks": 1},
    })  # fmt: skip
    with pytest.raises(EowError, match=r"the chains' mean energy reached .*Given up after 1 rollbacks; no epoch was"):
        runs.train(wild, tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_a_run_that_is_given_up_has_the_prior_and_the_fence_its_settings_say(tmp_path: Path) -> None:
    x = torch.from_numpy(load("digits", split="test").inputs[:20])
    for name, extra in (("prior", {"unknown_rate": 0.9}), ("fence", {"fence": 4})):
        with pytest.raises(EowError, match="the last good weights"):
            runs.train(config(step=1e38, **extra), tmp_path / name, progress=False)
    run = runs.load(tmp_path / "prior")
    given, own = (run.method.predict(run.transform(x), rate).unknown for rate in (0.9, None))
    torch.testing.assert_close(given, own)
    run = runs.load(tmp_path / "fence")
    assert run.method.predict(run.transform(x)).unknown.isfinite().all()
    strange = run.method.predict(100 * run.transform(x)).unknown
    assert strange.min() > 0.99  # far beyond any training digit


@pytest.mark.parametrize(("step", "unknown"), [(200.0, "quadratic"), (2.0, "quadratic"), (200.0, "linear")])
def test_chains_that_climb_are_told_of_once(step: float, unknown: str, recwarn: pytest.WarningsRecorder) -> None:
    """A long step leaps over a quadratic unknown's valley; before a linear head there is none and energies fall."""
    wild = resolve({
        "data": {"holdout": 0.2}, "train": {"epochs": 6}, "model": {"hidden": [32, 32], "unknown": unknown},
        "method": {"start_epoch": 2, "lam": 0.1, "step": step},
    })  # fmt: skip
    training = runs.begin(wild, load_sets(wild.data, 0), Place(torch.device("cpu")))
    rises = [line["energy_end"] - line["energy_start"] for line in training.epochs() if "energy_end" in line]
    told = [str(each.message) for each in recwarn if "climb" in str(each.message)]
    assert (max(rises) > 0.5) == (step > 2 and unknown == "quadratic") == bool(told)
    assert len(told) <= 1
    assert not told or "lower method.step (200) or method.lam (0.1)" in told[0]
