"""The constant factor against its equation, and the method on digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model

from eow import predictions, runs, storage
from eow.config import resolve
from eow.data import Dataset
from eow.data.loader import Batches, Transform
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.methods.shrink import Shrink, ShrinkOptions, fit_factor


def batches(split: str = "train", samples: int = 90) -> Batches:
    x, y = blobs(samples)
    return Batches(Dataset("blobs", split, x, y, ("a", "b", "c")), 40, Transform((0.0,), (1.0,)), torch.device("cpu"))


def make() -> Shrink:
    return Shrink(small_model(extra=0), ShrinkOptions(), 3, (4,))


def test_the_factor_matches_mean_confidence_to_accuracy() -> None:
    confidence = torch.tensor([0.9, 0.8, 1.0, 0.9])
    assert fit_factor(confidence, torch.tensor([True, True, True, False])) == pytest.approx(3 / 3.6)
    assert fit_factor(confidence, torch.ones(4, dtype=torch.bool)) == 1.0  # underconfident: nothing is added
    assert fit_factor(confidence, torch.zeros(4, dtype=torch.bool)) == pytest.approx(0.5 / 3.6)


def test_it_is_the_factor_of_a_perfect_sampler() -> None:
    """With negatives distributed like the data, λ of them to one sample, h[k] = p(k|x)/(1+λ): c is found to be that."""
    lam, random = 0.25, np.random.default_rng(0)
    confidence = random.uniform(0.5, 1.0, 100_000)
    correct = random.uniform(size=100_000) < confidence / (1 + lam)
    factor = fit_factor(torch.from_numpy(confidence), torch.from_numpy(correct))
    # 4 standard errors of the share of correct ones, at most 0.5/sqrt(N), over a mean confidence of 0.75
    assert factor == pytest.approx(1 / (1 + lam), abs=4 * 0.5 / np.sqrt(100_000) / 0.75)


def test_every_probability_is_multiplied_and_the_rest_is_unknown() -> None:
    method, held = make(), batches(samples=60)
    x, y = next(iter(batches(samples=40).in_order()))
    with pytest.raises(EowError, match="not been fitted"):
        method.predict(x)
    method.finish(batches(), held)
    on_held = method.model(held.inputs).detach().double().softmax(1)
    right = (on_held.argmax(1) == held.labels).sum().item()
    expected = min(1.0, right / on_held.max(1).values.sum().item())
    assert 0 < expected < 1  # otherwise the rest would show nothing
    said, h = method.predict(x), method.model(x).softmax(1)
    torch.testing.assert_close(said.probs, (expected * h).float().detach())
    torch.testing.assert_close(said.unknown, torch.full((40,), 1 - expected))
    torch.testing.assert_close(said.probs.sum(1) + said.unknown, torch.ones(40))
    torch.testing.assert_close(said.confidence, said.probs.max(1).values)
    assert torch.equal(said.label, h.argmax(1))
    assert said.probs.dtype == said.unknown.dtype == torch.float32
    torch.testing.assert_close(method(x, y)["ce"], -h[range(40), y].log().mean())


def test_it_is_fitted_on_held_out_training_data_or_not_at_all() -> None:
    with pytest.raises(EowError, match=r"set data\.holdout"):
        make().finish(batches(), None)
    with pytest.raises(EowError, match="test split of blobs"):
        make().finish(batches(), batches("test"))


def test_on_digits_it_takes_over_the_vanilla_run_beside_it(tmp_path: Path) -> None:
    # At this rate vanilla is overconfident on the 30 % held out, so the factor is below 1.
    wish = {"data": {"unknown_classes": [8, 9], "holdout": 0.3}, "train": {"lr": 0.02}}
    runs.train(resolve(wish, {"method": {"name": "vanilla"}}), tmp_path / "vanilla", progress=False)
    config = resolve(wish, {"method": {"name": "shrink"}})
    summary = runs.train(config, tmp_path / "shrink", progress=False)
    assert [line["event"] for line in storage.Log(tmp_path / "shrink" / "log.jsonl").read()] == ["taken over"]
    vanilla, run = runs.load(tmp_path / "vanilla"), runs.load(tmp_path / "shrink")
    ours, theirs = run.method.model.state_dict(), vanilla.method.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert summary["metrics"]["test"]["accuracy"] > 0.95
    held = load_sets(config.data, config.seed).holdout
    said = vanilla.method.predict(vanilla.transform(torch.from_numpy(held.inputs)))
    factor = (said.label.numpy() == held.labels).mean() / said.confidence.double().mean().item()
    assert factor < 1
    before, after = (predictions.read(tmp_path / n / "predictions" / "test.safetensors") for n in ("vanilla", "shrink"))
    np.testing.assert_allclose(after.probs, factor * before.probs, atol=1e-6)
    np.testing.assert_allclose(after.unknown, 1 - factor, atol=1e-6)
