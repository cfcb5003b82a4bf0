"""A certified threshold: found on what the run has never seen, kept in the run, obeyed by `predict`."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from handmade import LAM

from eow import certify as certifying
from eow import opening, predictions, runs
from eow.answering import predict_files
from eow.certify import FILE, Threshold, certify, stored, unseen_part
from eow.config import Table, resolve
from eow.data import sets as data_sets
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.methods import METHODS, Prediction
from eow.predictions import Predictions
from eow.recipes import CONTROLS

FAST: Table = {"train": {"epochs": 8, "batch": 64}, "model": {"hidden": [32]}}


def train(folder: Path, method: str = "eow", **sections: Any) -> Path:
    runs.train(resolve(FAST, {"method": {"name": method}}, sections), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("certify") / "eow", data={"certify": 0.3, "holdout": 0.1})


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def own_part(run: runs.Run) -> Any:
    return load_sets(run.config.data, run.config.seed).certify


def saved(path: Path, inputs: np.ndarray) -> Path:
    np.save(path, inputs)
    return path


def test_a_threshold_is_written_into_the_run_and_predict_obeys_it(folder: Path, tmp_path: Path) -> None:
    found = certify(folder, max_risk=0.1)
    assert found is not None
    assert json.loads((folder / FILE).read_text()) == found._asdict()
    assert stored(folder) == found
    assert (found.max_risk, found.delta, found.unknown_rate) == (0.1, 0.05, None)
    assert 0 < found.coverage < 1
    assert found.risk <= found.bound <= 0.1
    run = runs.load(folder)
    part = own_part(run)
    assert found.samples == len(part)
    rows = predict_files(run, [saved(tmp_path / "x.npy", part.inputs)])
    answered = np.array([row["label"] >= 0 for row in rows])
    assert answered.mean() == pytest.approx(found.coverage, abs=1e-12)
    wrong = np.array([row["label"] for row in rows])[answered] != part.labels[answered]
    assert wrong.mean() == pytest.approx(found.risk, abs=1e-12)
    assert min(row["confidence"] for row, kept in zip(rows, answered) if kept) == found.threshold
    for row, kept in zip(rows, answered):
        assert (row["class"] is not None) == kept
        assert kept == (row["confidence"] >= found.threshold)
        assert row["label"] == (-1 if not kept else run.classes.index(row["class"]))
    free = predict_files(run, [tmp_path / "x.npy"], threshold=0)
    assert [row["confidence"] for row in free] == [row["confidence"] for row in rows]
    assert all(row["label"] >= 0 for row in free)


def test_an_answer_needs_exactly_the_threshold(folder: Path, tmp_path: Path) -> None:
    """The comparison is >=, in float64, of the float32 number that the method gives."""
    sure = np.array([0.2, 0.7, 0.5, np.nextafter(np.float32(0.5), np.float32(0)), 1.0], np.float32)
    column = torch.from_numpy(sure)
    said = Prediction(torch.arange(5), column, torch.eye(5), torch.zeros(5), None)
    run = replace(runs.load(folder), method=SimpleNamespace(predict=lambda x, rate: said))
    file = saved(tmp_path / "x.npy", np.zeros((5, 1, 8, 8), np.uint8))

    def labels(threshold: float) -> list[int]:
        return [row["label"] for row in predict_files(run, [file], threshold=threshold)]

    assert labels(0.0) == [0, 1, 2, 3, 4]
    assert labels(0.5) == [-1, 1, 2, -1, 4]
    assert labels(0.2) == [0, 1, 2, 3, 4]  # float32(0.2) is 0.2000000030
    assert labels(0.7) == [-1, -1, -1, -1, 4]  # float32(0.7) is 0.6999999881
    assert labels(float(sure[1])) == [-1, 1, -1, -1, 4]
    assert labels(1.0) == [-1, -1, -1, -1, 4]
    for threshold in (-0.1, 1.1, float("nan")):
        with pytest.raises(EowError, match=r"is not a confidence|give a finite number"):
            labels(threshold)


def test_an_unknown_rate_belongs_to_the_promise(folder: Path, tmp_path: Path) -> None:
    found = certify(folder, max_risk=0.2, unknown_rate=0.3)
    assert found is not None
    assert found.unknown_rate == 0.3
    run = runs.load(folder)
    file = saved(tmp_path / "x.npy", own_part(run).inputs)
    rows = predict_files(run, [file])
    by_hand = predict_files(run, [file], unknown_rate=0.3, threshold=found.threshold)
    assert rows == by_hand == predict_files(run, [file], unknown_rate=0.3)
    assert np.mean([row["label"] >= 0 for row in rows]) == pytest.approx(found.coverage, abs=2 / len(rows))
    with pytest.raises(EowError, match=r"certified at an unknown rate of 0\.3, not at an unknown rate of 0\.1"):
        predict_files(run, [file], unknown_rate=0.1)
    assert len(predict_files(run, [file], unknown_rate=0.1, threshold=0.5)) == len(rows)
    given, certified = (predict_files(run, [file], unknown_rate=rate, threshold=0.5) for rate in (None, 0.3))
    assert given == certified  # as a file that is exported of it answers
    certify(folder, max_risk=0.2)
    with pytest.raises(EowError, match="certified at the run's own unknown rate"):
        predict_files(run, [file], unknown_rate=0.1)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 0.9])
def test_predict_answers_exactly_what_was_certified_at_any_rate(folder: Path, tmp_path: Path, rate: float) -> None:
    found = certify(folder, 0.2, unknown_rate=rate)
    assert found is not None
    run = runs.load(folder)
    part = own_part(run)
    rows = predict_files(run, [saved(tmp_path / "x.npy", part.inputs)], rate)
    assert sum(row["label"] >= 0 for row in rows) == round(found.coverage * len(part))


def test_no_threshold_is_an_answer_and_takes_an_older_one_away(folder: Path, tmp_path: Path) -> None:
    assert certify(folder, max_risk=0.2) is not None
    assert (folder / FILE).exists()
    assert certify(folder, max_risk=1e-4) is None
    assert not (folder / FILE).exists()
    assert stored(folder) is None
    file = saved(tmp_path / "x.npy", own_part(runs.load(folder)).inputs[:50])
    assert all(row["label"] >= 0 for row in predict_files(runs.load(folder), [file]))


def test_an_older_threshold_that_cannot_be_taken_away_is_told_of(folder: Path) -> None:
    (folder / FILE).mkdir()
    with pytest.raises(EowError, match=r"threshold\.json cannot be removed: Is a directory; remove it yourself"):
        certify(folder, max_risk=1e-4)
    (folder / FILE).rmdir()
    assert certify(folder, max_risk=1e-4) is None


def test_the_figures_do_not_change_with_a_threshold(folder: Path) -> None:
    from eow.evaluate import evaluate

    before = evaluate(folder)
    certify(folder, max_risk=0.1)
    assert (folder / "predictions" / "certify.safetensors").exists()
    assert evaluate(folder) == before == json.loads((folder / "summary.json").read_text())["metrics"]


@pytest.mark.parametrize(
    ("risk", "delta"), [(0, 0.05), (1, 0.05), (-0.1, 0.05), (0.1, 0), (0.1, 1), (float("nan"), 0.1)]
)
def test_what_is_no_promise_is_refused(folder: Path, risk: float, delta: float) -> None:
    with pytest.raises(EowError, match="cannot be certified"):
        certify(folder, risk, delta)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize("method", [*(n for n, kind in METHODS.items() if kind.needs_holdout), "eow", *CONTROLS])
def test_held_out_data_that_a_method_was_fitted_on_certifies_nothing(tmp_path: Path, method: str) -> None:
    config = resolve(FAST, {"method": {"name": method}, "data": {"holdout": 0.2}})
    data = load_sets(config.data, config.seed)
    fitted = runs.make_method(config, 10, data.train.shape)
    run = runs.Run(tmp_path, config, fitted, data.train.classes, data.train.shape, data.transform, "")
    with pytest.raises(EowError, match=rf"used by {method}, so it cannot certify a threshold: .*data\.certify=0\.1"):
        unseen_part(run, data)


@pytest.mark.filterwarnings("ignore:not one of the held-out")
def test_a_fitted_method_is_certified_on_a_part_of_its_own(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "temperature", data={"holdout": 0.1, "certify": 0.3})
    found = certify(folder, max_risk=0.2)
    assert found is not None
    said = predictions.read(folder / "predictions" / "certify.safetensors")
    run = runs.load(folder)
    part = own_part(run)
    assert said.manifest["data_hash"] == part.hash
    logits = run.method.model(run.transform(torch.from_numpy(part.inputs))) / run.method.temperature
    np.testing.assert_allclose(said.confidence, logits.softmax(1).amax(1).detach().numpy(), atol=1e-6)


def test_a_sample_that_was_held_out_as_well_certifies_nothing(trained: Path) -> None:
    run = runs.load(trained)
    data = load_sets(run.config.data, run.config.seed)
    held, part = data.holdout, data.certify
    more = replace(
        held,
        inputs=np.concatenate([held.inputs, part.inputs[:3]]),
        labels=np.concatenate([held.labels, part.labels[:3]]),
        indices=None,
    )
    assert unseen_part(run, data).hash == part.hash
    assert unseen_part(run, replace(data, holdout=more)).hash == part.subset(np.arange(3, len(part))).hash


def test_held_out_data_serves_where_nothing_was_done_with_it(tmp_path: Path) -> None:
    folder = train(tmp_path / "vanilla", "vanilla", data={"holdout": 0.3})
    found = certify(folder, max_risk=0.2)
    assert found is not None
    run = runs.load(folder)
    assert found.samples == len(load_sets(run.config.data, run.config.seed).holdout)


def test_a_run_that_has_seen_everything_is_refused(tmp_path: Path) -> None:
    once: Table = {"epochs": 1}
    with pytest.raises(EowError, match=r"has seen all its training data, .*data\.certify=0\.1"):
        certify(train(tmp_path / "all", "vanilla", train=once), 0.1)
    late = train(tmp_path / "late", "vanilla", train={**once, "holdout_epochs": 1}, data={"holdout": 0.2})
    fitted = train(tmp_path / "fitted", train=once)
    for folder, method in ((late, "vanilla"), (fitted, "eow")):
        with pytest.raises(EowError, match=rf"held-out data of the run .* was already used by {method}"):
            certify(folder, 0.1)
        assert not (folder / FILE).exists()


def test_other_data_than_the_runs_own_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(wanted: Any, seed: int) -> Any:
        data = load_sets(wanted, seed)
        return replace(data, certify=data.certify.subset(np.arange(100)))

    monkeypatch.setattr(data_sets, "load_sets", changed)
    with pytest.raises(EowError, match=r"the data is not what the run .* was trained with"):
        certify(folder, 0.1)
    assert not (folder / FILE).exists()


@pytest.mark.parametrize("sets", [None, [], {}, {"train": 1, "test": {"hash": ""}}, {"train": {"hash": ""}}])
def test_a_summary_that_does_not_say_what_was_used_is_refused(folder: Path, sets: Any) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "sets": sets}))
    with pytest.raises(EowError, match="does not say what data was used"):
        certify(folder, 0.1)
    with pytest.raises(EowError, match="does not say what data was used"):
        opening.own_test_set(runs.load(folder))


def test_a_threshold_of_other_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    found = certify(folder, max_risk=0.2)
    assert found is not None
    (folder / FILE).write_text(json.dumps({**found._asdict(), "weights": "0" * 64}))
    file = saved(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    with pytest.raises(EowError, match="is of other weights than the run's"):
        predict_files(runs.load(folder), [file])
    assert stored(folder) is not None  # who does not ask for the weights gets what is there


GOOD = Threshold(0.9, 0.01, 0.05, 0.5, 0.001, 0.009, 300, None, "w")._asdict()


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "{}",
        *(json.dumps({key: value for key, value in GOOD.items() if key != left_out}) for left_out in GOOD),
        *(json.dumps({**GOOD, "threshold": value}) for value in ("0.9", None, True, -0.1, 1.5, float("nan"))),
        *(json.dumps({**GOOD, "unknown_rate": value}) for value in ("0.1", [], -1, float("nan"))),
    ],
)  # fmt: skip
def test_a_damaged_threshold_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(EowError, match=r"threshold\.json.*`eow threshold`"):
        stored(tmp_path)


def test_a_whole_threshold_is_read(tmp_path: Path) -> None:
    assert stored(tmp_path) is None
    for rate in (None, 0, 0.5):
        (tmp_path / FILE).write_text(json.dumps({**GOOD, "unknown_rate": rate}))
        assert stored(tmp_path, "w") == Threshold(**{**GOOD, "unknown_rate": rate})


@pytest.fixture
def saying(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run whose predictions on its certify part are what the test says they are."""
    opened = runs.load(folder)
    data = load_sets(opened.config.data, opened.config.seed)
    monkeypatch.setattr(runs, "load", lambda folder: opened)
    monkeypatch.setattr(data_sets, "load_sets", lambda wanted, seed: data)
    monkeypatch.setattr(certifying, "check_unseen", lambda *arguments: None)

    def say(logits: np.ndarray, correct: np.ndarray) -> Path:
        h = np.exp(logits - logits.max(1, keepdims=True))
        h = (h / h.sum(1, keepdims=True)).astype(np.float32)
        label = h[:, :-1].argmax(1)
        labels = np.where(correct, label, (label + 1) % (h.shape[1] - 1))
        said = Predictions(
            label,
            h[:, :-1].max(1),
            h[:, :-1],
            h[:, -1],
            labels,
            logits.astype(np.float32),
            {"odds": LAM, "method": "eow", "weights": ""},
        )
        monkeypatch.setattr(certifying, "predict_set", lambda run, name, part: said)
        return folder

    return say


