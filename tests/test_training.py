"""The loop: schedules against torch's, a checkpoint's state, `eow.fit`, and what it refuses."""

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from torch.utils.data import DataLoader, TensorDataset

import eow
from eow.config import TrainConfig
from eow.errors import EowError
from eow.methods import METHODS
from eow.own.batches import LoaderBatches, is_arrays
from eow.training.distributed import Place
from eow.training.loop import Training, learning_rate, make_optimizer
from eow.typed import build

CPU = torch.device("cpu")


def test_onecycle_is_torchs() -> None:
    settings = TrainConfig(lr=0.2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=200, cycle_momentum=False)
    for step in range(200):
        assert learning_rate(step, 200, 10, settings) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step < 199:
            schedule.step()


def test_step_schedule_and_warm_up() -> None:
    settings = TrainConfig(lr=1.0, schedule="step", milestones=(2, 4), gamma=0.5, warmup_steps=10)
    rates = [learning_rate(step, 60, 10, settings) for step in range(60)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:20] == [1.0] * 10
    assert rates[20:40] == [0.5] * 20
    assert rates[40:] == [0.25] * 20
    assert learning_rate(59, 60, 10, TrainConfig(lr=1.0, schedule="constant")) == 1.0


@pytest.mark.parametrize("per_epoch", [1, 2, 3])
def test_short_trainings_have_a_schedule_too(per_epoch: int) -> None:
    for epochs in range(1, 8):
        total = epochs * per_epoch
        rates = [learning_rate(step, total, per_epoch, TrainConfig(lr=0.1)) for step in range(total)]
        assert all(0 < rate <= 0.1 for rate in rates)
        assert max(rates) > 0.05  # something is learnt: the end of the cycle alone would be nothing


