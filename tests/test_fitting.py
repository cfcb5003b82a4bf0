"""From somebody's model to one that can say "unknown": `fit` on upgraded models, `OpenWorldLoss`, `predict`."""

import copy
import math

import numpy as np
import pytest
import torch
from networks import MLP, VGG, network
from problems import blobs, small_model
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from eow.config import resolve
from eow.errors import EowError
from eow.methods import fit_temperature_and_bias
from eow.metrics import auroc
from eow.models import SplitModel, frozen_statistics
from eow.models.surgery import UpgradedModel, upgrade
from eow.own.fit import fit
from eow.own.loss import OpenWorldLoss
from eow.own.predict import predict
from eow.sampling import run_chain
from eow.seeds import derive

# Chains through somebody else's layers may run under autograd, and say so.
pytestmark = pytest.mark.filterwarnings("ignore:this tail's gradient is not written out")


@pytest.fixture(scope="module")
def digits() -> dict[str, Tensor]:
    found = load_digits()
    x, y = torch.tensor(found.images / 16, dtype=torch.float32)[:, None], torch.tensor(found.target)
    known, train = y < 8, torch.arange(len(y)) % 3 > 0
    return {
        "x": x[known & train], "y": y[known & train], "test_x": x[known & ~train], "test_y": y[known & ~train],
        "unseen": x[~known],
    }  # fmt: skip


@pytest.fixture(scope="module")
def trained(digits: dict[str, Tensor]) -> nn.Module:
    """A small CNN, trained on 0-7 as everybody trains."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 8),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(10):
        for x, y in DataLoader(TensorDataset(digits["x"], digits["y"]), 64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


def loader(digits: dict[str, Tensor], batch: int = 64) -> DataLoader:
    return DataLoader(TensorDataset(digits["x"], digits["y"]), batch, shuffle=True)


def accuracy(model: nn.Module, digits: dict[str, Tensor]) -> float:
    with torch.no_grad():
        return float((model(digits["test_x"])[:, :8].argmax(1) == digits["test_y"]).float().mean())


@pytest.mark.parametrize("cut", ["penultimate", "4"])
def test_an_upgraded_model_learns_the_unknown_in_five_epochs(
    trained: nn.Module, digits: dict[str, Tensor], cut: str
) -> None:
    upgraded = upgrade(trained, cut)
    before = predict(upgraded, digits["test_x"])
    assert torch.equal(before.label, trained(digits["test_x"]).argmax(1))
    assert before.unknown.max() < 1e-6
    fit(upgraded, loader(digits), epochs=5)
    known, unseen = (predict(upgraded, digits[part], unknown_rate=0.1) for part in ("test_x", "unseen"))
    assert accuracy(upgraded, digits) >= accuracy(trained, digits) - 0.01
    assert known.unknown.mean() < 0.12
    assert unseen.unknown.mean() > max(0.3, 4 * float(known.unknown.mean()))
    assert auroc(-known.unknown, -unseen.unknown) > 0.9
    assert (known.label == -1).float().mean() < 0.08
    assert (unseen.label == -1).float().mean() > 0.3


def test_real_outliers_raise_the_unknown_where_they_are(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    """Eights and nines of one half as outliers, those of the other half as the test; chains alone beside it."""
    alone, helped = upgrade(trained), upgrade(trained)
    fit(alone, loader(digits), epochs=5)
    fit(helped, loader(digits), epochs=5, unknown=DataLoader(TensorDataset(digits["unseen"][::2]), 32, shuffle=True))
    unseen = [predict(model, digits["unseen"][1::2], unknown_rate=0.1).unknown.mean() for model in (alone, helped)]
    known = [predict(model, digits["test_x"], unknown_rate=0.1).unknown.mean() for model in (alone, helped)]
    assert unseen[1] > unseen[0] + 0.1
    assert known[1] < known[0] + 0.02
    assert accuracy(helped, digits) >= accuracy(trained, digits) - 0.01


def test_outliers_come_as_loaders_arrays_lists_frames_and_pairs() -> None:
    pandas = pytest.importorskip("pandas")
    x, y = blobs()
    outliers = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    labels = np.zeros(40, dtype=np.int64)
    results = []
    rows, frame = outliers.tolist(), pandas.DataFrame(outliers)
    for unknown in (outliers, torch.from_numpy(outliers), (outliers, labels), rows, (rows, labels.tolist()), frame,
                    (frame, pandas.Series(labels))):  # fmt: skip
        results.append(fit(small_model(), (x, y), epochs=1, unknown=unknown, start_epoch=0))
    states = [method.model.state_dict() for method in results]
    assert all(torch.equal(states[0][key], other[key]) for other in states[1:] for key in states[0])
    plain = fit(small_model(), (x, y), epochs=1, start_epoch=0).model.state_dict()
    assert not all(torch.equal(states[0][key], plain[key]) for key in plain)
    for unknown in (
        [torch.from_numpy(outliers)],
        outliers[:2].tolist(),
        [(outliers[:20], labels[:20]), (outliers[20:], labels[20:])],
    ):
        assert fit(small_model(), (x, y), epochs=1, unknown=unknown, start_epoch=0).active


@pytest.mark.parametrize(
    ("unknown", "sentence"),
    [
        (np.zeros((9, 5), np.float32), r"an unknown has the shape \(5,\), an input \(4,\)"),
        (np.zeros((0, 4), np.float32), "no unknowns"),
        (np.full((9, 4), np.nan, np.float32), "NaN"),
        (np.zeros((9, 4), np.int64), "floating-point"),
        (np.zeros((2, 5)).tolist(), r"an unknown has the shape \(5,\), an input \(4,\)"),
        ([[0.5] * 4, [0.5] * 3], "the inputs cannot be made a tensor"),
        ([], "loader of unknowns has no length or no batches"),
        ([{"pixels": torch.zeros(2, 4)}], "loader of unknowns yields a dict"),
        ([torch.zeros(4, 4), torch.zeros(4, 5)], r"an unknown has the shape \(5,\), an input \(4,\)"),
    ],
)
def test_outliers_are_checked(unknown: object, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        fit(small_model(), blobs(), epochs=1, unknown=unknown)


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(4), 0


def test_a_dataset_is_as_good_as_its_loader() -> None:
    """The same batches in the same order, so the same weights; what has no samples or no length is said."""
    x, y = map(torch.from_numpy, blobs(300))
    pairs, strange = TensorDataset(x, y), TensorDataset(10 + torch.randn(40, 4))
    models = [small_model(extra=1) for _ in range(3)]
    fit(models[0], pairs, epochs=2, batch=50)
    fit(models[1], (x, y), epochs=2, batch=50)
    fit(models[2], pairs, epochs=1, unknown=strange)
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.equal(one, other)
    from eow.data import load

    for data in (Endless(), TensorDataset(x[:0], y[:0])):
        with pytest.raises(EowError, match="Dataset without samples or without a length: pass a list of its batches"):
            fit(small_model(extra=1), data)
    with pytest.raises(EowError, match=r"the unknown is a Dataset without"):
        fit(small_model(extra=1), pairs, unknown=Endless())
    for call in (fit, predict):
        with pytest.raises(EowError, match=r"a data set of eow's.*for example data\.inputs / 255 and data\.labels"):
            call(small_model(extra=1), load("digits"))


def test_only_eow_takes_unknowns() -> None:
    with pytest.raises(EowError, match="vanilla cannot learn from unknowns"):
        fit(small_model(extra=0), blobs(), method="vanilla", unknown=np.zeros((9, 4), np.float32))
    with pytest.raises(EowError, match="vanilla has no use for the unknown logit"):
        fit(upgrade(nn.Linear(4, 3)), blobs(), method="vanilla")


class Rows(Dataset):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"pixel_values": torch.zeros(4), "labels": index % 3}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            lambda x, y: DataLoader(Rows(), 10),
            r"\[\(batch\['pixel_values'\], batch\['labels'\]\) for batch in loader\]",
        ),
        (lambda x, y: [(x, y, y)], "yields a tuple of 3: make it yield pairs"),
        (lambda x, y: [x], "yields a Tensor"),
        (lambda x, y: [(x, [str(each) for each in y.tolist()])], r"number the classes from 0, .*return_inverse=True"),
        (lambda x, y: [(x, y.float())], r"one whole number a sample, for example y\.long\(\)"),
        (lambda x, y: [(x, nn.functional.one_hot(y))], r"for example y\.argmax\(1\)"),
        (lambda x, y: [(x, y + 1)], "labels run from 1 to 3, but the model has the classes 0 to 2"),
        (lambda x, y: [(x, y - 1)], "labels run from -1 to 1"),
        (lambda x, y: [(x, torch.zeros_like(y))], "all labels are 0: nothing can be learned of one class"),
        (lambda x, y: (x[y == 2], y[y == 2]), "all labels are 2"),
        (lambda x, y: [(x, y), (x.index_fill(0, torch.tensor(3), torch.nan), y)], r"NaN .*torch\.nan_to_num"),
        (lambda x, y: [(x, y), (x, 9 * y)], "labels run from 0 to 18"),
        (lambda x, y: [], "no batches"),
    ],
)
def test_data_that_nothing_can_be_learned_from_is_told_why(data, sentence: str) -> None:
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    x, y = map(torch.from_numpy, blobs())
    with pytest.raises(EowError, match=sentence):
        fit(model, data(x, y), epochs=1)


def test_one_class_a_batch_is_enough_if_the_next_has_another() -> None:
    x, y = map(torch.from_numpy, blobs())
    fit(small_model(), [(x[y == k], y[y == k]) for k in range(3)], epochs=1)


def test_double_models_are_fitted_and_half_ones_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    method = fit(upgrade(model.double()), blobs(), epochs=1)
    assert predict(method, blobs()[0]).probs.shape == (300, 3)
    with pytest.raises(EowError, match=r"torch.bfloat16.*call model\.float\(\) first"):
        fit(upgrade(model.bfloat16()), blobs(), epochs=1)
    with pytest.raises(EowError, match=r"call model\.float\(\) first"):
        OpenWorldLoss(upgrade(model.half()))


def test_tokens_are_fitted_and_predicted() -> None:
    """Three classes by the first token; a model that begins with an embedding takes whole numbers."""
    torch.manual_seed(0)
    tokens = torch.randint(9, (300, 5))
    labels = tokens[:, 0] % 3
    model = upgrade(nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 3)),
                    example=tokens)  # fmt: skip
    method = fit(model, (tokens, labels), epochs=15, lr=0.02, batch=30)
    said = predict(method, tokens)
    assert (said.probs.argmax(1) == labels).float().mean() > 0.95


def test_fit_is_reproducible_and_remembers_its_odds(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    results = []
    for start in (1, 2):
        torch.manual_seed(start)
        upgraded = upgrade(trained)
        fit(upgraded, loader(digits), epochs=1, lam=0.2, seed=3)
        results.append(upgraded.state_dict())
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])
    assert float(results[0]["odds"]) == pytest.approx(0.2)


def test_a_second_fit_begins_at_its_own_odds(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    """One step at a rate of almost nothing: the unknown's bias moves by the quotient of the odds alone."""
    model, x, y = upgrade(trained), digits["x"][:64], digits["y"][:64]
    method = fit(model, (x, y), epochs=1, lam=0.2, unknown_rate=0.01)
    assert float(model.odds) == pytest.approx(0.01 / 0.99) == method.options.odds
    before = model.head.bias[-1].item()
    fit(model, (x, y), epochs=1, lam=0.5, lr=1e-9)
    assert model.head.bias[-1].item() - before == pytest.approx(math.log(0.5 / (0.01 / 0.99)), abs=1e-5)
    assert float(model.odds) == 0.5


