"""The fence around the training features: its distance against the covariance written out, what it leaves alone and
what it keeps out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from sklearn.datasets import load_wine
from torch import Tensor

import eow
from eow import runs
from eow.config import resolve
from eow.errors import EowError
from eow.methods.eow import EOW, EOWOptions
from eow.methods.fence import INSIDE, SLOPE, Fence
from eow.typed import build


def features(count: int = 4000, width: int = 6, seed: int = 0) -> Tensor:
    """Gaussian, long in two directions that are no axes, away from the origin."""
    stream = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(9)))[0]
    scale = torch.tensor([5.0, 3.0, *[0.5] * (width - 2)])
    return torch.randn(count, width, generator=stream) * scale @ rotation + 7


def fitted(z: Tensor, rank: int) -> Fence:
    fence = Fence(z.shape[1], rank)
    fence.fit(z)
    return fence


@pytest.mark.parametrize("rank", [1, 2, 5, 50])
def test_the_distance_is_mahalanobis_with_one_variance_for_the_rest(rank: int) -> None:
    z = features()
    half = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))][::2].double().numpy()
    values, vectors = np.linalg.eigh(np.cov(half.T, bias=True))
    kept = min(rank, 5)
    values[: 6 - kept] = values[: 6 - kept].mean()
    inverse = vectors @ np.diag(1 / values) @ vectors.T
    move = features(100, seed=3).double().numpy() - half.mean(0)
    expected = np.einsum("ni,ij,nj->n", move, inverse, move) / 6
    np.testing.assert_allclose(fitted(z, rank).distance(features(100, seed=3)), expected, rtol=1e-4)


def test_about_one_new_sample_in_a_hundred_lies_outside_however_few_there_were() -> None:
    """Also where the half that it is fitted on has hardly more samples than dimensions."""
    for count, width, low, high in ((20_000, 6, 0.007, 0.013), (400, 100, 0.002, 0.04)):
        fence = fitted(features(count, width), 64)
        outside = (fence.rise(features(20_000, width, seed=5)) > 0).double().mean()
        assert low < outside < high
    assert INSIDE == 0.99


def test_the_unknown_rises_outside_and_only_there() -> None:
    fence, middle = fitted(features(), 2), features().mean(0)
    away = features(500, seed=2) - middle
    assert (fence.rise(middle + 0.2 * away) == 0).all()
    distance = fence.distance(middle + 9 * away)
    torch.testing.assert_close(fence.rise(middle + 9 * away), SLOPE * (distance / fence.radius - 1).clamp_min(0))


def test_features_without_any_spread_are_fenced_too() -> None:
    z = features()
    z[:, 3] = 1.0
    fence = fitted(z, 5)  # the rest is the one direction without any
    assert torch.isfinite(fence.rise(z)).all()
    far = z[:10].clone()
    far[:, 3] = 2.0
    assert (fence.rise(far) > 100).all()
    same = fitted(torch.ones(10, 4), 2)
    assert (same.rise(torch.ones(3, 4)) == 0).all()


def test_a_batch_of_one_is_told_what_a_batch_of_all_is_in_single_precision() -> None:
    """A network's features: units that never speak, and others that hardly move, beside a few that do."""
    z = features(3000, 40).clamp_min(0) * torch.logspace(0, -6, 40)
    z[:, 20:25] = 0
    fence = fitted(z, 39)
    whole, alone = fence.rise(z[:50]), torch.cat([fence.rise(row[None]) for row in z[:50]])
    exact = fitted(z, 39).double().rise(z[:50].double())
    torch.testing.assert_close(whole, alone, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(whole.double(), exact.double(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6, 1e12])
def test_features_that_are_all_alike_are_inside_whatever_rounding_makes_of_them(size: float) -> None:
    z = size * features(1).repeat(200, 1)
    jitter = 1 + 3e-7 * torch.randn(z.shape, generator=torch.Generator().manual_seed(1))
    for known in (z, z * jitter, torch.cat([z[1:] * jitter[1:], 2 * z[:1]])):  # the last: nearly all
        fence = fitted(known, 4)
        assert (fence.rise(z) == 0).all()
        assert (fence.rise(z[:50] * jitter[:50].flip(0)) == 0).all()
        assert (fence.rise(3 * z[:1]) > 100).all()


def test_rows_that_are_all_alike_get_the_same_answer_alone_and_in_a_batch() -> None:
    x, y = np.tile(np.array([5, 7, 0.1, 3], np.float32), (300, 1)), np.arange(300) % 3
    data = eow.data.Dataset("alike", "train", x, y, ("a", "b", "c"))
    batches = eow.data.loader.Batches(data, 64, eow.data.loader.Transform((0.0,), (1.0,)), torch.device("cpu"))
    torch.manual_seed(0)
    model = eow.models.build("mlp", 4, (4,), hidden=(128, 128))
    method = EOW(model, build(EOWOptions, {"fence": 8}, "method"), 3, (4,))
    method.finish(batches, None)
    rows = torch.from_numpy(x)
    whole = method.predict(rows).unknown
    for count in (1, 2, 7, 33):
        torch.testing.assert_close(method.predict(rows[:count]).unknown, whole[:count], atol=1e-5, rtol=1e-4)


def test_the_order_of_the_samples_does_not_matter() -> None:
    """Two classes far from each other, one after the other in turn: halves by turns would hold one class each."""
    z = features(2000)
    z[::2] += 300
    shuffled = z[torch.randperm(2000, generator=torch.Generator().manual_seed(1))]
    assert fitted(z, 3).radius == pytest.approx(fitted(shuffled, 3).radius.item(), rel=0.2)


def test_however_far_it_is_the_answer_is_a_number() -> None:
    for fence in (fitted(features(), 3), fitted(torch.zeros(10, 6), 2)):
        for far in (1.0, 1e6, 1e25, 3e38):
            rise = fence.rise(torch.full((2, 6), far))
            assert torch.isfinite(rise).all()
            assert (rise > 100).all() or far == 1.0


def test_a_fenced_method_keeps_its_words_inside_and_says_unknown_outside() -> None:
    x, y = blobs(300)
    data = eow.data.Dataset("blobs", "train", x, y, ("a", "b", "c"))
    batches = eow.data.loader.Batches(data, 50, eow.data.loader.Transform((0.0,), (1.0,)), torch.device("cpu"))
    model = small_model()
    plain, fenced = (EOW(model, build(EOWOptions, {"fence": rank}, "method"), 3, (4,)) for rank in (0, 4))
    with pytest.raises(EowError, match="has not been fitted yet"):
        fenced.predict(torch.from_numpy(x))
    fenced.finish(batches, None)
    near, far = torch.from_numpy(x), 100 * torch.from_numpy(x)
    same = fenced.predict(near).unknown == plain.predict(near).unknown
    assert same.double().mean() > 0.97
    assert (fenced.predict(far).unknown > 0.99).all()
    assert (plain.predict(far).unknown > 0.99).double().mean() < 0.9


def test_of_a_large_training_set_the_fence_sees_a_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3000 samples about 300, from beginning to end and no more of one class than of another."""
    monkeypatch.setattr("eow.methods.eow.MOST_FENCED", 300)
    x, y = blobs(3000)
    data = eow.data.Dataset("blobs", "train", x, y, ("a", "b", "c"))
    batches = eow.data.loader.Batches(data, 500, eow.data.loader.Transform((0.0,), (1.0,)), torch.device("cpu"))
    method = EOW(small_model(), build(EOWOptions, {"fence": 4}, "method"), 3, (4,))
    with torch.no_grad():
        every = method.before_head().encoder(torch.from_numpy(x))
    seen = method.last_features(batches)
    apart = torch.cdist(seen.double(), every.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert (apart.min(1).values < 1e-4).all()  # each is one of them, but for the rounding of another batch
    place = apart.argmin(1)
    assert len(place.unique()) == len(seen)
    assert abs(len(seen) - 300) < 4 * (3000 * 0.1 * 0.9) ** 0.5
    for count in (*torch.from_numpy(y)[place].bincount().tolist(), *(place // 1000).bincount().tolist()):
        assert abs(count - 100) < 4 * (1000 * 0.1 * 0.9) ** 0.5
    monkeypatch.setattr("eow.methods.eow.MOST_FENCED", 3000)
    torch.testing.assert_close(method.last_features(batches), every)


def test_a_fence_is_trained_saved_exported_and_counted_as_a_logit(tmp_path: Path) -> None:
    from eow.deployed import load as open_file
    from eow.export.run import export

    wishes = {"train": {"epochs": 3}, "model": {"hidden": [32]}, "method": {"start_epoch": 1, "fence": 8}}
    runs.train(resolve(wishes), tmp_path / "run", progress=False)
    run = runs.load(tmp_path / "run")
    images = eow.data.load("digits", split="test").inputs[:30]
    noise = np.random.default_rng(0).choice([0, 255], images.shape).astype(np.uint8)
    both = torch.from_numpy(np.concatenate([images, noise]))
    said = run.method.predict(run.transform(both), 0.1)
    assert (said.unknown[30:] > 0.5).double().mean() > 0.8 > 0.3 > (said.unknown[:30] > 0.5).double().mean()
    export(tmp_path / "run", tmp_path / "model.onnx", unknown_rate=0.1)
    answers = open_file(tmp_path / "model.onnx").predict(both.numpy())
    np.testing.assert_allclose(answers.unknown, said.unknown, atol=1e-5)


def test_rows_of_a_table_that_are_far_out_are_unknown_with_a_fence_and_may_be_a_class_without(tmp_path: Path) -> None:
    x, y = load_wine(return_X_y=True)
    x, y = x[np.argsort(y, kind="stable")].astype(np.float32), np.sort(y)
    train, middle = np.arange(len(x)) % 3 > 0, x.mean(0)
    np.savez(tmp_path / "wine.npz", x_train=x[train], y_train=y[train], x_test=x[~train], y_test=y[~train])
    answered = {}
    for rank in (0, 10):
        wish = {"data": {"name": f"npz:{tmp_path}/wine.npz"}, "method": {"fence": rank}, "seed": 0}
        runs.train(resolve(wish), tmp_path / str(rank), progress=False)
        run = runs.load(tmp_path / str(rank))
        said = [
            run.method.predict(run.transform(torch.from_numpy(middle + by * (x[~train] - middle)))) for by in (1, 10)
        ]
        answered[rank] = [(each.confidence > each.unknown).double().mean().item() for each in said]
    assert answered[0][1] > 0.9  # ten times too far from the mean, and taken for a wine
    assert answered[10][1] < 0.05
    assert answered[10][0] > 0.9


def test_what_no_fence_can_be_is_said() -> None:
    with pytest.raises(EowError, match=r"method\.fence is -1"):
        EOW(small_model(), build(EOWOptions, {"fence": -1}, "method"), 3, (4,))
    by_hand = eow.SplitModel(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    with pytest.raises(EowError, match="a model of named stages"):
        EOW(by_hand, build(EOWOptions, {"fence": 2}, "method"), 3, (4,))
    with pytest.raises(EowError, match="leave fence out"):
        eow.fit(by_hand, blobs(40), fence=2)
    with pytest.raises(EowError, match="at least 4 training samples"):
        fitted(torch.ones(3, 2), 1)
