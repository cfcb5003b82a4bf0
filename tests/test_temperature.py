"""Temperature scaling: the fit against known answers and another optimiser, and the method on digits."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp, softmax
from scripts import script

from eow import predictions, runs, storage
from eow.config import resolve
from eow.data import Dataset
from eow.data.loader import Batches, Transform
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.methods import fit_temperature, fit_temperature_and_bias
from eow.methods.temperature import Temperature, TemperatureOptions


def problem(classes: int, samples: int = 2000, temperature: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels drawn from softmax(logits / temperature)."""
    random = np.random.default_rng(0)
    z = 2.0 * random.normal(size=(samples, classes))
    gumbel = random.gumbel(size=z.shape)
    return z, (z / temperature + gumbel).argmax(1)


def nll(logits: np.ndarray, labels: np.ndarray) -> float:
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


def batches(split: str = "train", samples: int = 90) -> Batches:
    x, y = blobs(samples)
    return Batches(Dataset("blobs", split, x, y, ("a", "b", "c")), 40, Transform((0.0,), (1.0,)), torch.device("cpu"))


def make() -> Temperature:
    return Temperature(small_model(extra=0), TemperatureOptions(), 3, (4,))


@pytest.mark.parametrize("classes", [10, 100, 1000])
def test_scaled_logits_scale_the_temperature(classes: int) -> None:
    z, y = problem(classes, samples=1000)
    base = fit_temperature(z, y)
    for scale in (0.25, 0.5, 2.99, 4.98, 10.0):
        assert fit_temperature(scale * z, y) / base == pytest.approx(scale, rel=1e-3)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.99, 4.98])
def test_the_true_temperature_is_found(true: float) -> None:
    """5,000 samples: T's standard error, from the Fisher information in 1/T, is below 4 %; 4 of them are allowed."""
    z, y = problem(20, samples=5000, temperature=true)
    p = softmax(z / true, axis=1)
    information = ((p * z**2).sum(1) - (p * z).sum(1) ** 2).sum()
    error = true**2 / np.sqrt(information)
    assert error < 0.04 * true
    assert abs(fit_temperature(z, y) - true) < 4 * error


def test_another_optimiser_finds_the_same() -> None:
    z, y = problem(10, temperature=3.0)
    other = minimize_scalar(
        lambda log: nll(z / np.exp(log), y), bounds=(-3, 5), method="bounded", options={"xatol": 1e-9}
    )
    assert fit_temperature(z, y) == pytest.approx(np.exp(other.x), rel=1e-5)
    tensors = torch.tensor(z, dtype=torch.float32, requires_grad=True), torch.tensor(y)
    assert fit_temperature(*tensors) == pytest.approx(np.exp(other.x), rel=1e-5)


def test_a_constant_added_to_a_samples_logits_changes_nothing() -> None:
    z, y = problem(10)
    far = z + 1e4 * np.arange(len(z))[:, None] / len(z)
    assert fit_temperature(far, y) == pytest.approx(fit_temperature(z, y), rel=1e-6)


