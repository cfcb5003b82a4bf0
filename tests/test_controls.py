"""The controls are EOW without chains: their negatives against second computations, and what they learn on digits."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from scipy.stats import chi2
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from eow.config import resolve
from eow.errors import EowError
from eow.methods import METHODS, Method
from eow.runs import train
from eow.sampling import Starts, langevin
from eow.sampling.outliers import CANDIDATES, GaussianOutliers
from eow.sampling.starts import mixed_pairs
from eow.typed import build

CONTROLS = ("feature_negatives", "noise_negatives", "mixed_negatives", "vos")


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(name: str, **options: object) -> Method:
    kind = METHODS[name]
    method = kind(small_model(), build(kind.Options, options, "method"), 3, (4,))
    method.prepare(torch.device("cpu"))
    method.stream.manual_seed(0)
    return method


def batch() -> tuple[Tensor, Tensor]:
    x, y = blobs(60)
    return torch.from_numpy(x), torch.from_numpy(y)


def negatives_of(name: str, features: Tensor, labels: Tensor) -> Tensor:
    """What each control draws first, made without it."""
    if name == "feature_negatives":
        return features[torch.randperm(len(features), generator=stream())[:32]]
    if name == "noise_negatives":
        return torch.empty(32, features.shape[1]).uniform_(-3, 3, generator=stream())
    if name == "mixed_negatives":
        return mixed_pairs(features, labels, 32, stream())
    queue = GaussianOutliers(100, (features.shape[1],), 32)
    queue.store(features, labels)
    return queue.draw(32, stream())


@pytest.mark.parametrize("name", CONTROLS)
def test_loss_is_equation_4_on_negatives_that_have_not_moved(name: str) -> None:
    x, y = batch()
    method = make(name, chains=32, lam=0.3, **({"buffer_size": 100} if name == "vos" else {}))
    terms = method(x, y)
    h = method.model(x).double().softmax(1)
    negatives = negatives_of(name, method.model.encoder(x).detach(), y)
    torch.testing.assert_close(terms["ce"].double(), -h[range(60), y].log().mean())
    unknown = method.model.tail(negatives).double().softmax(1)[:, -1]
    torch.testing.assert_close(terms["energy"].double(), -0.3 * unknown.log().mean(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONTROLS)
def test_forward_never_asks_for_a_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors have shapes but no values: whatever would make a GPU's host wait raises."""
    monkeypatch.setattr(langevin, "free_to_look", lambda z: False)  # as on a GPU: no short cuts of the CPU
    with FakeTensorMode(allow_non_fake_inputs=True):
        sum(make(name)(torch.randn(60, 4), torch.randint(3, (60,))).values()).backward()
        with pytest.raises(DataDependentOutputException):
            float(torch.randn(3).sum())


def test_wider_noise_is_another_loss() -> None:
    x, y = batch()
    assert make("noise_negatives")(x, y)["energy"] != make("noise_negatives", start_width=1.0)(x, y)["energy"]


# The Gaussians


def correlated(samples: int, seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray]:
    """Features of two classes around (10, 0, 0, 0) and (0, 0, 0, -10) with one covariance."""
    random = np.random.default_rng(seed)
    mixing = np.array([[1.0, 0, 0, 0], [0.8, 0.5, 0, 0], [0, -0.4, 2.0, 0], [0.1, 0, 1.0, 0.3]])
    labels = np.arange(samples) % 2
    means = np.array([[10.0, 0, 0, 0], [0, 0, 0, -10.0]])
    features = means[labels] + random.normal(size=(samples, 4)) @ mixing.T
    return torch.from_numpy(features).float(), torch.from_numpy(labels), mixing @ mixing.T


def test_means_and_covariance_are_those_of_the_stored_features() -> None:
    features, labels, _ = correlated(50)
    queue = GaussianOutliers(80, (4,), 8)  # not yet full
    queue.store(features, labels + 5)  # the labels' values do not matter
    means, filled, covariance = queue.gaussians()
    x, y = features.double().numpy(), labels.numpy()
    by_class = np.stack([x[y == k].mean(0) for k in (0, 1)])
    np.testing.assert_allclose(means[-50:].numpy(), by_class.repeat(25, axis=0), rtol=1e-4, atol=1e-5)
    residuals = x - by_class[y]
    np.testing.assert_allclose(covariance.numpy(), residuals.T @ residuals / 50, rtol=1e-4, atol=1e-5)
    assert filled == 50


