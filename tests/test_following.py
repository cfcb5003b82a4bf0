"""The units of a quadratic unknown follow the features: models that are upgraded before they are trained."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from problems import blobs
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eow.metrics import auroc
from eow.models.surgery import UpgradedModel, upgrade
from eow.models.widening import UNIT, WidenedOpenLinear
from eow.own.fit import fit
from eow.own.loss import OpenWorldLoss
from eow.own.predict import predict

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 3e-3),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
}


def network(norm: str) -> nn.Module:
    torch.manual_seed(0)
    between = nn.BatchNorm1d(64) if norm == "batch" else nn.Identity()
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), between, nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_untrained_model_learns_with_the_term_and_better_before_it(norm: str, optimizer: str) -> None:
    """Its features grow: in units of its first batch the loss went beyond all bounds, by SGD to NaN.
    Three epochs of the term after twelve of cross-entropy find noise better than fifteen of it."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    noise, found = torch.rand(600, 64, generator=torch.Generator().manual_seed(0)), []
    for before in (0, 12):
        model = upgrade(network(norm))
        loss_of = OpenWorldLoss(model)
        steps = OPTIMIZERS[optimizer](loss_of.parameters())
        for epoch in range(15):
            for rows in torch.randperm(1200).split(64):
                steps.zero_grad()
                late = epoch >= before
                loss = loss_of(x[rows], y[rows]) if late else cross_entropy(model(x[rows])[:, :-1], y[rows])
                loss.backward()
                steps.step()
                assert loss < 10
        known = predict(model, x[1200:])
        assert (known.probs.argmax(1) == y[1200:]).float().mean() > 0.9
        assert known.unknown.mean() < 0.1
        found.append(auroc(-known.unknown, -predict(model, noise).unknown))
    assert found[1] > max(found[0] - 0.01, 0.8)


def head(features: int = 6) -> WidenedOpenLinear:
    torch.manual_seed(0)
    made = WidenedOpenLinear(nn.Linear(features, 3))
    made.measure(float(features))
    with torch.no_grad():
        made.square.fill_(0.1)
    return made


def size(layer: WidenedOpenLinear, z: Tensor) -> float:
    """|z|² in the layer's units, 1 where they were measured."""
    return float((z * layer.unit).square().sum(-1).mean()) / UNIT


def test_units_follow_features_that_leave_their_size() -> None:
    layer, z = head(), torch.ones(5, 6)
    measured, where = layer.unit.clone(), layer.unit.data_ptr()
    for factor in (1.3, 0.8):  # squares of .64 to 1.69
        layer(factor * z)
        assert torch.equal(layer.unit, measured)
    for factor in (10.0, 10.0, 1e4):
        layer(factor * z)
        assert size(layer, factor * z) == pytest.approx(2, rel=1e-4)
    shrunk, back = float(layer.unit), 1e3 * z  # 1/100 of the square: half of it is wanted, back by 2 % a step
    for step in range(1, 120):
        layer(back)
        largest = (UNIT / 2 / float(back.square().sum(-1).mean())) ** 0.5
        assert float(layer.unit) == pytest.approx(min(shrunk * 1.02**step, largest), rel=1e-4)
    assert size(layer, back) == pytest.approx(0.5, rel=1e-4)
    assert layer.unit.data_ptr() == where  # as a captured graph must have it
    assert torch.equal(layer.square, torch.full((6,), 0.1))


def test_a_few_rows_of_another_size_move_no_units() -> None:
    layer, z = head(), torch.ones(9, 6)
    measured = layer.unit.clone()
    for factor in (1e-3, 1.5, 100.0):
        rows = z.clone()
        rows[:4] *= factor
        layer(rows)
        assert torch.equal(layer.unit, measured)
    layer(1e-3 * z)
    torch.testing.assert_close(layer.unit, 1.02 * measured)


