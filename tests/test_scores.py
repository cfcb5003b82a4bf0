"""Accuracy and the proper scores against hand-worked cases, scikit-learn and torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import brier_score_loss, log_loss

from eow.errors import EowError
from eow.metrics import accuracy, brier, brier_parts, nll, nll_from_logits, nll_renormalised


def sample(seed: int, count: int = 400, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.dirichlet(np.ones(classes), count), draw.integers(0, classes, count)


def test_accuracy_by_hand() -> None:
    assert accuracy([0, 1, 2, -1, 4], [0, 1, 1, 3, 4]) == pytest.approx(3 / 5)


def test_nll_by_hand() -> None:
    probs, labels = [[0.5, 0.25], [0.2, 0.2], [0.0, 1.0], [0.1, 0.3], [0.6, 0.4]], [0, 1, 1, 0, 0]
    assert nll(probs, labels) == pytest.approx(-np.log(0.5 * 0.2 * 1.0 * 0.1 * 0.6) / 5)
    assert nll_renormalised(probs, labels) == pytest.approx(-np.log((2 / 3) * 0.5 * 1.0 * 0.25 * 0.6) / 5)


def test_probability_zero_has_the_documented_price() -> None:
    assert nll([[0.0, 1.0]], [0]) == pytest.approx(87.3365, abs=1e-3)
    assert nll_renormalised([[0.0, 0.0, 0.0]], [1]) == pytest.approx(np.log(3))
    assert nll_from_logits([[-500.0, 500.0]], [0]) == pytest.approx(1000.0)


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


def test_logits_of_ten_thousand_cost_what_they_say() -> None:
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]]).to(kind)
        apart = float(logits[0, 0]) * 2  # bfloat16 has 9984 for 10,000
        assert nll_from_logits(logits, [0, 0]) == pytest.approx(apart / 2)
    logits, labels = np.random.default_rng(0).normal(0, 3000, (3, 21_000)), np.array([0, 20_999, 7])
    expected = -log_softmax(logits, axis=1)[np.arange(3), labels].mean()
    assert nll_from_logits(logits, labels) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("kind", "off"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)])
@pytest.mark.parametrize("classes", [10, 1000])
def test_rows_that_came_through_half_precision_are_probabilities(kind: torch.dtype, off: float, classes: int) -> None:
    """Each entry is off by at most half a spacing, relatively, so the score and a row's sum are by not much more."""
    logits = 2 * torch.randn(500, classes, generator=torch.Generator().manual_seed(0))
    exact, labels = logits.double().softmax(1), torch.arange(500) % classes
    half = logits.softmax(1).to(kind)
    assert float(half.double().sum(1).max()) > 1.0001  # more than float32 may be off
    for rows in (half, half.float(), half.double(), half.float().numpy(), half.double().numpy().T.copy().T):
        assert nll(rows, labels) == pytest.approx(nll(exact, labels), abs=2 * off)
        assert brier(rows, labels) == pytest.approx(brier(exact, labels), abs=4 * off)


def test_what_is_not_rounded_so_gets_no_slack_and_logits_get_none_at_all() -> None:
    draw = np.random.default_rng(0)
    rows = draw.dirichlet(np.ones(10), 50)
    for wrong in (1.0005 * rows, (1.0005 * rows).astype(np.float32)):
        with pytest.raises(EowError, match=r"a row that sums to 1\.0005"):
            nll(wrong, np.zeros(50, int))
    half = torch.from_numpy(rows).to(torch.float16)
    mixed = np.concatenate([half.float().numpy(), 1.0015 * rows.astype(np.float32)])
    with pytest.raises(EowError, match="a row that sums to 1"):
        nll(mixed, np.zeros(100, int))
    for kind in (torch.float16, torch.bfloat16):
        sigmoids = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)).sigmoid().to(kind)
        for table in (sigmoids, sigmoids.float(), torch.eye(3).to(kind).float() + torch.eye(3).roll(1, 0)):
            with pytest.raises(EowError, match="give probabilities"):
                nll(table, torch.zeros(len(table), dtype=torch.long))


