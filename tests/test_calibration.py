"""Calibration errors against hand-worked cases, torchmetrics, netcal, relplot, scikit-learn and scipy."""

import inspect

import numpy as np
import pytest
import relplot
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from netcal.metrics import ECE, MCE
from scipy.stats import binomtest
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from eow import metrics
from eow.errors import EowError
from eow.metrics import (
    Reliability,
    ece,
    ece_classwise,
    ece_equal_mass,
    ece_l2_debiased,
    mce,
    merge_reliability,
    reliability,
    reliability_interval,
    smooth_ece,
)
from eow.metrics.binning import bin_numbers

confidences = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60)
tied_confidences = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 2 / 3, 0.9, 1.0]), min_size=1, max_size=60)
ERRORS = (ece, ece_equal_mass, mce, ece_l2_debiased, smooth_ece)
FIVE = [0.1, 0.3, 0.35, 0.9, 1.0], [0, 1, 0, 1, 1]


def sample(seed: int, count: int = 400, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.dirichlet(np.ones(classes), count), draw.integers(0, classes, count)


def top(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    probs, labels = sample(seed, count)
    return probs.max(1), probs.argmax(1) == labels


def test_there_are_fifteen_bins_unless_one_asks_for_others() -> None:
    """As in the paper; an error and its null must have the same."""
    functions = {name: inspect.signature(getattr(metrics, name)).parameters for name in metrics.__all__}
    bins = {name: each["bins"].default for name, each in functions.items() if "bins" in each}
    bins.pop("reliability_interval")  # takes the bins themselves
    assert {*bins} >= {"reliability", "ece", "mce", "brier_parts", "null_ece", "null_mce"}
    assert {name: default for name, default in bins.items() if default != 15} == {}


def test_five_samples_by_hand() -> None:
    confidence, correct = FIVE
    counts, mean_confidence, mean_correct = reliability(confidence, correct, bins=2)
    assert counts.tolist() == [3, 2]
    np.testing.assert_allclose(mean_confidence, [0.25, 0.95])
    np.testing.assert_allclose(mean_correct, [1 / 3, 1.0])
    assert ece(confidence, correct, bins=2) == pytest.approx(3 / 5 * (1 / 3 - 0.25) + 2 / 5 * 0.05)
    assert ece(confidence, correct, bins=1) == pytest.approx(0.6 - 0.53)
    # fifteen bins: 0.1 and 0.9 are alone, 0.3 is in (4/15, 5/15], 0.35 in (5/15, 6/15], 1.0 in the last
    assert ece(confidence, correct) == pytest.approx((0.1 + 0.7 + 0.35 + 0.1 + 0.0) / 5)


def test_five_samples_by_hand_in_the_other_errors() -> None:
    confidence, correct = FIVE
    assert mce(confidence, correct, bins=2) == pytest.approx(1 / 3 - 0.25)
    assert mce(confidence, correct) == pytest.approx(0.7)
    # equal mass, two bins: {0.1, 0.3, 0.35} and {0.9, 1.0}; fifteen: every sample alone
    assert ece_equal_mass(confidence, correct, bins=2) == pytest.approx((abs(1 - 0.75) + abs(2 - 1.9)) / 5)
    assert ece_equal_mass(confidence, correct) == pytest.approx((0.1 + 0.7 + 0.35 + 0.1 + 0.0) / 5)
    # debiased: (1/12)² - (1/3·2/3)/2 in the bin of three, 0.05² - 0 in the bin of two
    squares = 3 / 5 * (1 / 144 - 1 / 9) + 2 / 5 * 0.0025
    assert squares < 0
    assert ece_l2_debiased(confidence, correct, bins=2) == 0.0
    assert ece_l2_debiased([0.9] * 5, [0, 0, 1, 0, 0], bins=1) == pytest.approx(np.sqrt(0.7**2 - 0.2 * 0.8 / 4))
    assert ece_l2_debiased(confidence, correct) == 0.0  # bins of one sample say nothing
    probs, labels = [[0.7, 0.2], [0.6, 0.3], [0.1, 0.8], [0.2, 0.2], [0.9, 0.1]], [0, 1, 1, 0, 0]
    first = abs(1 - 0.3) + abs(2 - 2.2)  # class 0, two bins: p of 0.1 and 0.2 (one hit), p of 0.7, 0.6 and 0.9 (two)
    second = abs(1 - 0.8) + abs(1 - 0.8)  # class 1: 0.2, 0.3, 0.2, 0.1 (one hit), 0.8 (one hit)
    assert ece_classwise(probs, labels, bins=2) == pytest.approx((first + second) / 2 / 5)
    assert smooth_ece([0.8] * 5, [1, 0, 1, 0, 1]) == pytest.approx(0.2)  # one sign of residual: nothing cancels


def test_the_release_drops_confidence_one_and_closes_its_bins_below() -> None:
    # [0, .5) has 0.1, 0.3, 0.35; [.5, 1) has 0.5 and 0.9; 1.0 is in no bin and not in N
    confidence, correct = [0.1, 0.3, 0.35, 0.5, 0.9, 1.0, 1.0], [0, 1, 0, 0, 1, 0, 1]
    assert ece(confidence, correct, bins=2, paper_compat=True) == pytest.approx((0.25 + 0.4) / 5)
    assert ece(confidence, correct, bins=2) == pytest.approx((abs(1 - 1.25) + abs(2 - 2.9)) / 7)
    assert ece([1.0, 1.0], [0, 1], paper_compat=True) == 0.0
    # an overconfident model's ECE cannot exceed its error rate, 1/4, unless the confidence 1.0 is dropped
    assert ece([0.9, 1.0, 1.0, 1.0], [0, 1, 1, 1]) == pytest.approx(0.9 / 4)
    assert ece([0.9, 1.0, 1.0, 1.0], [0, 1, 1, 1], paper_compat=True) == pytest.approx(0.9)


@pytest.mark.parametrize("seed", range(3))
def test_without_edges_and_ones_the_release_counts_as_we_do(seed: int) -> None:
    confidence, correct = top(seed)
    assert ece(confidence, correct, paper_compat=True) == pytest.approx(ece(confidence, correct), abs=1e-14)


def test_empty_bins_are_nan_and_cost_nothing() -> None:
    bins = reliability([0.95], [1], bins=10)
    assert bins.counts.tolist() == [0] * 9 + [1]
    assert np.isnan(bins.confidence[:9]).all()
    assert np.isnan(bins.accuracy[:9]).all()
    for error in (ece, ece_equal_mass, mce):
        assert error([0.95], [1], bins=10) == pytest.approx(0.05)
    assert smooth_ece([0.95], [1]) == pytest.approx(0.05)


@pytest.mark.parametrize("bins", [2, 7, 10, 15, 20, 49, 100])
def test_edges_belong_to_the_bin_below(bins: int) -> None:
    edges = np.array([i / bins for i in range(bins + 1)])
    below, above = np.nextafter(edges[1:], 0), np.nextafter(edges[:-1], 1)
    for inside in (edges[1:], below, above):  # one sample in each bin, wherever in (lo, hi] it sits
        assert reliability(inside, np.ones(bins), bins).counts.tolist() == [1] * bins
    assert reliability([0.0], [1], bins).counts.tolist() == [1] + [0] * (bins - 1)


def test_multiplying_finds_the_bins_that_a_search_among_the_edges_finds() -> None:
    for bins in range(1, 400):
        edges = np.arange(bins + 1) / bins
        values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1).clip(0, 1)])
        values = np.concatenate([values, values.astype(np.float32)])
        expected = np.searchsorted(edges[1:-1], values, side="left")
        np.testing.assert_array_equal(bin_numbers(values, bins), expected)


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
def test_ece_and_mce_agree_with_torchmetrics_and_netcal_inside_the_bins(seed: int, bins: int) -> None:
    probs, labels = sample(seed)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    for ours, norm, netcal in ((ece, "l1", ECE), (mce, "max", MCE)):
        value = ours(confidence, correct, bins)
        theirs = multiclass_calibration_error(torch.tensor(probs), torch.tensor(labels), 5, n_bins=bins, norm=norm)
        assert value == pytest.approx(float(theirs), abs=1e-6)
        assert value == pytest.approx(netcal(bins).measure(confidence, correct.astype(int)), abs=1e-12)