@pytest.mark.parametrize("width", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("true", [0.3, 3.0])
def test_with_a_prior_another_optimiser_finds_the_most_probable_temperature(width: float, true: float) -> None:
    z, y = problem(10, samples=60, temperature=true)
    other = minimize_scalar(
        lambda log: len(z) * nll(z / np.exp(log), y) + log**2 / (2 * width**2),
        bounds=(-5, 5), method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    found = fit_temperature(z, y, width=width)
    assert found == pytest.approx(np.exp(other.x), rel=1e-5)
    assert 0 < np.log(found) / np.log(fit_temperature(z, y)) < 1  # between the prior's 1 and the data's own


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
@pytest.mark.parametrize("width", [0.5, 2.0])
def test_with_a_prior_the_slope_is_zero_of_a_few_wrong_samples_too(samples: int, width: float) -> None:
    """The objective of so few is flat: by differences of its own, not within some of its values."""
    z, y = problem(10, samples, temperature=3.0)
    y[0] = z[0].argsort()[-2]
    log, step = np.log(fit_temperature(z, y, width=width)), 1e-4
    before, after = (samples * nll(z / np.exp(each), y) + each**2 / (2 * width**2) for each in (log - step, log + step))
    assert abs(after - before) / (2 * step) < 1e-6


def test_many_samples_outweigh_the_prior() -> None:
    """Its pull on log T is 1/width² against an information that grows with the samples: ten times, a tenth of it."""
    z, y = problem(10, samples=60, temperature=3.0)
    plain = np.log(fit_temperature(z, y))
    pulls = [
        plain - np.log(fit_temperature(np.tile(z, (times, 1)), np.tile(y, times), width=0.5))
        for times in (1, 10, 100, 1000)
    ]
    assert pulls[0] > 0.05
    assert pulls[-1] / pulls[-2] == pytest.approx(0.1, rel=0.05)
    assert 0 < pulls[-1] < 1e-3
    assert fit_temperature(z, y, width=1e6) == pytest.approx(np.exp(plain), rel=1e-9)


@pytest.mark.parametrize("width", [0.1, 0.5])
@pytest.mark.parametrize("samples", [1, 5, 20])
def test_with_a_prior_few_samples_without_an_error_are_no_reason_for_certainty(samples: int, width: float) -> None:
    z, _ = problem(10, samples)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_temperature(z, z.argmax(1), width=width)
    assert np.exp(-3 * width) < found < 1  # sharper, as nothing speaks against it, and no more than the prior allows
    around = [
        samples * nll(z / (found * factor), z.argmax(1)) + np.log(found * factor) ** 2 / (2 * width**2)
        for factor in (0.99, 1.0, 1.01)
    ]
    assert around[1] < min(around[0], around[2])


@pytest.mark.parametrize("samples", [1, 10, 500])
def test_without_an_error_the_rule_of_succession_bounds_it(samples: int) -> None:
    z, _ = problem(10, samples)
    y = z.argmax(1)
    with pytest.warns(UserWarning, match="not one of the held-out samples is an error"):
        temperature = fit_temperature(z, y)
    assert softmax(z / temperature, axis=1).max(1).mean() == pytest.approx((samples + 1) / (samples + 2), abs=1e-9)
    with pytest.warns(UserWarning, match="an error"):
        assert fit_temperature(7 * z, y) == pytest.approx(7 * temperature)


def told_of(logits: np.ndarray, labels: np.ndarray) -> tuple[float, str]:
    """The temperature, and the one warning that came with it."""
    with pytest.warns(UserWarning, match="likelihood has no maximum") as caught:
        found = fit_temperature(logits, labels)
    (warning,) = caught
    return found, str(warning.message)


def test_a_largest_logit_that_two_classes_share_is_no_right_answer() -> None:
    """However small T is, each has half: a mean confidence of (N+1)/(N+2) is out of reach, and is not claimed."""
    shared = np.array([[1.0, 1.0, 0.0]] * 10)
    found, told = told_of(shared, np.zeros(10, int))
    assert found == pytest.approx(1e-3 * (1 / 3))
    assert "shares the largest logit with another class" in told
    assert "is the bound" in told
    assert "(N+1)" not in told

    z, _ = problem(10, 30)
    alone = told_of(z, z.argmax(1))[0]
    both = np.r_[z, np.eye(10)[:5] + np.eye(10)[1:6]]
    both[30:] *= (z.max(1) - z.mean(1)).mean() / 0.8  # of the same scale, so that the bounds are the same too
    found, told = told_of(both, both.argmax(1))
    assert found == pytest.approx(alone, rel=1e-9)
    assert softmax(z / found, axis=1).max(1).mean() == pytest.approx(31 / 32, abs=1e-9)
    assert "5 have several largest logits" in told
    assert "(N+1)/(N+2) with N = 30" in told


def test_where_the_bound_keeps_the_mean_confidence_low_the_warning_says_so() -> None:
    """Half of the labels lead by next to nothing: at the bound they are still at 1/2."""
    close = np.array([[1.0, 1.0 - 1e-9, 0.0]] * 10 + [[1.0, 0.0, 0.0]] * 10)
    found, told = told_of(close, np.zeros(20, int))
    assert found == pytest.approx(1e-3 * 0.5)
    assert softmax(close / found, axis=1)[:, 0].mean() == pytest.approx(0.75, abs=1e-5)
    assert "is the bound, and the mean confidence 0.75, not (N+1)/(N+2)" in told


def test_labels_against_the_logits_give_the_bound() -> None:
    z, _ = problem(10)
    scale = (z.max(1) - z.mean(1)).mean()
    with pytest.warns(UserWarning, match="belong together"):
        temperature = fit_temperature(z, z.argmin(1))
    assert temperature == pytest.approx(1000 * scale)


@pytest.mark.filterwarnings("ignore:the held-out likelihood")
@pytest.mark.parametrize("seed", range(4))
def test_labels_independent_of_the_logits_leave_nothing_to_believe(seed: int) -> None:
    z, _ = problem(10)
    flat = softmax(z / fit_temperature(z, np.random.default_rng(seed).integers(10, size=len(z))), axis=1)
    assert flat.max() < 0.2  # whichever sign the slope has at T = infinity


def test_k_plus_1_logits_are_fitted_over_all_of_them() -> None:
    """Known labels only, yet T has its optimum: the unknown's logit is one more competitor."""
    z, y = problem(11, temperature=2.0)
    known = y < 10
    found = fit_temperature(z[known], y[known])
    around = [nll(z[known] / (found * factor), y[known]) for factor in (0.99, 1.0, 1.01)]
    assert around[1] < min(around[0], around[2])


@pytest.mark.parametrize("rate", [None, 0.001, 0.3])
def test_temperature_and_bias_of_k_plus_1_logits(rate: float | None) -> None:
    z, y = problem(11, temperature=2.0)
    known = y < 10
    z, y = z[known], y[known]
    temperature, bias = fit_temperature_and_bias(z, y, rate)
    assert temperature == pytest.approx(fit_temperature(z[:, :-1], y))
    shifted = z / temperature
    shifted[:, -1] += bias
    h = softmax(shifted, axis=1)
    wanted = softmax(z, axis=1)[:, -1].mean() if rate is None else rate
    assert h[:, -1].mean() == pytest.approx(wanted, rel=1e-6)
    # By likelihood alone there is no bias: any lower one is better.
    lower = shifted.copy()
    lower[:, -1] -= 1
    assert nll(lower, y) < nll(shifted, y)


@pytest.mark.parametrize("rate", [1 - 2**-53, 1 - 1e-12, 1e-30])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 5.0])
def test_a_rate_next_to_0_or_1_has_a_bias_too(rate: float, spread: float) -> None:
    """Next to 1 there are digits for the share of the known alone. Without a spread the bias can be written down."""
    random = np.random.default_rng(0)
    z = np.column_stack([np.tile([1.0, -1.0], (50, 1)), spread * random.normal(size=50)])
    labels = np.arange(50) % 3 // 2
    temperature, bias = fit_temperature_and_bias(z, labels, rate, 0.25)
    known = logsumexp(z[:, :-1] / temperature, axis=1)
    odds = np.exp(z[:, -1] / temperature + bias - known)
    assert np.mean(1 / (1 + odds)) == pytest.approx(1 - rate, rel=1e-6)
    assert np.mean(odds / (1 + odds)) == pytest.approx(rate, rel=1e-6)
    if not spread:
        assert bias == pytest.approx(np.log(rate) - np.log(1 - rate) + known[0], rel=1e-9)
    kept, bias = fit_temperature_and_bias(np.add(z, [0, 0, 60]), labels, None, 0.25)  # unknown without a doubt
    odds = np.exp((z[:, -1] + 60) / kept + bias - logsumexp(z[:, :-1] / kept, axis=1))
    before = np.exp(z[:, -1] + 60 - logsumexp(z[:, :-1], axis=1))
    assert np.mean(1 / (1 + odds)) == pytest.approx(np.mean(1 / (1 + before)), rel=1e-6)


