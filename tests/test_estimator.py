"""EOWClassifier: scikit-learn's own checks, its probabilities by hand, and what it refuses."""

import multiprocessing
import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from problems import blobs
from scripts import script
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_gaussian_quantiles, make_hastie_10_2
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from eow import switches
from eow.errors import EowError
from eow.estimator import EOWClassifier
from eow.metrics import auroc
from eow.tabular.rows import rows_to_fence, standardised
from eow.tabular.training import training_alone, validation_split

X, Y = blobs()
NAMES = np.array(["ant", "bee", "cat"])[Y]


def small(**settings: Any) -> EOWClassifier:
    return EOWClassifier(**{"hidden_layer_sizes": (16,), "max_iter": 8, "random_state": 0, **settings})


@pytest.fixture(scope="module")
def fitted() -> EOWClassifier:
    return EOWClassifier(hidden_layer_sizes=(16,), max_iter=20, random_state=0).fit(X, NAMES)


@parametrize_with_checks([EOWClassifier()])
def test_scikit_learn_has_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    check(estimator)


def logits_by_hand(classifier: EOWClassifier, rows: np.ndarray) -> np.ndarray:
    """The network in numpy: columns to mean 0 and deviation 1, at most 5, ReLU between linear layers. And the fence:
    all axes have variances of their own in so few columns, so its distance is Mahalanobis' to all rows."""
    z = (rows.astype(np.float64) - X.mean(0, dtype=np.float64)) / X.std(0, dtype=np.float64)
    values = np.minimum(np.maximum(z, -5), 5)
    layers = [layer for layer in classifier.model_.modules() if isinstance(layer, torch.nn.Linear)]
    for layer in layers:
        values = values @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
        values = np.maximum(values, 0) if layer is not layers[-1] else values
    inverse = np.linalg.inv(np.corrcoef(X.T.astype(np.float64)))
    reach = np.einsum("ni,ij,nj->n", z, inverse, z) / 4 / classifier.fence_.radius.item()
    values[:, -1] += 10 * np.maximum(0, reach - 1)
    return values


def test_probabilities_are_the_softmax_over_the_classes_and_unknown_that_over_all(fitted: EOWClassifier) -> None:
    rows = np.concatenate([X[:20], X[:20] * 3 - 5])
    exponentials = np.exp(logits_by_hand(fitted, rows))
    known = exponentials[:, :-1].sum(1)
    np.testing.assert_allclose(fitted.predict_proba(rows), exponentials[:, :-1] / known[:, None], rtol=1e-9)
    unknown = exponentials[:, -1] / (known + exponentials[:, -1])
    np.testing.assert_allclose(fitted.predict_unknown(rows), unknown, rtol=1e-4)  # the fence reads float32
    inside = fitted.fence_.rise(torch.from_numpy(standardised(fitted.scaler_, rows))).numpy() == 0
    assert 15 < inside.sum() < 30
    np.testing.assert_allclose(fitted.predict_unknown(rows)[inside], unknown[inside], rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_proba(rows).sum(1), 1, rtol=1e-12)


def test_blobs_are_told_apart_and_what_lies_elsewhere_is_called_unknown(fitted: EOWClassifier) -> None:
    assert fitted.score(X, NAMES) > 0.99
    elsewhere = np.random.default_rng(0).uniform(X.min(0), X.max(0), (300, 4))
    far = elsewhere[np.linalg.norm(elsewhere[:, None] - 6 * np.eye(3, 4), axis=2).min(1) > 5]
    assert len(far) > 50
    assert fitted.predict_unknown(X).mean() < 0.3  # λ/(1+λ) is .23
    assert fitted.predict_unknown(far).mean() > 0.5
    assert np.mean([label is None for label in fitted.predict_open(far)]) > 0.5
    assert np.mean(fitted.predict_open(X) == NAMES) > 0.9


