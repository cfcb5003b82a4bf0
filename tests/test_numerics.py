"""Numbers at the ends of what a model can say: every type, huge logits, exact ones and zeros, one sample, none, two
classes and 21,000. Every public metric and `evaluate` stay finite there, or raise an EowError."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handmade import LAM
from scipy.special import log_softmax, softmax

from eow import metrics
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.metrics.calibration import Reliability
from eow.metrics.ood import ThresholdCurve
from eow.predictions import write
from eow.storage import write_json

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


class Said:
    """Answers to N samples over K classes in one type: logits of a size, their softmax, and what follows from it."""

    def __init__(self, count: int, classes: int, kind: str, size: float) -> None:
        random = np.random.default_rng(count + classes)
        raw = torch.from_numpy(size * random.uniform(-1, 1, (count, classes + 1))).to(TYPES[kind])
        h = torch.from_numpy(softmax(raw.double().numpy(), axis=1)).to(TYPES[kind])
        self.logits, self.probs, self.unknown = raw, h[:, :classes], h[:, classes]
        self.labels = torch.from_numpy(random.integers(classes, size=count))
        self.confidence, self.label = self.probs.max(1)
        self.correct = self.label == self.labels


CALLS: dict[str, Callable[[Said], Any]] = {
    "accuracy": lambda s: metrics.accuracy(s.label, s.labels),
    "accuracy_at_thresholds": lambda s: metrics.accuracy_at_thresholds(s.confidence, s.correct),
    "aurc": lambda s: metrics.aurc(s.confidence, s.correct),
    "auroc": lambda s: metrics.auroc(s.confidence, s.unknown),
    "average_precision": lambda s: metrics.average_precision(s.confidence, s.unknown, "unknown"),
    "bootstrap_interval": lambda s: metrics.bootstrap_interval("ece", s.confidence, s.correct, rounds=20),
    "brier": lambda s: metrics.brier(s.probs, s.labels),
    "brier_parts": lambda s: metrics.brier_parts(s.confidence, s.correct),
    "certified_threshold": lambda s: metrics.certified_threshold(s.confidence, s.correct, 0.9),
    "clopper_pearson": lambda s: metrics.clopper_pearson(int((~s.correct).sum()), len(s.correct), 0.05),
    "detection": lambda s: metrics.detection(s.confidence, s.unknown, s.correct),
    "ece": lambda s: (metrics.ece(s.confidence, s.correct), metrics.ece(s.confidence, s.correct, paper_compat=True)),
    "ece_classwise": lambda s: metrics.ece_classwise(s.probs, s.labels),
    "ece_equal_mass": lambda s: metrics.ece_equal_mass(s.confidence, s.correct),
    "ece_l2_debiased": lambda s: metrics.ece_l2_debiased(s.confidence, s.correct),
    "excess_aurc": lambda s: metrics.excess_aurc(s.confidence, s.correct),
    "fpr_at_tpr": lambda s: metrics.fpr_at_tpr(s.confidence, s.unknown),
    "mce": lambda s: metrics.mce(s.confidence, s.correct),
    "merge_reliability": lambda s: metrics.merge_reliability([metrics.reliability(s.confidence, s.correct)] * 2),
    "nll": lambda s: metrics.nll(s.probs, s.labels),
    "nll_from_logits": lambda s: metrics.nll_from_logits(s.logits, s.labels),
    "nll_renormalised": lambda s: metrics.nll_renormalised(s.probs, s.labels),
    "null_ece": lambda s: metrics.null_ece(s.confidence),
    "null_ece_classwise": lambda s: metrics.null_ece_classwise(s.probs),
    "null_ece_equal_mass": lambda s: metrics.null_ece_equal_mass(s.confidence),
    "null_ece_l2_debiased": lambda s: metrics.null_ece_l2_debiased(s.confidence, draws=20),
    "null_mce": lambda s: metrics.null_mce(s.confidence, draws=20),
    "null_of": lambda s: metrics.null_of(metrics.ece, s.confidence, draws=3),
    "null_smooth_ece": lambda s: metrics.null_smooth_ece(s.confidence, draws=2),
    "oscr": lambda s: metrics.oscr(s.confidence, s.correct, s.unknown),
    "paired_difference": lambda s: metrics.paired_difference("accuracy", s.correct, ~s.correct, rounds=20),
    "paired_t": lambda s: metrics.paired_t(s.confidence, s.unknown),
    "reliability": lambda s: metrics.reliability(s.confidence, s.correct),
    "reliability_interval": lambda s: metrics.reliability_interval(metrics.reliability(s.confidence, s.correct, 1)),
    "risk_coverage": lambda s: metrics.risk_coverage(s.confidence, s.correct),
    "smooth_ece": lambda s: metrics.smooth_ece(s.confidence, s.correct),
    "threshold_curve": lambda s: metrics.threshold_curve(s.confidence, s.correct),
}  # fmt: skip


def values_of(found: Any) -> list[float]:
    """All numbers in a result, but for the two that are documented as nan: the means of an empty bin, and the accuracy
    where nothing is kept."""
    if isinstance(found, Reliability):
        filled = found.counts > 0
        assert np.isnan(found.confidence[~filled]).all()
        found = [found.counts, found.confidence[filled], found.accuracy[filled]]
    if isinstance(found, ThresholdCurve):
        kept = found.coverage > 0
        assert np.isnan(found.accuracy[~kept]).all()
        found = [found.threshold, found.accuracy[kept], found.coverage]
    if found is None or isinstance(found, str):
        return []
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, tuple | list):
        return [value for part in found for value in values_of(part)]
    return np.asarray(found, np.float64).ravel().tolist()


def test_every_public_metric_is_called_here() -> None:
    assert {*CALLS} == {name for name in metrics.__all__ if not isinstance(getattr(metrics, name), type)}


@pytest.mark.parametrize("name", CALLS)
def test_a_metric_is_finite_or_refuses_at_every_end(name: str) -> None:
    shapes = [(1, 2), (2, 2), (9, 3), (10, 3), (3, 21_000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count, classes in shapes:
            for kind in TYPES if classes < 1000 else ("bfloat16", "float32"):
                for size in (0.0, 1.0, 1e4):
                    try:
                        found = values_of(CALLS[name](Said(count, classes, kind, size)))
                    except EowError:
                        least = {"paired_t": 2, "paired_difference": 10}[name]  # seeds, and samples
                        assert count < least
                        continue
                    assert all(map(math.isfinite, found)), (count, classes, kind, size, found)
    none = Said(1, 2, "float32", 1.0)
    for field in ("logits", "probs", "unknown", "labels", "confidence", "label", "correct"):
        setattr(none, field, getattr(none, field)[:0])
    if name != "clopper_pearson":  # two counts, of which none is no error
        with pytest.raises(EowError):
            CALLS[name](none)


@pytest.mark.parametrize("kind", TYPES)
def test_huge_logits_cost_what_they_say(kind: str) -> None:
    """Beside a softmax of the same numbers in float64."""
    said = Said(40, 5, kind, 1e4)
    logs = log_softmax(said.logits.double().numpy(), axis=1)[np.arange(40), said.labels]
    assert metrics.nll_from_logits(said.logits, said.labels) == pytest.approx(-logs.mean(), rel=1e-12)
    assert metrics.nll_from_logits(said.logits, said.labels) > 1000


def test_exact_ones_are_right_or_wrong_and_nothing_else() -> None:
    sure, right = np.ones(10, np.float32), np.arange(10) < 7
    assert metrics.ece(sure, right) == pytest.approx(0.3)
    assert metrics.ece_equal_mass(sure, right) == pytest.approx(0.3)
    assert metrics.mce(sure, right) == pytest.approx(0.3)
    assert metrics.null_ece(sure) == (0.0, 0.0)
    assert metrics.aurc(sure, right) == pytest.approx(0.3)
    assert metrics.smooth_ece(sure, right) == pytest.approx(0.3, abs=1e-3)


def write_predictions(folder: Path, count: int, classes: int, size: float, kind: type = np.float32) -> Path:
    for name, unknown in (("test", -size), ("noise", size)):
        random = np.random.default_rng(count)
        logits = (size * random.uniform(-1, 1, (count, classes + 1))).astype(kind)
        logits[:, -1] += kind(unknown)
        h = softmax(logits.astype(np.float64), axis=1).astype(kind)
        arrays = {
            "logits": logits, "probs": h[:, :-1].copy(), "unknown": h[:, -1].copy(), "confidence": h[:, :-1].max(1),
            "label": h[:, :-1].argmax(1), "labels": random.integers(classes, size=count),
        }  # fmt: skip
        about = {"name": name, "key": "", "method": "eow", "odds": LAM}
        write(folder / "predictions" / f"{name}.safetensors", arrays, about)
    write_json(folder / "summary.json", {})
    return folder


@pytest.mark.parametrize("rate", [None, 0.0, 0.3])
@pytest.mark.parametrize(("count", "classes"), [(1, 2), (5, 3), (3, 21_000)])
def test_evaluate_is_finite_at_every_end(tmp_path: Path, count: int, classes: int, rate: float | None) -> None:
    for size in (0.0, 1e4):
        figures = evaluate(write_predictions(tmp_path, count, classes, size), rate, bootstrap=rate is None)
        assert {*figures} >= {"test", "noise"}
        assert all(map(math.isfinite, values_of(figures)))


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_evaluate_takes_other_types_of_floats(tmp_path: Path, kind: type) -> None:
    assert all(map(math.isfinite, values_of(evaluate(write_predictions(tmp_path, 20, 4, 100.0, kind)))))


def test_empty_predictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EowError, match="empty or of different lengths"):
        evaluate(write_predictions(tmp_path, 0, 3, 1.0))


@pytest.mark.parametrize("field", ["probs", "confidence", "unknown", "logits"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(tmp_path: Path, field: str, value: float) -> None:
    from eow.predictions import read

    said = read(write_predictions(tmp_path, 6, 3, 1.0) / "predictions" / "test.safetensors")
    fields = ("logits", "probs", "unknown", "confidence", "label", "labels")
    arrays = {name: getattr(said, name).copy() for name in fields}
    arrays[field][2] = value
    write(tmp_path / "predictions" / "test.safetensors", arrays, said.manifest)
    with pytest.raises(EowError):
        evaluate(tmp_path)
