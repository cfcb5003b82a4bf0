"""Fresh rows of the known classes are answered, however many columns there are, and what measures it."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, logsumexp
from sklearn.datasets import load_digits, make_classification

import eow
from eow import deployed
from eow.data.dataset import Dataset
from eow.estimator import EOWClassifier
from eow.models import build
from eow.tabular.rehearsal import EVERY, WIDTH, fit_head, rehearse, set_apart
from eow.tabular.rows import scaler_of, table_of


def table(rows: int, columns: int, informative: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Rows to train on, and a thousand fresh ones."""
    X, y = make_classification(rows + 1000, columns, n_informative=informative, random_state=seed)
    return X[:rows], y[:rows], X[rows:], y[rows:]


def wide_gaussians() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    y = np.arange(1060) % 2
    X = random.normal(size=(1060, 1000)) + 4 / np.sqrt(1000) * y[:, None]
    return X[:60], y[:60], X[60:], y[60:]


def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    return X[:100], y[:100], X[100:], y[100:]


# The bounds of what the trained network alone does: mean unknown on fresh rows in units of the expected share, at
# least, and the share of them answered, at most.
@pytest.mark.parametrize(
    ("problem", "before", "answered_before"),
    [
        (table(375, 50, 10), 1.7, 0.6),
        (table(225, 100, 10), 3, 0.1),
        (table(750, 500, 50), 3, 0.1),
        (wide_gaussians(), 2, 0.3),
        (digits(), 1.9, 0.7),
    ],
    ids=["375x50", "225x100", "750x500", "60x1000", "digits"],
)
def test_fresh_rows_of_wide_and_small_tables_are_answered(
    problem: tuple[np.ndarray, ...], before: float, answered_before: float
) -> None:
    X, y, fresh, _ = problem
    classifier = EOWClassifier(random_state=0).fit(X, y)
    unknown, answered = classifier.predict_unknown(fresh), classifier.predict_open(fresh) != -1
    assert 0.5 < unknown.mean() / classifier.unknown_rate_ < 1.4
    assert answered.mean() > 0.65
    labels, probabilities = classifier.predict(fresh), classifier.predict_proba(fresh)
    classifier.model_ = copy.deepcopy(classifier.network_).double()
    assert classifier.predict_unknown(fresh).mean() / classifier.unknown_rate_ > before
    assert np.mean(classifier.predict_open(fresh) != -1) < answered_before
    np.testing.assert_array_equal(classifier.predict(fresh), labels)  # a temperature changes no answer
    assert not np.allclose(classifier.predict_proba(fresh), probabilities)


def test_where_nothing_is_to_mend_the_mean_unknown_stays_below_the_rate() -> None:
    X, y, fresh, _ = table(1500, 20, 10)
    classifier = EOWClassifier(random_state=0).fit(X, y)
    said = classifier.predict_unknown(fresh).mean()
    # Few negatives lie where rows do, and what is missing is not added: then it would be the rate.
    assert said < 0.85 * classifier.unknown_rate_
    classifier.model_ = copy.deepcopy(classifier.network_).double()
    assert said == pytest.approx(classifier.predict_unknown(fresh).mean(), rel=0.2)


@pytest.mark.parametrize("settings", [{"warm_start": True, "max_iter": 10}, {"early_stopping": True}])
def test_warm_starts_and_early_stopping_answer_fresh_rows_too(settings: dict[str, Any]) -> None:
    X, y, fresh, _ = table(600, 150, 20)
    classifier = EOWClassifier(**settings, random_state=0)
    for _ in range(5 if "warm_start" in settings else 1):  # the same rows again, which the network knows by heart
        classifier.fit(X, y)
    assert classifier.predict_unknown(fresh).mean() < 1.4 * classifier.unknown_rate_
    assert np.mean(classifier.predict_open(fresh) != -1) > 0.65
    assert (classifier.rehearsal_ is None) == ("early_stopping" in settings)