@pytest.mark.parametrize("distance", [-1e30, -1e10, -1e9, -1e4, 1e4, 1e9, 1e10, 1e30])
def test_an_unknown_logit_that_has_run_away_is_fitted_or_refused(distance: float) -> None:
    """Beyond some 4e9 two neighbouring float64 numbers are more than a millionth apart: no bias undoes such a logit."""
    z, y = problem(11)
    known = y < 10
    z, y = z[known], y[known]
    z[:, -1] += distance
    if abs(distance) > 4.6e9:
        for rate in (None, 0.1):
            with pytest.raises(EowError, match=r"unknown logit is as far as .*lower its learning rate"):
                fit_temperature_and_bias(z, y, rate, 0.5)
        return
    temperature, bias = fit_temperature_and_bias(z, y, 0.1, 0.5)
    shifted = np.column_stack([z[:, :-1] / temperature, z[:, -1] / temperature + bias])
    assert softmax(shifted, axis=1)[:, -1].mean() == pytest.approx(0.1, rel=1e-6)


def test_the_bias_undoes_a_known_shift() -> None:
    z, y = problem(11)
    z, y = z[y < 10], y[y < 10]
    shifted = z.copy()
    shifted[:, -1] += 2.5
    rate = 0.05
    assert fit_temperature_and_bias(shifted, y, rate)[1] == pytest.approx(
        fit_temperature_and_bias(z, y, rate)[1] - 2.5 / fit_temperature(z[:, :-1], y), abs=1e-6
    )