def test_the_promise_is_broken_in_at_most_delta_of_the_draws(saying: Any) -> None:
    """Confidence c is uniform on (½, 1) and an answer is right with probability c: above t the risk is (1 - t)/2,
    exactly. 300 draws of 400 samples at δ = 0.2: more than 60 + 3·√48 = 80 breaches have a chance of 0.1 %."""
    random, broken, found_any = np.random.default_rng(0), 0, 0
    for _ in range(300):
        sure = random.uniform(0.5, 1.0, 400)
        logits = np.stack([np.log(sure / (1 - sure)), np.zeros(400), np.full(400, -40.0)], 1)
        found = certify(saying(logits, random.random(400) < sure), max_risk=0.15, delta=0.2)
        if found is not None:
            found_any += 1
            broken += (1 - found.threshold) / 2 > 0.15
    assert found_any > 200
    assert broken <= 80


def test_what_float32_cannot_tell_apart_is_not_told_apart(saying: Any) -> None:
    """In float64 the wrong answers lie below the right ones; as `predict` gives them, all confidences are 1."""
    strength = np.repeat([30.0, 25.0], [300, 200])
    logits = np.stack([strength, np.zeros(500), np.zeros(500)], 1)
    folder = saying(logits, strength == 30.0)
    assert certify(folder, max_risk=0.05, unknown_rate=0.1) is None
    logits = np.stack([np.repeat([30.0, 5.0], [300, 200]), np.zeros(500), np.zeros(500)], 1)
    found = certify(saying(logits, strength == 30.0), max_risk=0.05, unknown_rate=0.1)
    assert found is not None
    assert (found.threshold, found.coverage, found.risk) == (1.0, 0.6, 0.0)