def test_an_unknown_rate_replaces_the_prior_odds_and_touches_nothing_else(fitted: EOWClassifier) -> None:
    before = fitted.predict_unknown(X)
    other = pickle.loads(pickle.dumps(fitted)).set_params(unknown_rate=0.4, lam=7.0)  # λ is the one of the training
    after = other.predict_unknown(X)
    np.testing.assert_allclose(after / (1 - after), before / (1 - before) * (0.4 / 0.6) / 0.3, rtol=1e-6)
    np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
    assert not other.set_params(unknown_rate=0).predict_unknown(X).any()


def test_abstaining_from_names_gives_none_and_follows_the_threshold(fitted: EOWClassifier) -> None:
    rows = np.concatenate([X, X * 2 - 3])
    exponentials = np.exp(logits_by_hand(fitted, rows))
    confidence = exponentials[:, :-1].max(1) / exponentials.sum(1)
    answers = fitted.predict_open(rows, threshold=0.8)
    assert answers.dtype == object
    for answer, sure, label in zip(answers, confidence, fitted.predict(rows), strict=True):
        assert answer == label if sure >= 0.8 else answer is None
    assert 0 < sum(answer is None for answer in answers) < len(rows)
    assert list(fitted.predict_open(rows, threshold=0)) == list(fitted.predict(rows))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float64])
def test_abstaining_from_numbers_gives_minus_one(kind: Any) -> None:
    classifier = small().fit(X, (Y + 250).astype(kind))
    answers = classifier.predict_open(X, threshold=1.0)
    assert answers.dtype.kind == ("f" if kind is np.float64 else "i")
    assert set(answers.tolist()) == {-1}
    assert set(classifier.predict_open(X, threshold=0.0).tolist()) == {250, 251, 252}


def test_booleans_have_no_minus_one_and_abstain_with_none() -> None:
    classifier = small().fit(X, Y > 0)
    assert classifier.predict(X).dtype == bool
    assert set(classifier.predict_open(X, threshold=1.0).tolist()) == {None}
    assert set(classifier.predict_open(X, threshold=0.0).tolist()) == {True, False}


def test_a_class_called_minus_one_forbids_abstaining_with_it() -> None:
    classifier = small().fit(X, np.where(Y == 0, -1, Y))
    assert -1 in classifier.predict(X)
    with pytest.raises(EowError, match="-1 is one of the classes"):
        classifier.predict_open(X)


