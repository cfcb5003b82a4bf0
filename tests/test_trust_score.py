"""The trust score against brute force, its link against scikit-learn, its memory, and the method on digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from problems import blobs, small_model
from scipy.special import expit
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from eow import predictions, runs, storage
from eow.config import resolve
from eow.data import Dataset, known_unknown, load
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.methods import trust_score
from eow.methods.trust_score import Comparison, Tree, TrustScore, dense, fences, fit_link, log_trust
from eow.typed import build


def make(width: int = 4, **options: object) -> TrustScore:
    model = small_model(width=width, extra=0)
    return TrustScore(model, build(TrustScore.Options, options, "method"), 3, (width,), seed=0)


def batches(samples: int = 90, split: str = "train", seed: int = 0, width: int = 4, twins: int = 0) -> Batches:
    """Blobs with every ninth label wrong: a held-out split with errors, whatever the network. The first `twins` are
    those of seed 0."""
    x, y = blobs(samples, width=width, seed=seed)
    x[:twins] = blobs(90, width=width)[0][:twins]
    y[::9] = (y[::9] + 1) % 3
    data = Dataset("blobs", split, x, y, ("a", "b", "c"))
    return Batches(data, 40, Transform((0.0,), (1.0,)), torch.device("cpu"))


def penultimate(method: TrustScore, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return method.model.encoder(x).double().numpy()


def brute_force(stored: np.ndarray, labels: np.ndarray, queries: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The score by its definition: all distances in float64."""
    distances = np.sqrt(((queries[:, None] - stored[None]) ** 2).sum(2))
    own = np.where(labels[None] == predicted[:, None], distances, np.inf).min(1)
    other = np.where(labels[None] != predicted[:, None], distances, np.inf).min(1)
    return other / (own + 1e-12)


