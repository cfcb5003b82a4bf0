"""Metrics against hand-worked cases, and against torchmetrics, scikit-learn and scipy."""

import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss, roc_auc_score
from torchmetrics.functional.classification import multiclass_calibration_error

from eow.errors import EowError
from eow.metrics import accuracy, auroc, ece, nll, nll_from_logits, nll_renormalised, reliability

confidences = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60)


def sample(seed: int, count: int = 400, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.dirichlet(np.ones(classes), count), draw.integers(0, classes, count)


def test_five_samples_by_hand() -> None:
    confidence, correct = [0.1, 0.3, 0.35, 0.9, 1.0], [0, 1, 0, 1, 1]
    counts, mean_confidence, mean_correct = reliability(confidence, correct, bins=2)
    assert counts.tolist() == [3, 2]
    np.testing.assert_allclose(mean_confidence, [0.25, 0.95])
    np.testing.assert_allclose(mean_correct, [1 / 3, 1.0])
    assert ece(confidence, correct, bins=2) == pytest.approx(3 / 5 * (1 / 3 - 0.25) + 2 / 5 * 0.05)
    assert ece(confidence, correct, bins=1) == pytest.approx(0.6 - 0.53)
    # fifteen bins: 0.1 and 0.9 are alone, 0.3 is in (4/15, 5/15], 0.35 in (5/15, 6/15], 1.0 in the last
    assert ece(confidence, correct) == pytest.approx((0.1 + 0.7 + 0.35 + 0.1 + 0.0) / 5)
    assert accuracy([0, 1, 2, -1, 4], [0, 1, 1, 3, 4]) == pytest.approx(3 / 5)


def test_nll_by_hand() -> None:
    probs, labels = [[0.5, 0.25], [0.2, 0.2], [0.0, 1.0], [0.1, 0.3], [0.6, 0.4]], [0, 1, 1, 0, 0]
    assert nll(probs, labels) == pytest.approx(-np.log(0.5 * 0.2 * 1.0 * 0.1 * 0.6) / 5)
    assert nll_renormalised(probs, labels) == pytest.approx(-np.log((2 / 3) * 0.5 * 1.0 * 0.25 * 0.6) / 5)


def test_probability_zero_has_the_documented_price() -> None:
    assert nll([[0.0, 1.0]], [0]) == pytest.approx(87.3365, abs=1e-3)
    assert nll_renormalised([[0.0, 0.0, 0.0]], [1]) == pytest.approx(np.log(3))
    assert nll_from_logits([[-500.0, 500.0]], [0]) == pytest.approx(1000.0)


def test_empty_bins_are_nan_and_cost_nothing() -> None:
    bins = reliability([0.95], [1], bins=10)
    assert bins.counts.tolist() == [0] * 9 + [1]
    assert np.isnan(bins.confidence[:9]).all()
    assert np.isnan(bins.accuracy[:9]).all()
    assert ece([0.95], [1], bins=10) == pytest.approx(0.05)


@pytest.mark.parametrize("bins", [2, 7, 10, 15, 20, 49, 100])
def test_edges_belong_to_the_bin_below(bins: int) -> None:
    edges = np.array([i / bins for i in range(bins + 1)])
    below, above = np.nextafter(edges[1:], 0), np.nextafter(edges[:-1], 1)
    for inside in (edges[1:], below, above):  # one sample in each bin, wherever in (lo, hi] it sits
        assert reliability(inside, np.ones(bins), bins).counts.tolist() == [1] * bins
    assert reliability([0.0], [1], bins).counts.tolist() == [1] + [0] * (bins - 1)


def test_float32_edges_are_compared_as_given() -> None:
    for i in range(1, 15):
        single = np.float32(i) / np.float32(15)
        expected = i - 1 if float(single) <= i / 15 else i  # python compares the two in float64
        assert reliability(np.array([single]), [1]).counts.argmax() == expected
    assert reliability(np.array([0.2]), [1]).counts.argmax() == 2
    assert reliability(np.array([0.2], dtype=np.float32), [1]).counts.argmax() == 3
    assert reliability(torch.tensor([0.2]), [1]).counts.argmax() == 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_agrees_with_torchmetrics_inside_the_bins(seed: int, bins: int) -> None:
    probs, labels = sample(seed)
    theirs = multiclass_calibration_error(torch.tensor(probs), torch.tensor(labels), probs.shape[1], n_bins=bins)
    assert ece(probs.max(1), probs.argmax(1) == labels, bins) == pytest.approx(float(theirs), abs=1e-6)


def test_torchmetrics_keeps_confidence_one_apart() -> None:
    """It opens a hidden bin for 1.0: a wrong 1.0 and a right 0.95 do not average there, as they do in (14/15, 1]."""
    probs, labels = torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0])
    theirs = float(multiclass_calibration_error(probs, labels, 2, n_bins=15))
    assert theirs == pytest.approx((1.0 + 0.05) / 2, abs=1e-6)
    assert ece(probs.max(1).values, [0, 1]) == pytest.approx(abs(0.5 - 0.975), abs=1e-6)


