"""EOW-Softmax and vanilla against their formulas, and what the energy term may and may not touch."""

import math

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import kstest
from torch import Tensor

from eow.config import resolve
from eow.data import Dataset
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.methods import METHODS, Method
from eow.methods.base import closed_prediction, open_prediction
from eow.methods.eow import PRIOR_WIDTH
from eow.models.layers import OpenLinear
from eow.openworld import prior_shift, shifted_probabilities
from eow.typed import build


def make(name: str = "eow", norm: str = "none", **options: object) -> Method:
    kind = METHODS[name]
    method = kind(small_model(extra=kind.extra_outputs, norm=norm), build(kind.Options, options, "method"), 3, (4,))
    method.prepare(torch.device("cpu"))
    method.stream.manual_seed(0)
    return method


def batch(count: int = 30) -> tuple[Tensor, Tensor]:
    x, y = blobs(count)
    return torch.from_numpy(x), torch.from_numpy(y)


def gradients(method: Method, terms: dict[str, Tensor]) -> dict[str, Tensor]:
    method.zero_grad()
    torch.stack(list(terms.values())).sum().backward()
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


def test_vanilla_is_cross_entropy() -> None:
    method, (x, y) = make("vanilla"), batch()
    h = method.model(x).double().softmax(1)
    torch.testing.assert_close(method(x, y)["ce"].double(), -h[range(30), y].log().mean())


@pytest.mark.parametrize("energy", ["paper", "proof", "complement"])
def test_eow_loss_is_equation_4(energy: str) -> None:
    """With no steps and as many feature chains as samples the negatives are the batch's features: both terms by
    hand."""
    method, (x, y) = make(energy=energy, lam=0.3, steps=0, start="features", chains=30), batch()
    terms = method(x, y)
    h = method.model(x).double().softmax(1)
    torch.testing.assert_close(terms["ce"].double(), -h[range(30), y].log().mean())
    negative = h[:, :-1].sum(1).log() if energy == "complement" else -h[:, -1].log()
    torch.testing.assert_close(terms["energy"].double(), 0.3 * negative.mean())
    assert set(terms) == {"ce", "energy"}


def test_energy_term_trains_the_tail_only() -> None:
    method, (x, y) = make(start="features"), batch()
    both = gradients(method, method(x, y))
    method.active = False
    alone = gradients(method, method(x, y))
    assert {name for name in both if not torch.equal(both[name], alone[name])} == {
        name for name in both if name.startswith("model.tail.")
    }


def test_joint_also_trains_the_encoder_through_the_starts() -> None:
    """With no steps, joint is plain back-propagation of eq. 4 through encoder and tail."""
    x, y = batch()
    method = make(encoder="joint", steps=0, start="features", chains=30, lam=0.3)
    joint = gradients(method, method(x, y))
    h = method.model(x).log_softmax(1)
    direct = gradients(method, {"all": -h[range(30), y].mean() - 0.3 * h[:, -1].mean()})
    for name, gradient in joint.items():
        torch.testing.assert_close(gradient, direct[name])
    with pytest.raises(EowError, match="joint"):
        make(encoder="joint", start="noise")


def test_negatives_leave_batch_statistics_alone_unless_asked() -> None:
    x, y = batch()
    for mode, same in (("eval", True), ("train", False)):
        statistics = []
        for active in (True, False):
            method = make(norm="batch", negatives=mode, start="mixed")
            method.model = method.model.recut("stage1")
            method.starts.shape = (16,)
            method.train()
            method.active = active
            method(x, y)
            statistics.append([b.clone() for name, b in method.named_buffers() if "running_mean" in name])
        assert all(torch.equal(a, b) for a, b in zip(*statistics)) == same


def test_the_start_epoch_counts_or_shares() -> None:
    method = make(start_epoch=8)
    assert [epoch for epoch in range(15) if not (method.begin_epoch(epoch, 15), method.active)[1]] == list(range(8))
    method = make(start_epoch=0.6)
    assert [epoch for epoch in range(10) if not (method.begin_epoch(epoch, 10), method.active)[1]] == list(range(6))
    with pytest.raises(EowError, match="never start"):
        make(start_epoch=20).begin_epoch(0, 15)
    with pytest.raises(EowError, match="never start"):
        make(start_epoch=14.5).begin_epoch(0, 15)  # epoch 15, the first after the last


def test_the_last_epoch_always_has_the_energy_term() -> None:
    for share, epochs in ((0.6, 1), (0.99, 15), (0.5, 1)):
        method = make(start_epoch=share)
        method.begin_epoch(epochs - 1, epochs)
        assert method.active