def test_the_method_of_an_earlier_fit_says_what_the_model_says_now(
    trained: nn.Module, digits: dict[str, Tensor]
) -> None:
    model, x, y = upgrade(trained), digits["x"][:64], digits["y"][:64]
    first = fit(model, (x, y), epochs=1, unknown_rate=0.5)
    fit(model, (x, y), epochs=1, lam=0.01)
    torch.testing.assert_close(predict(first, x, 0.2).unknown, predict(model, x, 0.2).unknown)


def test_a_head_without_bias_can_be_fitted_but_not_shifted() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(40))
    model = SplitModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 4, bias=False))
    assert torch.isfinite(fit(model, (x, y), epochs=2).predict(x).unknown).all()
    with pytest.raises(EowError, match=r"set method\.onset=as_is"):
        fit(model, (x, y), epochs=1, onset="settled")
    with pytest.raises(EowError, match="another fit would change it again"):
        fit(model, (x, y), epochs=1, unknown_rate=0.1)


def balanced(model: UpgradedModel, loss: OpenWorldLoss, x: Tensor, y: Tensor) -> tuple[float, float]:
    """mean h[K+1] on the data and λ mean (1 - h[K+1]) on negatives: equal where the unknown's bias has no gradient."""
    method = loss.method(x, y)
    with torch.no_grad():
        negatives = method.draw_negatives(model.encoder(x), y)
        data, drawn = (tail.softmax(1)[:, -1] for tail in (model(x), model.tail(negatives)))
    return float(data.mean()), loss.options.lam * float((1 - drawn).mean())


