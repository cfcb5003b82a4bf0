"""Open-world metrics against hand-worked cases, brute force over all thresholds, scikit-learn and scipy."""

import subprocess
import sys
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import entropy
from sklearn.metrics import auc, average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from eow.errors import EowError
from eow.metrics.ood import (
    SCORES,
    accuracy_at_thresholds,
    auroc,
    average_precision,
    detection,
    fpr_at_tpr,
    oscr,
    scores,
    threshold_curve,
)

few_scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=25)  # few values: many ties


def sample(seed: int, digits: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(0.7, 1, 83).round(digits), draw.normal(0, 1, 57).round(digits), draw.random(83) < 0.8


def brute_force_oscr(known: np.ndarray, correct: np.ndarray, unknown: np.ndarray) -> float:
    """The curve point by point, from its definition, and the trapezoids under it."""
    thresholds = sorted({*known.tolist(), *unknown.tolist()}, reverse=True)
    points = [(0.0, 0.0)]
    for threshold in thresholds:
        rate = sum(s >= threshold and bool(right) for s, right in zip(known, correct)) / len(known)
        points.append((sum(s >= threshold for s in unknown) / len(unknown), rate))
    return sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(points))


def test_five_samples_by_hand() -> None:
    known, correct, unknown = [0.9, 0.6, 0.4], [1, 0, 1], [0.6, 0.1]
    # pairs: 0.9 wins both, 0.6 ties and wins, 0.4 loses and wins
    assert auroc(known, unknown) == pytest.approx((2 + 1.5 + 1) / 6)
    # the wrong 0.6 no longer counts
    assert oscr(known, correct, unknown) == pytest.approx((2 + 1) / 6)
    # at 0.9: 1 of 1 is known; at 0.6: 2 of 3; at 0.4: 3 of 4
    assert average_precision(known, unknown) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    # from below, at 0.1: 1 of 1 is unknown; at 0.6, where 0.4 is already in: 2 of 4
    assert average_precision(known, unknown, positive="unknown") == pytest.approx((1 + 2 / 4) / 2)
    # two of three known need 0.6, which lets one unknown in; all three need 0.4, and it is still one
    assert fpr_at_tpr(known, unknown, tpr=1 / 3) == 0.0
    assert fpr_at_tpr(known, unknown, tpr=0.5) == 0.5
    assert fpr_at_tpr(known, unknown) == 0.5
    assert detection(known, unknown, correct) == {
        "auroc": auroc(known, unknown),
        "ap_known": average_precision(known, unknown),
        "ap_unknown": average_precision(known, unknown, positive="unknown"),
        "fpr95": fpr_at_tpr(known, unknown),
        "oscr": oscr(known, correct, unknown),
    }


@pytest.mark.parametrize("digits", [0, 1, 12])
@pytest.mark.parametrize("seed", range(4))
def test_all_figures_agree_with_scikit_learn(seed: int, digits: int) -> None:
    known, unknown, correct = sample(seed, digits)
    is_known, pooled = np.repeat([1, 0], [len(known), len(unknown)]), np.r_[known, unknown]
    found = detection(known, unknown, correct)
    assert found["auroc"] == pytest.approx(roc_auc_score(is_known, pooled), rel=1e-12)
    assert found["ap_known"] == pytest.approx(average_precision_score(is_known, pooled), rel=1e-12)
    assert found["ap_unknown"] == pytest.approx(average_precision_score(1 - is_known, -pooled), rel=1e-12)
    false, true, _ = roc_curve(is_known, pooled, drop_intermediate=False)
    for tpr in (0.05, 0.5, 0.95, 1.0):
        assert fpr_at_tpr(known, unknown, tpr) == pytest.approx(false[np.argmax(true >= tpr)])
    assert found["fpr95"] == fpr_at_tpr(known, unknown, 0.95)


@pytest.mark.parametrize("digits", [0, 1, 12])
def test_fpr95_with_the_unknown_as_the_positive_class(digits: int) -> None:
    """As pytorch-ood counts: scores that are higher for unknowns, and the first point of the curve at 95 %."""
    known, unknown, _ = sample(0, digits)
    is_unknown, outlying = np.repeat([0, 1], [len(known), len(unknown)]), -np.r_[known, unknown]
    false, true, _ = roc_curve(is_unknown, outlying, drop_intermediate=False)
    assert fpr_at_tpr(-unknown, -known) == pytest.approx(false[np.searchsorted(true, 0.95)])
    assert fpr_at_tpr(-unknown, -known) != fpr_at_tpr(known, unknown)