@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (np.zeros((0, 3)), np.zeros(0, int), "shape"),
        (np.zeros((4, 1)), np.zeros(4, int), "shape"),
        (np.eye(3), np.zeros(2, int), "shape"),
        (np.eye(3), np.array([0, 1, 3]), "from 0 to 2"),
        (np.eye(3), np.array([0, -1, 2]), "from 0 to 2"),
        (np.eye(3), np.array([0.0, 1.0, 2.0]), "whole numbers"),
        (np.full((3, 3), np.nan), np.arange(3), "NaN.*lower its learning rate"),
        (np.ones((3, 3)), np.arange(3), "the same"),
    ],
)
def test_what_cannot_be_fitted_is_refused(logits: np.ndarray, labels: np.ndarray, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        fit_temperature(logits, labels)


def test_wrong_unknown_rates_and_labels_are_refused() -> None:
    z, y = problem(11)
    for rate in (0.0, 1.0, -0.5):
        with pytest.raises(EowError, match="unknown rate"):
            fit_temperature_and_bias(z, np.minimum(y, 9), rate)
    with pytest.raises(EowError, match="known classes only"):
        fit_temperature_and_bias(z, y)


def test_it_divides_the_logits_by_what_it_fitted() -> None:
    method, held = make(), batches()
    x, y = next(iter(batches(samples=40).in_order()))
    with pytest.raises(EowError, match="not been fitted"):
        method.predict(x)
    method.finish(batches(), held)
    logits = method.model(held.inputs).detach().double().numpy()
    assert method.temperature.item() == pytest.approx(fit_temperature(logits, held.labels))
    said = method.predict(x)
    expected = softmax(method.model(x).detach().double().numpy() / method.temperature.item(), axis=1)
    np.testing.assert_allclose(said.probs.numpy(), expected, atol=1e-6)
    assert said.probs.dtype == torch.float32
    h = method.model(x).softmax(1)
    torch.testing.assert_close(method(x, y)["ce"], -h[range(40), y].log().mean())  # training knows of no temperature


def test_it_is_fitted_on_held_out_training_data_or_not_at_all() -> None:
    with pytest.raises(EowError, match=r"set data\.holdout"):
        make().finish(batches(), None)
    with pytest.raises(EowError, match="test split of blobs"):
        make().finish(batches(), batches("test"))


def test_recipes_hold_data_out_for_it() -> None:
    assert resolve({"method": {"name": "temperature"}}).data.holdout == 0.1
    assert resolve({"method": {"name": "vanilla"}}).data.holdout == 0
    assert resolve({"method": {"name": "temperature"}, "data": {"holdout": 50}}).data.holdout == 50
    release = resolve({"method": {"name": "temperature"}, "recipe": "release"})
    assert (release.data.holdout, release.train.holdout_epochs) == (0.1, 0)  # not trained on in the end


@pytest.mark.filterwarnings("ignore:not one of")
def test_on_digits_it_takes_over_the_vanilla_run_beside_it(tmp_path: Path) -> None:
    wish = {"data": {"unknown_classes": [8, 9], "holdout": 0.1}}
    runs.train(resolve(wish, {"method": {"name": "vanilla"}}), tmp_path / "vanilla", progress=False)
    config = resolve(wish, {"method": {"name": "temperature"}})
    summary = runs.train(config, tmp_path / "temperature", progress=False)
    lines = storage.Log(tmp_path / "temperature" / "log.jsonl").read()
    assert [(line["event"], line["source"]) for line in lines] == [("taken over", "vanilla")]
    vanilla, run = runs.load(tmp_path / "vanilla"), runs.load(tmp_path / "temperature")
    ours, theirs = run.method.model.state_dict(), vanilla.method.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert summary["metrics"]["test"]["accuracy"] > 0.95
    stored = [
        predictions.read(tmp_path / name / "predictions" / "test.safetensors") for name in ("vanilla", "temperature")
    ]
    temperature = run.method.get_buffer("temperature").item()
    np.testing.assert_allclose(stored[1].probs, softmax(stored[0].logits / temperature, axis=1), atol=1e-6)
    held = load_sets(config.data, config.seed).holdout
    logits = vanilla.method.predict(vanilla.transform(torch.from_numpy(held.inputs))).logits
    assert fit_temperature(logits, held.labels) == pytest.approx(temperature, rel=1e-4)


def test_without_a_fitting_vanilla_run_it_trains_itself(tmp_path: Path) -> None:
    wish = {"train": {"epochs": 2}, "model": {"hidden": [16]}, "data": {"holdout": 0.1}}
    runs.train(resolve(wish, {"seed": 1, "method": {"name": "vanilla"}}), tmp_path / "vanilla", progress=False)
    runs.train(resolve(wish, {"method": {"name": "temperature"}}), tmp_path / "temperature", progress=False)
    assert [line["epoch"] for line in storage.Log(tmp_path / "temperature" / "log.jsonl").read()] == [0, 1]


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.003, 1e-4])
def test_of_two_valleys_the_deeper_one_is_taken(scale: float) -> None:
    """Logits that say next to nothing: the likelihood wants a tiny T, the prior one near 1, and a hill lies between."""
    random = np.random.default_rng(0)
    z = 2 * scale * random.normal(size=(120, 10))
    y = np.array([random.choice(10, p=row) for row in softmax(z / scale, axis=1)])

    def loss(log: float) -> float:
        return -log_softmax(z * np.exp(-log), axis=1)[np.arange(120), y].sum() + log**2 / (2 * 0.5**2)

    found = loss(np.log(fit_temperature(z, y, width=0.5)))
    assert found <= min(loss(log) for log in np.linspace(-12, 3, 3001)) + 1e-3