def test_units_stay_where_nothing_learns_and_nothing_can_be_measured() -> None:
    layer, z = head(), 100 * torch.ones(5, 6)
    measured = layer.unit.clone()
    layer.eval()(z)
    layer.train()
    with torch.no_grad():
        layer(z)
    layer.square.requires_grad_(False)
    layer(z)
    layer.square.requires_grad_(True)
    for none in (0 * z, torch.inf * z, torch.nan * z, 1e30 * z, 1e-30 * z, z[:0]):
        layer(none)
    assert torch.equal(layer.unit, measured)
    layer(z)
    assert not torch.equal(layer.unit, measured)


def grown(model: UpgradedModel, factor: float) -> None:
    with torch.no_grad():
        for each in model.encoder.parameters():
            each.mul_(factor)


def upgraded() -> tuple[UpgradedModel, Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = (torch.from_numpy(each) for each in blobs(60))
    return upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))), x, y


def test_losses_are_added_up_though_the_units_move_between_them() -> None:
    model, x, y = upgraded()
    loss_of = OpenWorldLoss(model)
    loss_of(x, y)
    measured = model.head.unit.clone()
    (loss_of(x, y) + loss_of(10 * x, y) + loss_of(100 * x, y)).backward()
    assert model.head.unit < measured / 10
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_measures_as_single_precision_does(dtype: torch.dtype) -> None:
    units = []
    for enabled in (False, True):
        model, x, y = upgraded()
        loss_of = OpenWorldLoss(model)
        loss_of(x, y)
        grown(model, 30)
        with torch.autocast("cpu", dtype, enabled=enabled):
            assert loss_of(x, y).isfinite()
        units.append(model.head.unit)
    torch.testing.assert_close(units[1], units[0], rtol=0.01, atol=0)


def test_units_that_moved_are_compiled_copied_pickled_and_loaded() -> None:
    losses, made = [], []
    for compiled in (False, True):
        model, x, y = upgraded()
        loss_of = OpenWorldLoss(model)
        called = torch.compile(loss_of, backend="aot_eager") if compiled else loss_of
        optimizer = torch.optim.SGD(loss_of.parameters(), 0.1)
        for factor in (1, 1, 3, 3):
            grown(model, factor)
            optimizer.zero_grad()
            loss = called(x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        made.append(model.eval())
    assert losses[4:] == pytest.approx(losses[:4], rel=1e-4)
    torch.testing.assert_close(made[1].head.unit, made[0].head.unit, rtol=1e-4, atol=0)
    model, said = made[0], made[0](x)
    again = upgraded()[0].eval()
    assert not torch.equal(again(x), said)
    again.load_state_dict(model.state_dict())
    for other in (again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), said)


def test_a_trained_models_units_are_those_of_its_first_batch() -> None:
    torch.manual_seed(0)
    x, y = (torch.from_numpy(each) for each in blobs(300))
    plain = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(plain.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(plain(x), y).backward()
        optimizer.step()
    model = upgrade(plain)
    loss_of = OpenWorldLoss(model)
    loss_of(x, y)
    measured = model.head.unit.clone()
    fit(model, (x, y), epochs=5)
    assert torch.equal(model.head.unit, measured)
    assert model.head.square.abs().max() > 1e-3


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    model = network("none")
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(15):
        for rows in torch.randperm(1200).split(64):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model, x, y


def mean_unknown(trained: tuple[nn.Module, Tensor, Tensor], data: Any, **options: Any) -> float:
    """Of known images, after some epochs on this data."""
    model = upgrade(copy.deepcopy(trained[0]))
    fit(model, data, epochs=3, **options)
    return float(predict(model, trained[1][1200:]).unknown.mean())


def test_a_last_batch_of_small_inputs_does_not_make_the_others_unknown(trained: Any) -> None:
    _, x, y = trained
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 1152, 64)]
    dim = (0.05 * x[1152:1200], y[1152:1200])
    assert mean_unknown(trained, [*batches, dim]) < 0.1


@pytest.mark.parametrize("factor", [0.1, 100])
def test_outliers_of_another_size_move_no_units(trained: Any, factor: float) -> None:
    _, x, y = trained
    noise = factor * torch.rand(300, 64, generator=torch.Generator().manual_seed(0))
    assert mean_unknown(trained, (x[:1200], y[:1200]), unknown=noise, negatives="train") < 0.15
