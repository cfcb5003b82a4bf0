"""Deep ensembles: each member trains as it would alone, and the answer is the mean of theirs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from problems import blobs
from torch import Tensor, nn

from eow.config import TrainConfig, resolve
from eow.errors import EowError
from eow.methods import Method
from eow.methods.ensemble import Ensemble, fresh_copy, member_seeds
from eow.methods.vanilla import Vanilla
from eow.models import SplitModel, build
from eow.own.batches import LoaderBatches
from eow.runs import load, train
from eow.training.distributed import Place
from eow.training.loop import Training

CPU = torch.device("cpu")


def make_model(norm: str = "none") -> Callable[[int], SplitModel]:
    def model(seed: int) -> SplitModel:
        torch.manual_seed(seed % 1000)
        return build("mlp", 3, (4,), hidden=(16, 16), norm=norm)

    return model


def make(members: int = 3, norm: str = "none") -> Ensemble:
    return Ensemble.create(make_model(norm), Ensemble.Options(members), 3, (4,), seed=0)


def batch() -> tuple[Tensor, Tensor]:
    x, y = blobs(30)
    return torch.from_numpy(x), torch.from_numpy(y)


def test_loss_is_the_sum_of_the_members() -> None:
    method, (x, y) = make(), batch()
    by_hand = sum(-member(x).double().softmax(1)[range(30), y].log().mean() for member in method.members)
    torch.testing.assert_close(method(x, y)["ce"].double(), by_hand)


def test_prediction_is_the_mean_of_the_probabilities() -> None:
    method, (x, _) = make(), batch()
    said = method.predict(x)
    mean = sum(member(x).double().softmax(1) for member in method.members) / 3
    torch.testing.assert_close(said.probs.double(), mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(said.logits.double(), mean.log(), atol=1e-5, rtol=1e-5)
    assert torch.equal(said.label, mean.argmax(1))


def test_a_certain_member_leaves_logits_finite() -> None:
    """A softmax that underflows in all members must not become an infinite logit, which no file would take."""
    method, (x, _) = make(), batch()
    for member in method.members:
        member.head.bias.data[:] = torch.tensor([0.0, 500.0, 0.0])
    said = method.predict(x)
    assert torch.isfinite(said.logits).all()
    assert (said.probs[:, 1] == 1).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_members_train_exactly_as_they_would_alone(optimizer: str) -> None:
    """Bit by bit, with momentum, weight decay and batch norm, for every member."""
    x, y = batch()
    settings = TrainConfig(epochs=3, optimizer=optimizer, lr=0.05, weight_decay=1e-3, schedule="constant")  # type: ignore[arg-type]

    def trained(method: Method) -> Method:
        method.prepare(CPU)
        batches = LoaderBatches([(x[:15], y[:15]), (x[15:], y[15:])], 3, CPU)
        for _ in Training(method, batches, settings, Place(CPU), 0).epochs():
            pass
        return method

    ensemble = trained(make(norm="batch"))
    assert isinstance(ensemble, Ensemble)
    for seed, member in zip(member_seeds(0, 3), ensemble.members):
        alone = trained(Vanilla(make_model("batch")(seed), Vanilla.Options(), 3, (4,))).model.state_dict()
        assert all(torch.equal(alone[name], tensor) for name, tensor in member.state_dict().items())


def test_the_first_member_is_the_vanilla_run_of_the_same_seed(tmp_path: Path) -> None:
    runs = {}
    for name in ("vanilla", "ensemble"):
        wishes = {"method": {"name": name}, "train": {"epochs": 2}, "model": {"hidden": [16]}, "seed": 3}
        train(resolve(wishes), tmp_path / name, progress=False)
        runs[name] = load(tmp_path / name).method
    first, *others = (dict(member.state_dict()) for member in runs["ensemble"].members)
    assert all(torch.equal(first[name], tensor) for name, tensor in runs["vanilla"].model.state_dict().items())
    assert len(others) == 4
    heads = [member["tail.head.weight"] for member in (first, *others)]
    assert all(not torch.equal(a, b) for i, a in enumerate(heads) for b in heads[:i])


def test_one_given_model_is_copied_and_initialised_anew() -> None:
    """As `eow.fit` makes it: the first member keeps its weights, the others share neither weights nor memory."""
    model = make_model("batch")(0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    method = Ensemble(model, Ensemble.Options(3), 3, (4,), seed=7)
    assert torch.equal(torch.get_rng_state(), generator)
    assert method.model is model
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    weights = [member.head.weight for member in method.members]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert len({weight.data_ptr() for weight in weights}) == 3
    again = Ensemble(make_model("batch")(0), Ensemble.Options(3), 3, (4,), seed=7)
    assert torch.equal(again.members[2].head.weight, weights[2])


def test_a_layer_that_cannot_be_initialised_anew_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(4))

    with pytest.raises(EowError, match=r"encoder \(Scale\) has no reset_parameters"):
        fresh_copy(SplitModel(Scale(), nn.Linear(4, 3)), 0)


def test_members_change_the_answer() -> None:
    x, y = batch()
    assert len(make(2).members) == 2
    assert not torch.allclose(make(2).predict(x).probs, make(4).predict(x).probs, atol=1e-3)
    assert make(4)(x, y)["ce"] > make(2)(x, y)["ce"]


def test_digits(tmp_path: Path) -> None:
    config = resolve({"method": {"name": "ensemble", "members": 3}, "data": {"unknown_classes": [8, 9]}})
    assert train(config, tmp_path / "run", progress=False)["metrics"]["test"]["accuracy"] >= 0.95


@pytest.mark.parametrize("wrong", [1, 0, -3])
def test_too_few_members_are_refused(wrong: int) -> None:
    with pytest.raises(EowError, match=r"method\.members"):
        make(wrong)
