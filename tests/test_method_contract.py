"""What every method must keep, looped over METHODS: a new entry there is covered without a line here.

Each method is trained once on digits with tiny settings, the way a user would (`runs.train`); a hook keeps the last
batch that training gave it, so methods with batches of their own making (episodes) get their kind.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from eow.config import Table, resolve
from eow.data.sets import load_sets
from eow.methods import METHODS, Method, Prediction
from eow.predictions import predict_set, read
from eow.runs import load, train
from eow.sampling import langevin

TINY: Table = {
    "model": {"hidden": [16]},
    "train": {"epochs": 2, "batch": 128},
    "data": {"unknown_classes": [8, 9]},
}
# Its masks are drawn for sample after sample, so what it says about one depends a little on the batch it is in.
SAMPLED = ("mc_dropout",)


class Trained(NamedTuple):
    name: str
    folder: Path
    method: Method  # as loaded from the folder
    x: Tensor  # of the last training batch
    y: Tensor


@contextmanager
def batches_seen(seen: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    def note(module: nn.Module, given: tuple[Any, ...]) -> None:
        if isinstance(module, Method):
            seen[:] = [(given[0], given[1])]

    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def trained_into(folder: Path, name: str, *layers: Table) -> Trained:
    seen: list[tuple[Tensor, Tensor]] = []
    with batches_seen(seen):
        train(resolve(TINY, {"method": {"name": name}}, *layers), folder, progress=False)
    return Trained(name, folder, load(folder).method, *seen[0])


@pytest.fixture(scope="module", params=METHODS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained_into(tmp_path_factory.mktemp(request.param) / "run", request.param)


def ready(trained: Trained) -> Method:
    """The method in its last epoch, when every term of its loss is switched on, with fresh random numbers."""
    method = load(trained.folder).method
    method.prepare(torch.device("cpu"))
    method.stream.manual_seed(0)
    torch.manual_seed(0)
    method.begin_epoch(1, 2)
    return method.train()


def check(said: Prediction, count: int, classes: int, method: Method) -> None:
    assert said.probs.shape == (count, classes)
    assert said.label.shape == said.confidence.shape == said.unknown.shape == (count,)
    assert said.label.dtype == torch.int64
    assert said.probs.dtype == said.confidence.dtype == said.unknown.dtype == torch.float32
    for value in (said.probs, said.unknown, said.confidence):
        assert ((value >= 0) & (value <= 1 + 1e-6)).all()  # NaN is neither
    assert (said.probs.double().sum(1) + said.unknown - 1).abs().max() < 1e-6
    assert ((said.label >= 0) & (said.label < classes)).all()
    if said.logits is not None:
        assert said.logits.shape == (count, classes + method.extra_outputs)
        assert said.logits.dtype == torch.float32
        assert torch.isfinite(said.logits).all()
    assert not any(field.requires_grad for field in said if field is not None)


def stored(folder: Path) -> dict[str, np.ndarray]:
    found = vars(read(folder / "predictions" / "test.safetensors"))
    return {key: value for key, value in found.items() if isinstance(value, np.ndarray)}


def terms_in_log(folder: Path) -> list[dict[str, float]]:
    others = ("epoch", "lr", "seconds", "images_per_second")
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in others} for line in lines]


def test_predictions_have_the_contracts_shape_and_sum(trained: Trained) -> None:
    check(trained.method.predict(trained.x), len(trained.x), 8, trained.method)


def test_a_batch_of_one_is_answered(trained: Trained) -> None:
    said, whole = trained.method.predict(trained.x[:1]), trained.method.predict(trained.x)
    check(said, 1, 8, trained.method)
    if trained.name not in SAMPLED:
        torch.testing.assert_close(said.probs[0], whole.probs[0], atol=1e-4, rtol=1e-4)


def test_prediction_is_repeatable_and_leaves_modes_and_state_alone(trained: Trained) -> None:
    """Twice the same answer whatever the global generator holds; each submodule keeps its own mode."""
    method = load(trained.folder).method.train()
    list(method.modules())[-1].eval()
    modes = [module.training for module in method.modules()]
    state = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    torch.manual_seed(1)
    first = method.predict(trained.x)
    torch.manual_seed(2)
    second = method.predict(trained.x)
    assert all(torch.equal(a, b) for a, b in zip(first, second) if a is not None and b is not None)
    assert [module.training for module in method.modules()] == modes
    assert all(torch.equal(state[name], tensor) for name, tensor in method.state_dict().items())
    assert torch.equal(first.probs, trained.method.predict(trained.x).probs)  # which is in evaluation mode


def test_a_loaded_run_says_what_was_stored(trained: Trained) -> None:
    """Also what was fitted after training comes back from the weights file."""
    before = stored(trained.folder)
    (trained.folder / "predictions" / "test.safetensors").unlink()
    run = load(trained.folder)
    predict_set(run, "test", load_sets(run.config.data, run.config.seed).test)
    after = stored(trained.folder)
    assert before.keys() == after.keys() >= {"label", "confidence", "probs", "unknown", "labels"}
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_one_seed_makes_a_run(trained: Trained, tmp_path: Path) -> None:
    again = trained_into(tmp_path / "same" / "run", trained.name)
    other = trained_into(tmp_path / "other" / "run", trained.name, {"seed": 1})
    assert terms_in_log(again.folder) == terms_in_log(trained.folder) != terms_in_log(other.folder)
    state = trained.method.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in again.method.state_dict().items())
    assert np.array_equal(stored(again.folder)["probs"], stored(trained.folder)["probs"])
    assert not np.allclose(other.method.predict(trained.x).probs, trained.method.predict(trained.x).probs, atol=1e-3)


def test_every_loss_term_is_finite_and_trains_something(trained: Trained) -> None:
    method = ready(trained)
    parameters = [each for each in method.parameters() if each.requires_grad]
    terms = method(trained.x, trained.y)
    assert terms
    for name, term in terms.items():
        assert term.shape == (), name
        assert torch.isfinite(term), name
        gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
        given = [each for each in gradients if each is not None]
        assert all(torch.isfinite(each).all() for each in given), name
        assert any((each != 0).any() for each in given), name


def test_a_training_batch_of_one(trained: Trained) -> None:
    """The MLP has no batch norm, which could not do it. An episode has its own size."""
    method = ready(trained)
    if method.episode() is None:
        assert all(torch.isfinite(term) for term in method(trained.x[:1], trained.y[:1]).values())


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU: reading a number, or a result whose size depends on values."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        masked = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if masked or name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive"):
            raise AssertionError(f"{name} waits for the device")
        return function(*args, **(kwargs or {}))


class ChecksOfTheCPU(TorchFunctionMode):
    """Lets one_hot look at its labels, which it does on the CPU alone."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _disable_current_modes() if function is one_hot else nullcontext():
            return function(*args, **(kwargs or {}))