def test_replay_buffers_are_neither_the_weights_nor_each_others() -> None:
    buffers = []
    for rank in (0, 1):
        method = make(start="buffer", buffer_size=100)
        method.prepare(torch.device("cpu"), rank)
        buffers.append(method.starts.buffer.slots.clone())
    weight = small_model().head.weight.detach()
    for other in (buffers[1][: len(weight)], weight):
        together = torch.stack([buffers[0][: len(weight)].flatten(), other.flatten()])
        assert abs(torch.corrcoef(together)[0, 1].item()) < 0.4


def test_the_buffer_keeps_where_the_methods_chains_ended() -> None:
    """Half of the chains are the buffer's, and the slots that they came from hold their ends; no other slot changes."""
    method, (x, y) = make(start="features:0.5,buffer:0.5", buffer_size=100, chains=40, steps=3), batch()
    buffer = method.starts.buffer
    before = buffer.slots.clone()
    ends = method.draw_negatives(method.model.encoder(x).detach(), y)
    assert torch.equal(buffer.slots[buffer.drawn], ends[20:])
    others = torch.ones(100, dtype=torch.bool).scatter(0, buffer.drawn, False)
    assert int(others.sum()) == 80
    assert torch.equal(buffer.slots[others], before[others])
    assert not torch.equal(buffer.slots[~others], before[~others])


def test_a_tail_that_works_in_place_does_not_change_where_chains_start() -> None:
    from torch import nn

    from eow.models import SplitModel

    model = SplitModel(nn.Linear(4, 8), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 4)))
    method = METHODS["eow"](
        model, build(METHODS["eow"].Options, {"start": "features", "chains": 30, "steps": 0}, "m"), 3, (4,)
    )
    method.prepare(torch.device("cpu"))
    seen = []
    method.starts.draw = lambda z, y, stream: seen.append(z.clone()) or z  # type: ignore[method-assign]
    x, y = batch()
    method(x, y)
    torch.testing.assert_close(seen[0], model.encoder(x).detach())
    assert (seen[0] < 0).any()


def test_trust_is_counted_in_mean_feature_norms() -> None:
    method, (x, y) = make(start="features", chains=30, steps=50, step=50.0, trust=0.5), batch()
    z = method.model.encoder(x).detach()
    ends = method.draw_negatives(z, y)
    radius = 0.5 * z.norm(dim=1).mean()
    distance = torch.cdist(ends, z).min(1).values
    assert (distance <= radius * 1.0001).all()
    counted = method.counters()
    assert counted["chains"] == 30
    assert counted["capped"] == 30
    assert counted["energy_end"] < counted["energy_start"]
    assert method.counters() == {}


def test_spread_distances_are_uniform_up_to_the_trust() -> None:
    """Of chains that would all leave the trust region, each ends at a bound of its own."""
    method, (x, y) = make(start="features", chains=400, steps=50, step=50.0, trust=0.5, distances="spread"), batch()
    z = method.model.encoder(x).detach()
    starts = z.repeat(400, 1)[:400]
    method.starts.draw = lambda z, y, stream: starts  # type: ignore[method-assign]
    moved = (method.draw_negatives(z, y) - starts).norm(dim=1) / (0.5 * z.norm(dim=1).mean())
    assert kstest(moved.numpy(), "uniform").pvalue > 0.01
    assert method.counters()["capped"] == 400
    again = (method.draw_negatives(z, y) - starts).norm(dim=1) / (0.5 * z.norm(dim=1).mean())
    assert (again - moved).abs().mean() > 0.2  # 1/3, if they are drawn anew


def test_predictions_add_up_and_keep_the_k_plus_1_confidence() -> None:
    x, _ = batch()
    for name in ("vanilla", "eow"):  # all methods: test_method_contract.py
        method = make(name)
        said = method.train().predict(x)
        assert method.training  # predict leaves the mode as it was
        torch.testing.assert_close(said.probs.sum(1) + said.unknown, torch.ones(30))
        assert torch.equal(said.label, said.probs.argmax(1))
        assert torch.equal(said.confidence, said.probs.max(1).values)
    h = method.model(x).softmax(1)
    torch.testing.assert_close(said.unknown, h[:, -1])
    torch.testing.assert_close(said.confidence, h[:, :-1].max(1).values)


