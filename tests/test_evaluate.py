"""Every figure of `evaluate` against another library or a computation by hand, on hand-made predictions."""

import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from handmade import CLASSES, LAM, answers, spoken, write_run
from scipy.special import logsumexp, softmax
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score
from torchmetrics.classification import MulticlassCalibrationError

from eow import metrics
from eow.errors import EowError
from eow.evaluate import calibration, evaluate
from eow.predictions import file_name, losses, read, write

BINS = 15
KNOWN, UNKNOWN = spoken(0, 1000, unknown=-1.0), spoken(1, 150, skill=0.0, unknown=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("evaluate"), {"test": KNOWN, "svhn": UNKNOWN})


def in_bins(values: np.ndarray) -> list[np.ndarray]:
    """The indices of the values in each bin (lo, hi], one after the other."""
    values = values.astype(np.float64)
    return [np.flatnonzero((values > i / BINS) & (values <= (i + 1) / BINS)) for i in range(BINS)]


def gaps(confidence: np.ndarray, right: np.ndarray, groups: list[np.ndarray]) -> list[tuple[int, float, float]]:
    """Count, mean confidence and accuracy of every group that has samples."""
    sure = confidence.astype(np.float64)
    return [(len(at), sure[at].mean(), right[at].mean()) for at in groups if len(at)]


def test_the_calibration_figures(folder: Path) -> None:
    found = evaluate(folder)["test"]
    probs, labels, sure = KNOWN["probs"], KNOWN["labels"], KNOWN["confidence"].astype(np.float64)
    right, size = KNOWN["label"] == labels, len(labels)
    bins = gaps(sure, right, in_bins(sure))
    whole = np.c_[probs, KNOWN["unknown"]].astype(np.float64)

    assert found["accuracy"] == accuracy_score(labels, KNOWN["label"])
    for figure, norm in (("ece", "l1"), ("mce", "max")):
        other = MulticlassCalibrationError(CLASSES, n_bins=BINS, norm=norm)
        assert found[figure] == pytest.approx(float(other(torch.tensor(probs), torch.tensor(labels))), abs=1e-6)
    assert found["ece_paper_compat"] == pytest.approx(found["ece"], abs=1e-12)  # no confidence is 1, none on an edge
    pieces = np.array_split(np.argsort(sure), BINS)
    assert found["ece_equal_mass"] == pytest.approx(
        sum(n * abs(p - a) for n, p, a in gaps(sure, right, pieces)) / size, abs=1e-9
    )
    by_class = [
        sum(n * abs(p - a) for n, p, a in gaps(probs[:, k], labels == k, in_bins(probs[:, k]))) for k in range(CLASSES)
    ]
    assert found["ece_classwise"] == pytest.approx(np.mean(by_class) / size, abs=1e-9)
    square = sum(n * ((p - a) ** 2 - a * (1 - a) / (n - 1)) for n, p, a in bins if n > 1) / size
    assert found["ece_l2_debiased"] == pytest.approx(np.sqrt(square), abs=1e-9)
    assert square > 0

    full = whole / whole.sum(1, keepdims=True)
    assert found["nll"] == pytest.approx(log_loss(labels, full, labels=range(CLASSES + 1)), rel=1e-5)
    known = probs.astype(np.float64) / probs.sum(1, keepdims=True, dtype=np.float64)
    assert found["nll_renormalised"] == pytest.approx(log_loss(labels, known, labels=range(CLASSES)), rel=1e-6)
    alone = known.max(1)
    by_bin = gaps(alone, right, in_bins(alone))
    assert found["ece_renormalised"] == pytest.approx(sum(n * abs(p - a) for n, p, a in by_bin) / size, abs=1e-9)
    truth = np.eye(CLASSES + 1)[labels]
    assert found["brier"] == pytest.approx(((whole - truth) ** 2).sum(1).mean(), rel=1e-5)
    assert found["brier_score"] == pytest.approx(((sure - right) ** 2).mean(), rel=1e-9)
    assert found["brier_reliability"] == pytest.approx(sum(n * (p - a) ** 2 for n, p, a in bins) / size, abs=1e-12)
    resolution = sum(n * (a - right.mean()) ** 2 for n, _, a in bins) / size
    assert found["brier_resolution"] == pytest.approx(resolution, abs=1e-12)
    assert found["brier_uncertainty"] == pytest.approx(right.mean() * (1 - right.mean()), rel=1e-12)
    parts = ("reliability", "uncertainty", "within_variance")
    total = sum(found[f"brier_{part}"] for part in parts) - resolution - found["brier_within_covariance"]
    assert total == pytest.approx(found["brier_score"], rel=1e-9)

    risks = np.cumsum(~right[np.argsort(-sure)]) / np.arange(1, size + 1)
    best = np.cumsum(np.sort(~right)) / np.arange(1, size + 1)
    assert found["aurc"] == pytest.approx(risks.mean(), rel=1e-9)
    assert found["excess_aurc"] == pytest.approx(risks.mean() - best.mean(), rel=1e-9)
    assert found["confidence"] == pytest.approx(sure.mean(), rel=1e-12)
    assert found["unknown"] == pytest.approx(KNOWN["unknown"].mean(dtype=np.float64), rel=1e-12)


