"""Predictions on disk: a file for each name, refused unless whole, and evaluated only when the run is finished."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from eow import data, storage
from eow.answering import predict_files
from eow.config import resolve
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.opening import load, own_test_set
from eow.predictions import file_name, predict_set, read, write
from eow.robustness import say
from eow.runs import train

MANIFEST: dict[str, Any] = {"name": "test", "key": "k", "method": "eow", "odds": 0.1}


def arrays(count: int = 5, classes: int = 3) -> dict[str, np.ndarray]:
    probs = np.full((count, classes), 1 / (classes + 1), np.float32)
    return {
        "label": np.zeros(count, np.int64), "labels": np.zeros(count, np.int64), "confidence": probs[:, 0].copy(),
        "probs": probs, "unknown": probs[:, 0].copy(), "logits": np.zeros((count, classes + 1), np.float32),
    }  # fmt: skip


@pytest.mark.parametrize("open_world", [True, False])
def test_the_confidence_among_the_k_classes_is_that_of_their_own_softmax(tmp_path: Path, open_world: bool) -> None:
    logits = np.random.default_rng(0).normal(0, 2, (400, 3 + open_world)).astype(np.float32)
    h = softmax(logits.astype(np.float64), axis=1).astype(np.float32)
    probs, unknown = h[:, :3].copy(), h[:, 3:].sum(1)
    said = {"label": probs.argmax(1), "confidence": probs.max(1), "probs": probs, "unknown": unknown, "logits": logits}
    write(tmp_path / "test", {**said, "labels": said["label"]}, {**MANIFEST, **({} if open_world else {"odds": None})})
    found = read(tmp_path / "test")
    np.testing.assert_allclose(found.renormalised, softmax(logits[:, :3].astype(np.float64), axis=1).max(1), rtol=1e-6)
    np.testing.assert_allclose(found.renormalised, found.confidence / (1 - found.unknown.astype(np.float64)), rtol=1e-5)
    assert found.renormalised.max() <= 1
    certain = replace(found, probs=0 * probs, confidence=0 * found.confidence, unknown=0 * unknown + 1)
    if open_world:  # the logits still tell them apart
        np.testing.assert_array_equal(certain.renormalised, found.renormalised)
    else:  # nothing is left for the classes: none is preferred
        np.testing.assert_allclose(certain.renormalised, 1 / 3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predictions") / "run"
    wanted = {"train": {"epochs": 1}, "model": {"hidden": [8]}, "data": {"unknown_classes": [8, 9]}}
    train(resolve(wanted, {"data": {"outliers": ["permuted:digits"]}}), folder, progress=False)
    return folder


def test_plain_names_are_file_names() -> None:
    assert [file_name(name) for name in ("test", "unknown", "fashion_mnist")] == [
        "test.safetensors", "unknown.safetensors", "fashion_mnist.safetensors",
    ]  # fmt: skip


@given(st.lists(st.text("aA_.-~:/ é", max_size=5), unique=True, max_size=20))
def test_no_two_names_share_a_file(names: list[str]) -> None:
    assert len({file_name(name) for name in names}) == len(names)
    assert len({file_name(file_name(name)) for name in names} | {file_name(name) for name in names}) == 2 * len(names)


@pytest.mark.parametrize("name", ["npz:" + "deep/" * 100 + "x.npz", "csv:../../x.csv", "a\nb\0c"])
def test_file_names_fit_on_a_disk(tmp_path: Path, name: str) -> None:
    (tmp_path / file_name(name)).write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == [file_name(name)]


def test_outliers_whose_names_look_alike_are_kept_apart(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run = load(tmp_path / "run")
    noise, digits = data.load("noise:1x8x8", split="test"), data.load("digits", split="test")
    predict_set(run, "npz:c/a.npz", noise)
    predict_set(run, "npz:c_a.npz", digits)
    figures = evaluate(str(tmp_path / "run"))
    assert figures.keys() == {"test", "unknown", "permuted:digits", "npz:c/a.npz", "npz:c_a.npz"}
    for name, dataset in (("npz:c/a.npz", noise), ("npz:c_a.npz", digits)):
        said = predict_set(run, name, dataset)
        assert len(said.labels) == len(dataset)
        assert figures[name]["confidence"] == pytest.approx(float(said.confidence.mean()), rel=1e-6)


def test_a_run_says_its_sets_by_their_names(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["metrics"].keys() == {"test", "unknown", "permuted:digits"}
    assert evaluate(finished) == summary["metrics"]


def test_a_run_that_is_not_finished_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(EowError, match="is not finished: resume it"):
        evaluate(tmp_path / "run")
    assert evaluate(tmp_path / "run", finished=False) == evaluate(finished)
    shutil.rmtree(tmp_path / "run" / "predictions")
    with pytest.raises(EowError, match="is not finished: resume it"):
        evaluate(tmp_path / "run")


def test_weights_that_are_no_numbers_answer_nothing(finished: Path, tmp_path: Path) -> None:
    """Neither label nor confidence: NaN would compare as sure, and JSON has no word for it."""
    shutil.copytree(finished, tmp_path / "run")
    state, card = storage.read_tensors(tmp_path / "run" / "weights.safetensors")
    name = next(name for name in state if name.endswith("weight"))
    storage.write_tensors(
        tmp_path / "run" / "weights.safetensors", {**state, name: torch.full_like(state[name], math.nan)}, card
    )
    summary = storage.read_json(tmp_path / "run" / "summary.json")
    changed = {"weights": storage.file_hash(tmp_path / "run" / "weights.safetensors")}
    storage.write_json(tmp_path / "run" / "summary.json", {**summary, **changed})
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    run = load(tmp_path / "run")
    for threshold in (None, 0.0):
        with pytest.raises(EowError, match=r"the model predicts NaN on .*x\.npy"):
            predict_files(run, [tmp_path / "x.npy"], threshold=threshold)
    with pytest.raises(EowError, match="the model predicts NaN on corrupted images"):
        say(run, (test := own_test_set(run)).inputs, test.labels)
    assert len(predict_files(load(finished), [tmp_path / "x.npy"])) == 2


@pytest.mark.parametrize("logits", [4, 3, None])
def test_whole_files_are_read(tmp_path: Path, logits: int | None) -> None:
    content = arrays()
    if logits is None:
        del content["logits"]
    else:
        content["logits"] = content["logits"][:, :logits].copy()
    lam = 0.1 if logits == 4 else None
    write(tmp_path / "x.safetensors", content, {**MANIFEST, "odds": lam})
    found = read(str(tmp_path / "x.safetensors"))
    assert found.open_world == (logits == 4)
    assert (found.logits is None) == (logits is None)
    np.testing.assert_array_equal(found.probs, content["probs"])


WRONG_ARRAYS: dict[str, dict[str, Any]] = {
    "no probs": {"probs": None},
    "no labels": {"labels": None},
    "another array": {"extra": np.zeros(5, np.float32)},
    "fewer labels": {"labels": np.zeros(4, np.int64)},
    "more logits": {"logits": np.zeros((6, 4), np.float32)},
    "flat probs": {"probs": np.zeros(5, np.float32)},
    "square unknown": {"unknown": np.zeros((5, 1), np.float32)},
    "flat logits": {"logits": np.zeros(5, np.float32)},
    "logits of other classes": {"logits": np.zeros((5, 5), np.float32)},
    "labels with a fraction": {"label": np.zeros(5, np.float32)},
    "whole probs": {"probs": np.zeros((5, 3), np.int64)},
    "nothing in them": arrays(count=0),
    "a label of no class": {"label": np.array([0, 0, 3, 0, 0])},
    "a label of unknown": {"label": np.array([0, 0, -1, 0, 0])},
    "a confidence of its own": {"confidence": np.full(5, 0.9, np.float32)},
    "a confidence below the label's": {"confidence": np.full(5, 0.1, np.float32)},
    "a confidence that is no number": {"confidence": np.array([0.25, 0.25, math.nan, 0.25, 0.25], np.float32)},
}


@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
def test_other_arrays_are_refused(tmp_path: Path, wrong: str) -> None:
    content = {name: array for name, array in {**arrays(), **WRONG_ARRAYS[wrong]}.items() if array is not None}
    write(tmp_path / "x.safetensors", content, MANIFEST)
    with pytest.raises(EowError, match=r"x\.safetensors does not hold predictions"):
        read(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "manifest",
    [
        [], "text", None, {},
        *({key: value for key, value in MANIFEST.items() if key != left_out} for left_out in MANIFEST),
        *({**MANIFEST, key: 3} for key in ("name", "key", "method")),
        *({**MANIFEST, "odds": lam} for lam in ("0.1", 0, -1.0, None, [], math.inf, math.nan, 5e-324, 1e31, True)),
        *({**MANIFEST, "classes": names} for names in (3, "abc", [1, 2, 3], ["a", "b"], None)),
        *({**MANIFEST, "config": config} for config in (3, [1], {"data": "x"}, {"data": {"name": [1]}})),
    ],
)  # fmt: skip
def test_other_headers_are_refused(tmp_path: Path, manifest: Any) -> None:
    write(tmp_path / "x.safetensors", arrays(), manifest)
    with pytest.raises(EowError, match=r"x\.safetensors (does not hold predictions|is damaged)"):
        read(tmp_path / "x.safetensors")


def test_a_method_may_be_surer_than_its_probabilities_where_its_paper_says_so(tmp_path: Path) -> None:
    """OvA DM answers K questions, and TrustScore and DBLE need not choose what is most probable."""
    content = {**arrays(), "confidence": np.full(5, 0.9, np.float32)}
    write(tmp_path / "x.safetensors", content, {**MANIFEST, "method": "ova_dm"})
    assert read(tmp_path / "x.safetensors").confidence[0] == np.float32(0.9)
    probs = np.tile(np.array([0.2, 0.5, 0.3], np.float32), (5, 1))
    content = {**arrays(), "probs": probs, "confidence": probs[:, 0].copy(), "unknown": np.zeros(5, np.float32)}
    write(tmp_path / "x.safetensors", content, {**MANIFEST, "method": "dble"})
    assert read(tmp_path / "x.safetensors").label.tolist() == [0] * 5


def test_files_that_call_the_odds_lam_are_read(tmp_path: Path) -> None:
    older = {**{key: value for key, value in MANIFEST.items() if key != "odds"}, "lam": 0.25}
    write(tmp_path / "x.safetensors", arrays(), older)
    unknown = read(tmp_path / "x.safetensors").at_unknown_rate(0.5).unknown  # logits of 0: 1/4 of the odds each
    np.testing.assert_allclose(unknown, 4 / 7, rtol=1e-6)


def test_another_rate_keeps_the_labels_where_all_classes_are_0(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    logits[:, -1] = 300
    said = {**arrays(50), "label": logits[:, :3].argmax(1), "logits": logits}
    write(tmp_path / "x.safetensors", said, MANIFEST)
    found = read(tmp_path / "x.safetensors").at_unknown_rate(0.5)
    assert not found.probs.any()
    np.testing.assert_array_equal(found.label, said["label"])


def test_another_rate_is_one_for_all_samples_however_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are shifted in chunks: here four, of which the last is short."""
    monkeypatch.setattr("eow.predictions.CHUNK", 15)
    logits = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    h = softmax(logits.astype(np.float64), axis=1)
    label, rows = h[:, :3].argmax(1), np.arange(50)
    said = {"label": label, "confidence": h[rows, label], "probs": h[:, :3], "unknown": h[:, 3], "logits": logits}
    said = {name: each if name == "label" else each.astype(np.float32) for name, each in said.items()}
    write(tmp_path / "x.safetensors", {**said, "labels": label}, MANIFEST)
    found = read(tmp_path / "x.safetensors").at_unknown_rate(0.2)
    odds = 0.25 / 0.1 * h[:, 3] / h[:, :3].sum(1)  # .2 : .8 in the place of the .1 of training
    np.testing.assert_allclose(found.unknown, odds / (1 + odds), rtol=1e-5)
    np.testing.assert_allclose(found.probs, h[:, :3] / h[:, :3].sum(1, keepdims=True) / (1 + odds)[:, None], rtol=1e-5)
    np.testing.assert_array_equal(found.label, label)
