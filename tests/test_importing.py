"""Predictions of other models: measured as other libraries measure them, compared with a run's, certified, reported,
and refused in a sentence where they are none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handmade import LAM, spoken
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from torchmetrics.classification import MulticlassCalibrationError

import eow
from eow.certify import certify, stored
from eow.compare import compare
from eow.errors import EowError
from eow.evaluate import evaluate, read_all
from eow.importing import import_predictions
from eow.metrics import certified_threshold
from eow.predictions import Predictions
from eow.report import report
from eow.report.gather import Loaded, labels_of

CLOSED, OPEN = spoken(0, open_world=False), spoken(1, unknown=-1.0)
FAR, FAR_OPEN = spoken(2, 150, open_world=False, skill=0.0), spoken(3, 150, skill=0.0, unknown=1.0)


def only(arrays: dict[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in names}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on digits that meets its unseen classes and noise, with samples kept for a threshold."""
    folder = tmp_path_factory.mktemp("runs") / "eow"
    data = {"name": "digits", "unknown_classes": [8, 9], "outliers": ["noise"], "certify": 0.3}
    eow.train(eow.resolve({"data": data, "train": {"epochs": 4}}), folder, progress=False)
    return folder


def again(run: Path, folder: Path, **more: Any) -> Path:
    """The run's own predictions, imported."""
    known, others = read_all(run)

    def said(each: Predictions) -> dict[str, Any]:
        return {"logits": each.logits}

    unknowns = {name: said(each) for name, each in others.items()}
    import_predictions(
        folder, said(known), known.labels, like=run, odds=known.manifest["odds"], unknowns=unknowns, **more
    )
    return folder


def numbers(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of a set, the nested ones by their paths."""
    nested = {f"{key} {at}": each for key, of in figures.items() if isinstance(of, dict) for at, each in of.items()}
    return {**{key: value for key, value in figures.items() if isinstance(value, float)}, **nested}


def test_figures_are_those_of_other_libraries(tmp_path: Path) -> None:
    """Of scikit-learn's probabilities, in float64 as they come."""
    digits = load_digits()
    known = digits.target < 8
    train, test = np.flatnonzero(known)[:700], np.flatnonzero(known)[700:]
    model = LogisticRegression(max_iter=200).fit(digits.data[train], digits.target[train])
    probs, far = model.predict_proba(digits.data[test]), model.predict_proba(digits.data[~known])
    labels = digits.target[test]
    found = import_predictions(tmp_path / "a", probs, labels, name="logistic", unknowns={"8 and 9": far})["metrics"]
    assert found["test"]["accuracy"] == model.score(digits.data[test], labels)
    assert found["test"]["nll"] == pytest.approx(log_loss(labels, probs.astype(np.float32)), rel=1e-5)
    other = MulticlassCalibrationError(8, n_bins=15)(torch.tensor(probs, dtype=torch.float32), torch.tensor(labels))
    assert found["test"]["ece"] == pytest.approx(float(other), abs=1e-6)
    truth = np.repeat([1, 0], [len(probs), len(far)])
    ranked = roc_auc_score(truth, np.concatenate([probs, far]).max(1).astype(np.float32))
    assert found["8 and 9"]["auroc_confidence"] == pytest.approx(ranked, abs=1e-12)
    assert "auroc_unknown" not in found["8 and 9"]
    assert "auroc_energy" not in found["8 and 9"]
    assert evaluate(tmp_path / "a") == found


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, lambda x: torch.tensor(x).bfloat16(), np.ndarray.tolist])
def test_logits_give_the_softmax_of_any_kind_of_array(tmp_path: Path, kind: Any) -> None:
    import_predictions(tmp_path / "a", {"logits": kind(CLOSED["logits"])}, CLOSED["labels"].tolist())
    known, _ = read_all(tmp_path / "a")
    assert known.logits is not None
    np.testing.assert_allclose(known.probs, softmax(known.logits.astype(float), 1), atol=1e-7)
    np.testing.assert_array_equal(known.label, known.logits.argmax(1))
    np.testing.assert_array_equal(known.labels, CLOSED["labels"])
    assert known.unknown.max() == 0
    assert not known.open_world


def test_a_run_imported_again_has_the_run_s_figures(run: Path, tmp_path: Path) -> None:
    folder = again(run, tmp_path / "again")
    ours, theirs = evaluate(run), evaluate(folder)
    assert ours.keys() == theirs.keys() == {"test", "unknown", "noise"}
    for name, figures in ours.items():
        assert numbers(figures) == pytest.approx(numbers(theirs[name]), abs=1e-6), name
        assert figures.get("kind") == theirs[name].get("kind")
    rates = evaluate(run, 0.05), evaluate(folder, 0.05)
    assert rates[0]["test"] == pytest.approx(rates[1]["test"], abs=1e-6)
    rows = compare([folder], [run])
    assert {row.unknowns for row in rows} == {None, "unknown", "noise"}
    assert {row.figure for row in rows} >= {"nll", "auroc_unknown"}
    assert all(abs(row.difference) < 1e-6 for row in rows)