def test_smooth_ece_is_its_authors(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from relplot import smECE
    right = (KNOWN["label"] == KNOWN["labels"]).astype(float)
    assert evaluate(folder)["test"]["smooth_ece"] == pytest.approx(
        smECE(KNOWN["confidence"].astype(float), right), abs=1e-3
    )


@pytest.mark.parametrize("open_world", [True, False])
def test_sums_that_are_shared_give_what_each_metric_gives_alone(tmp_path: Path, open_world: bool) -> None:
    drawn = spoken(2, 700, open_world=open_world)
    drawn["logits"][:50] = drawn["logits"][50:100]  # ties, for the bins of equal mass
    write_run(tmp_path, {"test": answers(drawn["logits"], drawn["labels"])})
    said = read(tmp_path / "predictions" / "test.safetensors")
    found, right = calibration(said), said.correct
    for name in ("ece", "ece_equal_mass", "smooth_ece", "mce", "ece_l2_debiased"):
        assert found[name] == getattr(metrics, name)(said.confidence, right)
        assert found[f"null_{name}"] == getattr(metrics, f"null_{name}")(said.confidence).mean
    assert found["null_ece_std"] == metrics.null_ece(said.confidence).std
    assert found["ece_classwise"] == metrics.ece_classwise(said.probs, said.labels)
    assert found["null_ece_classwise"] == metrics.null_ece_classwise(said.probs).mean
    assert found["ece_renormalised"] == metrics.ece(said.renormalised, right)
    assert found["null_ece_renormalised"] == metrics.null_ece(said.renormalised).mean
    parts = metrics.brier_parts(said.confidence, right)
    assert {name: found[f"brier_{name}"] for name in parts._fields} == parts._asdict()


NULLS = {
    "null_ece": metrics.ece, "null_ece_equal_mass": metrics.ece_equal_mass, "null_mce": metrics.mce,
    "null_smooth_ece": metrics.smooth_ece, "null_ece_l2_debiased": metrics.ece_l2_debiased,
}  # fmt: skip


def test_the_nulls_are_what_perfectly_calibrated_answers_measure(folder: Path) -> None:
    """Correctness is drawn from the confidences, the error measured, 150 times: the means agree within four errors and
    the 2 % that the binomial approximation may cost."""
    found, random, sure = evaluate(folder)["test"], np.random.default_rng(0), KNOWN["confidence"].astype(np.float64)
    drawn = [random.random(len(sure)) < sure for _ in range(150)]
    for name, metric in NULLS.items():
        values = [metric(sure, right) for right in drawn]
        error = np.std(values) / np.sqrt(len(values))
        # The null itself is a mean over draws where there is no closed form, of 50 at least.
        allowed = 4 * error + 4 * np.std(values) / np.sqrt(50) * (name == "null_smooth_ece")
        assert found[name] == pytest.approx(np.mean(values), abs=allowed + 0.02 * np.mean(values)), name
        if name == "null_ece":
            assert found["null_ece_std"] == pytest.approx(np.std(values), rel=0.25)
    probs = KNOWN["probs"].astype(np.float64)
    alone = probs.max(1) / probs.sum(1)
    values = [metrics.ece(alone, random.random(len(alone)) < alone) for _ in range(150)]
    error = np.std(values) / np.sqrt(len(values))
    assert found["null_ece_renormalised"] == pytest.approx(np.mean(values), abs=4 * error + 0.02 * np.mean(values))
    cumulative = probs.cumsum(1)
    labels = [(random.random((len(probs), 1)) < cumulative / cumulative[:, -1:]).argmax(1) for _ in range(20)]
    values = [metrics.ece_classwise(probs / cumulative[:, -1:], each) for each in labels]
    closed = metrics.null_ece_classwise(probs / cumulative[:, -1:]).mean
    assert closed == pytest.approx(np.mean(values), abs=4 * np.std(values) / np.sqrt(20) + 0.02 * closed)
    assert found["null_ece_classwise"] == metrics.null_ece_classwise(KNOWN["probs"]).mean


def test_a_confidence_of_one_is_dropped_by_the_paper_alone(tmp_path: Path) -> None:
    """Five samples by hand: two are sure to the last bit, and one of them wrong."""
    probs = np.array([[1, 0, 0, 0], [1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.7, 0.1, 0.1], [0.0, 0.0, 0.0, 0.9]])
    probs = probs.astype(np.float32)
    said = {
        "label": probs.argmax(1), "labels": np.array([0, 1, 0, 1, 3]), "confidence": probs.max(1), "probs": probs,
        "unknown": 1 - probs.sum(1), "logits": np.zeros((5, CLASSES), np.float32),
    }  # fmt: skip
    found = evaluate(write_run(tmp_path, {"test": said}))["test"]
    # Bins (lo, hi]: both ones and .9 lie apart (14/15 = .933); .5 is in (7/15, 8/15], .7 in (10/15, 11/15].
    assert found["ece"] == pytest.approx((1 + 0.5 + 0.3 + 0.1) / 5, abs=1e-6)
    assert found["ece_paper_compat"] == pytest.approx((0.5 + 0.3 + 0.1) / 3, abs=1e-6)
    assert found["accuracy"] == pytest.approx(4 / 5)
    floor = float(np.finfo(np.float32).tiny)
    assert found["nll"] == pytest.approx(-(np.log([1, floor, 0.5, 0.7, 0.9])).mean(), rel=1e-6)


def test_the_open_world_figures(folder: Path) -> None:
    found = evaluate(folder)["svhn"]
    right = KNOWN["label"] == KNOWN["labels"]

    def scores(said: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        spread = said["probs"].astype(np.float64) + said["unknown"][:, None] / CLASSES
        classes = said["logits"][:, :CLASSES].astype(np.float64)
        return {
            "confidence": said["confidence"], "unknown": -said["unknown"], "entropy": -entropy(spread, axis=1),
            "energy": logsumexp(classes, axis=1), "max_logit": classes.max(1),
        }  # fmt: skip

    truth = np.r_[np.ones(len(right)), np.zeros(len(UNKNOWN["label"]))]
    for name, known in scores(KNOWN).items():
        unknown = scores(UNKNOWN)[name]
        both = np.r_[known, unknown]
        assert found[f"auroc_{name}"] == pytest.approx(roc_auc_score(truth, both), abs=1e-9), name
        assert found[f"ap_known_{name}"] == pytest.approx(average_precision_score(truth, both), abs=1e-9)
        assert found[f"ap_unknown_{name}"] == pytest.approx(average_precision_score(1 - truth, -both), abs=1e-9)
        lowest = np.sort(known)[::-1][int(np.ceil(0.95 * len(known))) - 1]
        assert found[f"fpr95_{name}"] == pytest.approx((unknown >= lowest).mean())
        beaten = (known[:, None] > unknown) + 0.5 * (known[:, None] == unknown)
        assert found[f"oscr_{name}"] == pytest.approx((right[:, None] * beaten).mean(), abs=1e-9)
    assert found["confidence"] == pytest.approx(UNKNOWN["confidence"].mean(dtype=float))
    assert found["unknown"] == pytest.approx(UNKNOWN["unknown"].mean(dtype=float))
    sure, good = np.r_[KNOWN["confidence"], UNKNOWN["confidence"]], np.r_[right, np.zeros(len(UNKNOWN["label"]), bool)]
    for threshold in (0, 0.25, 0.5, 0.75):
        kept = sure.astype(np.float64) > threshold
        assert found["accuracy_at"][f"{threshold:g}"] == pytest.approx(good[kept].mean())
        assert found["coverage_at"][f"{threshold:g}"] == pytest.approx(kept.mean())


def test_a_threshold_that_keeps_nothing_has_no_accuracy(tmp_path: Path) -> None:
    flat = answers(np.zeros((6, CLASSES + 1), np.float32), np.arange(6) % CLASSES)  # all confidences are 1/5
    found = evaluate(write_run(tmp_path, {"test": flat, "svhn": flat}))["svhn"]
    assert found["accuracy_at"] == {"0": pytest.approx((flat["labels"] == 0).mean() / 2), "0.25": None, "0.5": None,
                                    "0.75": None}  # fmt: skip
    assert list(found["coverage_at"].values()) == [1, 0, 0, 0]
    assert found["auroc_confidence"] == 0.5


def test_scores_that_a_method_has_not_are_absent(tmp_path: Path) -> None:
    closed = {name: spoken(i, 50, open_world=False) for i, name in enumerate(("test", "svhn"))}
    found = evaluate(write_run(tmp_path, closed))["svhn"]
    assert "auroc_unknown" not in found
    assert {"auroc_confidence", "auroc_entropy", "auroc_energy", "auroc_max_logit"} <= found.keys()
    truth = np.repeat([1, 0], 50)
    peaked = np.r_[tuple(-entropy(closed[name]["probs"].astype(np.float64), axis=1) for name in ("test", "svhn"))]
    assert found["auroc_entropy"] == pytest.approx(roc_auc_score(truth, peaked), abs=1e-3)
    logs = {name: {**said, "logits": np.log(said["probs"])} for name, said in closed.items()}  # as an ensemble's are
    found = evaluate(write_run(tmp_path / "logs", logs))["svhn"]
    assert "auroc_energy" not in found
    assert "auroc_max_logit" in found


def test_kinds_of_unknowns(tmp_path: Path) -> None:
    names = ("unknown", "cifar100", "svhn", "permuted:cifar10", "npz:mine.npz")
    said = {"test": spoken(0, 20), **{name: spoken(1, 20) for name in names}}
    found = evaluate(write_run(tmp_path / "run", said))
    assert {name: found[name]["kind"] for name in names} == {
        "unknown": "unseen", "cifar100": "near", "svhn": "far", "permuted:cifar10": "far", "npz:mine.npz": "other",
    }  # fmt: skip
    for config in ({}, None, {"data": {"name": "npz:mine.npz"}}):
        shutil.rmtree(tmp_path / "run")
        found = evaluate(write_run(tmp_path / "run", said, config=config))
        assert [found[name]["kind"] for name in names] == ["unseen", "other", "other", "other", "other"]


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.6])
def test_an_unknown_rate_moves_the_unknown_logit(folder: Path, rate: float) -> None:
    shifted = KNOWN["logits"].astype(np.float64)
    with np.errstate(divide="ignore"):
        shifted[:, -1] += np.log(rate / (1 - rate)) - np.log(LAM)
    h = softmax(shifted, axis=1)
    found = evaluate(folder, unknown_rate=rate)
    assert found["test"]["unknown"] == pytest.approx(h[:, -1].mean(), rel=1e-6)
    assert found["test"]["nll"] == pytest.approx(-np.log(h[np.arange(len(h)), KNOWN["labels"]]).mean(), rel=1e-6)
    right = KNOWN["label"] == KNOWN["labels"]  # the order of the K classes stays
    assert found["test"]["accuracy"] == right.mean()
    by_hand = sum(n * abs(p - a) for n, p, a in gaps(h[:, :-1].max(1), right, in_bins(h[:, :-1].max(1)))) / len(h)
    assert found["test"]["ece"] == pytest.approx(by_hand, rel=1e-6)
    assert found["svhn"]["auroc_energy"] == evaluate(folder)["svhn"]["auroc_energy"]  # no rate enters the K logits