def test_the_first_batch_raises_the_unknown_to_its_balance(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    """By statistics of other chains than those the bias was set by, hence the tolerance; the K logits stay."""
    x, y = digits["x"], digits["y"]
    model = upgrade(trained)
    loss = OpenWorldLoss(model, chains=400)
    assert float(model.odds) == 0
    data, negatives = balanced(model, loss, x, y)
    assert data == pytest.approx(negatives, rel=0.15)
    assert 0.1 * loss.options.lam < data < 1.01 * loss.options.lam
    assert torch.equal(model(x)[:, :-1], trained(x))
    bias = model.head.bias.detach().clone()
    OpenWorldLoss(model)(x, y)  # raised once, not again
    assert torch.equal(model.head.bias, bias)


@pytest.mark.parametrize("energy", ["paper", "proof", "complement"])
def test_training_begins_where_the_unknowns_bias_has_no_gradient(
    energy: str, trained: nn.Module, digits: dict[str, Tensor]
) -> None:
    """By autograd, on the negatives that the bias was set by. With the complement there is no such place: its gradient
    is positive wherever the bias lies."""
    x, y = digits["x"], digits["y"]
    model = upgrade(trained)
    loss = OpenWorldLoss(model, energy=energy, steps=0)
    method = loss.method(x, y)
    gradients = []
    for shift in (0.0, -5.0, 5.0):
        method.stream.manual_seed(derive("loss", 0, 0))
        model.zero_grad()
        with torch.no_grad():
            model.head.bias[-1] += shift
        with frozen_statistics(model):
            loss(x, y).backward()
        with torch.no_grad():
            model.head.bias[-1] -= shift
        gradients.append(float(model.head.bias.grad[-1]))
    at, below, above = gradients
    if energy == "complement":
        assert min(gradients) > 0
    else:
        assert below < -1e-4 < -1e-6 < at < 1e-6 < 1e-4 < above


def test_the_loss_is_eq_4_by_hand() -> None:
    """With the same chains, run here by the reference, and with outliers at half the weight each."""
    torch.manual_seed(0)
    x, y = (torch.from_numpy(each)[:60] for each in blobs())
    outliers = torch.randn(20, 4)
    model = small_model()
    loss = OpenWorldLoss(model, lam=0.3, steps=4, chains=10, start="features", noise=0.0, trust=0.0, seed=5)
    found = loss(x, y)
    other = OpenWorldLoss(model, lam=0.3, steps=4, chains=10, start="features", noise=0.0, trust=0.0, seed=5)
    with_outliers = other(x, y, unknown=outliers)
    method = OpenWorldLoss(model, chains=10, start="features", seed=5).method(x, y)
    starts = method.starts.draw(model.encoder(x).detach(), y, method.stream)
    ends = run_chain(model.tail, starts, "paper", steps=4, noise=0.0).z
    with torch.no_grad():
        ce = nn.functional.cross_entropy(model(x), y)
        chains = -model.tail(ends).log_softmax(1)[:, -1].mean()
        real = -model(outliers).log_softmax(1)[:, -1].mean()
    assert found.item() == pytest.approx(float(ce + 0.3 * chains), rel=1e-5)
    assert with_outliers.item() == pytest.approx(float(ce + 0.15 * chains + 0.15 * real), rel=1e-5)
    assert {name: pytest.approx(float(term), rel=1e-5) for name, term in other.last.items()} == {
        "ce": float(ce), "energy": float(0.15 * chains), "outliers": float(0.15 * real),
    }  # fmt: skip
    assert not any(term.requires_grad for term in loss.last.values())


def test_a_loop_of_ones_own_learns_what_fit_learns(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    """With autocast, accumulated gradients and outliers."""
    model = upgrade(trained).train()
    loss = OpenWorldLoss(model, lam=0.1)
    assert {id(each) for each in loss.parameters()} == {id(each) for each in model.parameters()}
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    noise = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    for _ in range(5):
        for step, (x, y) in enumerate(loader(digits, 32)):
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(x, y, unknown=noise[: len(x)])
            (value / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
    known, unseen = (predict(model, digits[part]).unknown for part in ("test_x", "unseen"))
    assert accuracy(model, digits) >= accuracy(trained, digits) - 0.01
    assert unseen.mean() > 4 * known.mean()
    assert auroc(-known, -unseen) > 0.9
    assert model.training


def test_outliers_leave_batch_statistics_alone(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    statistics = []
    for unknown in (None, 100 * torch.ones(32, 1, 8, 8)):
        model = upgrade(trained).train()
        torch.manual_seed(0)
        OpenWorldLoss(model)(digits["x"][:64], digits["y"][:64], unknown)
        statistics.append(model.encoder.get_submodule("1").running_mean)
    assert torch.equal(*statistics)  # type: ignore[arg-type]
    assert not torch.equal(statistics[0], trained[1].running_mean)  # type: ignore[index, arg-type]


def test_outliers_train_the_encoder_too() -> None:
    x, y = (torch.from_numpy(each)[:30] for each in blobs())
    model = small_model()
    gradients = []
    for unknown in (torch.randn(5, 4), torch.randn(5, 4)):
        model.zero_grad()
        OpenWorldLoss(model, noise=0.0)(x, y, unknown).backward()
        gradients.append(next(model.encoder.parameters()).grad.clone())  # type: ignore[union-attr]
    assert not torch.allclose(*gradients)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda loss, x, y: loss({"pixel_values": x}, y), r"got a dict .*loss\(batch\['pixel_values'\]"),
        (lambda loss, x, y: loss(x, y.float()), "one whole number a sample"),
        (lambda loss, x, y: loss(x, y + 1), "labels run from 1 to 3"),
        (lambda loss, x, y: loss(x, y[:-1]), "inputs and 299 labels"),
        (lambda loss, x, y: loss(x * torch.nan, y), "NaN"),
        (lambda loss, x, y: loss(x, y, unknown=x[:, :2]), r"unknown has the shape \(300, 2\)"),
        (lambda loss, x, y: loss(x, y, unknown=x[:0]), "pass a batch of outliers"),
        (lambda loss, x, y: loss(x, y, unknown=x * torch.inf), "infinite"),
    ],
)
def test_the_loss_checks_what_it_is_given(call, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        call(OpenWorldLoss(small_model()), *map(torch.from_numpy, blobs()))


def test_the_loss_takes_inputs_in_any_precision() -> None:
    x, y = (torch.from_numpy(each) for each in blobs())
    losses = [OpenWorldLoss(small_model(), seed=1)(x.to(kind), y) for kind in (torch.float32, torch.float64)]
    torch.testing.assert_close(*losses)


def test_calibrate_wants_held_out_data_and_held_out_data_wants_to_be_used() -> None:
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(EowError, match=r"calibrate='holdout' is fitted on held-out data: pass some as holdout"):
        fit(model, blobs(), epochs=1, calibrate="holdout")
    for options in ({"calibrate": "none"}, {"method": "vanilla"}):
        with pytest.raises(EowError, match="nothing of this is fitted on held-out data"):
            fit(small_model(), blobs(), epochs=1, holdout=blobs(), **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    fit(model, blobs(), epochs=1, calibrate="none")


def test_the_temperature_of_held_out_data_is_in_the_head(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    """The same training with and without: logits divided by the T that the likelihood of the held-out digits asks for
    (with its prior), the unknown shifted so that its mean there is what it was, or the rate that was stated."""
    held = digits["test_x"], digits["test_y"]
    alone, helped, stated, usual = (upgrade(trained) for _ in range(4))
    fit(alone, loader(digits), epochs=3)
    fit(helped, loader(digits), epochs=3, holdout=held, unknown_rate="trained")
    fit(usual, loader(digits), epochs=3, holdout=held)
    fit(stated, loader(digits), epochs=3, holdout=DataLoader(TensorDataset(*held), 50), unknown_rate=0.05)
    with torch.no_grad():
        before, after, at_rate, recipe = (each(held[0]) for each in (alone, helped, stated, usual))
    temperature, bias = fit_temperature_and_bias(before, held[1], width=0.5)
    wanted = before / temperature
    torch.testing.assert_close(after[:, :-1], wanted[:, :-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after[:, -1], wanted[:, -1] + bias, rtol=1e-4, atol=1e-4)
    assert after.softmax(1)[:, -1].mean() == pytest.approx(float(before.softmax(1)[:, -1].mean()), rel=1e-3)
    assert at_rate.softmax(1)[:, -1].mean() == pytest.approx(0.05, rel=1e-3)
    assert recipe.softmax(1)[:, -1].mean() == pytest.approx(0.002, rel=1e-3)
    assert float(helped.odds) == pytest.approx(0.01)
    assert float(stated.odds) == pytest.approx(0.05 / 0.95)


def test_what_is_wrong_with_held_out_data_is_said_before_training() -> None:
    x, y = blobs(60)
    for held, sentence in (
        ((x, y + 3), "^holdout: .*label"),
        ((np.full_like(x, np.nan), y), "^holdout: the inputs hold NaN"),
        ((x[:, :3], y), r"a sample of holdout has \(3,\), one of data \(4,\): prepare both alike"),
        ((x[:0], y[:0]), "^holdout: there are 0 inputs"),
        ([], "^holdout: "),
        ({"x": x}, "^holdout: "),
    ):
        model = small_model()
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(EowError, match=sentence):
            fit(model, (x, y), epochs=1, holdout=held)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_network_from_scratch_has_the_energy_term_of_the_recipe() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(40))
    modern = resolve({"method": {"name": "eow"}}).method
    options = fit(small_model(), (x, y), epochs=1).options
    assert all(getattr(options, name) == getattr(modern, name) for name in ("lam", "start_epoch", "onset"))
    assert fit(small_model(), (x, y), epochs=1, energy="complement").options.onset == "as_is"


def test_a_frozen_head_stays_as_it_is() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(300))
    model = small_model()
    fit(model, (x, y), epochs=3)
    before = copy.deepcopy(model.head.requires_grad_(False).state_dict())
    fit(model, (x, y), epochs=6, lr=0.01)
    assert all(torch.equal(value, before[name]) for name, value in model.head.state_dict().items())
    with pytest.raises(EowError, match=r"settled changes the head, and this one is frozen: set method\.onset=as_is"):
        fit(model, (x, y), epochs=6, onset="settled")


def test_an_upgraded_model_s_frozen_head_is_refused_until_it_has_learnt() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    model.head.requires_grad_(False)
    before = copy.deepcopy(model.head.state_dict())
    for call in (lambda: fit(model, (x, y), epochs=1), lambda: OpenWorldLoss(model)(x, y)):
        with pytest.raises(EowError, match=r"the head's bias is frozen.*model\.head\.requires_grad_\(True\)"):
            call()
    assert all(torch.equal(value, before[name]) for name, value in model.head.state_dict().items())
    model.head.requires_grad_(True)
    fit(model, (x, y), epochs=1)
    before = copy.deepcopy(model.head.requires_grad_(False).state_dict())
    fit(model, (x, y), epochs=1)
    OpenWorldLoss(model)(x, y).backward()
    assert all(torch.equal(value, before[name]) for name, value in model.head.state_dict().items())
    with pytest.raises(EowError, match="the head's bias is frozen"):
        fit(model, (x, y), epochs=1, lam=0.1)


def test_an_average_of_weights_is_asked_as_it_is() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(2):
        fit(model, (x, y), epochs=1)
        averaged.update_parameters(model)
    said, inside = (predict(each, x, unknown_rate=0.1) for each in (averaged, averaged.module))
    assert all(map(torch.equal, said, inside))
    assert not torch.equal(said.unknown, predict(model, x, unknown_rate=0.1).unknown)
    with pytest.raises(EowError, match="wrapped in AveragedModel"):
        OpenWorldLoss(averaged)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("onset", ["as_is", "settled"])
def test_a_compiled_loss_is_the_same_loss(wrapped: bool, onset: str) -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    model, found = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), []
    for compiled in (False, True):
        loss = OpenWorldLoss(upgrade(model), onset=onset)
        optimizer = torch.optim.SGD(loss.parameters(), 0.1)
        called = torch.compile(loss, backend="aot_eager") if compiled and wrapped else loss
        if compiled and not wrapped:
            loss.compile(backend="aot_eager")
        for _ in range(3):
            optimizer.zero_grad()
            value = called(x, y, unknown=x[:9] + 9)
            value.backward()
            optimizer.step()
            found.append(value.item())
    assert found[3:] == pytest.approx(found[:3], rel=1e-5)
    assert found[2] != found[0]


def test_controls_of_an_upgraded_model_have_its_schedule(trained: nn.Module, digits: dict[str, Tensor]) -> None:
    for method in ("eow", "feature_negatives", "vos"):
        assert fit(upgrade(trained), loader(digits), method=method, epochs=1).options.start_epoch == 0


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(input=torch.relu(self.body(x)))


def test_a_head_may_be_called_by_keyword() -> None:
    model = upgrade(ByKeyword())
    fit(model, blobs(60), epochs=1)
    assert model.head.square.abs().max() > 0


def test_features_beyond_all_numbers_are_a_sentence() -> None:
    x, y = blobs(60)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        plain[0].weight.mul_(1e25)
    with pytest.raises(EowError, match=r"the model's logits reach .*e\+.*normalise them"):
        upgrade(plain)
    with torch.no_grad():
        plain[0].weight.div_(1e25)
    with pytest.raises(EowError, match=r"the features that the last layer reads have a mean squared norm of .*e\+"):
        fit(upgrade(plain), (np.float32(1e25) * x, y), epochs=1)


def test_half_precision_says_what_single_says() -> None:
    """Features in the hundreds, whose squares half precision does not hold."""
    x, y = blobs(300)
    plain = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    with torch.no_grad():
        plain[0].weight.mul_(300)
        plain[2].weight.div_(300)
    model = upgrade(plain)
    fit(model, (x, y), epochs=5)
    inputs = 2 * torch.from_numpy(x)
    assert model.encoder(inputs).max() > 300
    single, half = predict(model, inputs), predict(copy.deepcopy(model).half(), inputs)
    torch.testing.assert_close(half.unknown.float(), single.unknown.float(), atol=0.01, rtol=0.05)


def test_features_of_any_size_are_trained_alike() -> None:
    """Ten times the features with a tenth of the head is the same network, and learns the same unknown."""
    x, y = (torch.from_numpy(each) for each in blobs(300))
    plain = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    large = copy.deepcopy(plain)
    with torch.no_grad():
        for name, factor in (("0.weight", 10.0), ("0.bias", 10.0), ("2.weight", 0.1)):
            large.get_parameter(name).mul_(factor)
    upgraded = [upgrade(each) for each in (plain, large)]
    for model in upgraded:
        for part in (model.encoder, model.tail):
            part.requires_grad_(False)
        for each in (model.head.square, model.head.bias):  # the part that measures the features, and the level
            each.requires_grad_(True)
        fit(model, (x, y), epochs=5, steps=0)
    small, wide = (model.head for model in upgraded)
    assert small.square.abs().max() > 1e-3
    torch.testing.assert_close(wide.square, small.square, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(wide.unit * 10, small.unit, rtol=1e-4, atol=0)
    assert float((upgraded[0].encoder(x) * small.unit).square().sum(1).mean()) == pytest.approx(300, rel=0.2)


def test_the_loss_checks_its_settings() -> None:
    sentence = r"leave unknown_rate, calibrate and fence out, and give the rate to eow\.predict"
    for late in ({"unknown_rate": 0.1}, {"calibrate": "holdout"}, {"fence": 4}):
        with pytest.raises(EowError, match=sentence):
            OpenWorldLoss(small_model(), **late)
    with pytest.raises(EowError, match=r"loss\.lamda: did you mean loss\.lam"):
        OpenWorldLoss(small_model(), lamda=1.0)
    with pytest.raises(EowError, match="knows no epochs"):
        OpenWorldLoss(small_model(), start_epoch=3)
    with pytest.raises(EowError, match=r"the model is a MLP: .*eow\.upgrade\(model\)"):
        OpenWorldLoss(MLP())  # type: ignore[arg-type]


def tail_of_logits(rows: list[list[float]]) -> SplitModel:
    """A model of K = 2 that says the logits of row i for input i."""
    model = SplitModel(nn.Identity(), nn.Linear(len(rows), 3, bias=False))
    model.head.weight.data = torch.tensor(rows).T
    return model.double()


def test_predict_by_hand() -> None:
    p = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.45, 0.1, 0.45], [0.1, 0.55, 0.35]])
    model = tail_of_logits(np.log(p).tolist())
    x = torch.eye(4, dtype=torch.float64)
    said = predict(model, x)
    assert said.label.tolist() == [0, -1, 0, 1]  # unknown alone must win: a tie is an answer
    assert np.allclose(said.confidence, [0.7, 0.3, 0.45, 0.55])
    assert np.allclose(said.unknown, p[:, 2])
    assert np.allclose(said.probs, p[:, :2])
    assert predict(model, x, threshold=0.5).label.tolist() == [0, -1, -1, 1]
    assert predict(model, x, threshold=0.0).label.tolist() == [0, 0, 0, 1]
    assert predict(model, x, threshold=1.0).label.tolist() == [-1] * 4