def test_an_unknown_without_logits_counts_and_can_be_shifted_where_its_odds_are_known(tmp_path: Path) -> None:
    answer, far = only(OPEN, "probs", "unknown"), only(FAR_OPEN, "probs", "unknown")
    for name, said, theirs in (("bare", answer, far), ("logits", only(OPEN, "logits"), only(FAR_OPEN, "logits"))):
        odds = None if name == "bare" else LAM
        import_predictions(tmp_path / name, said, OPEN["labels"], unknowns={"far": theirs}, odds=odds)
    bare, logits = evaluate(tmp_path / "bare"), evaluate(tmp_path / "logits")
    assert bare["test"] == pytest.approx(logits["test"], abs=1e-6)
    truth, unknown = np.repeat([0, 1], [400, 150]), np.concatenate([OPEN["unknown"], FAR_OPEN["unknown"]])
    assert bare["far"]["auroc_unknown"] == pytest.approx(roc_auc_score(truth, unknown), abs=1e-12)
    with pytest.raises(EowError, match="which prior odds"):
        evaluate(tmp_path / "bare", 0.05)
    closed = evaluate(tmp_path / "bare", 0.0)["test"]  # leaves nothing of the unknown, whatever its odds
    alone = OPEN["probs"] / OPEN["probs"].sum(1, keepdims=True)
    assert closed["nll"] == pytest.approx(log_loss(OPEN["labels"], alone), rel=1e-5)


def test_odds_without_logits_are_those_of_the_unknown(tmp_path: Path) -> None:
    import_predictions(tmp_path / "a", only(OPEN, "probs", "unknown"), OPEN["labels"], odds=LAM)
    shifted = OPEN["logits"].astype(float)
    shifted[:, -1] += np.log(0.3 / 0.7) - np.log(LAM)
    known, _ = read_all(tmp_path / "a", 0.3)
    np.testing.assert_allclose(known.unknown, softmax(shifted, 1)[:, -1], atol=1e-6)