def optimised(**settings: object) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Where a parameter begins, the gradients of four steps, and where it ends."""
    stream = torch.Generator().manual_seed(0)
    begin, *gradients = torch.randn(5, 7, generator=stream, dtype=torch.float64).unbind()
    module = torch.nn.ParameterList([begin.clone()])
    optimizer = make_optimizer(module, build(TrainConfig, settings, "train"), torch.tensor(0.1))
    for gradient in gradients:
        module[0].grad = gradient.clone()
        optimizer.step()
    return begin.numpy(), [each.numpy() for each in gradients], module[0].detach().numpy()


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, True)])
def test_sgd_is_its_formula(momentum: float, nesterov: bool) -> None:
    """Sutskever et al. 2013, with the decay in the gradient; without momentum there is nothing to look ahead with."""
    w, gradients, end = optimised(optimizer="sgd", lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.05)
    velocity = np.zeros(7)
    for gradient in gradients:
        slope = gradient + 0.05 * w
        velocity = momentum * velocity + slope
        w = w - 0.1 * (slope + momentum * velocity if nesterov else velocity)
    np.testing.assert_allclose(end, w, rtol=1e-12)


def test_adam_is_its_formula() -> None:
    """Loshchilov and Hutter 2019: the decay is no part of the gradient."""
    w, gradients, end = optimised(optimizer="adam", lr=0.1, weight_decay=0.05)
    mean, square = np.zeros(7), np.zeros(7)
    for step, gradient in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        w = (1 - 0.1 * 0.05) * w - 0.1 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(end, w, rtol=1e-7)


def make_training(
    method: str = "eow",
    batch: int = 30,
    device: torch.device = CPU,
    unknown: str = "linear",
    options: dict | None = None,
    **settings: object,
) -> Training:
    kind = METHODS[method]
    x, y = map(torch.from_numpy, blobs())
    model = small_model(extra=kind.extra_outputs, unknown=unknown)
    trained = kind(model, build(kind.Options, options or {}, "method"), 3, (4,)).to(device)
    trained.prepare(device)
    loader = LoaderBatches(DataLoader(TensorDataset(x, y), batch, shuffle=True), 3, device)
    return Training(
        trained,
        loader,
        build(TrainConfig, {"epochs": 6, "optimizer": "adam", "lr": 0.01, **settings}, "train"),
        Place(device),
        0,
    )


def test_every_epoch_is_in_the_mode_of_training() -> None:
    training, modes = make_training("vanilla", epochs=2), []
    training.method.model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    for _ in training.epochs():
        training.method.eval()  # as who predicts in between may leave it
    assert modes == [True] * 20


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("auto", torch.float32)]
)
def test_the_network_computes_in_the_precision_that_is_asked_for(precision: str, dtype: torch.dtype) -> None:
    training, found = make_training("vanilla", precision=precision, epochs=1), set()
    training.method.model.head.register_forward_hook(lambda module, _, output: found.add(output.dtype))
    list(training.epochs())
    assert found == {dtype}


def test_epochs_on_what_was_held_out_keep_the_last_rate() -> None:
    """Also where a milestone lies at the end."""
    training = make_training("vanilla", epochs=2, schedule="step", milestones=[1, 2], gamma=0.5, holdout_epochs=2)
    training.holdout = training.batches
    assert [line["lr"] for line in training.epochs()] == [0.01, 0.005, 0.005, 0.005]


def test_a_term_that_would_never_begin_is_told_of_before_anything_is_trained() -> None:
    with pytest.raises(EowError, match="the energy term would never start"):
        make_training(options={"start_epoch": 20})


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_restored_state_goes_on_as_if_nothing_had_happened(optimizer: str) -> None:
    whole = make_training(optimizer=optimizer)
    lines = list(whole.epochs())
    first = make_training(optimizer=optimizer)
    for line in first.epochs():
        if line["epoch"] == 2:
            break
    state = {name: tensor.clone() for name, tensor in first.state().items()}
    second = make_training(optimizer=optimizer)
    second.restore(state)
    rest = list(second.epochs(3))
    for a, b in zip(whole.state().values(), second.state().values(), strict=True):
        assert torch.equal(a, b)
    timeless = [{k: v for k, v in line.items() if "second" not in k} for line in lines]
    assert timeless[3:] == [{k: v for k, v in line.items() if "second" not in k} for line in rest]


def test_no_gpus_generator_is_seeded_by_work_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would put it back: torch.random.fork_rng keeps the generators of the devices that it is told."""
    training = make_training()
    for name in ("manual_seed", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, lambda seed: pytest.fail("a GPU's generator was seeded"))
    list(training.epochs())
    eow.upgrade(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3)))


def test_two_rows_and_their_labels_are_no_list_of_two_batches() -> None:
    assert is_arrays(([[0.0, 1.0], [2.0, 3.0]], [0, 1]))
    assert not is_arrays([(torch.zeros(3, 2), torch.zeros(3)), (torch.ones(3, 2), torch.ones(3))])


def test_the_global_generator_is_given_back() -> None:
    training = make_training()
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    list(training.epochs())
    assert torch.equal(torch.rand(3), expected)


def test_bf16_trains_too() -> None:
    training = make_training(precision="bf16", epochs=12)
    lines = list(training.epochs())
    assert lines[-1]["ce"] < lines[0]["ce"] / 4
    assert all(p.dtype == torch.float32 for p in training.method.parameters())


@pytest.mark.parametrize("method", ["vanilla", "eow"])
def test_fit_learns_blobs(method: str) -> None:
    x, y = blobs()
    trained = eow.fit(
        small_model(extra=METHODS[method].extra_outputs), (x, y), method=method, epochs=12, lr=0.01, batch=30
    )
    new_x, new_y = blobs(seed=1)
    said = trained.predict(torch.from_numpy(new_x))
    assert (said.label.numpy() == new_y).mean() > 0.97
    assert not trained.training


def test_fit_knows_what_is_far_away() -> None:
    x, y = blobs()
    trained = eow.fit(small_model(), (x, y), epochs=30, lr=0.01, batch=30, start="mixed", start_epoch=0.3, lam=0.2)
    between = torch.from_numpy(np.stack([(x[y == 0].mean(0) + x[y == 1].mean(0)) / 2]))
    assert trained.predict(between).unknown.item() > 3 * trained.predict(torch.from_numpy(x)).unknown.mean().item()