def test_torchmetrics_keeps_confidence_one_apart() -> None:
    """It opens a hidden bin for 1.0: a wrong 1.0 and a right 0.95 do not average there, as they do in (14/15, 1]."""
    probs, labels = torch.tensor([[1.0, 0.0], [0.95, 0.05]]), torch.tensor([1, 0])
    theirs = float(multiclass_calibration_error(probs, labels, 2, n_bins=15))
    assert theirs == pytest.approx((1.0 + 0.05) / 2, abs=1e-6)
    assert ece(probs.max(1).values, [0, 1]) == pytest.approx(abs(0.5 - 0.975), abs=1e-6)


def test_torchmetrics_and_netcal_put_an_edge_in_the_bin_above() -> None:
    """Their bins are [lo, hi): with two of them, 0.5 joins 0.75 in the upper one; here 0.5 closes the lower one."""
    probs, labels = torch.tensor([[0.75, 0.25, 0.0], [0.5, 0.3, 0.2]], dtype=torch.float64), torch.tensor([1, 0])
    confidence, correct = np.array([0.75, 0.5]), np.array([0, 1])
    theirs = float(multiclass_calibration_error(probs, labels, 3, n_bins=2))
    assert theirs == pytest.approx(abs(0.5 - 0.625), abs=1e-6)
    assert ECE(2).measure(confidence, correct) == pytest.approx(abs(0.5 - 0.625))
    assert ece(confidence, correct, bins=2) == pytest.approx((0.75 + 0.5) / 2)