def test_average_precision_is_not_the_trapezoid() -> None:
    known, unknown, _ = sample(0)
    is_known, pooled = np.repeat([1, 0], [len(known), len(unknown)]), np.r_[known, unknown]
    precision, recall, _ = precision_recall_curve(is_known, pooled)
    assert abs(average_precision(known, unknown) - auc(recall, precision)) > 1e-4


@settings(max_examples=80, deadline=None)
@given(few_scores, few_scores, st.integers(0, 2**32 - 1))
def test_oscr_is_the_area_under_its_curve(known: list[float], unknown: list[float], seed: int) -> None:
    correct = np.random.default_rng(seed).random(len(known)) < 0.6
    value = oscr(known, correct, unknown)
    assert value == pytest.approx(brute_force_oscr(np.array(known), correct, np.array(unknown)), abs=1e-12)
    assert value <= min(auroc(known, unknown), correct.mean()) + 1e-12
    assert oscr(known, np.ones(len(known)), unknown) == pytest.approx(auroc(known, unknown), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(few_scores, few_scores, st.integers(0, 2**32 - 1))
def test_detection_knows_neither_order_nor_scale(known: list[float], unknown: list[float], seed: int) -> None:
    draw = np.random.default_rng(seed)
    correct, order = draw.random(len(known)) < 0.6, draw.permutation(len(known))
    found = detection(known, unknown, correct)
    assert detection(np.array(known)[order], draw.permutation(unknown), correct[order]) == found
    assert detection(np.exp(known), np.exp(unknown), correct) == found
    assert found["auroc"] + auroc(unknown, known) == pytest.approx(1)
    assert found["ap_unknown"] == pytest.approx(average_precision(np.negative(unknown), np.negative(known)))


def test_perfect_hopeless_and_constant_scores() -> None:
    assert detection([2, 3], [0, 1], [1, 1]) == {
        "auroc": 1.0, "ap_known": 1.0, "ap_unknown": 1.0, "fpr95": 0.0, "oscr": 1.0,
    }  # fmt: skip
    assert detection([0, 1], [2, 3], [1, 1])["auroc"] == 0.0
    assert detection([0, 1], [2, 3], [1, 1])["fpr95"] == 1.0
    constant = detection([1, 1, 1], [1], [1, 0, 0])
    assert constant["auroc"] == 0.5
    assert (constant["ap_known"], constant["ap_unknown"]) == (0.75, 0.25)  # chance is the share of positives
    assert constant["fpr95"] == 1.0
    assert constant["oscr"] == pytest.approx(1 / 6)
    assert oscr([1, 2], [0, 0], [0]) == 0.0


def test_nineteen_of_twenty_known_are_ninety_five_per_cent() -> None:
    """And not a rounding more: the threshold is the 19th of 20, the 95th of 100, the 950th of 1000."""
    for count in (20, 40, 100, 140, 1000, 2020):
        known = np.arange(count, 0, -1.0)  # of which `count - count // 20` are above count // 20
        unknown = np.array([count // 20 + 0.5, count // 20 + 1.5])
        assert fpr_at_tpr(known, unknown) == 0.5


def test_scores_that_differ_in_the_last_bit_of_float64_are_not_ties() -> None:
    above = np.nextafter(0.5, 1)
    assert auroc([above], [0.5]) == 1.0
    assert auroc(np.array([0.1], dtype=np.float32), np.array([0.1])) == 1.0  # float32(0.1) = 0.1000000015
    assert auroc([-0.0], [0.0]) == 0.5
    assert auroc([1e300], [1e299]) == 1.0


def test_accuracy_at_thresholds_by_hand() -> None:
    confidence = [0.9, 0.75, 0.3, 0.0, 0.8, 0.5, 0.25]  # four known samples, then three unknown ones
    correct = [1, 1, 0, 1, 0, 0, 0]
    found = accuracy_at_thresholds(confidence, correct)
    assert found.threshold.tolist() == [0, 0.25, 0.5, 0.75]
    np.testing.assert_allclose(found.accuracy, [2 / 6, 2 / 5, 2 / 3, 1 / 2])  # 0.75 itself is not above 0.75
    np.testing.assert_allclose(found.coverage, [6 / 7, 5 / 7, 3 / 7, 2 / 7])
    empty = accuracy_at_thresholds(confidence, correct, [0.9, 1.0])
    assert np.isnan(empty.accuracy).all()
    assert empty.coverage.tolist() == [0, 0]


def test_threshold_zero_beside_as_many_unknowns_halves_the_accuracy() -> None:
    """Table 2 prints 37.24 for vanilla beside CIFAR-10: an accuracy of 74.48 % on 10,000, and 10,000 more all wrong."""
    confidence, correct = np.full(20_000, 0.5), np.arange(20_000) < 7448
    assert accuracy_at_thresholds(confidence, correct, [0]).accuracy[0] == pytest.approx(0.3724)


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_curve_is_right_everywhere(seed: int) -> None:
    draw = np.random.default_rng(seed)
    confidence, correct = draw.random(60).round(1), draw.random(60) < 0.5
    curve = threshold_curve(confidence, correct)
    assert curve.threshold[0] == 0
    assert curve.threshold.tolist() == sorted({0.0, *confidence.tolist()} - {confidence.max()})
    for threshold in np.linspace(0, confidence.max(), 200, endpoint=False):
        at = np.searchsorted(curve.threshold, threshold, side="right") - 1  # constant up to the next change
        kept = confidence > threshold
        assert curve.accuracy[at] == pytest.approx(correct[kept].mean())
        assert curve.coverage[at] == pytest.approx(kept.mean())
    assert np.isnan(threshold_curve([0.0, 0.0], [1, 0]).accuracy).all()


def test_a_float32_confidence_is_compared_as_the_number_it_is() -> None:
    single = np.array([0.7, 0.2], dtype=np.float32)  # 0.699999988 and 0.200000003
    assert accuracy_at_thresholds(single, [1, 1], [0.7]).coverage[0] == 0
    assert accuracy_at_thresholds(torch.tensor([0.7, 0.2]), [1, 1], [0.2]).coverage[0] == 1


def outputs(count: int, classes: int, extra: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    logits = np.random.default_rng(count).normal(0, 4, (count, classes + extra)).astype(np.float32)
    full = np.exp(logits.astype(np.float64) - logsumexp(logits.astype(np.float64), axis=1, keepdims=True))
    return logits, full[:, :classes].astype(np.float32), full[:, classes:].sum(1).astype(np.float32)


@pytest.mark.parametrize(("count", "classes", "extra"), [(1, 2, 1), (50, 7, 1), (50, 7, 0), (3001, 100, 1)])
def test_scores_agree_with_scipy(count: int, classes: int, extra: int) -> None:
    logits, probs, unknown = outputs(count, classes, extra)
    confidence = probs.max(1)
    found = scores(probs, unknown, logits, confidence)
    assert list(found) == list(SCORES) == ["confidence", "unknown", "entropy", "energy", "max_logit"]
    assert all(score.shape == (count,) for score in found.values())
    np.testing.assert_array_equal(found["confidence"], confidence)
    np.testing.assert_array_equal(found["unknown"], -unknown)
    spread = probs.astype(np.float64) + unknown[:, None] / classes
    np.testing.assert_allclose(found["entropy"], -entropy(spread, axis=1), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["energy"], logsumexp(logits[:, :classes].astype(np.float64), axis=1), rtol=1e-12)
    np.testing.assert_array_equal(found["max_logit"], logits[:, :classes].max(1))


def test_the_columns_of_a_table_are_named_without_torch() -> None:
    code = "import sys; from eow.bench.columns import SCORES; print(len(SCORES), 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "5 False\n"


def test_scores_a_method_does_not_have_are_absent() -> None:
    logits, probs, unknown = outputs(20, 4, 0)
    confidence = probs.max(1)
    assert list(scores(probs, None, logits, confidence)) == ["confidence", "entropy", "energy", "max_logit"]
    assert list(scores(probs, unknown, None, confidence)) == ["confidence", "unknown", "entropy"]
    closed = scores(probs, None, None, confidence)["entropy"]
    np.testing.assert_allclose(closed, scores(probs, np.zeros(20), None, confidence)["entropy"])  # 0 log 0 is 0


def test_log_probabilities_have_no_energy() -> None:
    members = [torch.tensor(outputs(count, 1000, 0)[0][:200]) for count in (200, 201, 202)]
    mean = torch.stack(members).softmax(2).mean(0)
    found = scores(mean, None, mean.log(), mean.max(1).values)
    assert list(found) == ["confidence", "entropy", "max_logit"]  # log sum exp is 0 and some rounding
    np.testing.assert_allclose(np.exp(found["max_logit"]), found["confidence"], rtol=1e-6)
    for half in (torch.float16, torch.bfloat16):
        assert "energy" not in scores(mean, None, mean.log().to(half), mean.max(1).values)
    assert "energy" in scores(mean, None, mean.log() + 0.1, mean.max(1).values)


def test_a_sure_sample_scores_above_an_unsure_one_by_every_score() -> None:
    logits = torch.tensor([[9.0, 0.0, -2.0, -3.0], [0.1, 0.0, 0.2, 2.0]])  # the last is the unknown's
    full = logits.softmax(1)
    found = scores(full[:, :3], full[:, 3], logits, full[:, :3].max(1).values)
    assert all(score[0] > score[1] for score in found.values())
    certain = scores([[1.0, 0.0]], [0.0], [[800.0, -800.0]], [1.0])
    assert certain["entropy"][0] == 0
    assert certain["energy"][0] == 800  # and no overflow


def test_tensors_of_any_type_are_taken() -> None:
    logits, probs, unknown = outputs(64, 5, 1)
    tensors = [torch.tensor(each, requires_grad=True) for each in (probs, unknown, logits, probs.max(1))]
    expected = scores(probs, unknown, logits, probs.max(1))
    for name, score in scores(*tensors).items():
        np.testing.assert_allclose(score, expected[name], rtol=1e-6)
    rough = scores(tensors[0].bfloat16(), tensors[1].bfloat16(), tensors[2].bfloat16(), tensors[3].bfloat16())
    np.testing.assert_allclose(rough["energy"], expected["energy"], rtol=0.02, atol=0.1)


def test_a_big_table_is_not_copied_whole() -> None:
    table = np.zeros((200_000, 100), dtype=np.float32)
    table[:, 0] = 1
    tracemalloc.start()
    scores(table, None, table, table[:, 0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < table.nbytes / 2  # a copy in float64 would be twice its size


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detection([], [1], []), "known is empty"),
        (lambda: detection([1], [], [1]), "unknown is empty"),
        (lambda: detection([np.nan], [1], [1]), "known has 1"),
        (lambda: detection([1], [np.inf], [1]), "unknown has 1"),
        (lambda: detection([1, 2], [1], [1]), "known has 2 samples and known_correct has 1"),
        (lambda: detection([1], [1], [0.5]), "True/False"),
        (lambda: average_precision([1], [0], positive="ood"), 'give "known" or "unknown"'),
        (lambda: fpr_at_tpr([1], [0], tpr=0), "tpr is 0"),
        (lambda: fpr_at_tpr([1], [0], tpr=95), "tpr is 95"),
        (lambda: fpr_at_tpr([1], [0], tpr=float("nan")), "tpr is nan"),
        (lambda: accuracy_at_thresholds([0.5], [1, 0]), "same samples"),
        (lambda: accuracy_at_thresholds([50.0], [1]), "no percentages"),
        (lambda: accuracy_at_thresholds([0.5], [1], [np.nan]), "thresholds has 1"),
        (lambda: accuracy_at_thresholds([0.5], [1], []), "thresholds is empty"),
        (lambda: scores([[0.5, 0.5]], None, [[1.0, 2.0, 3.0, 4.0]], [0.5]), "4 columns for 2 classes"),
        (lambda: scores([[0.5, 0.5]], None, [[1.0, np.inf]], [0.5]), "logits has 1"),
        (lambda: scores([[0.5, 0.5]], None, [[1.0, np.nan]], [0.5]), "logits has 1"),
        (lambda: scores([[0.5, np.nan]], None, None, [0.5]), "nan"),
        (lambda: scores([[0.5, 0.5]], None, None, [np.nan]), "confidence has 1"),
        (lambda: scores([[5.0, 1.0]], None, None, [0.5]), "probs ranges"),
        (lambda: scores([[0.5, 0.5]], [2.0], None, [0.5]), "unknown ranges"),
        (lambda: scores([[0.5, 0.5]], [0.0, 0.0], None, [0.5]), "same samples"),
        (lambda: scores([[0.5, 0.5]], None, [[1.0, 0.0]] * 2, [0.5]), "same samples"),
        (lambda: scores([[0.5, 0.5]], None, None, [0.5, 0.5]), "same samples"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()  # type: ignore[operator]
