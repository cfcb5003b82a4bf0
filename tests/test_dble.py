"""DBLE against the formula, computed class by class and task by task with loops."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from eow import fit
from eow.config import resolve
from eow.data.dataset import Dataset
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.methods.dble import DBLE, DBLEOptions
from eow.runs import load, train
from eow.typed import build

TINY = {"classes": 2, "shots": 2, "queries": 3, "tasks": 2, "width": 8}


def make(known: int = 3, **options: object) -> DBLE:
    model = small_model(classes=known, extra=0)
    method = DBLE(model, build(DBLEOptions, {**TINY, **options}, "method"), known, (4,))
    method.prepare(torch.device("cpu"))
    method.stream.manual_seed(0)
    return method


def noisy_episode(pairs: list[tuple[int, int]], per_class: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A batch in the order task, class, sample, whose inputs say little of the class: there must be errors."""
    y = torch.tensor(pairs).flatten().repeat_interleave(per_class)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(y), 4, generator=generator) + 0.5 * torch.eye(4)[y], y


def by_hand(h: Tensor, y: Tensor, z: Tensor, tasks: int, shots: int) -> tuple[list[float], list[float]]:
    """-log p(y|h) of every query and -log p(y|z) of every misclassified one, for equal classes in every task."""
    losses, errors = [], []
    for part in torch.arange(len(y)).chunk(tasks):
        labels = y[part].unique().tolist()
        centres = {k: h[[i for i in part.tolist() if y[i] == k][:shots]].mean(0) for k in labels}
        for k in labels:
            for i in [i for i in part.tolist() if y[i] == k][shots:]:
                near = {c: np.exp(-(h[i] - centre).norm().item()) for c, centre in centres.items()}
                losses.append(-np.log(near[k] / sum(near.values())))
                if max(near, key=near.get) != k:
                    moved = {c: np.exp(-(z[i] - centre).norm().item()) for c, centre in centres.items()}
                    errors.append(-np.log(moved[k] / sum(moved.values())))
    return losses, errors


def test_both_losses_of_an_episode() -> None:
    method = make(dropout=0.0).train()
    x, y = noisy_episode([(2, 0), (0, 1)])  # class 0 is in both tasks, with another centre in each
    terms = method(x, y)
    h = method.model(x).detach()
    noise = torch.randn(h.shape, generator=torch.Generator().manual_seed(0))
    z = h + noise * method.log_variance(h).exp().sqrt().detach()
    losses, errors = by_hand(h.double(), y, z.double(), tasks=2, shots=2)
    assert len(losses) == 12
    assert 0 < len(errors) < 12
    assert terms["ce"].item() == pytest.approx(np.mean(losses), rel=1e-5)
    assert terms["errors"].item() == pytest.approx(np.mean(errors), rel=1e-5)


def test_any_batch_is_parted_in_the_same_proportion() -> None:
    """Two of five are shots: of 5, 3, 1 samples of a class ceil(2), ceil(1.2), ceil(0.4) are; the batch is one task."""
    method = make().eval()
    x, _ = noisy_episode([(0, 1)], per_class=5)
    y = torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 0])
    h = method.model(x[:9]).double()
    centres = torch.stack([h[[0, 2]].mean(0), h[[1, 5]].mean(0), h[3]])
    queries = [4, 6, 7, 8]
    expected = -(-(h[queries, None] - centres).norm(dim=2)).log_softmax(1)[range(4), y[queries]].mean()
    torch.testing.assert_close(method(x[:9], y)["ce"].double(), expected, rtol=1e-5, atol=1e-6)


def test_each_loss_trains_its_own_net() -> None:
    x, y = noisy_episode([(2, 0), (0, 1)])
    for term, own, other in (("ce", "model.", "log_variance."), ("errors", "log_variance.", "model.")):
        method = make().train()
        method(x, y)[term].backward()
        grads = {name: p.grad for name, p in method.named_parameters() if p.grad is not None}
        assert any(name.startswith(own) and grad.abs().sum() > 0 for name, grad in grads.items())
        assert not any(name.startswith(other) for name in grads)


def test_every_parameter_has_a_part_even_without_errors() -> None:
    """Nothing to learn from an error, a batch of one: still finite, and all gradients there, as DDP demands."""
    x, y = blobs(30)
    for inputs, labels in ((100 * torch.from_numpy(x), torch.from_numpy(y)), (torch.ones(1, 4), torch.tensor([1]))):
        method = make(tasks=1).train()
        terms = method(inputs, labels)
        assert terms["errors"].item() == 0
        sum(terms.values()).backward()
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in method.parameters())