def test_netcal_closes_its_last_bin_with_one() -> None:
    confidence, correct = np.array([1.0, 0.95]), np.array([0, 1])
    assert ECE(15).measure(confidence, correct) == pytest.approx(abs(0.5 - 0.975))
    assert ece(confidence, correct) == pytest.approx(abs(0.5 - 0.975))


@pytest.mark.parametrize("seed", range(3))
def test_reliability_agrees_with_scikit_learn(seed: int) -> None:
    confidence, correct = top(seed)
    fraction, mean = calibration_curve(correct, confidence, n_bins=15, strategy="uniform")
    ours = reliability(confidence, correct, 15)
    filled = ours.counts > 0
    np.testing.assert_allclose(ours.confidence[filled], mean, rtol=1e-12)
    np.testing.assert_allclose(ours.accuracy[filled], fraction, rtol=1e-12)
    assert ours.counts.sum() == len(correct)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_the_interval_of_a_bin_is_wilsons(level: float) -> None:
    bins = reliability([0.1, 0.3, 0.35, 0.9, 0.95], [0, 1, 0, 1, 1], bins=5)
    low, high = reliability_interval(bins, level)
    for i, (right, count) in {0: (0, 1), 1: (1, 2), 4: (2, 2)}.items():
        expected = binomtest(right, count).proportion_ci(level, method="wilson")
        assert (low[i], high[i]) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert np.isnan(low[2:4]).all()
    assert np.isnan(high[2:4]).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [7, 100, 403])
def test_equal_mass_bins_are_the_pieces_of_the_sorted_samples(seed: int, count: int) -> None:
    confidence, correct = top(seed, count)
    order = np.argsort(confidence)
    pieces = np.array_split(order, 15)
    expected = sum(abs(correct[piece].sum() - confidence[piece].sum()) for piece in pieces) / count
    assert ece_equal_mass(confidence, correct) == pytest.approx(expected, abs=1e-14)


