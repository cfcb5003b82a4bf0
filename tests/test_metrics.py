"""What all metrics share: the types they take, the mistakes they name, blocks and memory; and AUROC."""

import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score

from eow import metrics
from eow.errors import EowError
from eow.metrics import (
    accuracy,
    auroc,
    brier,
    brier_parts,
    checks,
    ece,
    ece_classwise,
    ece_equal_mass,
    ece_l2_debiased,
    mce,
    nll,
    nll_from_logits,
    nll_renormalised,
    null_ece_classwise,
    smooth_ece,
)


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


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_auroc_ignores_the_order(seed: int) -> None:
    draw = np.random.default_rng(seed)
    known, unknown = draw.random(10), draw.random(10)
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
        (lambda: nll_from_logits([[1.0, float("nan")]], [0]), "logits has 1 values"),
        (lambda: brier([[0.9, 0.9]], [0]), "sums to 1.8"),
        (lambda: brier([[0.5, 0.5]], [2]), "labels are 0 to 1"),
        (lambda: ece_classwise([[0.5, 0.5]], [2]), "labels are 0 to 1"),
        (lambda: ece_classwise([[0.5, 0.5]], [0], bins=True), "bins is True"),
        (lambda: ece_equal_mass([0.5, float("inf")], [0, 1]), "1 values that are nan or infinite"),
        (lambda: ece_equal_mass([0.5], [1], bins=-1), "bins is -1"),
        (lambda: ece([0.5], [1], bins=0, paper_compat=True), "bins is 0"),
        (lambda: mce([0.5], [0.5]), "True/False"),
        (lambda: smooth_ece([], []), "empty"),
        (lambda: brier_parts([0.5, 0.5], [1]), "2 samples and correct has 1"),
        (lambda: brier(np.zeros((0, 3)), []), "probs is empty"),
        (lambda: nll_from_logits(np.zeros((3, 0)), [0, 0, 0]), "logits is empty"),
        (lambda: accuracy([1, 2], [1]), "same samples"),
        (lambda: accuracy([[0.1, 0.9]], [1]), "shape"),
        (lambda: auroc([], [0.5]), "known is empty"),
        (lambda: auroc([0.5], [float("nan")]), "unknown has 1"),
    ],
)
def test_bad_input_is_named(call: object, message: str) -> None:
    with pytest.raises(EowError, match=message):
        call()  # type: ignore[operator]


def test_a_bad_value_is_counted_over_the_whole_table() -> None:
    probs = np.full((30_000, 10), 0.1, dtype=np.float32)  # several blocks
    probs[[0, 29_999], 3] = np.nan
    with pytest.raises(EowError, match="probs has 2 values that are nan"):
        nll(probs, np.zeros(30_000))


def known_table(count: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 3, (count, classes + 1)).astype(np.float32)
    full = np.exp(logits - logits.max(1, keepdims=True))
    return (full / full.sum(1, keepdims=True))[:, :classes], logits, draw.integers(0, classes, count)


OF_PROBS = (nll, nll_renormalised, brier, ece_classwise)
OF_CONFIDENCE = (ece, ece_equal_mass, mce, ece_l2_debiased, smooth_ece)


