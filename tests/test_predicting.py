"""`eow.predict` on what it should not answer, and on inputs in every form that `eow.fit` takes."""

import copy
import math
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.methods.base import Method, label_or_unknown, open_prediction
from eow.models.surgery import UpgradedModel, upgrade
from eow.own.fit import fit
from eow.own.predict import predict


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))


@pytest.fixture(scope="module")
def method(data: tuple[Tensor, Tensor]) -> Method:
    return fit(upgrade(small_network()), data, epochs=5, holdout=(data[0][:100], data[1][:100]))


@pytest.fixture
def model(method: Method) -> UpgradedModel:
    assert isinstance(method.model, UpgradedModel)
    return copy.deepcopy(method.model)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.5])
def test_nan_is_no_answer_and_a_tie_is_one(threshold: float | None) -> None:
    said = open_prediction(torch.tensor([[math.nan, 0.0, 0.0], [1.0, 0.0, 1.0], [2.0, 0.0, 1.0]]))
    answers = label_or_unknown(said, threshold)
    assert answers[0] == -1
    assert answers[2] == 0
    assert answers[1] == (-1 if threshold == 0.5 else 0)


@pytest.mark.parametrize("kind", ["model", "method"])
def test_logits_that_are_not_finite_are_an_error(kind: str, method: Method, data: tuple[Tensor, Tensor]) -> None:
    broken = copy.deepcopy(method if kind == "method" else method.model)
    assert isinstance(broken, Method | UpgradedModel)
    next(broken.parameters()).data[0, 0] = math.nan
    with pytest.raises(EowError, match=r"logits are not finite for 256 of 256 inputs, first for row 0: look for NaN"):
        predict(broken, data[0])


def test_a_row_without_finite_logits_is_named_by_its_number() -> None:
    model = upgrade(nn.Linear(4, 2), unknown="linear")
    x = torch.zeros(300, 4)
    x[280] = 3e38
    with torch.no_grad():
        model.head.weight[:] = 4.0
    with pytest.raises(EowError, match="for 1 of 44 inputs, first for row 280"):
        predict(model, x)


@pytest.mark.parametrize("size", [30.0, 1000.0, -1000.0, 6e4])
def test_far_away_half_precision_is_as_unsure_as_single(model: UpgradedModel, size: float) -> None:
    """6e4 is nearly the largest number that float16 holds: there features and logits overflow."""
    x = torch.full((1, 4), size)
    single = predict(model, x)
    assert single.unknown > 0.99
    for dtype in (torch.float16, torch.bfloat16):
        low = predict(copy.deepcopy(model).to(dtype), x)
        assert torch.allclose(low.unknown, single.unknown, atol=0.01)
        assert low.label == -1
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            assert predict(model, x).label == -1


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_beyond_all_features_nothing_is_known(model: UpgradedModel, unit: float) -> None:
    """Whatever the features' size: the same network with larger features and a smaller head."""
    with torch.no_grad():
        for name, factor in (("encoder.0.weight", unit), ("encoder.0.bias", unit)):
            model.get_parameter(name).mul_(factor)
        model.head.weight.div_(unit)
        model.head.unit.div_(unit)  # type: ignore[operator]
    for size in (1e12, 1e18, 1e25, 1e30):
        said = predict(model, torch.full((1, 4), size))
        assert said.label == -1
        assert said.unknown == 1


def test_float16_s_autocast_computes_the_unknown_in_float32(model: UpgradedModel, data: tuple[Tensor, Tensor]) -> None:
    z = model.encoder(data[0])
    with torch.autocast("cpu", torch.float16):
        logits = model.tail(z)
        known = nn.functional.linear(z, model.head.weight[:-1], model.head.bias[:-1])
    assert torch.equal(logits[:, :-1], known.float())
    head = model.head
    by_hand = z @ head.weight[-1] + head.bias[-1] + (z * head.unit) ** 2 @ head.square  # type: ignore[operator]
    torch.testing.assert_close(logits[:, -1], by_hand)


@pytest.mark.parametrize("kind", ["model", "method"])
def test_inputs_without_rows_are_told_to_be_a_batch(kind: str, method: Method, data: tuple[Tensor, Tensor]) -> None:
    asked = method if kind == "method" else method.model
    assert isinstance(asked, Method | UpgradedModel)
    for wrong in (data[0][0], torch.randn(5, 7, 4), data[0][0].tolist(), data[0][:, :3]):
        with pytest.raises(EowError, match=r"x\[None\] for a single one"):
            predict(asked, wrong)


def test_lists_and_data_frames_are_arrays(model: UpgradedModel, data: tuple[Tensor, Tensor]) -> None:
    pandas = pytest.importorskip("pandas")
    expected = predict(model, data[0])
    rows = data[0].tolist()
    scalars = [list(map(np.float64, row)) for row in rows]
    for given in (rows, tuple(map(tuple, rows)), scalars, pandas.DataFrame(data[0].numpy())):
        assert torch.equal(predict(model, given).label, expected.label)
    with pytest.raises(EowError, match="the inputs cannot be made a tensor"):
        predict(model, pandas.DataFrame({"a": ["x", "y"]}))


def test_wrappers_answer_as_what_they_wrap(model: UpgradedModel, data: tuple[Tensor, Tensor]) -> None:
    expected = predict(model, data[0])
    for wrapped in (torch.compile(model), nn.DataParallel(model), torch.compile(nn.DataParallel(model))):
        assert torch.equal(predict(wrapped, data[0]).probs, expected.probs)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"threshold": "0.5"}, {"unknown_rate": "a"}, {"threshold": True}])
def test_policies_are_numbers(model: UpgradedModel, data: tuple[Tensor, Tensor], wrong: dict) -> None:
    with pytest.raises(EowError, match=f"{next(iter(wrong))} is .*: give a number"):
        predict(model, data[0], **wrong)


def test_threads_that_predict_with_one_model_do_not_disturb_one_another() -> None:
    """A model in training mode, as it is after upgrade and loading: each call puts it in evaluation and back. What the
    others do in between is forced here, not left to chance."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 2))
    model, x = upgrade(network).train(), torch.randn(64, 4)
    wanted, statistics = predict(model, x).probs, copy.deepcopy(dict(model.named_buffers()))
    inside, ended = threading.Event(), threading.Event()

    def waits(module: nn.Module, inputs: object) -> None:
        if threading.current_thread().name == "slow":
            inside.set()
            assert ended.wait(20)

    found: list[Tensor] = []
    handle = model.encoder.register_forward_pre_hook(waits)
    slow = threading.Thread(target=lambda: found.append(predict(model, x).probs), name="slow")
    slow.start()
    assert inside.wait(20)
    found.append(predict(model, x).probs)  # begins and ends while the other is inside
    ended.set()
    slow.join()
    handle.remove()
    assert all(torch.equal(each, wanted) for each in found)
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(torch.equal(each, statistics[name]) for name, each in model.named_buffers())