def test_an_unknown_rate_replaces_the_odds_of_training() -> None:
    """Odds of unknown against a class change by ρ / (1 - ρ) / λ."""
    model = upgrade(nn.Linear(4, 3).double())
    x = torch.randn(6, 4, dtype=torch.float64)
    with pytest.raises(EowError, match=r"does not know: eow\.fit it first"):
        predict(model, x, unknown_rate=0.1)
    model.odds.fill_(0.2)
    with torch.no_grad():
        model.head.bias[-1] += 15
    before, after = predict(model, x), predict(model, x, unknown_rate=0.3)
    odds = [said.unknown / said.probs[:, 0] for said in (before, after)]
    assert torch.allclose(odds[1] / odds[0], torch.tensor(0.3 / 0.7 / 0.2), rtol=1e-5)
    never = predict(model, x, unknown_rate=0)
    assert never.unknown.max() == 0
    assert torch.allclose(never.probs.sum(1), torch.ones(6))
    assert (never.label >= 0).all()


def test_methods_models_arrays_and_loaders_get_the_same_answers() -> None:
    x, y = blobs(700)
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)))
    method = fit(model, (x, y), epochs=2)
    model.train()
    expected = predict(method, torch.from_numpy(x), unknown_rate=0.2, threshold=0.6)
    assert torch.allclose(expected.probs.sum(1) + expected.unknown, torch.ones(700))
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    statistics = copy.deepcopy(model.state_dict())
    for asked in (model, method):
        loaders = (DataLoader(tensors, 90), tensors, [x[:600], x[600:]])
        for data in (x, x.astype(np.float64), torch.from_numpy(x), *loaders):
            said = predict(asked, data, unknown_rate=0.2, threshold=0.6)
            assert torch.equal(said.label, expected.label)
            assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(said[1:], expected[1:]))
            assert not said.probs.requires_grad
    assert model.training
    assert all(torch.equal(statistics[key], tensor) for key, tensor in model.state_dict().items())


