"""The null of each calibration error: against enumeration, against simulation, and the figures it is known for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eow.errors import EowError
from eow.metrics import (
    Null,
    ece,
    ece_classwise,
    ece_equal_mass,
    ece_l2_debiased,
    mce,
    null_ece,
    null_ece_classwise,
    null_ece_equal_mass,
    null_ece_l2_debiased,
    null_mce,
    null_of,
    null_smooth_ece,
    smooth_ece,
)
from eow.metrics.binning import sums_by_mass
from eow.metrics.checks import NOTHING

PAIRS = [
    (ece, null_ece),
    (ece_equal_mass, null_ece_equal_mass),
    (mce, null_mce),
    (ece_l2_debiased, null_ece_l2_debiased),
    (smooth_ece, null_smooth_ece),
]


def likely(count: int, mean: float, spread: float = 0.25, seed: int = 0) -> np.ndarray:
    """Confidences whose mean is a calibrated model's accuracy; their variance is `spread` of mean·(1 - mean)."""
    strength = (1 - spread) / spread
    return np.random.default_rng(seed).beta(mean * strength, (1 - mean) * strength, count)


@pytest.mark.parametrize("bins", [1, 3, 7, 40])
def test_a_bin_that_gets_some_of_several_equals_has_its_part_of_their_variance(bins: int) -> None:
    """m of the n samples that are all p sure have m/n of how many of these are right: m²/n · p(1-p)."""
    confidence = np.random.default_rng(bins).choice([0.05, 0.3, 0.5, 0.55, 0.9], 40)
    expected = [
        sum((part == p).sum() ** 2 / (confidence == p).sum() * p * (1 - p) for p in np.unique(part))
        for part in np.array_split(np.sort(confidence), bins)
    ]
    np.testing.assert_allclose(sums_by_mass(confidence, NOTHING, bins).variance, expected, rtol=1e-9)


def exact(confidence: list[float], bins: int) -> float:
    """The mean ECE over all outcomes: the distribution of the number correct in a bin, one sample after the other."""
    where = np.ceil(np.array(confidence) * bins).clip(1) - 1
    total = 0.0
    for i in range(bins):
        inside = np.array(confidence)[where == i]
        chance = np.ones(1)
        for p in inside:
            chance = np.convolve(chance, [1 - p, p])
        total += chance @ np.abs(np.arange(len(chance)) - inside.sum())
    return total / len(confidence)


def test_five_samples_by_hand() -> None:
    assert null_ece([0.3] * 1).mean == pytest.approx(2 * 0.3 * 0.7)  # |1 - 0.3| with 0.3, |0 - 0.3| with 0.7
    assert null_ece([0.3] * 1).std == pytest.approx(np.sqrt(0.3 * 0.7 - 0.42**2))
    # five at one half: |k - 2.5| is 0.5 (20 of 32), 1.5 (10 of 32) or 2.5 (2 of 32)
    assert null_ece([0.5] * 5).mean == pytest.approx((0.5 * 20 + 1.5 * 10 + 2.5 * 2) / 32 / 5)
    assert null_ece([0.1, 0.3, 0.5, 0.7, 0.9]).mean == pytest.approx(2 * (0.09 + 0.21 + 0.25 + 0.21 + 0.09) / 5)
    assert null_ece_equal_mass([0.1, 0.3, 0.5, 0.7, 0.9]) == pytest.approx(null_ece([0.1, 0.3, 0.5, 0.7, 0.9]))
    assert null_ece([0.0, 1.0, 1.0]) == Null(0.0, 0.0)
    assert null_mce([1.0, 0.0]) == null_ece_l2_debiased([1.0, 0.0]) == Null(0.0, 0.0)


def test_the_known_figures() -> None:
    """Calibrated, 15 bins, 10,000 samples: 1.04 ± 0.23 points at 74 % accuracy, 0.48 at 95 %; 1,000 samples: 3.2."""
    middle = null_ece(likely(10_000, 0.74))
    assert middle.mean == pytest.approx(0.0104, abs=5e-4)
    assert middle.std == pytest.approx(0.0023, abs=1e-4)
    assert null_ece(likely(10_000, 0.95, 0.45)).mean == pytest.approx(0.0048, abs=5e-4)
    assert null_ece(likely(1000, 0.74)).mean == pytest.approx(0.032, abs=2e-3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=80), st.integers(10, 20))
def test_the_closed_form_is_the_exact_mean_but_for_the_spread_inside_a_bin(confidence: list[float], bins: int) -> None:
    where = np.ceil(np.array(confidence) * bins)
    if np.any(np.abs(where - np.array(confidence) * bins) < 1e-9):
        return  # on an edge: the enumeration above does not look so closely
    tolerance = 0.02 * len(set(where)) / len(confidence)  # a fiftieth of a sample for every bin
    assert null_ece(confidence, bins).mean == pytest.approx(exact(confidence, bins), abs=tolerance)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.01, 0.99), st.integers(1, 300))
def test_the_closed_form_is_exact_for_equal_confidences(p: float, count: int) -> None:
    assert null_ece([p] * count).mean == pytest.approx(exact([p] * count, 1), rel=1e-9)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.7, 0.95])
