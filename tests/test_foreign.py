"""What a model elsewhere may have said: words as labels, ties that float32 cannot tell apart, classes ruled out, names
that mean something else, files that do not belong together."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from handmade import spoken
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from eow.errors import EowError
from eow.evaluate import read_all
from eow.foreign import answers, columns_of
from eow.importing import import_predictions
from eow.predictions import CHUNK

SAID = spoken(0, open_world=False)
PROBS, LABELS = SAID["probs"], SAID["labels"]


@pytest.mark.parametrize("values", [["setosa", "versicolor", "virginica"], [7, -2, 30], [2.0, 3.0, 1.0]])
@pytest.mark.parametrize("kind", [np.asarray, list, lambda y: np.asarray(y, object)])
def test_labels_are_looked_up_among_the_classes_of_scikit_learn(tmp_path: Path, values: list[Any], kind: Any) -> None:
    iris = load_iris()
    y = np.asarray(values)[iris.target]
    model = LogisticRegression(max_iter=300).fit(iris.data, y)
    kept = (model.predict_proba(iris.data[::2]) ** 2, kind(y[::2]))
    kept = (kept[0] / kept[0].sum(1, keepdims=True), kept[1])
    probs = model.predict_proba(iris.data)
    found = import_predictions(tmp_path / "a", probs, kind(y), classes=model.classes_, certify=kept)
    assert found["metrics"]["test"]["accuracy"] == model.score(iris.data, y)
    known, _ = read_all(tmp_path / "a")
    assert known.manifest["classes"] == [str(each).removesuffix(".0") for each in model.classes_]
    np.testing.assert_array_equal(model.classes_[known.labels], y)


def test_numbers_beside_names_are_the_columns(tmp_path: Path) -> None:
    names = ["10", "11", "12", "13"]
    np.testing.assert_array_equal(columns_of(PROBS, LABELS, names, "all"), LABELS)
    np.testing.assert_array_equal(columns_of(PROBS, np.array([*"abcd"], "S1")[LABELS], [*"abcd"], "all"), LABELS)
    for labels, classes, words in (
        (LABELS.astype(str), [], "are words: give `classes`"),
        (np.array([*"abce"])[LABELS], [*"abcd"], "'e' of all, in row"),
        (LABELS, [1, 2, 3, 4], "label 0 of all, in row"),
        (np.eye(4)[LABELS], [0, 1, 2, 3], "one value per sample"),
        (None, [], "all have no labels"),
    ):
        with pytest.raises(EowError, match=words):
            columns_of(PROBS, labels, classes, "all")


def test_the_label_is_the_model_s_own_where_float32_has_a_tie() -> None:
    probs = np.array([[0.5 - 1e-12, 0.5 + 1e-12], [0.5 + 1e-12, 0.5 - 1e-12]])
    for said in (probs, {"logits": 1 + probs}):
        told = answers(said, None, "all")
        assert told["probs"][0, 0] == told["probs"][0, 1]
        assert told["label"].tolist() == [1, 0]


def test_a_fault_is_found_in_any_chunk_and_named() -> None:
    """Of the row, of the sets, and of what to do."""
    count, row = 2 * CHUNK + 5, CHUNK + 3
    for value, words in ((-np.inf, "give probs, which can be 0"), (np.nan, "look at what"), (1e39, "look at what")):
        logits = np.zeros((count, 3))
        logits[row, 1] = value
        with pytest.raises(EowError, match=rf"logits of all are not all finite numbers \(.* in row {row}\).*{words}"):
            answers({"logits": logits}, None, "all")
    probs = np.full((count, 4), 0.25)
    probs[row] /= 2
    with pytest.raises(EowError, match=f"of all sum to 0.5 in row {row}"):
        answers(probs, None, "all")
    with pytest.raises(EowError, match="probs of all are not what the softmax"):
        answers({"probs": probs, "logits": np.zeros((count, 4))}, None, "all")
    probs[row] = np.nan
    with pytest.raises(EowError, match="probs of all has 4 values that are nan"):
        answers(probs, None, "all")


def test_the_columns_of_a_data_frame_are_in_the_order_of_the_classes(tmp_path: Path) -> None:
    frame, names = pandas.DataFrame(PROBS, columns=list("abcd")), list("abcd")
    words = np.array(names)[LABELS]
    found = import_predictions(tmp_path / "a", frame, words, classes=names, unknowns={"far": frame})
    assert found["metrics"]["test"]["accuracy"] == np.mean(PROBS.argmax(1) == LABELS)
    turned = frame[list("dcba")]
    given = {"classes": names, "unknowns": {"far": frame}, "certify": (frame[:50], words[:50])}
    for said, more in ((turned, {}), (frame, {"unknowns": {"far": turned}}), (frame, {"certify": (turned, words)})):
        with pytest.raises(EowError, match="are 'd, c, b, a' and classes 'a, b, c, d': give both in one order"):
            import_predictions(tmp_path / "b", said, words, **{**given, **more})


def test_a_class_is_called_the_same_whatever_its_number_was_kept_in(tmp_path: Path) -> None:
    ours = pandas.DataFrame(PROBS, columns=[0.0, 1.0, 2.0, 3.0])
    import_predictions(tmp_path / "a", ours, LABELS.astype(float), classes=[0.0, 1.0, 2.0, 3.0])
    assert read_all(tmp_path / "a")[0].manifest["classes"] == ["0", "1", "2", "3"]
    with pytest.raises(EowError, match="are '3, 2, 1, 0' and classes '0, 1, 2, 3': give both in one order"):
        import_predictions(tmp_path / "b", ours[[3.0, 2.0, 1.0, 0.0]], LABELS, classes=[0, 1, 2, 3])


def test_columns_that_pandas_has_counted_are_in_the_order_of_the_classes(tmp_path: Path) -> None:
    found = import_predictions(tmp_path / "a", pandas.DataFrame(PROBS), 3 - LABELS, classes=[3, 2, 1, 0])
    assert found["metrics"]["test"]["accuracy"] == np.mean(PROBS.argmax(1) == LABELS)


def test_logits_whose_differences_float32_rounds_away_are_told_of() -> None:
    """Log-densities may lie around -1e9: cut to float32 they are all the same, and so were the probabilities."""
    logits = np.log(PROBS.astype(np.float64)) - 1e9
    with pytest.raises(EowError, match=r"float32 rounds their differences away \(-1e\+09 in row \d+\): subtract"):
        answers({"logits": logits}, None, "all")
    found = answers({"logits": logits - logits.max(1, keepdims=True)}, None, "all")["probs"]
    np.testing.assert_allclose(found, PROBS, atol=1e-6)
    answers({"logits": logits.astype(np.float32)}, None, "all")  # the model's own, as it gave them
    answers({"logits": np.log(PROBS.astype(np.float64)) - 1e5}, None, "all")  # enough is left


@pytest.mark.parametrize("kind", [np.asarray, np.float16, torch.tensor, lambda x: torch.tensor(x).bfloat16()])
def test_probabilities_that_come_as_logits_are_told_of(kind: Any) -> None:
    """Their softmax would be close to even, and every figure wrong without a word."""
    with pytest.raises(EowError, match="logits of all are probabilities, no row's sum but 1: give them as `probs`"):
        answers({"logits": kind(PROBS)}, None, "all")
    answers({"logits": np.log(PROBS)}, None, "all")
    answers({"logits": np.where(np.arange(len(PROBS))[:, None], PROBS, 9.0)}, None, "all")  # one row that is none


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknowns without names": ({"unknowns": [PROBS]}, "unknowns have no names"),
    "unknowns that are one table": ({"unknowns": PROBS}, "unknowns have no names"),
    "a number as a name": ({"unknowns": {8: PROBS}}, "the name of a set of unknowns is 8: give a word"),
    "a name among the figures": ({"unknowns": {"intervals": PROBS}}, "'intervals' cannot name"),
    "another": ({"unknowns": {"corruptions": PROBS}}, "'corruptions' cannot name"),
    "an empty set": ({"unknowns": {"far": PROBS[:0]}}, "probs of the unknowns far is empty"),
    "odds of no unknown": ({"odds": 0.1}, "the test samples have none"),
    "a word as classes": ({"classes": "abcd"}, "classes are 'abcd'"),
    "no classes": ({"classes": None}, "classes are None"),
    "a class twice": ({"classes": ["a", "b", "a", "c"]}, "the name 'a' twice"),
    "a class that is none": ({"classes": ["a", "b", "c", None]}, "hold None"),
    "a seed below 0": ({"seed": -1}, "seed is -1"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_has_no_meaning_is_a_sentence(tmp_path: Path, case: str) -> None:
    more, words = BAD[case]
    with pytest.raises(EowError, match=words):
        import_predictions(tmp_path / "a", PROBS, LABELS, **more)
    assert not any(tmp_path.iterdir())


def test_a_model_that_says_the_same_of_all_samples_can_be_certified(tmp_path: Path) -> None:
    even = np.full((400, 4), 0.25)
    import_predictions(tmp_path / "a", even, LABELS, certify=(even, np.roll(LABELS, 1)))
    with pytest.raises(EowError, match="promises nothing"):
        import_predictions(tmp_path / "b", even, LABELS, certify=(even, LABELS))


def test_one_logit_beside_that_of_unknown_is_one_class(tmp_path: Path) -> None:
    for width in (1, 2):
        with pytest.raises(EowError, match="of the test samples there is one class"):
            import_predictions(tmp_path / "a", {"logits": PROBS[:, :width]}, 0 * LABELS, odds=0.1)


def test_the_samples_of_a_run_that_does_not_name_its_data_are_not_taken(tmp_path: Path) -> None:
    from handmade import write_run

    run = write_run(tmp_path / "run", {"test": SAID}, data_hash=None)
    (run / "config.json").write_text('{"data": {"name": "cifar10"}}')
    with pytest.raises(EowError, match="do not say of which data they are"):
        import_predictions(tmp_path / "a", PROBS, LABELS, like=run)


def test_files_that_do_not_belong_together(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", probs=PROBS, labels=np.array([*"abcd"])[LABELS], classes=[*"abcd"])
    np.savez("b.npz", probs=PROBS[::-1], labels=LABELS[::-1], classes=[*"bacd"])
    np.savez("c.npz", probs=PROBS[::-1])
    np.savez("half.npz", probs=torch.tensor(PROBS).bfloat16().view(torch.int16).numpy().view("V2"), labels=LABELS)
    np.savez("bytes.npz", probs=PROBS, labels=LABELS, classes=np.array([*"abcd"], "S1"))
    refused = {
        ("--certify", "b.npz"): "b.npz has other classes than a.npz",
        ("--unknown", "far=b.npz"): "b.npz has other classes than a.npz",
        ("--unknown", "far=c.npz", "--unknown", "far=c.npz"): "--unknown names far twice",
        ("--certify", "/dev/zero"): "/dev/zero cannot be read (it is no file)",  # which has no end
        ("--unknown", "far=none.npz"): "none.npz cannot be read (there is no such file)",
        ("--unknown", "intervals=c.npz"): "cannot name a set",
        ("--unknown", "far=half.npz"): "half.npz holds probs as raw bytes, which is how numpy writes bfloat16",
    }
    for words, sentence in refused.items():
        code, _, err = call("import", "a.npz", "--out", "new", *words)
        assert (code, err.count("\n")) == (2, 1), (words, err)
        assert sentence in err
    for file in ("a.npz", "bytes.npz"):
        code, _, err = call("import", file, "--out", f"of {file}", "--unknown", "far=c.npz")
        assert code == 0, err
        assert read_all(f"of {file}")[0].manifest["classes"] == [*"abcd"]


def test_one_set_has_an_energy_and_another_has_none(call: Any, tmp_path: Path) -> None:
    logits = 3 * np.random.default_rng(0).normal(size=PROBS.shape).astype(np.float32)
    np.savez(tmp_path / "a.npz", logits=logits, labels=LABELS)
    np.savez(tmp_path / "far.npz", logits=logits[::-1])
    np.savez(tmp_path / "near.npz", logits=np.log(PROBS))  # the logarithms of probabilities: they sum to 1
    sets = [word for each in ("far", "near") for word in ("--unknown", f"{each}={tmp_path / each}.npz")]
    code, out, err = call("import", tmp_path / "a.npz", "--out", tmp_path / "run", *sets)
    assert code == 0, err
    shown = next(line for line in out.splitlines() if "by energy" in line).split("│")
    assert float(shown[-3]) > 0
    assert shown[-2].strip() == "-"
