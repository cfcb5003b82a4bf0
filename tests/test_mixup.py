"""Mixup: the distribution of λ, and the loss on the mixed inputs with mixed labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from scipy import stats
from torch import Tensor
from torch.nn.functional import one_hot

from eow.config import resolve
from eow.errors import EowError
from eow.methods.mixup import Mixup, symmetric_beta
from eow.runs import train

CPU = torch.device("cpu")


def make(**options: float) -> Mixup:
    method = Mixup(small_model(extra=0), Mixup.Options(**options), 3, (4,))
    method.prepare(CPU)
    method.stream.manual_seed(0)
    return method


def batch() -> tuple[Tensor, Tensor]:
    x, y = blobs(30)
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 4.0])
def test_lambda_is_beta(alpha: float) -> None:
    """Kolmogorov-Smirnov below a half; above it float32 rounds the many draws next to 1, so shares are compared."""
    count = 20_000
    draws = symmetric_beta(alpha, count, CPU, torch.Generator().manual_seed(0)).double().numpy()
    beta = stats.beta(alpha, alpha)
    low = draws[draws < 0.5]
    if alpha >= 0.2:  # at 0.05 some are below float32's smallest number
        assert stats.kstest(low, lambda x: 2 * beta.cdf(x)).pvalue > 0.01
    for edge in (1e-6, 1e-3, 0.1, 0.5, 0.6, 0.9, 0.999):
        expected = beta.cdf(edge)
        assert abs(np.mean(draws <= edge) - expected) < 4.5 * np.sqrt(expected * (1 - expected) / count)


def test_tiny_alphas_give_no_nan() -> None:
    draws = symmetric_beta(1e-3, 10_000, CPU, torch.Generator().manual_seed(0))
    assert ((draws >= 0) & (draws <= 1)).all()
    assert abs((draws < 0.5).double().mean() - 0.5) < 0.025


def mixed_loss(method: Mixup, x: Tensor, y: Tensor, share: float, order: Tensor) -> Tensor:
    """The cross-entropy with mixed soft labels, in float64."""
    logits = method.model(share * x + (1 - share) * x[order]).double()
    hot = one_hot(y, 3).double()
    targets = share * hot + (1 - share) * hot[order]
    return -(targets * logits.softmax(1).log()).sum(1).mean()


def test_loss_is_the_cross_entropy_of_mixed_inputs_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ and the permutation are read off the calls that draw them; the rest is by hand."""
    method, (x, y) = make(alpha=1.0), batch()
    seen: dict[str, Tensor] = {}
    permute = torch.randperm

    def noted(*arguments: int, **named: object) -> Tensor:
        seen["order"] = permute(*arguments, **named)  # type: ignore[arg-type]
        return seen["order"]

    monkeypatch.setattr(torch, "randperm", noted)
    for share in (0.0, 0.3, 1.0):
        monkeypatch.setattr("eow.methods.mixup.symmetric_beta", lambda *_: torch.tensor([share]))  # noqa: B023
        found = method(x, y)["ce"]
        assert not torch.equal(seen["order"], torch.arange(30))
        torch.testing.assert_close(found.double(), mixed_loss(method, x, y, share, seen["order"]))


def test_random_numbers_are_the_streams_and_new_every_step() -> None:
    method, (x, y) = make(alpha=1.0), batch()
    torch.manual_seed(1)
    first, second = method(x, y)["ce"], method(x, y)["ce"]
    assert first != second
    method.stream.manual_seed(0)
    torch.manual_seed(2)
    assert torch.equal(method(x, y)["ce"], first)


def test_alpha_says_how_much_is_mixed() -> None:
    """At a tiny α nothing is mixed and the loss is vanilla's; the variance of Beta(α, α) is 1/(4(2α + 1))."""
    x, y = batch()
    plain = torch.nn.functional.cross_entropy(make().model(x), y)
    assert torch.isclose(make(alpha=1e-6)(x, y)["ce"], plain)
    assert not torch.isclose(make(alpha=0.2)(x, y)["ce"], make(alpha=1.0)(x, y)["ce"])
    spread = [symmetric_beta(a, 5000, CPU, torch.Generator().manual_seed(0)).var() for a in (0.2, 1.0, 5.0)]
    for found, alpha in zip(spread, (0.2, 1.0, 5.0)):
        assert found == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.06)


def test_prediction_mixes_nothing() -> None:
    method, (x, _) = make(), batch()
    torch.testing.assert_close(method.predict(x).probs, method.model(x).softmax(1))


def test_digits(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "mixup"}, "data": {"unknown_classes": [8, 9]}})
    assert train(config, tmp_path / "run", progress=False)["metrics"]["test"]["accuracy"] >= 0.95


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_wrong_alphas_are_refused(wrong: float) -> None:
    with pytest.raises(EowError, match=r"method\.alpha"):
        make(alpha=wrong)