def test_a_closed_method_answers_and_abstains_by_threshold_alone() -> None:
    x, y = blobs()
    method = fit(small_model(extra=0), (x, y), method="vanilla", epochs=3, lr=0.01)
    said = predict(method, x)
    assert said.unknown.max() == 0
    assert (said.label >= 0).all()
    abstains = predict(method, x, threshold=0.9).label == -1
    assert torch.equal(abstains, said.confidence.double() < 0.9)
    with pytest.raises(EowError, match="vanilla has no unknown logit"):
        predict(method, x, unknown_rate=0.1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model, x: predict(MLP(), x), "the model is a MLP"),
        (lambda model, x: predict(model, x, threshold=1.5), "threshold of 1.5"),
        (lambda model, x: predict(model, x, threshold=math.nan), "threshold is nan"),
        (lambda model, x: predict(model, x, unknown_rate=1.0), "unknown rate of 1.0"),
        (lambda model, x: predict(model, x * torch.nan), "NaN"),
        (lambda model, x: predict(model, x[:0]), "nothing to predict"),
        (lambda model, x: predict(model, []), "nothing to predict"),
        (lambda model, x: predict(model, x[:, :3]), r"cannot take inputs of shape \(300, 3\)|\(256, 3\)"),
        (lambda model, x: predict(model, [{"x": x}]), "yields a dict"),
        (lambda model, x: predict(model, x.long()), "floating-point"),
    ],
)
def test_predict_checks_what_it_is_given(call, sentence: str) -> None:
    model = upgrade(nn.Linear(4, 3))
    model.odds.fill_(0.1)
    with pytest.raises(EowError, match=sentence):
        call(model, torch.from_numpy(blobs()[0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "cut"), [("resnet", "layer3"), ("lenet", "view"), ("vit", "blocks"), ("vgg", None)])
def test_fit_on_a_gpu(name: str, cut: str | None) -> None:
    """Channels last, so that a plain `view` would fail; odd last batches; outliers."""
    model, shape = network(name)
    model = upgrade(model, cut)
    x, y = torch.randn(70, *shape), torch.arange(70) % 3
    method = fit(model, [(x[:32], y[:32]), (x[32:64], y[32:64]), (x[64:], y[64:])], epochs=3, device="cuda",
                 unknown=torch.randn(40, *shape))  # fmt: skip
    assert next(model.parameters()).is_cuda
    said = predict(method, x)
    assert said.probs.device.type == "cpu"
    assert torch.allclose(said.probs.sum(1) + said.unknown, torch.ones(70), atol=1e-3)
    loss = OpenWorldLoss(model)
    with torch.autocast("cuda", torch.bfloat16):
        value = loss(x.cuda(), y.cuda(), unknown=x.cuda())
    value.backward()
    assert all(bool(each.grad.isfinite().all()) for each in model.parameters() if each.grad is not None)


def test_a_vgg_without_batch_norm_can_be_fitted_where_its_features_end() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, 32, 32), torch.arange(40) % 3
    fit(upgrade(VGG(), "features"), (x, y), epochs=1, batch=20)