def test_prediction_is_the_mean_over_draws() -> None:
    method = make(draws=7).eval()
    x, y = blobs(60)
    data = Dataset("blobs", "train", x, y, ("a", "b", "c"))
    plain = Transform((0.0,), (1.0,))
    method.finish(Batches(data, 25, plain, torch.device("cpu")), None)
    inputs = torch.from_numpy(x)
    h = method.model(inputs).detach().double().numpy()
    centres = np.stack([h[y == k].mean(0) for k in range(3)])
    np.testing.assert_allclose(method.centres.numpy(), centres, rtol=1e-5, atol=1e-6)

    def p(z: np.ndarray) -> np.ndarray:
        weights = np.exp(-np.linalg.norm(z[:, None] - centres, axis=2))
        return weights / weights.sum(1, keepdims=True)

    sigma = np.exp(0.5 * method.log_variance(torch.from_numpy(h).float()).detach().double().numpy())
    draws = torch.randn(7, h.shape[1], generator=torch.Generator().manual_seed(method.seed)).double().numpy()
    probs = np.mean([p(h + e * sigma) for e in draws], axis=0)
    said = method.predict(inputs)
    np.testing.assert_array_equal(said.label.numpy(), p(h).argmax(1))
    np.testing.assert_allclose(said.probs.numpy(), probs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(said.confidence.numpy(), probs[range(60), p(h).argmax(1)], rtol=1e-4)
    torch.testing.assert_close(said.probs.sum(1), torch.ones(60))
    torch.testing.assert_close(method.predict(inputs[7:8]).probs, said.probs[7:8])  # whatever batch it is in


def test_options_do_what_they_say() -> None:
    x, y = noisy_episode([(2, 0), (0, 1)])
    plain = make().train()(x, y)
    assert plain["ce"] != make(shots=3, queries=2).train()(x, y)["ce"]
    assert plain["ce"] != make(tasks=1, classes=3).train()(x, y)["ce"]
    assert plain["errors"] != make(dropout=0.1).train()(x, y)["errors"]
    assert make(width=3).log_variance[1].out_features == 3
    assert make(classes=10).episode() == (3, 5, 2)  # the data has 3 classes
    assert make(draws=2).predict(x).probs.shape == (20, 3)
    for wrong in ({"shots": 0}, {"queries": 0}, {"tasks": 0}, {"classes": 1}, {"width": 0}, {"draws": 0},
                  {"dropout": 1.0}, {"dropout": -0.1}):  # fmt: skip
        with pytest.raises(EowError, match=next(iter(wrong))):
            make(**wrong)


def test_forward_never_asks_for_a_value() -> None:
    """Fake tensors have shapes but no values: whatever would make a GPU's host wait raises."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        method = make().train()
        x, y = torch.randn(20, 4), torch.randint(3, (20,))
        sum(method(x, y).values()).backward()
        with pytest.raises(DataDependentOutputException):
            float(x.sum())


def test_runaway_variances_stay_finite() -> None:
    method = make().train()
    with torch.no_grad():
        method.log_variance[-1].bias.fill_(1e4)
    x, y = noisy_episode([(2, 0), (0, 1)])
    terms = method(x, y)
    sum(terms.values()).backward()
    assert torch.isfinite(terms["errors"])
    assert all(torch.isfinite(p.grad).all() for p in method.parameters())
    torch.testing.assert_close(method.predict(x).probs.sum(1), torch.ones(20))


def test_fit_without_episodes_has_running_centres() -> None:
    x, y = blobs(300)
    method = fit(small_model(extra=0), (x, y), method="dble", epochs=5, batch=60, width=16)
    assert (method.predict(torch.from_numpy(x)).label.numpy() == y).mean() > 0.97


def test_digits(tmp_path: Path) -> None:
    config = resolve({"data": {"unknown_classes": [8, 9]}, "method": {"name": "dble"}})
    summary = train(config, tmp_path / "run", progress=False)
    assert summary["metrics"]["test"]["accuracy"] >= 0.93
    assert summary["metrics"]["unknown"]["auroc_confidence"] > 0.8
    opened = load(tmp_path / "run")
    x = torch.rand(5, *opened.in_shape)
    assert not any("head" in name for name in opened.method.state_dict())
    again = load(tmp_path / "run").method.predict(x)
    assert torch.equal(opened.method.predict(x).probs, again.probs)
    assert (opened.method.centres.norm(dim=1) > 0).all()