def test_torchmetrics_puts_an_edge_in_the_bin_above() -> None:
    """Its bins are [lo, hi): with two of them, 0.5 joins 0.75 in the upper one; here 0.5 closes the lower one."""
    probs, labels = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.3, 0.2]], dtype=torch.float64), torch.tensor([1, 0])
    theirs = float(multiclass_calibration_error(probs, labels, 3, n_bins=2))
    assert theirs == pytest.approx(abs(0.5 - 0.625), abs=1e-6)
    assert ece(probs.max(1).values, [0, 1], bins=2) == pytest.approx((0.75 + 0.5) / 2)


@pytest.mark.parametrize("seed", range(3))
def test_reliability_agrees_with_scikit_learn(seed: int) -> None:
    probs, labels = sample(seed)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    fraction, mean = calibration_curve(correct, confidence, n_bins=15, strategy="uniform")
    ours = reliability(confidence, correct, 15)
    filled = ours.counts > 0
    np.testing.assert_allclose(ours.confidence[filled], mean, rtol=1e-12)
    np.testing.assert_allclose(ours.accuracy[filled], fraction, rtol=1e-12)
    assert ours.counts.sum() == len(labels)


@pytest.mark.parametrize("seed", range(3))
def test_nll_agrees_with_scikit_learn(seed: int) -> None:
    full, labels = sample(seed, classes=6)
    labels = labels % 5
    known = full[:, :5]
    assert nll(known, labels) == pytest.approx(log_loss(labels, full, labels=range(6)), rel=1e-10)
    shares = known / known.sum(1, keepdims=True)
    assert nll_renormalised(known, labels) == pytest.approx(log_loss(labels, shares, labels=range(5)), rel=1e-10)
    assert nll_renormalised(known, labels) < nll(known, labels)


def test_nll_from_logits_agrees_with_torch_and_with_the_probabilities() -> None:
    logits = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5
    labels = torch.arange(200) % 5
    probs = logits.softmax(1)[:, :5]
    assert nll_from_logits(logits, labels) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)))
    assert nll_from_logits(logits, labels) == pytest.approx(nll(probs, labels), rel=1e-10)
    assert nll_from_logits(logits[:, :5], labels) == pytest.approx(nll_renormalised(probs, labels), rel=1e-10)


def test_auroc_by_hand() -> None:
    # pairs: 0.9 beats all three, 0.5 beats 0.1 and 0.4 and ties with 0.5
    assert auroc([0.9, 0.5], [0.1, 0.4, 0.5]) == pytest.approx(5.5 / 6)
    assert auroc([2.0], [-3.0]) == 1.0
    assert auroc([1, 1, 1], [1, 1]) == 0.5


@pytest.mark.parametrize("seed", range(5))
def test_auroc_agrees_with_scipy_and_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    known, unknown = draw.normal(0.5, 1, 83).round(1), draw.normal(0, 1, 57).round(1)  # rounded: many ties
    assert auroc(known, unknown) == pytest.approx(mannwhitneyu(known, unknown).statistic / (83 * 57), rel=1e-12)
    truth = np.r_[np.ones(83), np.zeros(57)]
    assert auroc(known, unknown) == pytest.approx(roc_auc_score(truth, np.r_[known, unknown]))
    assert auroc(known, unknown) + auroc(unknown, known) == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(confidences, st.integers(1, 40), st.randoms(use_true_random=False))