@pytest.mark.parametrize(("layer", "width"), [("penultimate", 4), ("input", 4), ("stage1", 4), ("input", 30)])
def test_scores_are_those_of_brute_force(layer: str, width: int) -> None:
    """Up to 15 dimensions with trees, beyond by comparing with all; the layer is the one asked for."""
    method, train, queries = make(width, layer=layer), batches(width=width), batches(50, seed=1, width=width)
    method.finish(train, queries)
    with torch.no_grad():
        logits, scores = method.judge(queries.inputs)
        encoder = method.model.recut(layer).encoder
        stored, asked = (encoder(each.inputs).double().numpy() for each in (train, queries))
    torch.testing.assert_close(logits, method.model(queries.inputs).detach())
    expected = brute_force(stored, train.labels.numpy(), asked, logits.argmax(1).numpy())
    np.testing.assert_allclose(scores.numpy(), np.log(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [5, 64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_both_searches_find_the_nearest(width: int, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against float64: far from the origin, where a product of matrices loses the distances, and beside duplicates."""
    stream = np.random.default_rng(0)
    stored = (stream.normal(size=(3000, width)) + offset).astype(np.float32)
    asked = (stream.normal(size=(200, width)) + offset).astype(np.float32)
    asked[:50] = stored[:50]
    asked[50:100] = stored[50:100] + np.float32(0.01)
    expected = [np.sqrt(((stored.astype(np.float64) - row) ** 2).sum(1)).min() for row in asked.astype(np.float64)]
    monkeypatch.setattr(trust_score, "ENTRIES", 1300 * width)  # several blocks of features
    monkeypatch.setattr(trust_score, "DISTANCES", 1300 * 64)  # and several rounds
    if width > 15:  # columns of different scales, with clusters: a product in float32 finds other neighbours
        for array in (stored, asked):
            array[:, 0] = np.round(array[:, 0] - offset) * 1e4
        asked[:100, 0] = stored[:100, 0]
        expected = [np.sqrt(((stored.astype(np.float64) - row) ** 2).sum(1)).min() for row in asked.astype(np.float64)]
    for search in (Tree, Comparison) if width <= 15 else (Comparison,):
        found = search(torch.from_numpy(stored))(torch.from_numpy(asked))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        assert (found[:50] == 0).all()
        assert torch.isinf(search(torch.empty(0, width))(torch.from_numpy(asked))).all()


def test_the_density_filter_drops_the_sparsest_of_each_class() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 3)).astype(np.float32)
    distances = np.sqrt(((features[:, None].astype(float) - features[None]) ** 2).sum(2))
    radius = np.sort(distances, axis=1)[:, 9]  # the sample itself is the first of k = 10
    expected = np.flatnonzero(rankdata(radius) <= 60 - 15)
    assert dense(features, 10, 0.25).tolist() == expected.tolist()
    assert len(dense(features[:5], 10, 0.5)) == 3  # k is more than there are
    assert len(dense(features[:1], 10, 0.9)) == 1
    assert len(dense(features[:0], 10, 0.9)) == 0


def test_the_filters_settings_reach_what_is_stored() -> None:
    train = batches(90)
    counts = np.bincount(train.dataset.labels)
    kept = {}
    for alpha, k in ((0.0, 10), (0.2, 10), (0.2, 3)):
        method = make(alpha=alpha, k=k)
        method.finish(train, batches(60, seed=1))
        assert method.counts.tolist() == [count - int(alpha * count) for count in counts]
        kept[alpha, k] = method.features.numpy()
        features = penultimate(method, train.inputs).astype(np.float32)
        for label, part in enumerate(np.split(method.features.numpy(), np.cumsum(method.counts.numpy())[:-1])):
            of_class = features[train.dataset.labels == label]
            wanted = of_class[dense(of_class, k, alpha)] if alpha else of_class
            np.testing.assert_allclose(part, wanted, atol=1e-6)
    assert not np.array_equal(kept[0.2, 10], kept[0.2, 3])


def test_distances_of_nothing_and_between_duplicates_stay_finite() -> None:
    distances = np.array([[0.0, 0.0, 1.0], [0.0, 2.0, np.inf], [np.inf, 2.0, 3.0], [np.inf, 2.0, np.inf]])
    scores = log_trust(distances, np.array([0, 0, 0, 1]))
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(scores[[0, 2]], np.log(1e-12))
    np.testing.assert_allclose(scores[[1, 3]], np.log(1e12))


def test_the_link_is_a_logistic_regression_on_smoothed_targets() -> None:
    """scikit-learn's as the oracle: each sample once as right and once as wrong, weighted by Platt's targets."""
    random = np.random.default_rng(0)
    scores = random.normal(1.0, 2.0, size=400)
    correct = random.uniform(size=400) < expit(0.8 * scores + 0.5)
    right, wrong = correct.sum(), (~correct).sum()
    target = np.where(correct, (right + 1) / (right + 2), 1 / (wrong + 2))
    oracle = LogisticRegression(C=1e12, tol=1e-10).fit(
        np.concatenate([scores, scores])[:, None],
        np.repeat([1, 0], 400),
        sample_weight=np.concatenate([target, 1 - target]),
    )
    np.testing.assert_allclose(fit_link(scores, correct), (oracle.coef_[0, 0], oracle.intercept_[0]), rtol=1e-4)
    assert fit_link(scores, correct) == pytest.approx((0.8, 0.5), abs=0.3)


def test_the_link_is_bounded_where_right_and_wrong_are_separable() -> None:
    scores = np.linspace(-3, 3, 50)
    slope, offset = fit_link(scores, scores > 1)
    assert 0 < slope < 50
    assert abs(offset) < 50
    p = expit(slope * scores + offset)
    assert p[scores > 1].min() > 0.5 > p[scores < 0.8].max()


def test_one_twin_with_another_label_does_not_decide_the_link() -> None:
    """A held-out sample at distance 0 from a training sample of a wrong class: log score 27.6, and no answer to it."""
    stream = np.random.default_rng(0)
    scores = np.concatenate([stream.normal(0.8, 0.5, 700), stream.normal(0.0, 0.3, 200)])
    correct = np.arange(900) < 700
    link = fit_link(scores, correct)
    twins, wrong = np.append(scores, np.log(1e12)), np.append(correct, False)
    assert fit_link(twins, wrong)[0] < 0.7 * link[0]
    low, high = fences(twins)
    fenced = fit_link(twins.clip(low, high), wrong)
    assert fenced == pytest.approx(link, rel=0.1, abs=0.1)
    assert low < scores.min()
    assert scores.max() < high < 5  # of the bulk nothing is cut
    assert fences(np.full(30, 2.0)) == (-np.inf, np.inf)


@pytest.mark.parametrize("right", [True, False])
def test_a_split_without_an_error_keeps_the_ranking(right: bool) -> None:
    scores = np.random.default_rng(0).normal(2.0, 3.0, size=40)
    with pytest.warns(UserWarning, match="not one of the 40 held-out labels"):
        slope, offset = fit_link(scores, np.full(40, right))
    assert slope == 1.0
    assert expit(scores + offset).mean() == pytest.approx((41 if right else 1) / 42, abs=1e-9)


@pytest.mark.parametrize("twins", [0, 2])
def test_confidence_is_the_link_and_the_rest_is_spread_by_the_softmax(twins: int) -> None:
    method, train = make(), batches()
    x = batches(50, seed=2).inputs
    with pytest.raises(EowError, match="not been fitted"):
        method.predict(x)
    held = batches(60, seed=1, twins=twins)
    method.finish(train, held)
    stored, said_of_held = penultimate(method, train.inputs), method.model(held.inputs).argmax(1).numpy()
    on_held = np.log(brute_force(stored, train.dataset.labels, penultimate(method, held.inputs), said_of_held))
    low, high = fences(on_held)
    assert ((on_held < low) | (on_held > high)).sum() == twins
    link = fit_link(on_held.clip(low, high), said_of_held == held.dataset.labels)
    np.testing.assert_allclose(method.link.numpy(), (*link, low, high), rtol=1e-4)
    h = method.model(x).detach().double().softmax(1).numpy()
    label = h.argmax(1)
    slope, offset, low, high = method.link.tolist()
    score = brute_force(stored, train.dataset.labels, penultimate(method, x), label).clip(np.exp(low), np.exp(high))
    said = method.predict(x)
    confidence = 1 / (1 + np.exp(-offset) * score**-slope)
    np.testing.assert_allclose(said.confidence.numpy(), confidence, rtol=1e-3)
    assert (said.label.numpy() == label).all()
    for row in range(50):
        for column in range(3):
            rest = (1 - confidence[row]) * h[row, column] / (1 - h[row, label[row]])
            expected = confidence[row] if column == label[row] else rest
            assert said.probs[row, column].item() == pytest.approx(expected, rel=2e-3, abs=1e-6)
    torch.testing.assert_close(said.probs.sum(1), torch.ones(50))
    assert (said.unknown == 0).all()


def test_scores_beyond_the_fences_count_as_the_fence() -> None:
    """A training sample lies at distance 0 from one of its class, so its score is as far out as scores go."""
    method, train = make(layer="input"), batches()
    method.finish(train, batches(60, seed=1))
    slope, offset, low, high = method.link.tolist()
    scores = method.judge(train.inputs[:5])[1]
    assert ((scores < low) | (scores > high)).all()
    wanted = torch.sigmoid(slope * scores.clamp(low, high) + offset).float()
    torch.testing.assert_close(method.predict(train.inputs[:5]).confidence, wanted, rtol=1e-3, atol=0)


def test_a_certain_softmax_still_leaves_something_to_the_others() -> None:
    method = make()
    method.finish(batches(), batches(60, seed=1))
    with torch.no_grad():
        method.model.head.weight.mul_(1e4)
        method.model.head.bias.mul_(1e4)
    said = method.predict(batches(50, seed=2).inputs)
    assert torch.isfinite(said.probs).all()
    torch.testing.assert_close(said.probs.sum(1), torch.ones(50))


def test_memory_is_bounded_by_an_equal_share_of_every_class() -> None:
    x, _ = blobs(3000)
    y = np.where(np.arange(3000) < 6, 2, np.arange(3000) % 2).astype(np.int64)  # a class of 6 among two of about 1,500
    wide = np.repeat(x, 250, axis=1)  # 1,000 features: 4,000 bytes a sample, 262 samples a megabyte
    data = Dataset("blobs", "train", wide, y, ("a", "b", "c"))
    train = Batches(data, 500, Transform((0.0,), (1.0,)), torch.device("cpu"))
    kept = []
    for _ in range(2):
        method = make(1000, layer="input", memory_mb=1)
        with pytest.warns(UserWarning, match="262 are kept"):
            method.remember(train)
        kept.append(method.features.numpy())
    assert kept[0].nbytes <= 2**20
    np.testing.assert_array_equal(*kept)
    share = 262 / 3000
    for label, count in enumerate(np.bincount(y)):
        assert abs(method.counts[label].item() - share * count) <= 1
    assert method.counts[2] >= 1
    everyone = {row.tobytes(): label for row, label in zip(wide, y)}
    stored = np.repeat(np.arange(3), method.counts.numpy())
    assert [everyone[row.tobytes()] for row in kept[0]] == stored.tolist()


def test_features_that_are_no_numbers_are_refused_and_inputs_that_are_none_have_no_confidence() -> None:
    for width in (4, 30):
        method = make(width, layer="input")
        method.finish(batches(width=width), batches(60, seed=1, width=width))
        x = batches(5, seed=2, width=width).inputs
        x[1, 0], x[2] = torch.nan, 3e30
        said = method.predict(x)
        assert said.confidence.isnan().tolist() == [False, True, False, False, False]
        assert not len(method.predict(x[:0]).label)
        state = method.state_dict()
        spoilt = {"features": state["features"].clone().index_fill_(0, torch.tensor([3]), torch.inf),
                  "counts": state["counts"] + 1}  # fmt: skip
        for name, wrong in spoilt.items():
            with pytest.raises(ValueError, match="training features"):
                make(width, layer="input").load_state_dict({**state, name: wrong})


def test_its_state_can_be_loaded_into_a_new_one() -> None:
    method, other = make(alpha=0.1), make(alpha=0.1)
    method.finish(batches(), batches(60, seed=1))
    other.finish(batches(30), batches(30, seed=3))
    x = batches(50, seed=2).inputs
    other.predict(x)  # its searches are made, and must not outlive what they were made from
    other.load_state_dict(method.state_dict())
    for mine, its in zip(method.predict(x)[:4], other.predict(x)[:4]):
        assert torch.equal(mine, its)
    with pytest.raises(RuntimeError, match="features"):
        make(layer="input").load_state_dict(method.state_dict())


@pytest.mark.parametrize(
    "wrong", [{"alpha": -0.1}, {"alpha": 1.0}, {"k": 1}, {"memory_mb": 0}, {"layer": "moon"}]
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict) -> None:
    with pytest.raises(EowError):
        make(**wrong)


def test_it_is_fitted_on_held_out_training_data_or_not_at_all() -> None:
    with pytest.raises(EowError, match=r"set data\.holdout"):
        make().finish(batches(), None)
    with pytest.raises(EowError, match="test split of blobs"):
        make().finish(batches(), batches(split="test"))
    with pytest.raises(EowError, match="test split of blobs"):
        make().finish(batches(split="test"), batches())


@pytest.mark.filterwarnings("ignore:not one of")
def test_on_digits_it_takes_over_the_vanilla_run_beside_it(tmp_path: Path) -> None:
    wish = {"data": {"unknown_classes": [8, 9], "holdout": 0.1}}
    runs.train(resolve(wish, {"method": {"name": "vanilla"}}), tmp_path / "vanilla", progress=False)
    config = resolve(wish, {"method": {"name": "trust_score", "alpha": 0.05}})
    summary = runs.train(config, tmp_path / "trust", progress=False)
    assert [line["event"] for line in storage.Log(tmp_path / "trust" / "log.jsonl").read()] == ["taken over"]
    vanilla, run = runs.load(tmp_path / "vanilla"), runs.load(tmp_path / "trust")
    ours, theirs = run.method.model.state_dict(), vanilla.method.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert summary["metrics"]["test"]["accuracy"] > 0.95
    assert summary["metrics"]["test"]["ece"] < 0.05
    assert summary["metrics"]["unknown"]["auroc_confidence"] > 0.9
    stored = predictions.read(tmp_path / "trust" / "predictions" / "unknown.safetensors")
    _, unknown = known_unknown(load("digits", split="test"), (8, 9))
    again = predictions.compute(run.method, unknown, run.transform, torch.device("cpu"))
    np.testing.assert_allclose(stored.confidence, again["confidence"], atol=1e-5)


def test_a_link_of_before_there_were_fences_has_none() -> None:
    one, other = make(), make()
    one.finish(batches(), batches(60, seed=1))
    state = one.state_dict()
    slope, offset, *_ = state["link"].tolist()
    other.load_state_dict({**state, "link": state["link"][:2]})
    assert other.link.tolist() == [slope, offset, -np.inf, np.inf]