def test_equal_confidences_share_their_correctness_across_a_cut() -> None:
    # cuts after 2 and 4 of six: the three 0.5, two of them correct, are one in the first bin and two in the second
    confidence, correct = [0.2, 0.5, 0.5, 0.5, 0.8, 0.9], [0, 1, 1, 0, 1, 1]
    expected = abs(0 + 2 / 3 - 0.7) + abs(4 / 3 - 1.0) + abs(2 - 1.7)
    assert ece_equal_mass(confidence, correct, bins=3) == pytest.approx(expected / 6)
    assert ece_equal_mass([0.7] * 10, [1] * 4 + [0] * 6, bins=5) == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5, 40])
def test_classwise_ece_agrees_with_torchmetrics_class_by_class(seed: int, classes: int) -> None:
    probs, labels = sample(seed, classes=classes + 1)
    labels %= classes
    known = probs[:, :classes]  # the rest is the unknown: rows sum to less than one
    theirs = [
        float(binary_calibration_error(torch.tensor(known[:, k]), torch.tensor(labels == k).long(), n_bins=15))
        for k in range(classes)
    ]
    assert ece_classwise(known, labels) == pytest.approx(np.mean(theirs), abs=1e-7)
    by_reliability = [ece(known[:, k], labels == k, 10) for k in range(classes)]
    assert ece_classwise(known, labels, 10) == pytest.approx(np.mean(by_reliability), abs=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_debiased_error_agrees_with_the_formula_bin_by_bin(seed: int) -> None:
    confidence, correct = top(seed)
    total = 0.0
    for low in np.arange(15) / 15:
        inside = (confidence > low) & (confidence <= low + 1 / 15)
        if (n := inside.sum()) > 1:
            p, c = correct[inside].mean(), confidence[inside].mean()
            total += n / len(confidence) * ((p - c) ** 2 - p * (1 - p) / (n - 1))
    assert total > 0
    assert ece_l2_debiased(confidence, correct) == pytest.approx(np.sqrt(total), abs=1e-12)


def test_debiasing_takes_the_bias_out_of_the_square() -> None:
    """Confidence 0.8 and accuracy 0.7: over many small samples the mean square is 0.01, not 0.01 + 0.21/20."""
    draw = np.random.default_rng(0)
    squares = [ece_l2_debiased([0.8] * 20, draw.random(20) < 0.7) ** 2 for _ in range(4000)]
    plain = [ece([0.8] * 20, draw.random(20) < 0.7) ** 2 for _ in range(4000)]
    assert np.mean(plain) == pytest.approx(0.01 + 0.21 / 20, rel=0.05)
    assert 0.01 <= np.mean(squares) < 0.0145  # negative squares count as 0: a little bias stays


@pytest.mark.parametrize("count", [10, 100, 1000, 10_000])
@pytest.mark.parametrize("accuracy", [lambda c: c, lambda c: c**2, lambda c: 0.5 + 0 * c, lambda c: 1 - c, np.sqrt])
def test_smooth_ece_agrees_with_relplot(count: int, accuracy: object) -> None:
    draw = np.random.default_rng(count)
    for confidence in (draw.beta(2.3, 0.8, count), draw.random(count), np.round(draw.random(count), 1).clip(0.1, 0.9)):
        correct = draw.random(count) < accuracy(confidence)  # type: ignore[operator]
        assert smooth_ece(confidence, correct) == pytest.approx(relplot.smECE(confidence, correct * 1.0), abs=1e-3)


def test_relplot_counts_confidence_one_by_half() -> None:
    """It reflects the last point of its grid onto itself. With one sign of residual smECE is their mean: 0.75 here."""
    assert relplot.smECE(np.array([1.0, 0.5]), np.array([0.0, 0.0])) == pytest.approx((0.5 * 1 + 0.5) / 1.5, abs=1e-3)
    assert smooth_ece([1.0, 0.5], [0, 0]) == pytest.approx(0.75, abs=1e-12)


def test_smooth_ece_is_its_own_kernel_width() -> None:
    """smECE_σ = σ, with smECE_σ by plain quadrature over the reflected kernel (narrow here, so that its cut-off is
    not felt)."""
    draw = np.random.default_rng(1)
    confidence = draw.beta(2, 1, 500)
    correct = draw.random(500) < confidence**1.3
    value = smooth_ece(confidence, correct)
    points = (np.arange(4000) + 0.5) / 4000
    kernel = sum(
        np.exp(-0.5 * ((points[:, None] - image) / value) ** 2) for image in (confidence, -confidence, 2 - confidence)
    ) / (value * np.sqrt(2 * np.pi))
    assert np.abs(kernel @ (confidence - correct)).mean() / 500 == pytest.approx(value, rel=2e-3)


def test_smooth_ece_at_the_ends() -> None:
    assert smooth_ece([1.0] * 4, [1] * 4) == pytest.approx(0, abs=1e-12)
    assert smooth_ece([1.0, 0.0], [0, 1]) == pytest.approx(1, abs=1e-3)
    assert smooth_ece([0.0] * 3, [0] * 3) == pytest.approx(0, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.one_of(confidences, tied_confidences), st.integers(1, 40), st.randoms(use_true_random=False))
def test_errors_are_bounded_and_ignore_the_order(confidence: list[float], bins: int, shuffle: object) -> None:
    correct = [shuffle.random() < 0.5 for _ in confidence]  # type: ignore[attr-defined]
    order = list(range(len(confidence)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    mixed, right = [confidence[i] for i in order], [correct[i] for i in order]
    for error in ERRORS:
        given_bins = () if error is smooth_ece else (bins,)
        value = error(confidence, correct, *given_bins)
        assert 0 <= value <= 1 + 1e-12
        assert error(mixed, right, *given_bins) == pytest.approx(value, abs=1e-7 if error is ece_l2_debiased else 1e-12)
    assert ece_equal_mass(mixed, right, bins) == ece_equal_mass(confidence, correct, bins)  # to the last bit
    assert ece_equal_mass(confidence, correct, bins) <= 1


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


@settings(max_examples=60, deadline=None)
@given(confidences, st.integers(1, 20), st.integers(0, 2**32 - 1))
@example([0.5], 3, 0)
def test_merging_shards_equals_the_whole(confidence: list[float], bins: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    correct, shard = draw.random(len(confidence)) < 0.5, draw.integers(0, 3, len(confidence))
    sure = np.array(confidence)
    shards = [reliability(sure[shard == i], correct[shard == i], bins) for i in range(3) if np.any(shard == i)]
    merged, whole = merge_reliability(shards), reliability(sure, correct, bins)
    assert merged.counts.tolist() == whole.counts.tolist()
    np.testing.assert_allclose(merged.confidence, whole.confidence, atol=1e-12)
    np.testing.assert_allclose(merged.accuracy, whole.accuracy, atol=1e-12)
    gaps = np.nan_to_num(np.abs(merged.accuracy - merged.confidence))
    assert np.sum(merged.counts * gaps) / len(sure) == pytest.approx(ece(sure, correct, bins), abs=1e-12)


def test_shards_with_other_bins_are_refused() -> None:
    with pytest.raises(EowError, match="same number of bins"):
        merge_reliability([reliability([0.5], [1], 10), reliability([0.5], [1], 15)])
    with pytest.raises(EowError, match="at least one"):
        merge_reliability([])
    with pytest.raises(EowError, match="level is 95"):
        reliability_interval(Reliability(*np.ones((3, 1))), 95)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_ece_of_a_calibrated_sampler_falls_with_the_root_of_its_samples(seed: int) -> None:
    draw = np.random.default_rng(seed)
    means = []
    for count in (1000, 16_000):
        confidence = draw.beta(2.3, 0.8, (40, count))
        correct = draw.random((40, count)) < confidence
        means.append(np.mean([ece(*pair) for pair in zip(confidence, correct)]))
    assert means[0] / means[1] == pytest.approx(4, rel=0.25)  # the mean of 40 has a std of 4 %