def test_fit_of_one_epoch_has_its_energy_term() -> None:
    trained = eow.fit(small_model(), blobs(), epochs=1, batch=30)
    assert trained.active


def test_fit_is_reproducible_and_takes_a_loader() -> None:
    x, y = map(torch.from_numpy, blobs())

    def weights(seed: int) -> list[torch.Tensor]:
        loader = DataLoader(TensorDataset(x, y), 50, shuffle=True)
        return list(eow.fit(small_model(), loader, epochs=2, seed=seed).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(0), weights(0)))
    assert not all(torch.equal(a, b) for a, b in zip(weights(0), weights(1)))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (lambda x, y: (x, y + 1), "labels run from 1 to 3"),
        (lambda x, y: (x, y.astype(np.float32)), "one whole number a sample"),
        (lambda x, y: (np.where(x > 5, np.nan, x), y), "finite"),
        (lambda x, y: (x, y[:-1]), "300 inputs and 299 labels"),
        (lambda x, y: ((255 * x).astype(np.int64), y), "floating-point"),
        (lambda x, y: [{"x": x, "y": y}], "yields a dict"),
        (lambda x, y: iter([(x, y)]), "no length"),
        (lambda x, y: [(torch.full((3, 4), torch.nan), torch.tensor([0, 1, 2]))], "NaN"),
        (lambda x, y: (x, y.astype(str)), "labels cannot be made a tensor"),
        (lambda x, y: (x, [str(each) for each in y]), "labels cannot be made a tensor"),
        (lambda x, y: (x.astype(object), y), "inputs cannot be made a tensor"),
        (lambda x, y: (x, y[:, None]), "one whole number a sample"),
        (lambda x, y: (np.float32(1), y), "sample by sample"),
        (lambda x, y: [(x[:0], y[:0])], "batch of 0 inputs and 0 labels"),
        (lambda x, y: [(x[:3], y[:2])], "batch of 3 inputs and 2 labels"),
        (lambda x, y: [((255 * x).astype(np.uint8), y)], "floating-point"),
    ],
)
def test_fit_refuses_what_it_cannot_learn_from(data, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        eow.fit(small_model(), data(*blobs()), epochs=1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch": 0}, r"fit\.batch is 0"),
        ({"lr": -1}, r"fit\.lr is -1"),
        ({"lr": float("nan")}, "finite"),
        ({"epochs": 0}, r"fit\.epochs is 0"),
        ({"weight_decay": -1.0}, r"fit\.weight_decay is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is a whole number"),
        ({"device": "meta"}, r"fit\.device is 'meta'"),
    ],
)
def test_fit_checks_its_numbers_as_a_run_does(settings: dict, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        eow.fit(small_model(), blobs(), **settings)


def test_fit_refuses_models_it_cannot_train() -> None:
    with pytest.raises(EowError, match=r"the model is a Linear: pass eow\.SplitModel"):
        eow.fit(torch.nn.Linear(4, 4), blobs())  # type: ignore[arg-type]
    with pytest.raises(EowError, match="frozen"):
        eow.fit(small_model().requires_grad_(False), blobs())


def fitted(data: object, **settings: object) -> torch.Tensor:
    trained = eow.fit(small_model(), data, epochs=2, **settings)  # type: ignore[arg-type]
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


def test_lists_arrays_and_doubles_train_alike() -> None:
    x, y = blobs()
    expected = fitted((x, y))
    for data in (
        (x.tolist(), y.tolist()),
        [x, y],
        (x.astype(np.float64), y.astype(np.uint16)),
        (list(x), list(y)),
        (np.ascontiguousarray(x[:, ::-1])[:, ::-1], y),
    ):
        assert torch.equal(fitted(data), expected)
    tensors = [(torch.from_numpy(x[i::2]), torch.from_numpy(y[i::2])) for i in range(2)]
    expected = fitted(tensors)
    assert torch.equal(fitted([(x[i::2].astype(np.float64), y[i::2]) for i in range(2)]), expected)
    assert torch.equal(fitted(tuple([x[i::2], y[i::2]] for i in range(2))), expected)
    x, y = x[:2], y[:2]  # two samples as lists look like two batches
    assert torch.equal(fitted((x.tolist(), y.tolist())), fitted((x, y)))


def test_numpys_numbers_are_numbers() -> None:
    plain = fitted(blobs(), seed=1, batch=30, lr=0.5, lam=0.25)
    assert torch.equal(
        fitted(blobs(), seed=np.int64(1), batch=np.int32(30), lr=np.float32(0.5), lam=np.float64(0.25)), plain
    )


@pytest.mark.parametrize("method", ["vanilla", "eow", "dble", "ova_dm"])
def test_fit_leaves_the_global_generator_alone_and_does_not_depend_on_it(method: str) -> None:
    x, y = map(torch.from_numpy, blobs())
    results = []
    for start in (11, 12):
        model = small_model(extra=METHODS[method].extra_outputs)
        loader = DataLoader(TensorDataset(x, y), 50, shuffle=True)
        torch.manual_seed(start)
        expected = torch.rand(3)
        torch.manual_seed(start)
        trained = eow.fit(model, loader, method=method, epochs=1)
        assert torch.equal(torch.rand(3), expected)
        results.append([p.detach() for p in trained.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(EowError, match=r"method\.lamda: did you mean method\.lam"):
        eow.fit(small_model(), blobs(), lamda=0.2)
    with pytest.raises(EowError, match="no method"):
        eow.fit(small_model(), blobs(), method="eof")


def test_a_diverged_epoch_is_undone_and_tried_at_half_the_rate() -> None:
    """A method that reports trouble once: the epoch is undone, and tried again as if it had begun with the new rate."""
    training = make_training("vanilla")
    before = {name: tensor.clone() for name, tensor in training.state().items() if name.startswith("method.")}
    complaints = iter(["it hums"])
    training.method.trouble = lambda means: next(complaints, None)  # type: ignore[method-assign]
    lines = training.epochs()
    undone = next(lines)
    assert (undone["epoch"], undone["event"], undone["rate_factor"]) == (0, "rollback", 0.5)
    assert "it hums" in undone["reason"]
    assert all(torch.equal(before[name], training.state()[name]) for name in before)
    rest = list(lines)
    assert [line["epoch"] for line in rest] == list(range(6))
    assert rest[0]["lr"] == pytest.approx(0.5 * learning_rate(9, 60, 10, training.settings))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_two_rollbacks_in_a_row_go_back_to_the_same_state(optimizer: str) -> None:
    """The optimiser's state too: what a retry writes must not reach the state that the next rollback restores."""
    training = make_training("vanilla", optimizer=optimizer)
    lines = training.epochs()
    next(lines)
    good = {name: tensor.clone() for name, tensor in training.state().items()}
    complaints = iter(["it hums", "it hums again"])
    training.method.trouble = lambda means: next(complaints, None)  # type: ignore[method-assign]
    for _ in range(2):
        assert next(lines)["event"] == "rollback"
        assert all(torch.equal(good[name], tensor) for name, tensor in training.state().items())
    assert next(lines)["epoch"] == 1


def test_clipping_bounds_the_first_update() -> None:
    start = [p.clone() for p in make_training("vanilla").method.parameters()]
    training = make_training(
        "vanilla", optimizer="sgd", lr=1.0, clip=1e-3, momentum=0.0, schedule="constant", epochs=1, batch=300
    )
    list(training.epochs())
    moved = torch.stack([(a - b).norm() for a, b in zip(start, training.method.parameters())]).norm().item()
    decay = 5e-4 * torch.stack([p.norm() for p in start]).norm().item()
    assert 0 < moved <= 1e-3 + decay


def test_a_loss_that_explodes_ends_the_training_with_a_sentence() -> None:
    with pytest.raises(EowError, match=r"loss term 'ce' became (nan|inf) in epoch"):
        list(make_training(method="vanilla", optimizer="sgd", lr=1e30, epochs=3).epochs())