class Masked(nn.Module):
    """A text model that leaves padding, 0, out: of padding alone it can make nothing."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.embedding = kind, nn.Embedding(9, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.body: nn.Module = nn.TransformerEncoder(layer, 1) if kind == "transformer" else nn.GRU(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        seen = x != 0
        if self.kind == "transformer":
            return self.body(self.embedding(x), src_key_padding_mask=~seen)[:, 0]
        words = nn.utils.rnn.pack_padded_sequence(self.embedding(x), seen.sum(1), True, enforce_sorted=False)
        return self.body(words)[1][0]


def texts(count: int = 120, length: int = 6) -> tuple[Tensor, Tensor]:
    """Padded texts and three classes by the first word."""
    generator = torch.Generator().manual_seed(length)
    words = torch.randint(1, 9, (count, length), generator=generator)
    words[:, length // 2 :] *= torch.randint(2, (count, 1), generator=generator)
    return words, words[:, 0] % 3


@pytest.mark.filterwarnings("ignore:.*nested tensor")
@pytest.mark.parametrize("kind", ["transformer", "gru"])
def test_models_that_mask_padding_are_probed_with_real_texts(kind: str) -> None:
    x, y = texts()
    model = upgrade((Masked(kind), nn.Linear(8, 3)), example=x)
    assert predict(fit(model, (x, y), epochs=1), x).probs.shape == (120, 3)
    assert OpenWorldLoss(upgrade((Masked(kind), nn.Linear(8, 3)), example=x))(x, y).isfinite()
    assert model.feature_shape((6,)) == (8,)
    assert not any(isinstance(value, Tensor) for value in vars(model).values())  # nobody's text is kept


def test_texts_held_out_may_have_other_lengths() -> None:
    batches = [texts(40, length) for length in (6, 4, 5)]
    model = upgrade((Masked("gru"), nn.Linear(8, 3)), example=batches[0][0])
    fit(model, batches, epochs=1, holdout=batches)
    with pytest.raises(EowError, match=r"a sample of holdout has \(6, 1\), one of data \(6,\)"):
        fit(model, batches, epochs=1, holdout=[(x[..., None], y) for x, y in batches[:1]])


def test_images_held_out_may_have_other_sizes_where_the_encoder_pools() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    batches = [(torch.randn(40, 1, side, side), torch.arange(40) % 2) for side in (8, 9)]
    fit(upgrade(network, example=batches[0][0]), batches, epochs=1, holdout=batches)
    with pytest.raises(EowError, match=r"holdout has \(1, 9, 9\), one of data \(1, 8, 8\)"):
        fit(upgrade(network, "0", example=batches[0][0]), batches[:1], epochs=1, holdout=batches[1:])


def test_frozen_norms_keep_their_statistics() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(300))
    bodies = [[nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU()] for width in (4, 8)]
    network = nn.Sequential(*bodies[0], *bodies[1], nn.Linear(8, 3))
    network[:3].requires_grad_(False)
    model = upgrade(network)
    before = copy.deepcopy(model.state_dict())
    fit(model, (x + 3, y), epochs=2)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {"encoder.4.running_mean", "encoder.4.running_var", "encoder.4.weight"} <= moved
    assert not any(name.startswith(("encoder.0", "encoder.1")) for name in moved)


class Short(list):
    """A loader that promises more batches than it has."""

    def __len__(self) -> int:
        return 100


@pytest.mark.parametrize("count", [5, 60])
def test_a_loader_may_be_shorter_than_it_says(count: int) -> None:
    x, y = (torch.from_numpy(each) for each in blobs(300))
    batches = [(x, y)] * count
    model = small_model()
    with pytest.warns(RuntimeWarning, match=f"length of 100 and ended after {count} batches in epoch 1") as told:
        fit(model, Short(batches), epochs=2)
    assert len([each for each in told if "length of 100" in str(each.message)]) == 1
    assert predict(model, x).probs.isfinite().all()
    batches[-1] = (x * 1e30, y)  # nothing is wrong before the last batch, which is looked at all the same
    with pytest.raises(EowError, match=f"by step {count}: look for extreme inputs, lower lr, or give the chains a"):
        fit(small_model(), Short(batches), epochs=1)


class Once:
    """A loader that is used up after its first passes."""

    def __init__(self, batches: list[tuple[Tensor, Tensor]], passes: int) -> None:
        self.batches, self.left = batches, passes

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self):
        self.left -= 1
        return iter(self.batches if self.left >= 0 else [])


def test_a_loader_that_is_used_up_is_told() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    with pytest.raises(EowError, match="yields no batches in epoch 2: pass a loader that begins anew"):
        fit(small_model(), Once([(x, y)], 2), epochs=3)
    for used_up in (Once([(x, y)], 1), [x[:0]]):
        with pytest.raises(EowError, match="a pass over the loader of unknowns yields no samples"):
            fit(small_model(), [(x, y)] * 3, epochs=2, unknown=used_up)


def test_wrapped_models_are_named() -> None:
    model = small_model()
    for wrapped, name in ((torch.compile(model), "OptimizedModule"), (nn.DataParallel(model), "DataParallel")):
        for call in (lambda: fit(wrapped, blobs()), lambda: OpenWorldLoss(wrapped)):  # noqa: B023
            with pytest.raises(EowError, match=rf"wrapped in {name}.*model\.encoder\.compile\(\)"):
                call()
    with pytest.raises(EowError, match="on the device meta"):
        fit(small_model().to("meta"), blobs())


def ids(x: Tensor) -> UpgradedModel:
    return upgrade(nn.Sequential(nn.Embedding(9, 8), nn.Flatten(), nn.Linear(48, 3)), example=x)


class OnlyTwo(nn.Module):
    """A tail that cannot take what chains bring it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, z: Tensor) -> Tensor:
        if len(z) > 3:
            raise RuntimeError("three rows at most")
        return self.head(z)


def test_what_fails_before_the_first_step_is_a_sentence() -> None:
    model = upgrade((nn.Linear(4, 8), OnlyTwo()))
    with pytest.raises(EowError, match=r"cannot be trained on a batch of shape \(\d+, 4\) \(three rows at most\)"):
        fit(model, blobs(), epochs=1)


class Asserts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] < 10, "at most nine columns"
        return x[:, :4]


def test_what_a_forward_asserts_is_a_sentence() -> None:
    model = upgrade((Asserts(), nn.Linear(4, 3)), example=torch.randn(3, 4))
    with pytest.raises(EowError, match=r"cannot take inputs of shape \(2, 10\) \(at most nine columns\)"):
        predict(model, torch.randn(2, 10))


