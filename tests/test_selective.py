"""Selective prediction against hand-worked cases, brute force, scipy, and the promise itself in simulation."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from eow.errors import EowError
from eow.metrics import selective
from eow.metrics.selective import aurc, certified_threshold, clopper_pearson, excess_aurc, risk_coverage

few_levels = st.lists(st.integers(0, 6).map(lambda level: level / 6), min_size=1, max_size=40)  # many ties


def test_five_samples_by_hand() -> None:
    confidence, correct = [0.9, 0.8, 0.8, 0.5, 0.2], [1, 1, 0, 1, 0]
    curve = risk_coverage(confidence, correct)
    assert curve.threshold.tolist() == [0.9, 0.8, 0.5, 0.2]
    np.testing.assert_allclose(curve.coverage, [0.2, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 1 / 3, 1 / 4, 2 / 5])
    # the two that tie at 0.8 are each charged a third
    assert aurc(confidence, correct) == pytest.approx((0 + 1 / 3 + 1 / 3 + 1 / 4 + 2 / 5) / 5)
    # the best order: three right, then two wrong
    assert excess_aurc(confidence, correct) == pytest.approx(aurc(confidence, correct) - (1 / 4 + 2 / 5) / 5)
    assert aurc([0.5] * 4, [1, 0, 0, 0]) == 0.75


@pytest.mark.parametrize("seed", range(4))
def test_without_ties_aurc_is_the_mean_risk_of_the_n_surest(seed: int) -> None:
    draw = np.random.default_rng(seed)
    confidence, correct = draw.permutation(200) / 200, draw.random(200) < 0.7
    surest = correct[np.argsort(-confidence)]
    assert aurc(confidence, correct) == pytest.approx(np.mean([1 - surest[:n].mean() for n in range(1, 201)]))
    assert 0 <= excess_aurc(correct + confidence, correct) < 1e-12  # the best order there is


@settings(max_examples=80, deadline=None)
@given(few_levels, st.integers(0, 2**32 - 1))
def test_the_curve_is_what_accepting_gives(confidence: list[float], seed: int) -> None:
    draw = np.random.default_rng(seed)
    sure, correct = np.array(confidence), draw.random(len(confidence)) < 0.6
    curve = risk_coverage(sure, correct)
    for threshold, coverage, risk in zip(*curve):
        accepted = sure >= threshold
        assert coverage == pytest.approx(accepted.mean())
        assert risk == pytest.approx(1 - correct[accepted].mean())
    assert curve.coverage[-1] == 1
    assert len(curve.threshold) == len(set(confidence))
    order = draw.permutation(len(sure))
    assert aurc(sure[order], correct[order]) == aurc(sure, correct)
    assert 0 <= aurc(sure, correct) <= 1
    assert excess_aurc(sure, correct) >= 0


@pytest.mark.parametrize("count", [1, 2, 10, 137, 5000])
@pytest.mark.parametrize("delta", [0.5, 0.05, 1e-4])
def test_the_bound_is_clopper_and_pearsons(count: int, delta: float) -> None:
    for errors in sorted({0, 1, count // 10, count // 2, count - 1, count}):
        theirs = binomtest(errors, count, alternative="less").proportion_ci(1 - delta, method="exact").high
        assert clopper_pearson(errors, count, delta) == pytest.approx(theirs, rel=1e-9)


def test_certified_thresholds_by_hand() -> None:
    # a hundred right answers: 7 tests, and full coverage is bounded by 1 - (0.05/7)^(1/100) = 0.0482
    confidence = np.arange(1, 101) / 100
    found = certified_threshold(confidence, np.ones(100), max_risk=0.05)
    assert found == (0.01, 1.0, 0.0, pytest.approx(1 - (0.05 / 7) ** 0.01))
    # 97 right answers are bounded by 0.0497; with one wrong among 98 it would be 0.07
    tighter = certified_threshold(confidence, confidence > 0.03, max_risk=0.0498)
    assert tighter is not None
    assert tighter.threshold == 0.04
    assert (tighter.coverage, tighter.risk) == (0.97, 0.0)
    assert certified_threshold(confidence, np.ones(100), max_risk=0.04) is None


def test_a_faultless_record_is_certified_as_soon_as_it_is_long_enough() -> None:
    """A search that starts in the middle fails there (the bound is 0.0105) although all 1000 qualify (0.0053)."""
    found = certified_threshold(np.arange(1000) / 1000, np.ones(1000), max_risk=0.01)
    assert found == (0.0, 1.0, 0.0, pytest.approx(1 - (0.05 / 10) ** (1 / 1000)))


def test_a_single_sample_is_a_candidate_only_where_there_is_no_other() -> None:
    """At δ = .9 one right answer bounds the risk by 1 - .9 = .1, and two by 1 - √.9 = .051 (log2 2 is one test)."""
    assert certified_threshold([0.9, 0.5], [1, 0], max_risk=0.11, delta=0.9) is None
    alone, both = certified_threshold([0.9], [1], 0.11, 0.9), certified_threshold([0.9, 0.5], [1, 1], 0.11, 0.9)
    assert alone is not None
    assert both is not None
    assert (alone.threshold, both.threshold) == (0.9, 0.5)
    assert (alone.bound, both.bound) == (pytest.approx(0.1), pytest.approx(1 - math.sqrt(0.9)))


def test_the_ends_of_every_argument() -> None:
    assert certified_threshold([0.5], [1], max_risk=0.5) is None  # one right answer shows next to nothing
    assert certified_threshold([0.5], [1], max_risk=0.95) == (0.5, 1.0, 0.0, pytest.approx(0.95))
    assert certified_threshold([0.5], [0], max_risk=0.99) is None
    assert certified_threshold([0.2, 0.9], [0, 0], max_risk=1.0) == (0.2, 1.0, 1.0, 1.0)
    for count in (1, 2, 3, 4, 7, 8, 64, 100):
        confidence = np.arange(count) / count
        everything = certified_threshold(confidence, np.zeros(count), max_risk=1)
        assert everything == (0.0, 1.0, 1.0, 1.0)
        assert certified_threshold(confidence, np.ones(count), max_risk=0) is None
        assert certified_threshold(confidence, np.zeros(count), max_risk=0.9) is None
    assert certified_threshold(np.full(500, 0.7), np.ones(500), max_risk=0.05) is not None
    assert certified_threshold(np.full(500, 0.7), np.arange(500) > 100, max_risk=0.05) is None


@pytest.mark.parametrize("digits", [1, 2, 9])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_returned_is_what_accepting_gives(seed: int, digits: int) -> None:
    draw = np.random.default_rng(seed)
    confidence = draw.random(700).round(digits).astype(np.float32)
    correct = draw.random(700) < 0.7 + 0.3 * confidence
    found = certified_threshold(confidence, correct, max_risk=0.12, delta=0.1)
    assert found is not None
    for accepted in (confidence >= found.threshold, confidence.astype(np.float64) >= np.float64(found.threshold)):
        assert accepted.mean() == found.coverage
        assert 1 - correct[accepted].mean() == pytest.approx(found.risk)
    assert found.bound == pytest.approx(
        binomtest(round(found.risk * accepted.sum()), int(accepted.sum()), alternative="less")
        .proportion_ci(1 - 0.1 / math.ceil(math.log2(700)))
        .high
    )
    assert found.risk < found.bound <= 0.12
    assert certified_threshold(torch.tensor(confidence), torch.tensor(correct), 0.12, 0.1) == found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9, 100, 128, 1000, 1024])
def test_the_search_makes_no_more_tests_than_delta_is_shared_among(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def counting(errors: int, samples: int, delta: float) -> float:
        shares.append(delta)
        return clopper_pearson(errors, samples, delta)

    monkeypatch.setattr(selective, "clopper_pearson", counting)
    for levels in (count, max(1, count // 3)):
        for max_risk in (0.0, 0.05, 0.3, 1.0):
            shares.clear()
            draw = np.random.default_rng(count)
            confidence = draw.permutation(count) % levels / levels
            certified_threshold(confidence, draw.random(count) < 0.8 + 0.2 * confidence, max_risk)
            assert len(shares) <= max(1, math.ceil(math.log2(count)))
            assert sum(shares) <= 0.05 + 1e-12


def true_risk(wrong: Callable[[np.ndarray], np.ndarray], levels: int) -> Callable[[float], float]:
    """Of accepting confidence >= threshold, for confidences uniform over (1, ..., levels)/levels."""
    grid = np.arange(1, levels + 1) / levels
    return lambda threshold: float(wrong(grid[grid >= threshold]).mean())


@pytest.mark.parametrize(
    ("wrong", "levels", "answers"),
    [
        (lambda c: 0.5 * (1 - c) ** 2, 10_000, 0.9),  # falls with confidence, nearly no ties
        (lambda c: 0.5 * (1 - c) ** 2, 20, 0.9),  # the same with ties
        (lambda c: np.full_like(c, 0.1001), 10_000, None),  # everything breaks the promise: no answer is the right one
        (lambda c: np.full_like(c, 0.1001), 6, None),
        (lambda c: np.where(c > 0.95, 0.3, np.where(c > 0.3, 0.02, 0.2)), 10_000, 0.3),  # overconfident at the top
        (lambda c: 0.1 + 0.1 * np.sin(25 * c), 10_000, 0.2),  # up and down
    ],
)
def test_the_promise_is_broken_in_at_most_delta_of_the_draws(
    wrong: Callable[[np.ndarray], np.ndarray], levels: int, answers: float | None
) -> None:
    draws, delta, max_risk = 1000, 0.1, 0.1
    draw, risk = np.random.default_rng(0), true_risk(wrong, levels)
    broken, coverages = 0, []
    for _ in range(draws):
        confidence = draw.integers(1, levels + 1, 400) / levels
        found = certified_threshold(confidence, draw.random(400) >= wrong(confidence), max_risk, delta)
        coverages.append(found.coverage if found else 0.0)
        broken += found is not None and risk(found.threshold) > max_risk
    # the count is allowed what a promise that is broken in exactly delta of the draws exceeds once in a thousand
    assert binomtest(broken, draws, delta, alternative="greater").pvalue > 1e-3
    if answers is not None:  # where there is something to promise, it is promised
        assert np.mean(np.array(coverages) > 0) >= answers
    if answers == 0.9:
        assert np.mean(coverages) > 0.4


def test_a_threshold_chosen_by_its_empirical_risk_breaks_the_promise() -> None:
    """So the simulation above can tell: the same population, and the widest threshold whose own risk is 0.1."""
    draw, broken = np.random.default_rng(0), 0
    risk = true_risk(lambda c: 0.5 * (1 - c) ** 2, 10_000)
    for _ in range(200):
        confidence = draw.integers(1, 10_001, 400) / 10_000
        curve = risk_coverage(confidence, draw.random(400) >= 0.5 * (1 - confidence) ** 2)
        broken += risk(curve.threshold[curve.risk <= 0.1].min()) > 0.1
    assert broken > 0.3 * 200


def test_more_samples_certify_more() -> None:
    draw = np.random.default_rng(1)
    confidence = draw.random(64_000)
    correct = draw.random(64_000) >= 0.5 * (1 - confidence) ** 2
    found = [certified_threshold(confidence[:n], correct[:n], max_risk=0.05) for n in (1000, 64_000)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].coverage < found[1].coverage < math.sqrt(0.3) + 0.01  # where the true risk, (1-c)²/6, is 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certified_threshold([0.5], [1], max_risk=1.5), "max_risk is 1.5"),
        (lambda: certified_threshold([0.5], [1], max_risk=-0.1), "max_risk is -0.1"),
        (lambda: certified_threshold([0.5], [1], max_risk=float("nan")), "max_risk is nan"),
        (lambda: certified_threshold([0.5], [1], max_risk=0.1, delta=0), "delta is 0"),
        (lambda: certified_threshold([0.5], [1], max_risk=0.1, delta=1), "delta is 1"),
        (lambda: certified_threshold([0.5, float("nan")], [1, 0], max_risk=0.1), "confidence has 1"),
        (lambda: certified_threshold([], [], max_risk=0.1), "empty"),
        (lambda: certified_threshold([0.5], [1, 0], max_risk=0.1), "same samples"),
        (lambda: certified_threshold([0.5], [2], max_risk=0.1), "True/False"),
        (lambda: risk_coverage([0.5], [float("nan")]), "True/False"),
        (lambda: aurc([[0.5]], [1]), "shape"),
        (lambda: excess_aurc([0.5], [1, 1]), "same samples"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()  # type: ignore[operator]