def test_predictions_take_one_thread_and_give_the_others_back() -> None:
    classifier, seen = small().fit(X, Y), []
    classifier.model_.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        classifier.predict_unknown(X)
        assert seen == [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_threads_that_come_while_another_is_inside_leave_as_many_as_there_were() -> None:
    """In a process of its own: the number is torch's for all threads to come."""
    code = """if True:
        import torch
        from threading import Event, Thread
        from eow.threads import one_thread

        torch.set_num_threads(3)
        entered, left = Event(), Event()

        def come_later():
            with one_thread():
                entered.set()
                with one_thread():
                    pass
                assert left.wait(60) and torch.get_num_threads() == 1
            print(torch.get_num_threads())

        other = Thread(target=come_later)
        with one_thread():
            other.start()
            assert entered.wait(60)
        print(torch.get_num_threads())
        left.set()
        other.join()
        late = Thread(target=lambda: print(torch.get_num_threads()))
        late.start()
        late.join()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["3", "3", "3"]


def test_a_seed_gives_the_same_bytes_and_leaves_torch_alone() -> None:
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    said = [small(random_state=seed).fit(X, Y).predict_proba(X).tobytes() for seed in (3, 3, 4)]
    assert said[0] == said[1] != said[2]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_two_threads_fit_as_one_does() -> None:
    alone = [small(random_state=seed).fit(X, Y).predict_proba(X) for seed in range(4)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda seed: small(random_state=seed).fit(X, Y).predict_proba(X), range(4)))
    np.testing.assert_array_equal(alone, together)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of every fork beside threads
def test_a_process_forked_while_another_thread_fits_can_fit() -> None:
    """The thread that holds the lock, and is inside of another default type, is not in the child."""
    inside, leave = threading.Event(), threading.Event()

    def fit() -> None:
        with training_alone(), switches.LOCK:
            inside.set()
            leave.wait()

    def child() -> None:
        assert torch.get_default_dtype() == torch.float64
        small(max_iter=1).fit(X, Y)
        assert torch.get_default_dtype() == torch.float64

    torch.set_default_dtype(torch.float64)
    other = threading.Thread(target=fit)
    try:
        other.start()
        inside.wait()
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(60)
        process.kill()
        process.join()
        assert process.exitcode == 0
    finally:
        leave.set()
        other.join()
        torch.set_default_dtype(torch.float32)


def test_units_and_offsets_of_the_columns_do_not_matter() -> None:
    factors, offsets = np.array([1e-6, 1.0, 1e3, 1e9]), np.array([0.0, 1e4, -5.0, 1e10])
    one, other = small().fit(X, Y), small().fit(X * factors + offsets, Y)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X * factors + offsets), atol=1e-3)


def test_the_largest_numbers_are_as_far_as_five_deviations_for_the_classes_and_unknown(fitted: EOWClassifier) -> None:
    edge = X.mean(0, dtype=np.float64) + 5 * X.std(0, dtype=np.float64)
    for far in (1e30, 1.7e308):
        np.testing.assert_allclose(fitted.predict_proba([[far] * 4]), fitted.predict_proba([edge]), rtol=1e-9)
        assert all(fitted.predict_unknown([row]) == 1 for row in ([far] * 4, [-far] * 4, [far, 0, 0, 0]))


def displaced(rows: np.ndarray, around: np.ndarray) -> dict[str, np.ndarray]:
    middle = around.mean(0)
    one = np.arange(rows.shape[1]) == np.arange(len(rows))[:, None] % rows.shape[1]
    return {
        "ten times": rows * 10,
        "a wrong unit": rows * 1000,
        "far from the mean": middle + 10 * (rows - middle),
        "aside": rows + 100 * around.std(0),
        "one column": np.where(one, middle + 1000 * around.std(0), rows),
    }


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_what_is_far_is_unknown_and_what_is_known_stays_so(load: Any) -> None:
    """Without the fence, nearly all of breast cancer's far rows are answered, and most of wine's."""
    rows, labels = load(return_X_y=True)
    seen, asked, true, wanted = train_test_split(rows, labels, test_size=0.4, stratify=labels, random_state=0)
    classifier = EOWClassifier(random_state=0).fit(seen, true)
    known = classifier.predict_unknown(asked)
    for kind, far in displaced(asked, seen).items():
        assert np.mean(classifier.predict_open(far) == -1) > 0.97, kind
        assert auroc(-known, -classifier.predict_unknown(far)) > 0.97, kind
    assert classifier.score(asked, wanted) > 0.9
    probabilities, answered = classifier.predict_proba(asked), np.mean(classifier.predict_open(asked) != -1)
    classifier.fence_.radius.fill_(torch.inf)
    np.testing.assert_array_equal(classifier.predict_proba(asked), probabilities)
    assert np.mean(classifier.predict_open(asked) != -1) - answered < 0.03


def test_where_all_is_unknown_a_threshold_of_zero_still_names_the_class(fitted: EOWClassifier) -> None:
    far = X * 1000
    assert (fitted.predict_unknown(far) == 1).all()
    assert list(fitted.predict_open(far, threshold=0)) == list(fitted.predict(far))
    assert len(set(fitted.predict(far))) > 1
    assert fitted.predict_proba(far).sum(1) == pytest.approx(1)
    closed = pickle.loads(pickle.dumps(fitted)).set_params(unknown_rate=0)
    assert not closed.predict_unknown(far).any()


@pytest.mark.parametrize(("rows", "columns"), [(12, 1), (300, 1), (12, 5), (20, 2000)])
def test_tables_of_few_rows_and_of_many_columns_have_a_fence(rows: int, columns: int) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(2 * rows) % 2
    table = random.normal(size=(2 * rows, columns)) + 8 / np.sqrt(columns) * labels[:, None]
    classifier = EOWClassifier(random_state=0).fit(table[:rows], labels[:rows])
    outside = classifier.fence_.rise(torch.from_numpy(standardised(classifier.scaler_, table[rows:]))) > 3
    assert outside.double().mean() <= 0.1
    far = np.concatenate([30 * table[rows:] + 100, -1e30 * np.ones((1, columns))])
    assert (classifier.predict_unknown(far) > 0.99).all()


def test_around_two_rows_there_is_no_fence() -> None:
    classifier = small().fit([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    assert not classifier.fence_.rise(torch.full((1, 2), 1e4)).any()


def test_the_fence_of_a_large_table_is_that_of_a_share_of_its_rows_with_every_class_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eow.tabular.rows.MOST_FENCED", 150)
    table, labels = np.concatenate([X, X]), np.concatenate([Y, Y])
    first, again = (small().fit(table, labels).fence_ for _ in range(2))
    assert torch.equal(first.middle, again.middle)
    assert torch.equal(first.radius, again.radius)
    assert (
        first.rise(torch.from_numpy(standardised(small().fit(table, labels).scaler_, X))) > 3
    ).double().mean() < 0.05
    rare = (np.arange(100_000) % 20_000 == 0).astype(int)  # five rows of one class
    for seed in range(20):
        taken = rows_to_fence(rare, seed)
        assert len({*taken}) == 150
        assert rare[taken].sum() == 5


def test_a_rare_class_is_answered_by_default() -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(1000) % 100 == 0).astype(int)  # one in a hundred
    table, new = (random.normal(size=(1000, 5)) + 4 * labels[:, None] for _ in range(2))
    new = np.concatenate([new, random.normal(size=(200, 5)) + 4])
    true = np.r_[labels, np.ones(200, int)]
    classifier = EOWClassifier(random_state=0).fit(table, labels)
    assert classifier.unknown_rate_ == pytest.approx(0.006 / 1.006)  # λ is .3, the class a fiftieth of an equal share
    answers = classifier.predict_open(new)
    assert np.mean(answers[true == 1] == 1) > 0.9
    assert np.mean(answers[true == 0] == 0) > 0.95
    as_trained = classifier.set_params(unknown_rate=0.3 / 1.3).predict_open(new)
    assert np.mean(as_trained[true == 1] == 1) < 0.1


def test_the_prior_of_unknown_is_that_of_training_less_as_much_as_the_rarest_class_is() -> None:
    labels = np.r_[np.zeros(200, int), np.ones(80, int), np.full(20, 2)]
    assert small().fit(X, Y).unknown_rate_ == pytest.approx(0.3 / 1.3)  # equal classes
    rare = small(lam=0.5).fit(X, labels)  # a fifth of an equal share
    assert rare.unknown_rate_ == pytest.approx(0.1 / 1.1)
    assert np.isfinite(small(lam=1e30).fit(X, Y).predict_unknown(X)).all()  # λ/(1+λ) is 1 in double precision
    said = rare.predict_unknown(X)
    np.testing.assert_array_equal(rare.set_params(unknown_rate=rare.unknown_rate_).predict_unknown(X), said)
    warm = small(warm_start=True).fit(X, labels).fit(X[labels < 2], labels[labels < 2])
    assert warm.unknown_rate_ == pytest.approx((0.3 * 80 / 140) / (1 + 0.3 * 80 / 140))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_another_default_type_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    plain = small(warm_start=True).fit(X, Y).fit(X, Y)
    torch.set_default_dtype(dtype)
    try:
        other = small(warm_start=True).fit(X, Y).fit(X, Y)
        said = other.predict_unknown(X)
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(said, plain.predict_unknown(X))


@pytest.mark.parametrize("switch", [torch.no_grad, torch.inference_mode])
def test_it_trains_where_gradients_are_switched_off(switch: Any) -> None:
    plain = small(warm_start=True).fit(X, Y)
    with switch():
        other = small(warm_start=True).fit(X, Y)
        said = other.predict_unknown(X)
        assert not torch.is_grad_enabled()
    np.testing.assert_array_equal(said, plain.predict_unknown(X))
    np.testing.assert_array_equal(other.fit(X, Y).predict_unknown(X), plain.fit(X, Y).predict_unknown(X))


def test_large_unsigned_classes_stay_apart() -> None:
    names = np.array([2**60, 2**60 + 1, 2**63 - 1], np.uint64)
    answers = small(max_iter=20).fit(X, names[Y]).predict_open(X, threshold=0.0)
    assert answers.dtype == np.int64
    assert np.mean(answers == names.astype(np.int64)[Y]) > 0.9
    assert set(answers.tolist()) == {2**60, 2**60 + 1, 2**63 - 1}
    too_large = small().fit(X, np.array([1, 2, 2**63], np.uint64)[Y])
    assert too_large.predict(X).dtype == np.uint64
    with pytest.raises(EowError, match="9223372036854775808 is too large for int64"):
        too_large.predict_open(X)


def test_a_fit_that_fails_leaves_the_one_before() -> None:
    frame = pandas.DataFrame(X, columns=["width", "height", "depth", "mass"])
    classifier = small().fit(frame, NAMES)
    before = classifier.predict_unknown(frame)
    with pytest.raises(EowError, match="lower learning_rate_init"):
        classifier.set_params(learning_rate_init=1e30).fit(X[:, :2], Y)
    with pytest.raises(EowError, match="one class only"):
        classifier.fit(X[:, :3], np.zeros(len(X)))
    assert classifier.n_features_in_ == 4
    assert list(classifier.feature_names_in_) == list(frame.columns)
    assert classifier.learning_rate_init == 1e30
    np.testing.assert_array_equal(classifier.predict_unknown(frame), before)
    new = small(learning_rate_init=1e30)
    with pytest.raises(EowError, match="lower learning_rate_init"):
        new.fit(X, Y)
    with pytest.raises(NotFittedError):
        new.predict(X)
    assert not hasattr(new, "n_features_in_")


def test_constant_columns_are_harmless() -> None:
    wide = np.column_stack([X, np.full(len(X), 1e8), np.zeros(len(X))])
    classifier = small().fit(wide, Y)
    assert np.isfinite(classifier.predict_proba(wide)).all()
    assert classifier.score(wide, Y) > 0.9


def test_a_warm_start_goes_on_from_the_weights_that_are_there() -> None:
    classifier = small(warm_start=True, weight_decay=0.0).fit(X, NAMES)
    before, curve = classifier.predict_proba(X), classifier.loss_curve_
    classifier.set_params(learning_rate_init=1e-12).fit(X, NAMES)  # a rate that moves nothing shows where it began
    np.testing.assert_allclose(classifier.predict_proba(X), before, atol=1e-6)
    assert classifier.n_iter_ == 16
    assert classifier.loss_curve_[:8] == curve
    classifier.set_params(learning_rate_init=1e-2, max_iter=20).fit(X[Y > 0], NAMES[Y > 0])
    assert list(classifier.classes_) == ["ant", "bee", "cat"]
    assert log_loss(NAMES[Y > 0], classifier.predict_proba(X[Y > 0]), labels=classifier.classes_) < log_loss(
        NAMES[Y > 0], before[Y > 0], labels=classifier.classes_
    )


def test_a_warm_start_refuses_new_classes_features_and_layers() -> None:
    classifier = small(warm_start=True).fit(X, Y)
    with pytest.raises(EowError, match="3 is none of them"):
        classifier.fit(X, Y + 1)
    with pytest.raises(EowError, match="none of them"):
        classifier.fit(X, Y.astype(str))
    with pytest.raises(ValueError, match="features"):
        classifier.fit(X[:, :2], Y)
    with pytest.raises(EowError, match="hidden layers"):
        classifier.set_params(hidden_layer_sizes=(8,)).fit(X, Y)
    assert small(warm_start=False).fit(X, Y).fit(X[:, :2], Y + 1).n_features_in_ == 2


def test_early_stopping_keeps_the_best_epoch_on_rows_it_did_not_train_on() -> None:
    random = np.random.default_rng(0)
    noise, labels = (
        random.normal(size=(200, 5)),
        random.integers(0, 2, 200),
    )  # nothing to learn: soon it only gets worse
    classifier = small(early_stopping=True, max_iter=500, n_iter_no_change=4, validation_fraction=0.25)
    classifier.fit(noise, labels)
    scores = np.array(classifier.validation_scores_)
    assert len(scores) == classifier.n_iter_ == len(classifier.loss_curve_) < 500
    assert len(scores) - 1 - scores.argmax() == 4
    _, held_out = validation_split(labels, 0.25, np.random.RandomState(0).randint(2**31 - 1))
    assert len(held_out) == 50
    assert -log_loss(labels[held_out], classifier.predict_proba(noise[held_out])) >= scores.max()  # by a temperature
    classifier.model_ = classifier.network_.double()
    kept = -log_loss(labels[held_out], classifier.predict_proba(noise[held_out]))
    assert kept == pytest.approx(scores.max(), rel=1e-5)


def test_early_stopping_needs_a_row_of_every_class_on_both_sides() -> None:
    labels = np.r_[Y[:-1], 7]
    assert set(small().fit(X, labels).classes_) == {0, 1, 2, 7}
    with pytest.raises(EowError, match="early_stopping"):
        small(early_stopping=True).fit(X, labels)


def test_data_frames_bring_their_column_names() -> None:
    frame = pandas.DataFrame(X, columns=["width", "height", "depth", "mass"])
    labels = pandas.Series(NAMES, dtype="category")
    classifier = small().fit(frame, labels)
    assert list(classifier.feature_names_in_) == ["width", "height", "depth", "mass"]
    np.testing.assert_array_equal(classifier.predict_proba(frame), small().fit(X, NAMES).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[["height", "width", "depth", "mass"]])


def test_a_grid_search_over_a_pipeline_in_two_processes_finds_what_one_process_finds() -> None:
    search = {"eowclassifier__lam": np.array([0.1, 1.0]), "eowclassifier__hidden_layer_sizes": [(8,), (8, 8)]}
    pipeline = make_pipeline(MinMaxScaler(), small(max_iter=3))
    scores = []
    for jobs in (1, 2):
        grid = GridSearchCV(pipeline, search, cv=2, scoring="neg_log_loss", n_jobs=jobs).fit(X, NAMES)
        scores.append(grid.cv_results_["mean_test_score"])
    np.testing.assert_array_equal(scores[0], scores[1])
    assert len(set(scores[0])) == 4


def test_pickles_predict_the_same_and_clones_are_not_fitted(fitted: EOWClassifier) -> None:
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(again.predict_unknown(X), fitted.predict_unknown(X))
    with pytest.raises(NotFittedError):
        clone(fitted).predict_unknown(X)
    with pytest.raises(NotFittedError):
        clone(fitted).predict_open(X)


def test_two_rows_and_no_hidden_layer_are_enough() -> None:
    classifier = EOWClassifier(hidden_layer_sizes=(), random_state=0).fit([[0.0], [1.0]], ["no", "yes"])
    assert list(classifier.predict([[-1.0], [2.0]])) == ["no", "yes"]


def test_wine_is_predicted_well_out_of_the_box() -> None:
    rows, labels = load_wine(return_X_y=True)
    known, asked, true, wanted = train_test_split(rows, labels, test_size=0.4, stratify=labels, random_state=1)
    classifier = EOWClassifier(random_state=0).fit(known, true)
    assert classifier.score(asked, wanted) > 0.93
    assert log_loss(wanted, classifier.predict_proba(asked)) < 0.2


@pytest.mark.parametrize("make", [partial(make_gaussian_quantiles, n_features=10, n_classes=3), make_hastie_10_2])
def test_classes_that_enclose_one_another_are_told_apart_as_by_scikit_learn_s_network(make: Any) -> None:
    """One hidden layer could not do this and know the negatives: 69 % of the shells were right, of the ball 88."""
    rows, labels = make(n_samples=2000, random_state=1)
    known, asked, true, wanted = train_test_split(rows, labels, stratify=labels, random_state=1)
    ours = EOWClassifier(random_state=0).fit(known, true)
    with warnings.catch_warnings(action="ignore"):
        theirs = MLPClassifier(random_state=0).fit(known, true)
    assert ours.score(asked, wanted) > theirs.score(asked, wanted) - 0.02
    assert log_loss(wanted, ours.predict_proba(asked)) < log_loss(wanted, theirs.predict_proba(asked))
    assert ours.predict_unknown(1.7 * asked).mean() > 2 * ours.predict_unknown(asked).mean()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lam": 0}, "lam is 0.0: it must be above 0"),
        ({"lam": "much"}, "lam is 'much'"),
        ({"lam": 1e-300}, "lam is 1e-300: it must be at least 1e-30"),
        ({"lam": 1e31}, r"lam is 1e\+31: it must be at most 1e\+30"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"max_iter": 2.5}, "max_iter is 2.5"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": "large"}, "batch_size is 'large'"),
        ({"learning_rate_init": -1.0}, "learning_rate_init is -1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"hidden_layer_sizes": (4, 0)}, "hidden_layer_sizes is 0"),
        ({"hidden_layer_sizes": "wide"}, "hidden_layer_sizes is 'wide'"),
        ({"early_stopping": "yes"}, "early_stopping is 'yes'"),
        ({"validation_fraction": 1.0}, "validation_fraction is 1.0"),
        ({"n_iter_no_change": 0}, "n_iter_no_change is 0"),
        ({"unknown_rate": 1.0}, "unknown rate of 1.0"),
        ({"unknown_rate": "often"}, "unknown_rate is 'often'"),
        ({"device": "abacus"}, "^device='abacus'"),
        ({"learning_rate_init": 1e30}, "look for extreme inputs, or lower learning_rate_init"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(EowError, match=message):
        small(**setting).fit(X, Y)


def test_rows_and_labels_that_make_no_sense_are_refused(fitted: EOWClassifier) -> None:
    with pytest.raises(EowError, match="one class only"):
        small().fit(X, np.zeros(len(X), int))
    with pytest.raises(ValueError, match="continuous"):
        small().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.where(X > 6, np.nan, X), Y)
    with pytest.raises(EowError, match="column 1 of X"):
        small().fit(X * np.array([1.0, 1e200, 1.0, 1.0]), Y)
    with pytest.raises(EowError, match=r"column 2 of X .* is too small"):
        small().fit(X * np.array([1.0, 1.0, 1e-200, 1.0]), Y)
    with pytest.raises(EowError, match="threshold of 2"):
        fitted.predict_open(X, threshold=2)
    with pytest.raises(EowError, match="threshold is 'a': give a number"):
        fitted.predict_open(X, "a")  # type: ignore[arg-type]


def test_the_benchmark_tests_no_row_that_defaults_were_chosen_on() -> None:
    tabular = script("benchmarks/tabular.py")
    labels = load_wine().target
    chosen_on, _ = tabular.halves(labels)
    tested = [test for _, test in tabular.splits(labels)]
    assert not set(chosen_on) & set(np.concatenate(tested))
    assert sorted([*chosen_on, *np.concatenate(tested)]) == list(range(len(labels)))
    for train, test in tabular.splits(labels):
        assert sorted([*train, *test]) == list(range(len(labels)))