def test_what_a_forward_cannot_take_is_a_sentence() -> None:
    x, y = texts()
    for wrong in (x + 5, x.float(), x[:, :, None].expand(-1, -1, 2)):
        with pytest.raises(EowError, match=r"cannot take (an input|inputs) of shape"):
            fit(ids(x), (wrong, y), epochs=1)
    with pytest.raises(EowError, match=r"cannot be trained on a batch of shape \(40, 6\) \(index out of range"):
        fit(ids(x), [(x[:40], y[:40]), (x[40:80] + 5, y[40:80])], epochs=1)
    floats, labels = (torch.from_numpy(each) for each in blobs(61))
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(EowError, match=r"batch of shape \(1, 4\) .*drop_last=True"):
        fit(upgrade(network), DataLoader(TensorDataset(floats, labels), 30), epochs=1)
    with pytest.raises(EowError, match=r"gives \(2, 7, 4\) for inputs of shape \(2, 7, 4\).*x\[None\]"):
        fit(upgrade(nn.Linear(4, 3)), (torch.randn(60, 7, 4), labels[:60]), epochs=1)
    with torch.no_grad(), pytest.raises(EowError, match="gradients are switched off"):
        fit(small_model(), blobs())


@pytest.mark.parametrize("unknown", ["linear", "quadratic", "convex"])
def test_two_losses_may_wait_for_one_backward(unknown: str) -> None:
    x, y = map(torch.as_tensor, blobs())
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), unknown=unknown)
    loss = OpenWorldLoss(model, seed=0)
    (loss(x[:30], y[:30]) + loss(x[30:60], y[30:60])).backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in model.tail.parameters())


class Stream(IterableDataset):
    """A stream that says how long an epoch of it is."""

    def __len__(self) -> int:
        return 60

    def __iter__(self):
        x, y = blobs(60)
        while True:
            yield from zip(torch.from_numpy(x), torch.from_numpy(y))


def test_a_stream_is_read_as_far_as_its_length() -> None:
    stream = DataLoader(Stream(), 20)
    method = fit(upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))), stream, epochs=2, holdout=stream)
    assert method.predict(torch.zeros(2, 4)).probs.shape == (2, 3)


def test_a_loader_does_what_it_does_after_its_last_batch() -> None:
    class Counting:
        epochs = 0

        def __len__(self) -> int:
            return 3

        def __iter__(self):
            x, y = (torch.from_numpy(each) for each in blobs(60))
            yield from zip(x.split(20), y.split(20))
            self.epochs += 1

    loader, model = Counting(), upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    fit(model, loader, epochs=4)
    assert loader.epochs == 4


class InPlace(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.body, self.fc = kind, nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.fc(h.relu_() if self.kind == "method" else nn.functional.relu(h, inplace=True))


@pytest.mark.parametrize("kind", ["method", "function"])
@pytest.mark.parametrize("cut", [None, "body"])
def test_functions_in_place_behind_the_cut(kind: str, cut: str | None) -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    torch.manual_seed(0)
    model = InPlace(kind)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    where = None if cut is None else "0"
    found, wanted = (fit(upgrade(m, cut=c), (x, y), epochs=2).predict(x) for m, c in ((model, cut), (plain, where)))
    torch.testing.assert_close(found.logits, wanted.logits)


def test_a_loss_in_inference_mode_is_a_validation() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    norm = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    for model, cut in ((nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), None), (norm, "0")):
        loss, same = (OpenWorldLoss(upgrade(copy.deepcopy(model), cut=cut)) for _ in range(2))
        with torch.inference_mode():
            found = loss(x + 0, y + 0, unknown=x[:5] + 9)
        with torch.no_grad():
            assert found == same(x, y, unknown=x[:5] + 9)
        assert not found.requires_grad
        loss(x, y).backward()
        assert all(each.grad is not None for each in loss.parameters())


@pytest.mark.parametrize("rate", [None, 0.9])
def test_labels_keep_the_classes_order_where_unknown_is_certain(rate: float | None) -> None:
    """The probabilities of all classes are 0 there."""
    model, x = upgrade(nn.Linear(4, 3)), torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    model.odds.fill_(0.02)
    with torch.no_grad():
        model.head.bias[-1] += 300
    said = predict(model, x, unknown_rate=rate, threshold=0.0)
    assert (said.unknown == 1).all()
    assert (said.confidence == 0).all()
    assert torch.equal(said.label, model(x)[:, :-1].argmax(1))


def ragged(lengths: tuple[int, ...]) -> Dataset:
    class Ragged(Dataset):
        def __len__(self) -> int:
            return len(lengths)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.zeros(lengths[index]), index % 3

    return Ragged()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda model, x, y: fit(model, ragged((4, 5, 4)), epochs=1), r"cannot be put into a batch \(.*collate_fn"),
        (lambda model, x, y: fit(model, (x.to_sparse(), y)), r"layout torch.sparse_coo: pass x.to_dense\(\)"),
        (lambda model, x, y: predict(model, x.to_sparse()), r"layout torch.sparse_coo: pass x.to_dense\(\)"),
        (lambda model, x, y: OpenWorldLoss(model)(x.to_sparse(), y), r"pass x.to_dense\(\)"),
        (lambda model, x, y: predict(model, None), "the input is a NoneType: pass an array"),
        (
            lambda model, x, y: fit(model, (x, y), optimizer=torch.optim.Adam(model.parameters())),
            "the optimizer is of the type Adam and made already: name one, optimizer='adam', or",
        ),
    ],
    ids=["ragged", "sparse fit", "sparse predict", "sparse loss", "none", "optimizer"],
)
def test_what_is_no_input_is_a_sentence(call, sentence: str) -> None:
    x, y = (torch.from_numpy(each) for each in blobs(60))
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    with pytest.raises(EowError, match=sentence):
        call(model, x, y)


def test_a_loss_that_is_only_measured_leaves_the_model_as_it_was() -> None:
    """Before and after a fit, without gradients or in inference mode; the first call with them begins a training."""
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    model = upgrade(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    fit(model, (x, y), epochs=1)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    loss = OpenWorldLoss(model, lam=0.3)
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            assert loss(x, y).isfinite()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    loss(x, y).backward()
    assert model.odds == pytest.approx(0.3)


def test_norms_without_parameters_stay_still_in_what_is_frozen() -> None:
    x, y = torch.randn(64, 8) + 3, torch.arange(64) % 3
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, affine=False), nn.ReLU()).requires_grad_(False)
    for frozen in (True, False):
        model = upgrade(nn.Sequential(body.requires_grad_(not frozen), nn.Linear(16, 3)))
        fit(model, (x, y), epochs=1)
        assert bool(model.get_buffer("encoder.0.1.running_mean").eq(0).all()) == frozen