def test_the_floor_s_labels_come_from_their_probabilities_and_its_true_temperature_is_found() -> None:
    floor = script("benchmarks/floor.py")
    draw = np.random.default_rng(0)
    true = floor.true_logits(draw, 20_000, scale=3.3, lead=3.2)
    probs = softmax(true, axis=1)
    labels = floor.labels_of(draw, probs)
    right = labels == true.argmax(1)
    spread = np.sqrt((probs.max(1) * (1 - probs.max(1))).sum())
    assert abs(right.sum() - probs.max(1).sum()) < 4 * spread
    wrong = labels[~right]  # the other classes are all alike but for the leading one
    assert len(np.unique(wrong)) == floor.CLASSES
    gaps, losses = floor.at_infinity(true)
    truest = len(floor.AROUND) // 2  # fitted over true temperature 1
    assert losses.argmin() == truest
    assert abs(gaps[truest]) < 1e-6
    assert (np.diff(gaps) < 0).all()
    few, many = (floor.summary(list(floor.tables(true, count, 4, seed=0))) for count in (100, 4000))
    assert many["excess"] < few["excess"]
    assert 0 < many["nll"] < few["nll"] < 0.02
    # By the likelihood's curvature in log T, which is the variance of Σ p_k z_k over the labels.
    z = true.astype(float)
    curvature = ((probs * z**2).sum(1) - (probs * z).sum(1) ** 2).mean()
    assert many["temperature_std"] == pytest.approx(floor.TEMPERATURE / (curvature * 4000) ** 0.5, rel=0.4)


def test_tables_of_any_kind_give_the_same_temperature() -> None:
    """It is public: logits come from data frames, files of another machine, views."""
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 200)
    z = draw.normal(size=(200, 3)) + 2 * np.eye(3)[y]
    found = fit_temperature(z, y)
    turned = z[::-1], y[::-1]
    views = [z.astype(">f8"), np.broadcast_to(z, z.shape), z.astype(object), z.tolist(), pandas.DataFrame(z)]
    for logits, labels in (turned, *((each, y) for each in views), (pandas.DataFrame(z)[::-1], pandas.Series(y)[::-1])):
        assert fit_temperature(logits, labels) == pytest.approx(found, rel=1e-9)
    for logits, labels in ((z, y.astype(str)), ("words", y), (None, y), ([[1, 2], [1]], [0, 1])):
        with pytest.raises(EowError, match=r"logits|labels"):
            fit_temperature(logits, labels)