def test_outliers_are_the_least_likely_of_the_candidates() -> None:
    """With the true Gaussian, squared Mahalanobis distances are chi² of 4 degrees: the kept 200 lie beyond the quantile
    that 2 % of the candidates pass, in all directions, around both means alike."""
    features, labels, covariance = correlated(20_000)
    queue = GaussianOutliers(20_000, (4,), 200)
    queue.store(features, labels)
    draws = queue.draw(200, stream()).double().numpy()
    means = np.array([[10.0, 0, 0, 0], [0, 0, 0, -10.0]])
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    white = np.stack([(draws - mean) @ whiten.T for mean in means])
    squares = (white**2).sum(2)
    own = squares.argmin(0)
    assert abs((own == 0).sum() - 100) < 4 * math.sqrt(50)
    boundary = chi2.ppf(1 - 200 / CANDIDATES, 4)
    assert squares.min(0).min() > 0.93 * boundary  # the estimate's covariance is the true one to a few per cent
    assert 0.97 * chi2.ppf(1 - 100 / CANDIDATES, 4) < np.median(squares.min(0)) < 1.06 * boundary + 1
    units = np.take_along_axis(white, own[None, :, None], 0)[0]
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    assert np.abs(units.mean(0)).max() < 4 / math.sqrt(200 * 4)
    assert np.abs(units.T @ units / 200 - np.eye(4) / 4).max() < 0.1


def test_the_queue_keeps_the_newest_and_belongs_to_a_checkpoint() -> None:
    queue = GaussianOutliers(5, (1,), 1)
    for first in (0, 3, 6):
        queue.store(torch.arange(first, first + 3).float()[:, None], torch.arange(first, first + 3))
    assert sorted(queue.features.flatten().tolist()) == [4, 5, 6, 7, 8]
    assert torch.equal(queue.features.flatten().long(), queue.labels)
    queue.store(torch.arange(20.0)[:, None], torch.arange(20))  # a batch larger than the queue
    assert sorted(queue.labels.tolist()) == [15, 16, 17, 18, 19]
    assert {"features", "labels", "position"} == {name for name, _ in queue.named_buffers()}
    assert not queue.state_dict()


def test_an_undetermined_covariance_still_gives_finite_draws() -> None:
    queue = GaussianOutliers(50, (30,), 10)
    features = torch.zeros(3, 30)
    features[:, 0] = torch.tensor([1.0, 2.0, 3.0])
    queue.store(features, torch.zeros(3, dtype=torch.long))
    draws = queue.draw(10, stream())
    assert torch.isfinite(draws).all()
    assert draws[:, 1:].abs().max() < draws[:, 0].sub(2).abs().max()
    one = GaussianOutliers(50, (30,), 10)
    one.store(features[:1], torch.zeros(1, dtype=torch.long))
    assert torch.isfinite(one.draw(10, stream())).all()


def test_half_precision_leaves_the_gaussians_alone() -> None:
    features, labels, _ = correlated(60)
    queue = GaussianOutliers(100, (4,), 10)
    queue.store(features, labels)
    plain = queue.draw(10, stream())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(queue.draw(10, stream()), plain)


def test_gaussian_starts_need_vectors_and_room() -> None:
    settings = {"width": 0.1, "buffer_size": 100, "restart": 0.05}
    with pytest.raises(EowError, match="penultimate"):
        Starts("gaussian", (8, 4, 4), 16, **settings)
    with pytest.raises(EowError, match="buffer_size"):
        Starts("gaussian", (8,), 16, **{**settings, "buffer_size": 1})
    with pytest.raises(EowError, match="chains"):
        Starts("gaussian", (8,), CANDIDATES + 1, **settings)
    features, labels, _ = correlated(60)
    starts = Starts("mixed:0.5,gaussian:0.5", (4,), 16, **settings)
    assert starts.draw(features, labels, stream()).shape == (16, 4)
    assert (starts.outliers.labels >= 0).sum() == 60


# What they learn


@pytest.mark.parametrize("name", CONTROLS)
def test_digits(name: str, tmp_path: Path) -> None:
    config = resolve({"data": {"unknown_classes": [8, 9]}, "method": {"name": name}})
    metrics = train(config, tmp_path / "run", progress=False)["metrics"]
    assert metrics["test"]["accuracy"] >= 0.95
    if name == "mixed_negatives":
        assert metrics["unknown"]["unknown"] > 3 * metrics["test"]["unknown"]


@pytest.mark.parametrize("recipe", ["paper", "release"])
def test_other_recipes_keep_them_free_of_chains(recipe: str) -> None:
    for name in CONTROLS:
        config = resolve({"recipe": recipe, "data": {"name": "cifar10"}, "method": {"name": name}})
        assert config.method.steps == 0
        assert config.method.start == METHODS[name].Options().start
        assert config.method.start_epoch == resolve({"recipe": recipe, "method": {"name": "eow"}}).method.start_epoch
    assert config.model.cut == "penultimate"  # of vos, the last: it needs vectors