@pytest.mark.parametrize(("count", "classes"), [(1, 2), (1, 21_000), (130, 21_000), (70_000, 2), (5000, 100)])
def test_blocks_on_threads_give_what_one_block_gives(count: int, classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, logits, labels = known_table(count, classes)
    confidence, correct = probs.max(1), probs.argmax(1) == labels

    def figures() -> list[float]:
        of_probs = [metric(probs, labels) for metric in OF_PROBS]
        return [*of_probs, nll_from_logits(logits, labels), *(metric(confidence, correct) for metric in OF_CONFIDENCE)]

    whole = figures()
    assert np.isfinite(whole).all()
    monkeypatch.setattr(checks, "BLOCK", 3 * 64 * classes)
    monkeypatch.setattr(checks, "THREADS", 3)
    assert figures() == pytest.approx(whole, rel=1e-9, abs=1e-12)
    monkeypatch.setattr(checks, "BLOCK", 10**9)
    assert figures() == pytest.approx(whole, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_type_is_as_good_as_its_values_in_float64(kind: torch.dtype) -> None:
    probs, logits, labels = known_table(300, 7)
    stored, raw = torch.tensor(0.9 * probs).to(kind), torch.tensor(logits).to(kind)
    exact, exact_raw = stored.double().numpy(), raw.double().numpy()
    for metric in OF_PROBS:
        assert metric(stored, labels) == metric(exact, labels)
    assert nll_from_logits(raw, labels) == nll_from_logits(exact_raw, labels)
    correct = stored.double().argmax(1) == torch.tensor(labels)
    for metric in OF_CONFIDENCE:
        assert metric(stored.amax(1), correct) == metric(exact.max(1), correct.numpy())
    full = torch.tensor(logits).softmax(1).to(kind)  # rounded, its rows sum to as much as 1.002: no mistake
    assert brier(full, labels) == pytest.approx(brier(torch.tensor(logits).softmax(1), labels), rel=0.01)
    assert nll(full, labels) == pytest.approx(nll_from_logits(logits, labels), rel=0.01)


def test_one_hot_rows_are_exact() -> None:
    for kind in (np.float16, np.float32, np.float64):
        probs, labels = np.eye(3, dtype=kind)[[0, 1, 2, 2]], [0, 1, 2, 0]
        assert ece(probs.max(1), [1, 1, 1, 0]) == 0.25
        assert brier(probs, labels) == 0.5
        assert ece_classwise(probs, labels) == pytest.approx(2 / 4 / 3)
        assert nll(probs, labels) == pytest.approx(87.3365 / 4, abs=1e-3)
        assert smooth_ece(probs.max(1), [1, 1, 1, 0]) == pytest.approx(0.25)


def test_a_table_is_never_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 MB of probabilities, of which a float64 copy would be 160: metrics use a few blocks at a time."""
    monkeypatch.setattr(checks, "THREADS", 2)
    table, labels = np.full((200_000, 100), 0.01, dtype=np.float32), np.zeros(200_000, dtype=np.int64)
    for metric in (*OF_PROBS, nll_from_logits, lambda probs, _: null_ece_classwise(probs)):
        tracemalloc.start()
        metric(table, labels)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30e6


def test_long_vectors_are_binned_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "THREADS", 2)
    confidence, correct = np.full(5_000_000, 0.5, dtype=np.float32), np.zeros(5_000_000, dtype=bool)
    for metric in (ece, mce, ece_l2_debiased, smooth_ece, brier_parts):
        tracemalloc.start()
        metric(confidence, correct)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 25e6  # one float64 copy would be 40 MB


def test_metrics_do_not_import_torch() -> None:
    check = "import sys, eow.metrics; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    "metric",
    [
        metrics.ece, metrics.mce, metrics.ece_equal_mass, metrics.ece_l2_debiased, metrics.smooth_ece,
        metrics.brier_parts, metrics.reliability,
    ],
    ids=lambda metric: metric.__name__,
)  # fmt: skip
def test_that_nobody_said_what_is_correct_is_not_that_nothing_is(metric: Callable[..., Any]) -> None:
    with pytest.raises(EowError, match="correct"):
        metric([0.2, 0.9], None)


def test_missing_labels_are_refused() -> None:
    with pytest.raises(EowError, match="labels"):
        metrics.ece_classwise([[0.2, 0.8]], None)
    with pytest.raises(EowError, match="correct"):
        metrics.oscr([0.2, 0.9], None, [0.5])


@pytest.mark.parametrize(
    "labels", [[1e30], [2.0**53], np.array([2**64 - 1], np.uint64), np.array([-(2**60)])], ids=repr
)
def test_numbers_that_are_no_classes_do_not_wrap(labels: Any) -> None:
    with pytest.raises(EowError, match="class numbers"):
        metrics.accuracy(labels, labels)


@pytest.mark.parametrize(
    "values",
    [
        np.ma.masked_greater([0.2, 0.9], 0.5), np.array([0.2 + 1j]), np.array(["2026-11-16"], "datetime64[D]"),
        ["0.5"], np.array([(0.5,)], [("p", float)]), [10**400], torch.tensor([0.5j]), torch.zeros(2).to_sparse(),
        torch.zeros(2, device="meta"),
    ],
    ids=lambda values: f"{type(values).__name__}-{getattr(values, 'dtype', '')}",
)  # fmt: skip
def test_what_is_no_array_of_numbers_is_refused_in_a_sentence(values: Any) -> None:
    with pytest.raises(EowError, match="confidence"):
        metrics.ece(values, [True] * len(values))


@pytest.mark.parametrize("kind", [torch.uint16, torch.float8_e4m3fn, torch.bfloat16])
def test_types_that_torch_hardly_knows_are_read(kind: torch.dtype) -> None:
    assert metrics.ece(torch.tensor([1.0, 0.0]).to(kind), [True, True]) == 0.5


def test_a_sure_and_right_answer_costs_nothing() -> None:
    for probs in ([[1.0, 0.0]], np.array([[1 + 1e-7, 0]], np.float32)):
        found = metrics.nll(probs, [0])
        assert found == 0
        assert math.copysign(1, found) == 1