def test_a_model_that_draws_in_evaluation_is_fitted_the_same_again_and_leaves_the_generator() -> None:
    class Noise(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h + 0.3 * torch.randn_like(h)

    x, y = torch.randn(64, 8), torch.arange(64) % 3
    model = nn.Sequential(nn.Linear(8, 16), Noise(), nn.ReLU(), nn.Linear(16, 3))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        standing = torch.get_rng_state()
        upgraded = upgrade(model)
        fit(upgraded, (x, y), epochs=1, seed=0)
        assert torch.equal(torch.get_rng_state(), standing)
        found.append(upgraded.head.bias.detach().clone())
    assert torch.equal(*found)


def test_some_coarse_weights_are_as_good_as_all() -> None:
    model = upgrade(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    model.head.to(torch.bfloat16)
    with pytest.raises(EowError, match=r"some of the model's weights are torch\.bfloat16"):
        OpenWorldLoss(model)


def test_coarse_weights_that_are_frozen_take_no_steps() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.coarse = nn.Linear(16, 16).to(torch.bfloat16).requires_grad_(False)

        def forward(self, h: Tensor) -> Tensor:
            return self.coarse(h.to(torch.bfloat16)).float()

    x, y = torch.randn(64, 8), torch.arange(64) % 3
    model = upgrade(nn.Sequential(nn.Linear(8, 16), Inside(), nn.Linear(16, 3)))
    assert OpenWorldLoss(model)(x, y).isfinite()


def test_a_measurement_between_steps_changes_no_step() -> None:
    x, y = torch.randn(64, 8), torch.arange(64) % 3
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    found = []
    for measured in (True, False):
        upgraded = upgrade(model)
        loss = OpenWorldLoss(upgraded)
        optimizer = torch.optim.SGD(upgraded.parameters(), 0.1)
        for _ in range(3):
            if measured:
                with torch.no_grad():
                    loss(x, y)
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
        found.append(upgraded.head.weight.detach().clone())
    assert torch.equal(*found)


def test_a_fit_in_one_of_several_processes_asks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may be doing something else: a collective would wait for them for ever."""

    def waits(*words: object, **more: object) -> None:
        raise AssertionError("a collective")

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_reduce", waits)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    fit(upgrade(plain), blobs(60), epochs=1)
    fit(small_model(), blobs(60), epochs=2)  # settles
    x, y = (torch.from_numpy(each) for each in blobs(60))
    with pytest.raises(AssertionError, match="a collective"):  # a loss is what DDP wraps: there all ranks begin alike
        OpenWorldLoss(upgrade(plain))(x, y)


@pytest.mark.parametrize("start", ["buffer", "features"])
def test_a_loss_that_is_measured_leaves_the_training_as_it_is(start: str) -> None:
    """A validation between two steps: the second step is what it would be without."""
    x, y = (torch.from_numpy(each) for each in blobs(60))
    after = []
    for validates in (False, True):
        torch.manual_seed(0)
        loss = OpenWorldLoss(
            upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))), start=start, chains=16
        )
        loss(x, y)
        if validates:
            with torch.no_grad():
                loss(x[:30], y[:30])
        after.append(loss(x, y).item())
        (method,) = loss._method
        assert method.tally.sums[0] == 3 * 16  # two steps, and where the unknown's bias began
    assert after[0] == after[1]


def test_held_out_data_moves_no_random_number_of_the_callers() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(120))
    held = DataLoader(TensorDataset(x, y), 30, shuffle=True)
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    fit(model, (x, y), epochs=1, holdout=held)
    assert torch.equal(torch.rand(1), wanted)


def test_a_head_that_undoes_a_temperature_is_refused() -> None:
    x, y = (torch.from_numpy(each) for each in blobs(200))
    model = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    nn.utils.parametrizations.spectral_norm(model.head)
    with pytest.raises(
        EowError, match=r"undoes a temperature: take that off with parametrize\.remove_parametrizations"
    ):
        fit(model, (x, y), epochs=1, holdout=(x[:60], y[:60]))
    plain = upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    nn.utils.parametrizations.weight_norm(plain.head)
    fit(plain, (x, y), epochs=1, holdout=(x[:60], y[:60]))


def test_inputs_and_labels_without_values_are_refused() -> None:
    x, y = (torch.from_numpy(each) for each in blobs())
    model = upgrade(nn.Linear(4, 3))
    calls = [
        lambda: predict(model, x.to("meta")), lambda: fit(model, (x.to("meta"), y)),
        lambda: OpenWorldLoss(model)(x.to("meta"), y), lambda: OpenWorldLoss(model)(x, y, unknown=x.to("meta")),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(EowError, match="the inputs lie on the device meta"):
            call()
    with pytest.raises(EowError, match="the labels lie on the device meta"):
        fit(model, (x, y.to("meta")))


def test_inputs_of_another_width_are_told_of_as_a_batch() -> None:
    x, y = (torch.from_numpy(each) for each in blobs())
    deeper = upgrade(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    for call in (lambda: fit(upgrade(nn.Linear(4, 3)), (x[:, :3], y)), lambda: OpenWorldLoss(deeper)(x[:, :3], y)):
        with pytest.raises(EowError, match=r"model cannot take inputs of shape .*: pass a batch as it wants it"):
            call()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_sparse_gradients_are_told_how_to_go(optimizer: str) -> None:
    x, y = texts()
    model = upgrade(nn.Sequential(nn.EmbeddingBag(9, 8, sparse=True), nn.Linear(8, 3)), example=x)
    with pytest.raises(EowError, match=r"encoder\.0 gives sparse gradients.*sparse=False, (model\S+ = False)$") as told:
        fit(model, (x, y), epochs=1, optimizer=optimizer)
    exec(str(told.value).rpartition(", ")[2])
    fit(model, (x, y), epochs=1, optimizer=optimizer)
    frozen = nn.Sequential(nn.EmbeddingBag(9, 8, sparse=True).requires_grad_(False), nn.Linear(8, 3))
    fit(upgrade(frozen, example=x), (x, y), epochs=1, optimizer=optimizer)


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_gradient_descent_does_not_run_away_with_the_square(lr: float) -> None:
    torch.manual_seed(0)
    centres = 2 * torch.randn(3, 10)
    y = torch.arange(192) % 3
    x = centres[y] + 0.5 * torch.randn(192, 10)
    net = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(50):
        sgd.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        sgd.step()
    model = upgrade(net)
    loss = OpenWorldLoss(model.train())
    optimizer = torch.optim.SGD(loss.parameters(), lr, momentum=0.9)
    said = []
    for _ in range(60):
        optimizer.zero_grad()
        said.append(loss(x, y))
        said[-1].backward()
        optimizer.step()
    assert max(said) < 1.5 * said[0]
    assert said[-1] < said[0]
    known, strange = (predict(model, each) for each in (x, 20 * torch.randn(192, 10)))
    assert (known.label == y).all()
    assert strange.unknown.mean() > 5 * known.unknown.mean()
    assert model.head.square.abs().max() > 1e-3  # it learns


@pytest.mark.parametrize("trace", [True, False])
def test_a_norm_of_the_batch_alone_is_trained(trace: bool) -> None:
    """It has no running statistics, so no forward takes a single row, not even to see a shape."""
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.arange(64) % 3
    model = upgrade(
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)), trace=trace
    )
    assert OpenWorldLoss(model, steps=2)(x, y).isfinite()
    fit(model, (x, y), epochs=1, batch=16, steps=2)
    said = predict(model, x)
    torch.testing.assert_close(said.probs.sum(1) + said.unknown, torch.ones(64))