def test_what_eow_predict_answers_is_taken_as_it_is(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(60, 5), torch.arange(60) % 3
    model = eow.upgrade(torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    said = eow.predict(eow.fit(model, (x, y), epochs=1), x, threshold=0.9)
    eow.import_predictions(tmp_path / "own", said, y, unknowns={"noise": eow.predict(model, 9 * x)})
    known, others = read_all(tmp_path / "own")
    np.testing.assert_array_equal(known.label, said.probs.argmax(1))  # not -1: below the threshold it has a label too
    np.testing.assert_array_equal(known.unknown, said.unknown)
    assert list(others) == ["noise"]
    assert known.open_world


def test_a_threshold_is_certified_on_samples_that_were_kept_for_it(tmp_path: Path) -> None:
    kept = spoken(7, 2000, open_world=False, skill=4.0)
    folder = tmp_path / "a"
    import_predictions(folder, only(CLOSED, "logits"), CLOSED["labels"], certify=(only(kept, "logits"), kept["labels"]))
    promise = certify(folder, 0.05)
    by_hand = certified_threshold(kept["confidence"], kept["label"] == kept["labels"], 0.05, 0.05)
    assert promise is not None
    assert by_hand is not None
    assert promise.threshold == pytest.approx(by_hand.threshold, abs=1e-6)
    assert promise.samples == 2000
    assert stored(folder) == promise
    assert "certify" not in evaluate(folder)
    assert certify(folder, 1e-4) is None
    assert stored(folder) is None
    import_predictions(tmp_path / "b", only(CLOSED, "logits"), CLOSED["labels"])
    with pytest.raises(EowError, match="imported without samples for a threshold"):
        certify(tmp_path / "b", 0.05)


def test_seeds_of_one_model_are_one_row_of_a_report_beside_a_run(run: Path, tmp_path: Path) -> None:
    folders = [again(run, tmp_path / f"eow-{seed}", name="eow", seed=seed) for seed in range(2)]
    report([run, *folders], tmp_path / "report.md", "md")
    text = (tmp_path / "report.md").read_text()
    assert text.count("\n## ") == 1  # one section: the same test data
    row = next(line for line in text.splitlines() if "±" in line and line.startswith("| eow"))
    assert "| – | 2 |" in row  # no seconds, two seeds
    assert f"# {folders[0]}: imported, not made by eow" in text
    report([run, *folders], tmp_path / "page.html")
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()  # the run's pictures
    report(folders, tmp_path / "alone.html")
    page = (tmp_path / "alone.html").read_text()
    assert "come without their images" in page
    assert "eow evaluate" not in page
    assert "seconds" not in page


def test_an_imported_model_with_the_name_of_a_run_s_method_is_told_from_it(run: Path, tmp_path: Path) -> None:
    """Not by all the settings that it does not have; and vanilla is the run's, where there are both."""
    folder = again(run, tmp_path / "eow", name="eow")
    report([folder, run], tmp_path / "report.md", "md")
    lines = (tmp_path / "report.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert [row for row in rows if row.startswith("eow")][:2] == ["eow", "eow, imported"]
    known, _ = read_all(run)
    for name in ("vanilla", "other"):  # two without an unknown, of which the one is compared with the other
        said = {"logits": known.logits[:, :-1]}  # type: ignore[index]
        import_predictions(tmp_path / name, said, known.labels, like=run, name=name)
    report([tmp_path / "vanilla", tmp_path / "other", run], tmp_path / "rate.md", "md", unknown_rate=0.05)
    assert "Difference from vanilla" in (tmp_path / "rate.md").read_text()
    groups = [
        Loaded(folder, {"method": {"name": "vanilla"}, "recipe": recipe}, *[None] * 11)  # type: ignore[arg-type]
        for recipe in ("modern", "imported")
    ]
    assert labels_of([[each] for each in groups]) == ["vanilla", "vanilla, imported"]


def test_without_names_models_are_called_as_their_folders(tmp_path: Path) -> None:
    """Were they all called the same, no report could have two."""
    folders = [tmp_path / name for name in ("forest", "boosted")]
    for folder in folders:
        import_predictions(folder, CLOSED["probs"], CLOSED["labels"])
    report(folders, tmp_path / "report.md", "md")
    assert all(f"\n| {folder.name} |" in (tmp_path / "report.md").read_text() for folder in folders)
    import_predictions(tmp_path / "again", CLOSED["probs"], CLOSED["labels"], name="forest")
    with pytest.raises(EowError, match="or import one with another name or seed"):
        report([*folders, tmp_path / "again"], tmp_path / "report.md", "md")


def test_names_that_no_font_has_are_drawn(tmp_path: Path) -> None:
    for name in ("\udcff", "\x1b[31m", "$x_1"):
        folder, unknowns = tmp_path / f"{ord(name[0])}", {name: only(FAR, "probs")}
        import_predictions(folder, CLOSED["probs"], CLOSED["labels"], name=name, unknowns=unknowns)
        report([folder], tmp_path / f"{ord(name[0])}.png", "png")


EVEN = np.full((400, 4), 0.25)
BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "nothing": ({}, CLOSED["labels"], {}, "neither probs nor logits"),
    "other words": ({"probabilities": CLOSED["probs"]}, CLOSED["labels"], {}, "nothing here reads probabilities"),
    "logits as probs": (CLOSED["logits"], CLOSED["labels"], {}, "no logits"),
    "a sum of .5": (CLOSED["probs"] / 2, CLOSED["labels"], {}, "sum to 0.5 in row"),
    "an unknown beside a whole": ({**only(CLOSED, "probs"), "unknown": np.full(400, 0.2)}, CLOSED["labels"], {}, "1.2"),
    "NaN": (np.full((4, 3), np.nan), np.zeros(4), {}, "nan or infinite"),
    "an infinite logit": ({"logits": np.full((4, 3), np.inf)}, np.zeros(4), {}, "not all finite"),
    "too few labels": (CLOSED["probs"], CLOSED["labels"][1:], {}, "labels"),
    "a label beyond": (CLOSED["probs"], CLOSED["labels"] + 1, {}, "labels range from 1 to 4"),
    "one class": (np.ones((4, 1)), np.zeros(4), {}, "of two, give the probabilities of both"),
    "probs of other logits": ({**only(CLOSED, "logits"), "probs": EVEN}, CLOSED["labels"], {}, "softmax"),
    "K + 1 logits without odds": (only(OPEN, "probs", "unknown", "logits"), OPEN["labels"], {}, "say at which odds"),
    "odds of nothing": (CLOSED["probs"], CLOSED["labels"], {"odds": 0}, "odds is 0"),
    "a name short": (CLOSED["probs"], CLOSED["labels"], {"classes": ["a", "b"]}, "2 names for 4 classes"),
    "no name": (CLOSED["probs"], CLOSED["labels"], {"name": " "}, "no name"),
    "certified on the test": (EVEN, CLOSED["labels"], {"certify": (EVEN, CLOSED["labels"])}, "promises nothing"),
    "no pair": (CLOSED["probs"], CLOSED["labels"], {"certify": CLOSED["probs"]}, "certify is a pair"),
    "unknowns of other classes": (EVEN, CLOSED["labels"], {"unknowns": {"far": EVEN[:, :2] * 2}}, "columns"),
    "unknowns called test": (CLOSED["probs"], CLOSED["labels"], {"unknowns": {"test": CLOSED["probs"]}}, "cannot name"),
    "a run that is none": (CLOSED["probs"], CLOSED["labels"], {"like": "nowhere"}, "nowhere"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_prediction_is_refused_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    said, labels, more, words = BAD[case]
    with pytest.raises(EowError, match=words):
        import_predictions(tmp_path / "a", said, labels, **more)
    assert not any(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise EowError("no space left")

    monkeypatch.setattr("eow.importing.evaluate", full)  # after the predictions, before the summary
    with pytest.raises(EowError, match="no space"):
        import_predictions(tmp_path / "a", CLOSED["probs"], CLOSED["labels"])
    assert not any(tmp_path.iterdir())


def test_samples_that_are_not_the_run_s_are_refused(run: Path, tmp_path: Path) -> None:
    known, _ = read_all(run)
    said, labels = {"logits": known.logits[:, :-1]}, known.labels  # type: ignore[index]
    shuffled = np.roll(labels, 1)
    for given, truth, more, words in (
        (said, shuffled, {}, "in the same order"),
        ({"logits": said["logits"][:9]}, labels[:9], {}, "433 samples, these are 9"),
        ({"logits": known.logits}, labels, {}, "8 classes and these predictions 9"),
        (said, labels, {"data": "mnist"}, "are 'digits' and not 'mnist'"),
        (said, labels, {"unknowns": {"noise": {"logits": said["logits"][:9]}}}, "noise has 9 samples here"),
    ):
        with pytest.raises(EowError, match=words):
            import_predictions(tmp_path / "a", given, truth, like=run, **more)


def test_folders_that_are_there_and_commands_that_need_a_network(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    import_predictions(folder, CLOSED["probs"], CLOSED["labels"])  # an empty one will do
    with pytest.raises(EowError, match="import into a new folder"):
        import_predictions(folder, CLOSED["probs"], CLOSED["labels"])
    with pytest.raises(EowError, match="imported predictions and no network"):
        eow.load_run(folder)


def test_predictions_on_other_data_are_not_compared(tmp_path: Path) -> None:
    for name, data in (("a", "cifar10"), ("b", "cifar10-c")):
        import_predictions(tmp_path / name, CLOSED["probs"], CLOSED["labels"], data=data)
    with pytest.raises(EowError, match="different samples"):
        compare([tmp_path / "a"], [tmp_path / "b"])


def test_the_command(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("net.npz", **only(CLOSED, "logits", "labels"), classes=list("abcd"))
    np.savez("far.npz", **only(FAR, "logits"))
    np.savez("kept.npz", **only(spoken(7, 900, open_world=False, skill=4.0), "probs", "labels"))
    np.savez("odd.npz", **only(CLOSED, "logits"), targets=CLOSED["labels"])
    code, out, err = call("import", "net.npz", "--out", "runs/net", "--unknown", "svhn=far.npz", "--json")
    assert code == 0, err
    figures = json.loads(out)
    said, far = only(CLOSED, "logits"), only(FAR, "logits")
    assert figures == import_predictions("b", said, CLOSED["labels"], unknowns={"svhn": far})["metrics"]
    assert f"{100 * figures['test']['accuracy']:.2f}" in call("evaluate", "runs/net")[1]
    known, _ = read_all("runs/net")
    assert known.manifest["classes"] == list("abcd")
    assert known.manifest["method"] == "net"
    refused = {
        ("import", "net.npz", "--out", "runs/net"): "import into a new folder",
        ("import", "odd.npz", "--out", "c"): "targets, which nothing here reads",
        ("import", "far.npz", "--out", "c"): "holds no labels",
        ("import", "net.npz", "--out", "c", "--unknown", "far.npz"): "write --unknown svhn=svhn.npz",
        ("import", "none.npz", "--out", "c"): "none.npz",
        ("import", "net.npz", "--out", "c", "--certify", "kept.npz"): "other columns",
        ("threshold", "runs/net", "--max-risk", "0.1"): "imported without samples",
        ("predict", "runs/net", "far.npz"): "no network",
        ("evaluate", "runs/net", "--corruptions"): "no network",
        ("export", "runs/net", "-o", "x.onnx"): "no network",
        ("train", "--data", "digits", "--out", "runs/net"): "holds imported predictions, which cannot be trained",
        ("train", "--data", "digits", "--resume", "--out", "runs/net"): "which cannot be trained",
        ("train", "--resume", "--out", "runs/net"): "which cannot be trained",
    }
    for words, sentence in refused.items():
        code, _, err = call(*words)
        assert (code, err.count("\n")) == (2, 1), (words, err)
        assert sentence in err
    assert not (tmp_path / "c").exists()