def test_files_and_pickles_have_it_too(tmp_path: Path) -> None:
    X, y, fresh, _ = table(225, 100, 10)
    classifier = EOWClassifier(random_state=0).fit(X, y)
    assert np.mean(classifier.predict_open(fresh) != -1) > 0.65
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_unknown(fresh), classifier.predict_unknown(fresh))
    fresh = fresh.astype(np.float32)
    eow.export_model(classifier, tmp_path / "wide.onnx", X)
    said = deployed.load(tmp_path / "wide.onnx").predict(fresh)
    np.testing.assert_allclose(said.unknown, classifier.predict_unknown(fresh), atol=1e-5)
    np.testing.assert_array_equal(said.label, classifier.predict_open(fresh))


def test_rows_are_set_apart_by_class_and_always_in_the_same_way() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3, 4], [500, 100, 20, 2, 1]))
    shown, asked = set_apart(labels)
    assert sorted([*shown, *asked]) == list(range(len(labels)))
    assert set(labels[shown]) == {0, 1, 2, 3, 4}
    np.testing.assert_allclose(np.bincount(labels[asked], minlength=5), np.array([500, 100, 20, 2, 1]) / EVERY, atol=1)
    np.testing.assert_array_equal(set_apart(labels)[1], asked)
    assert not len(set_apart(np.array([0, 1]))[1])
    assert len(set_apart(np.repeat(np.arange(50), 2))[1]) == 50 // EVERY  # pairs: each class keeps one


def test_the_rehearsal_never_sees_the_rows_it_is_asked_about() -> None:
    """Not even in the means of its scaler: they would lie opposite to the others."""
    X, y, _, _ = table(100, 30, 10)
    settings = EOWClassifier((8,), max_iter=3)._checked()
    shown, asked = set_apart(y)
    other = X.copy()
    other[asked] = 100 * np.random.default_rng(0).normal(size=(len(asked), 30))
    (one, scaler), fresh = rehearse(None, X, y, 2, settings, 0, False)  # type: ignore[misc]
    (two, _), _ = rehearse(None, other, y, 2, settings, 0, False)  # type: ignore[misc]
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    np.testing.assert_allclose(scaler.mean_, X[shown].mean(0))
    assert fresh is not None
    np.testing.assert_allclose(fresh.inputs, ((X - X[shown].mean(0)) / X[shown].std(0))[asked], rtol=1e-4, atol=1e-5)
    assert rehearse(None, X[:2], np.array([0, 1]), 2, settings, 0, False) == (None, None)


@pytest.mark.parametrize(("rate", "raised"), [(0.2, 3.0), (0.2, -3.0), (1e-6, 3.0), (0.7, 5.0)])
def test_the_head_has_the_likeliest_temperature_and_the_expected_rate(rate: float, raised: float) -> None:
    """Against a search on a grid, and means by hand."""
    X, y, _, _ = table(200, 6, 4)
    fresh: Dataset = table_of(scaler_of(X), X, y, 2)
    torch.manual_seed(0)
    asked = build("mlp", 3, (6,), hidden=(8,), cut="input")
    with torch.no_grad():
        asked.head.weight.mul_(10)
        asked.head.bias[-1] += raised
    lam, model = 0.5, copy.deepcopy(asked).double()
    fit_head(model, asked, fresh, rate, lam)
    with torch.no_grad():
        before, after = (
            net(torch.from_numpy(fresh.inputs).double()).numpy() for net in (copy.deepcopy(asked).double(), model)
        )

    def loss(log: float) -> float:
        return -log_softmax(before[:, :2] * np.exp(-log), 1)[range(200), y].sum() + 0.5 * (log / WIDTH) ** 2

    wanted = np.exp(minimize_scalar(loss, bounds=(-2, 2), method="bounded", options={"xatol": 1e-9}).x)
    scale = (before[:, 0] - before[:, 1]) / (after[:, 0] - after[:, 1])
    np.testing.assert_allclose(scale, wanted, rtol=1e-3)

    def mean_unknown(logits: np.ndarray) -> float:
        return expit(logits[:, -1] - logsumexp(logits[:, :2], axis=1) + np.log(rate / (1 - rate) / lam)).mean()

    assert mean_unknown(after) == pytest.approx(min(rate, mean_unknown(before)), rel=1e-4)