def test_an_unknown_rate_replaces_the_prior() -> None:
    """At the population's optimum h[K+1] = λn/(p + λn); for a rate ρ it must become ρn/((1-ρ)p + ρn)."""
    p, n = torch.rand(50, dtype=torch.float64), torch.rand(50, dtype=torch.float64)
    posterior = torch.full((50, 4), 0.25, dtype=torch.float64)
    for lam in (0.05, 0.1, 1.0):
        logits = torch.cat([(posterior * p[:, None]).log(), (lam * n[:, None]).log()], 1)
        for rate in (0.01, 0.3, 0.9):
            probs, unknown = shifted_probabilities(logits.numpy(), prior_shift(rate, lam))
            expected = rate * n / ((1 - rate) * p + rate * n)
            torch.testing.assert_close(torch.from_numpy(unknown), expected)
            torch.testing.assert_close(torch.from_numpy(probs.sum(1)), 1 - expected)
    assert prior_shift(0.1 / 1.1, 0.1) == pytest.approx(0, abs=1e-12)
    assert prior_shift(0, 0.1) == -math.inf
    for wrong in (-0.1, 1.0, float("nan")):
        with pytest.raises(EowError):
            prior_shift(wrong, 0.1)


def test_predict_at_a_rate_equals_the_stored_logits_shifted() -> None:
    method, (x, _) = make(), batch()
    plain, shifted = method.predict(x), method.predict(x, unknown_rate=0.2)
    probs, unknown = shifted_probabilities(plain.logits.numpy(), prior_shift(0.2, method.options.lam))
    torch.testing.assert_close(shifted.probs.double(), torch.from_numpy(probs), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(shifted.unknown.double(), torch.from_numpy(unknown), atol=1e-6, rtol=1e-5)
    renormalised = method.predict(x, unknown_rate=0.0)
    torch.testing.assert_close(renormalised.probs, plain.probs / plain.probs.sum(1, keepdim=True))
    assert (renormalised.unknown == 0).all()


def test_softmax_is_taken_in_float32() -> None:
    logits = torch.tensor([[8.0, 0.0, 1.0]], dtype=torch.bfloat16)
    assert closed_prediction(logits).probs.dtype == torch.float32
    assert open_prediction(logits).unknown.dtype == torch.float32


@pytest.mark.parametrize(
    "wrong",
    [{"lam": 0.0}, {"trust": -1.0}, {"start": "moon"}, {"chains": 0}, {"steps": -1}, {"step": 0.0}, {"noise": "x"},
     {"trust": 0.0, "distances": "spread"}, {"distances": "far"},
     {"start_epoch": -1}, {"start": "noise", "start_width": 0.0}, {"start": "buffer", "buffer_size": 0},
     {"start": "buffer", "restart": 2.0}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict) -> None:
    with pytest.raises(EowError):
        make(**wrong)


def test_one_class_is_no_problem_to_solve() -> None:
    with pytest.raises(EowError, match="at least 2 classes"):
        METHODS["vanilla"](small_model(classes=1, extra=0), METHODS["vanilla"].Options(), 1, (4,))


def test_an_unknown_rate_of_training_is_that_of_prediction() -> None:
    """What `finish` leaves in the bias is what `predict` at that rate says of the network as trained, and another
    rate starts from there."""
    x, _ = batch()
    trained, finished = make(lam=0.3), make(lam=0.3, unknown_rate=0.02)
    finished.finish(None, None)
    for rate in (None, 0.1):
        expected, said = trained.predict(x, 0.02 if rate is None else rate), finished.predict(x, rate)
        torch.testing.assert_close(said.unknown, expected.unknown)
        torch.testing.assert_close(said.probs, expected.probs)
    assert finished.options.odds == pytest.approx(0.02 / 0.98)
    assert trained.options.odds == 0.3


def test_without_a_rate_the_end_of_training_changes_nothing() -> None:
    method = make()
    before = method.model.head.bias.clone()
    method.finish(None, None)
    assert torch.equal(method.model.head.bias, before)


@pytest.mark.parametrize("rate", [0, 1, -0.1, math.nan, "often"])
def test_an_unknown_rate_is_a_share(rate: object) -> None:
    with pytest.raises(EowError, match=r"method\.unknown_rate"):
        make(unknown_rate=rate)


def part_of(split: str, seed: int) -> Batches:
    """Blobs of which a fifth has another label than its place says: no temperature near 0 is right."""
    x, y = blobs(150, seed=seed)
    y[::5] = (y[::5] + 1) % 3
    return Batches(Dataset("blobs", split, x, y, ("a", "b", "c")), 40, Transform((0.0,), (1.0,)), torch.device("cpu"))


def trained_for_long(**options: object) -> Method:
    """A quadratic unknown that is bent, and classes that are surer of themselves than they are right."""
    method, (x, y) = make(start_epoch=1, **options), batch(300)
    method.model.tail.head = OpenLinear(method.model.head)
    torch.manual_seed(1)
    torch.nn.init.normal_(method.model.head.square, std=1e-3)
    method.active = False
    optimiser = torch.optim.Adam(method.parameters(), 0.01)
    for _ in range(60):
        optimiser.zero_grad()
        method(x, y)["ce"].backward()
        optimiser.step()
    return method


@pytest.mark.parametrize("rate", [0.002, 0.1, "trained"])
def test_the_end_of_training_calibrates_on_what_is_held_out(rate: float | str) -> None:
    """T is another optimiser's, in the head's own weights: of the K classes only the sharpness changes."""
    method, held = trained_for_long(calibrate="holdout", unknown_rate=rate), part_of("train", seed=7)
    encoder = {name: tensor.clone() for name, tensor in method.model.encoder.state_dict().items()}

    def logits() -> np.ndarray:
        return method.model(held.inputs).detach().double().numpy()

    def loss(z: np.ndarray) -> float:
        return float(-log_softmax(z[:, :3], axis=1)[range(150), held.labels].sum())

    before = logits()
    method.finish(part_of("train", seed=8), held)
    after, said = logits(), method.predict(held.inputs)
    fitted = minimize_scalar(
        lambda log: loss(before / np.exp(log)) + log**2 / (2 * PRIOR_WIDTH**2),
        bounds=(-3, 5), method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    assert fitted.x > 0.3
    np.testing.assert_allclose(after[:, :3], before[:, :3] / np.exp(fitted.x), rtol=1e-4, atol=1e-4)
    shifts = after[:, 3] - before[:, 3] / np.exp(fitted.x)
    np.testing.assert_allclose(shifts, shifts.mean(), atol=1e-4)  # the square is divided too: one bias is left
    wanted = softmax(before, axis=1)[:, 3].mean() if rate == "trained" else rate
    assert said.unknown.double().mean().item() == pytest.approx(wanted, rel=1e-3)
    assert np.array_equal(said.label.numpy(), before[:, :3].argmax(1))
    assert loss(after) < loss(before)
    assert all(torch.equal(tensor, encoder[name]) for name, tensor in method.model.encoder.state_dict().items())


def test_of_a_few_held_out_samples_no_mean_is_taken() -> None:
    """Their temperature stays near 1 and leaves the mean unknown where it was, and then the shift is the one that the
    rate asks of λ."""
    method, held = trained_for_long(calibrate="holdout", unknown_rate=0.01), part_of("train", seed=7)
    few = Batches(held.dataset.subset(np.arange(9)), 500, held.transform, held.device)
    before, x = method.model.head.bias.detach().clone(), next(few.in_order())[0]
    unknown = method.predict(x).unknown.mean().item()
    with pytest.warns(RuntimeWarning, match="9 held-out samples are too few to measure .* hold out 30 or more"):
        method.finish(part_of("train", seed=8), few)
    after = method.model.head.bias.detach()
    temperature = (before / after)[0]
    shift = math.log(0.01 / 0.99) - math.log(method.options.lam)
    assert math.exp(-3 * PRIOR_WIDTH) < temperature < math.exp(3 * PRIOR_WIDTH)
    torch.testing.assert_close(after[:-1], before[:-1] / temperature)
    with torch.no_grad():
        method.model.head.bias[-1] -= shift
    assert method.predict(x).unknown.mean().item() == pytest.approx(unknown, rel=1e-3)


def test_calibration_wants_a_part_of_the_training_set() -> None:
    method = make(calibrate="holdout")
    before = method.model.head.bias.clone()
    for held, sentence in ((None, r"eow .* has none: set data\.holdout"), (part_of("test", 7), "test split of blobs")):
        with pytest.raises(EowError, match=sentence):
            method.finish(part_of("train", 8), held)
    assert torch.equal(method.model.head.bias, before)
    with pytest.raises(EowError, match=r"set data\.holdout, for example 0\.1, or method\.calibrate=none$"):
        resolve({"method": {"calibrate": "holdout"}, "data": {"holdout": 0}})
    with pytest.raises(EowError, match=r"method\.calibrate is 'train': choose one of none, holdout"):
        make(calibrate="train")


def test_a_quadratic_unknown_is_bent_by_negatives_only() -> None:
    """Before the energy term begins its square stays 0 and has no gradient; from then on it has one."""
    method, (x, y) = make(start_epoch=1), batch()
    head = OpenLinear(method.model.head)
    method.model.tail.head = head
    for epoch, moved in ((0, False), (1, True)):
        method.begin_epoch(epoch, 2)
        found = gradients(method, method(x, y))
        assert ("model.tail.head.square" in found) == moved
    assert head.curved