def test_an_unknown_rate_needs_an_unknown_logit(tmp_path: Path) -> None:
    write_run(tmp_path, {"test": spoken(0, 20, open_world=False)})
    with pytest.raises(EowError, match="vanilla has no unknown logit"):
        evaluate(tmp_path, unknown_rate=0.1)


def test_intervals_contain_what_they_are_of(folder: Path) -> None:
    found = evaluate(folder, bootstrap=True)
    assert found["intervals"].keys() == {"test", "svhn"}
    assert found["intervals"]["test"].keys() == {
        "accuracy", "ece", "ece_renormalised", "nll", "nll_renormalised",
    }  # fmt: skip
    assert found["intervals"]["svhn"].keys() == {"auroc_confidence", "auroc_entropy", "auroc_unknown"}
    for name, intervals in found["intervals"].items():
        for figure, (low, high) in intervals.items():
            assert low < found[name][figure] < high, (name, figure)
    rate, size = found["test"]["accuracy"], len(KNOWN["label"])
    low, high = found["intervals"]["test"]["accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(rate * (1 - rate) / size), rel=0.1)
    low, high = found["intervals"]["test"]["nll"]
    each = -np.log(KNOWN["probs"][np.arange(size), KNOWN["labels"]].astype(np.float64))
    assert high - low == pytest.approx(2 * 1.96 * each.std() / np.sqrt(size), rel=0.1)
    assert "intervals" not in evaluate(folder)


def test_what_is_of_the_k_classes_does_not_depend_on_the_unknown(tmp_path: Path) -> None:
    """Where float32 has lost all K probabilities, as outside a fence, it is read from the logits."""
    logits = np.random.default_rng(3).normal(0, 2, (300, CLASSES + 1)).astype(np.float32)
    labels = np.random.default_rng(4).integers(CLASSES, size=300)
    figures = []
    for place, far in (("near", 0), ("far", 200)):
        logits[:60, -1] = far
        said = {**answers(logits, labels), "label": logits[:, :-1].argmax(1)}
        write_run(tmp_path / place, {"test": said})
        figures += [evaluate(tmp_path / place, rate)["test"] for rate in (None, 0.5)]
    assert figures[2]["unknown"] > 0.2
    for name in ("nll_renormalised", "ece_renormalised"):
        assert [each[name] for each in figures] == pytest.approx([figures[0][name]] * 4, rel=1e-9), name
    assert figures[2]["nll_renormalised"] == pytest.approx(metrics.nll_from_logits(logits[:, :-1], labels), rel=1e-9)


def test_the_losses_are_those_of_the_mean(folder: Path) -> None:
    said = read(folder / "predictions" / "test.safetensors")
    said = replace(said, probs=said.probs.copy(), labels=said.labels.copy())
    said.probs[:2] = 0  # nothing is left for the K classes
    assert losses(said).mean() == pytest.approx(metrics.nll(said.probs, said.labels), rel=1e-12)
    assert losses(said)[0] == pytest.approx(87.3365, abs=1e-4)
    closed = replace(said, logits=None)
    alone = losses(closed, renormalised=True)
    assert alone.mean() == pytest.approx(metrics.nll_renormalised(said.probs, said.labels), rel=1e-12)
    assert alone[0] == pytest.approx(np.log(CLASSES))
    known = said.logits[:, :-1]
    assert losses(said, renormalised=True).mean() == pytest.approx(
        metrics.nll_from_logits(known, said.labels), rel=1e-9
    )
    said.labels[0] = CLASSES
    with pytest.raises(EowError, match="labels range"):
        losses(said)


def test_what_a_threshold_was_certified_on_enters_no_figure(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run")
    write_run(tmp_path / "run", {"certify": spoken(7, 60, skill=9.0)})
    assert (tmp_path / "run" / "predictions" / file_name("certify")).exists()
    assert evaluate(tmp_path / "run") == evaluate(folder)
    assert evaluate(tmp_path / "run", bootstrap=True) == evaluate(folder, bootstrap=True)
    (tmp_path / "run" / "predictions" / "test.safetensors").unlink()
    with pytest.raises(EowError, match="no predictions"):
        evaluate(tmp_path / "run")


def test_figures_need_no_network(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from eow.evaluate import evaluate; from eow.compare import compare\n"
        "evaluate(sys.argv[1], 0.1, bootstrap=True); compare([sys.argv[1]], [sys.argv[2]])\n"
        "print([name for name in ('torch', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    copy = shutil.copytree(folder, tmp_path / "copy")
    done = subprocess.run([sys.executable, "-c", code, str(folder), copy], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_predictions_that_are_not_of_one_run_are_refused(tmp_path: Path) -> None:
    """Other classes, or no logits where the test set has them: of another method, whatever the names say."""
    more = np.random.default_rng(0).normal(size=(20, CLASSES + 3)).astype(np.float32)
    wide = softmax(more.astype(np.float64), axis=1).astype(np.float32)
    others = {
        "6 classes and 7 logits": {
            "label": wide[:, :-1].argmax(1), "labels": np.zeros(20, np.int64), "confidence": wide[:, :-1].max(1),
            "probs": wide[:, :-1].copy(), "unknown": wide[:, -1].copy(), "logits": more,
        },
        "4 classes and 4 logits": spoken(1, 20, open_world=False),
        "4 classes and no logits": spoken(1, 20),
    }  # fmt: skip
    for index, (what, arrays) in enumerate(others.items()):
        folder = write_run(tmp_path / str(index), {"test": spoken(0, 20)})
        if "no" in what:
            del arrays["logits"]
        manifest = {"name": "svhn", "key": "k", "method": "eow", "odds": LAM}
        write(folder / "predictions" / file_name("svhn"), arrays, manifest)
        with pytest.raises(EowError, match=f"svhn in .* have {what} and those on test 4 classes and 5 logits"):
            evaluate(folder)


def test_predictions_of_other_weights_or_under_another_name_are_refused(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    (copy / "weights.safetensors").write_bytes(b"others")
    with pytest.raises(EowError, match="other weights"):
        evaluate(copy)
    (copy / "weights.safetensors").unlink()
    shutil.copy(copy / "predictions" / "test.safetensors", copy / "predictions" / "test_old.safetensors")
    with pytest.raises(EowError, match="its name does not say"):
        evaluate(copy)