def test_the_loss_never_waits_for_the_device(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langevin, "free_to_look", lambda z: False)  # as on a GPU: no short cuts of the CPU
    method = ready(trained)
    with NoWaiting(), ChecksOfTheCPU():
        terms = method(trained.x, trained.y)
        torch.stack(list(terms.values())).sum().backward()


def test_bfloat16_on_the_cpu(trained: Trained) -> None:
    """Loss and prediction under autocast; probabilities stay float32 and near those without it."""
    method = ready(trained)
    plain = method.predict(trained.x)
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(trained.x, trained.y)
        said = method.predict(trained.x)
    torch.stack(list(terms.values())).sum().backward()
    assert all(torch.isfinite(term) and term.dtype == torch.float32 for term in terms.values())
    assert all(torch.isfinite(each.grad).all() for each in method.parameters() if each.grad is not None)
    check(said, len(trained.x), 8, method)
    assert (said.probs - plain.probs).abs().mean() < 0.02


@pytest.mark.parametrize("name", METHODS)
def test_two_classes_in_bfloat16(name: str, tmp_path: Path) -> None:
    two = {"data": {"unknown_classes": list(range(2, 10))}, "train": {"precision": "bf16", "batch": 64}}
    run = trained_into(tmp_path / "run", name, two)
    check(run.method.predict(run.x), len(run.x), 2, run.method)
    assert all(np.isfinite(list(terms.values())).all() for terms in terms_in_log(run.folder))


@pytest.mark.parametrize("name", METHODS)
def test_the_listing_has_something_to_say(name: str) -> None:
    kind = METHODS[name]
    assert kind.Options.name == name
    assert 0 < len(kind.summary) <= 100
    assert "\n" not in kind.summary