def test_brier_by_hand() -> None:
    probs, labels = [[0.5, 0.25], [0.2, 0.2], [0.0, 1.0], [0.1, 0.3], [0.6, 0.4]], [0, 1, 1, 0, 0]
    rows = [
        0.5**2 + 0.25**2 + 0.25**2,  # true class, other class, unknown
        0.2**2 + 0.8**2 + 0.6**2,
        0.0,
        0.9**2 + 0.3**2 + 0.6**2,
        0.4**2 + 0.4**2 + 0.0,
    ]
    assert brier(probs, labels) == pytest.approx(np.mean(rows))
    assert brier([[0.0, 0.0]], [1]) == 2.0  # all on the unknown: as wrong as all on another class
    assert brier([[1.0, 0.0]], [1]) == 2.0


@pytest.mark.parametrize("seed", range(3))
def test_brier_agrees_with_scikit_learn_with_the_unknown_as_one_more_class(seed: int) -> None:
    full, labels = sample(seed, classes=6)
    labels %= 5
    assert brier(full[:, :5], labels) == pytest.approx(brier_score_loss(labels, full, labels=range(6)), rel=1e-12)
    assert brier(full, labels) == pytest.approx(brier_score_loss(labels, full, labels=range(6)), rel=1e-12)
    two, sides = sample(seed, classes=2)
    assert brier(two, sides) == pytest.approx(2 * brier_score_loss(sides, two[:, 1]), rel=1e-12)


def test_brier_parts_by_hand() -> None:
    """Two bins: {0.1, 0.3, 0.35} with one hit and {0.9, 1.0} with two; accuracy is 3/5."""
    parts = brier_parts([0.1, 0.3, 0.35, 0.9, 1.0], [0, 1, 0, 1, 1], bins=2)
    assert parts.reliability == pytest.approx(3 / 5 * (1 / 3 - 0.25) ** 2 + 2 / 5 * 0.05**2)
    assert parts.resolution == pytest.approx(3 / 5 * (1 / 3 - 0.6) ** 2 + 2 / 5 * 0.4**2)
    assert parts.uncertainty == pytest.approx(0.24)
    assert parts.within_variance == pytest.approx((0.15**2 + 0.05**2 + 0.1**2 + 2 * 0.05**2) / 5)
    assert parts.within_covariance == pytest.approx(2 * (0.15 / 3 + 0.05 * 2 / 3 - 0.1 / 3) / 5)
    assert parts.score == pytest.approx((0.1**2 + 0.7**2 + 0.35**2 + 0.1**2) / 5)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_the_parts_of_brier_sum_to_the_score(confidence: list[float], bins: int, seed: int) -> None:
    correct = np.random.default_rng(seed).random(len(confidence)) < 0.5
    parts = brier_parts(confidence, correct, bins)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_variance - parts.within_covariance
    assert total == pytest.approx(parts.score, abs=1e-12)
    assert parts.score == pytest.approx(np.mean((np.array(confidence) - correct) ** 2), abs=1e-12)
    assert parts.score == pytest.approx(brier_score_loss(correct, confidence, pos_label=True), abs=1e-12)


def test_equal_confidences_leave_nothing_within_a_bin() -> None:
    parts = brier_parts([0.2, 0.2, 0.8, 0.8], [0, 1, 1, 1])
    assert parts.within_variance == pytest.approx(0, abs=1e-15)
    assert parts.within_covariance == pytest.approx(0, abs=1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_scores_ignore_the_order_and_shards_average_to_the_whole(seed: int) -> None:
    probs, labels = sample(seed, 20)
    order = np.random.default_rng(seed).permutation(20)
    for score in (nll, nll_renormalised, brier):
        whole = score(probs, labels)
        assert score(probs[order], labels[order]) == pytest.approx(whole, rel=1e-12)
        shards = 7 * score(probs[:7], labels[:7]) + 13 * score(probs[7:], labels[7:])
        assert shards / 20 == pytest.approx(whole, rel=1e-12)