def test_ece_is_bounded_and_ignores_the_order(confidence: list[float], bins: int, shuffle: object) -> None:
    correct = [shuffle.random() < 0.5 for _ in confidence]  # type: ignore[attr-defined]
    order = list(range(len(confidence)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    value = ece(confidence, correct, bins)
    assert 0 <= value <= 1
    assert ece([confidence[i] for i in order], [correct[i] for i in order], bins) == pytest.approx(value, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(confidences, st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_merging_bins_never_raises_ece(confidence: list[float], coarse: int, factor: int, seed: int) -> None:
    """Bins of 1/coarse are unions of bins of 1/(coarse·factor), and |a + b| ≤ |a| + |b|."""
    correct = np.random.default_rng(seed).random(len(confidence)) < 0.5
    fine = reliability(confidence, correct, coarse * factor)
    merged = reliability(confidence, correct, coarse)
    assert merged.counts.tolist() == fine.counts.reshape(coarse, factor).sum(1).tolist()
    assert ece(confidence, correct, coarse) <= ece(confidence, correct, coarse * factor) + 1e-12
    assert ece(confidence, correct, 1) == pytest.approx(abs(np.mean(confidence) - np.mean(correct)), abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_auroc_and_nll_ignore_the_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    probs, labels = sample(seed, 20)
    order = draw.permutation(20)
    assert nll(probs[order], labels[order]) == pytest.approx(nll(probs, labels), rel=1e-12)
    known, unknown = probs[:10, 0], probs[10:, 0]
    assert auroc(known, unknown) == auroc(draw.permutation(known), draw.permutation(unknown))
    assert auroc(np.exp(known), np.exp(unknown)) == auroc(known, unknown)  # ranks alone matter


def test_tensors_are_taken_whatever_their_type_and_left_alone() -> None:
    confidence = torch.tensor([0.25, 0.75], requires_grad=True)
    correct = torch.tensor([False, True])
    assert ece(confidence, correct) == ece([0.25, 0.75], [0, 1])
    assert ece(confidence.bfloat16(), correct) == ece([0.25, 0.75], [0, 1])
    assert confidence.requires_grad
    assert auroc(torch.tensor([3, 4]), torch.tensor([1, 2])) == 1.0
    assert isinstance(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), float)


def test_rounding_is_forgiven_and_a_mistake_is_not() -> None:
    assert ece([1 + 5e-7, -5e-7], [1, 0]) == 0
    with pytest.raises(EowError, match="no logits, no percentages"):
        ece([1.01], [1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ece([0.5, float("nan")], [0, 1]), "nan"),
        (lambda: ece([], []), "empty"),
        (lambda: ece([0.5], [0, 1]), "1 samples and correct has 2"),
        (lambda: ece([0.5], [2]), "True/False"),
        (lambda: ece([0.5], [float("nan")]), "True/False"),
        (lambda: ece([[0.5]], [1]), "shape"),
        (lambda: ece([-0.2], [1]), "confidence ranges"),
        (lambda: ece(["high"], [1]), "not an array of numbers"),
        (lambda: ece([0.5], [1], bins=0), "bins is 0"),
        (lambda: ece([0.5], [1], bins=1.5), "bins is 1.5"),  # type: ignore[arg-type]
        (lambda: nll([[0.5, 0.5]], [2]), "labels are 0 to 1"),
        (lambda: nll([[0.5, 0.5]], [-1]), "labels are 0 to 1"),
        (lambda: nll([[0.5, 0.5]], [0.5]), "fractions"),
        (lambda: nll([[0.5, 0.5]], [0, 1]), "same samples"),
        (lambda: nll([[0.9, 0.9]], [0]), "sums to 1.8"),
        (lambda: nll([[0.5, float("nan")]], [0]), "nan"),
        (lambda: nll_renormalised([[5.0, 1.0]], [0]), "probs ranges"),
        (lambda: nll_from_logits([[1.0, float("inf")]], [0]), "infinite"),
        (lambda: nll_from_logits([[1.0, 2.0]], [2]), "logits has 2 columns"),
        (lambda: accuracy([1, 2], [1]), "same samples"),
        (lambda: accuracy([[0.1, 0.9]], [1]), "shape"),
        (lambda: auroc([], [0.5]), "known is empty"),
        (lambda: auroc([0.5], [float("nan")]), "unknown has 1"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()  # type: ignore[operator]


def test_a_million_samples_take_a_fraction_of_a_second() -> None:
    confidence = np.random.default_rng(0).random(1_000_000, dtype=np.float32)
    correct = confidence > 0.5
    seconds = []
    for _ in range(3):  # the best of three, since the machine is shared
        start = time.perf_counter()
        ece(confidence, correct)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3


def test_metrics_do_not_import_torch() -> None:
    check = "import sys, eow.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