def test_of_many_equal_confidences_bins_of_equal_mass_measure_what_one_bin_does(p: float) -> None:
    assert null_ece_equal_mass([p] * 3000).mean == pytest.approx(null_ece([p] * 3000).mean, rel=0.02)


def test_for_many_samples_the_closed_form_is_the_normal_one() -> None:
    confidence = likely(200_000, 0.74)
    where = np.ceil(confidence * 15).astype(int)
    variances = np.bincount(where, weights=confidence * (1 - confidence))
    expected = np.sqrt(2 * variances / np.pi).sum() / len(confidence)
    assert null_ece(confidence).mean == pytest.approx(expected, rel=2e-3)
    assert null_ece(confidence).std == pytest.approx(
        np.sqrt((1 - 2 / np.pi) * variances.sum()) / len(confidence), rel=2e-3
    )


@pytest.mark.parametrize(("metric", "null"), PAIRS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "confidence",
    [likely(2000, 0.74), likely(60, 0.9), torch.tensor(likely(2000, 0.8)).bfloat16(), np.full(64, 0.7)],
    ids=["many", "few", "bfloat16", "equal"],
)
def test_the_fast_null_is_the_simulated_one(
    metric: Callable[..., float], null: Callable[..., Null], confidence: Any
) -> None:
    draws = 100 if metric is smooth_ece else 600
    fast, slow = null(confidence), null_of(metric, confidence, draws=draws, seed=1)
    error = slow.std / np.sqrt(draws) + (fast.std / np.sqrt(50) if metric is smooth_ece else 0)
    assert fast.mean == pytest.approx(slow.mean, abs=4 * error + 0.03 * slow.mean)
    if not (metric is ece_equal_mass and isinstance(confidence, np.ndarray) and len(confidence) == 64):  # as documented
        assert fast.std == pytest.approx(slow.std, rel=0.4 if metric is smooth_ece else 0.2)


def test_equal_confidences_are_drawn_together_in_bins_of_equal_mass() -> None:
    """All 64 are one group: every bin has their mean correctness, and so has the whole."""
    assert null_ece_equal_mass([0.7] * 64).mean == pytest.approx(null_ece([0.7] * 64).mean, rel=0.05)


def test_the_null_of_few_ties_in_bins_of_equal_mass_is_as_rough_as_documented() -> None:
    """A bin has half of a pair at 1/2, whose sum of 0, 1 or 2 is off by 0 as often as not: the binomial of one sample,
    shrunk, never is."""
    pairs = np.repeat(0.47 + 0.01 * np.arange(7), 2)
    slow = null_of(ece_equal_mass, pairs, draws=2000)
    assert slow.mean == pytest.approx(0.258, abs=0.005)
    assert null_ece_equal_mass(pairs).mean == pytest.approx(0.353, abs=0.001)


@pytest.mark.parametrize("classes", [3, 30])
def test_the_classwise_null_is_the_simulated_one(classes: int) -> None:
    draw = np.random.default_rng(0)
    probs = draw.dirichlet(np.full(classes, 0.3), 1000)
    edges = probs.cumsum(1)
    values = [ece_classwise(probs, (draw.random((1000, 1)) > edges).sum(1).clip(0, classes - 1)) for _ in range(200)]
    null = null_ece_classwise(probs)
    assert null.mean == pytest.approx(np.mean(values), rel=0.03)
    assert null.std == pytest.approx(np.std(values), rel=0.5 if classes == 3 else 0.25)


def test_a_calibrated_model_scores_its_null_and_a_shifted_one_does_not() -> None:
    draw = np.random.default_rng(3)
    confidence = likely(5000, 0.74)
    honest, proud = draw.random(5000) < confidence, draw.random(5000) < confidence - 0.05
    for metric, null in PAIRS:
        mean, std = null(confidence)
        assert abs(metric(confidence, honest) - mean) < 4 * std
        if metric is not mce:  # one bin of few samples hides the shift
            assert metric(confidence, proud) > mean + 4 * std


def test_the_null_falls_with_the_root_of_the_samples() -> None:
    confidence = likely(3000, 0.74)
    assert null_ece(confidence).mean / null_ece(np.tile(confidence, 16)).mean == pytest.approx(4, rel=0.02)


def test_the_same_seed_draws_the_same() -> None:
    confidence = likely(100, 0.7)
    for _, null in PAIRS[2:]:
        assert null(confidence, seed=5) == null(confidence, seed=5) != null(confidence, seed=6)
    assert null_of(ece, confidence, seed=5) == null_of(ece, confidence, seed=5) != null_of(ece, confidence, seed=6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: null_ece([]), "empty"),
        (lambda: null_ece([1.2]), "confidence ranges"),
        (lambda: null_ece([0.5], bins=0), "bins is 0"),
        (lambda: null_of(ece, [0.5], draws=1), "at least 2"),
        (lambda: null_mce([0.5], draws=0), "draws is 0"),
        (lambda: null_ece_classwise([[2.0, 3.0]]), "probs ranges"),
    ],
)
def test_bad_input_is_named(call: Callable[[], Null], message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()
