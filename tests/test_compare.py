"""Two methods on the same samples: signs, pairs, p-values, and what cannot be compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import CLASSES, LAM, answers, spoken, write_run
from scipy.special import softmax
from scipy.stats import entropy, norm
from sklearn.metrics import roc_auc_score

from eow.compare import compare
from eow.errors import EowError
from eow.importing import import_predictions
from eow.metrics import ece
from eow.report import report

COUNT = 1500
LABELS = np.random.default_rng(99).integers(CLASSES, size=COUNT)


def said(seed: int, skill: float, *, open_world: bool = True) -> dict[str, np.ndarray]:
    """Every run is asked about the same samples: the same labels, and noise that the runs share in part."""
    shared = np.random.default_rng(98).normal(size=(COUNT, CLASSES + 1))
    logits = shared + 0.7 * np.random.default_rng(seed).normal(size=shared.shape)
    logits[np.arange(COUNT), LABELS] += skill
    return answers(logits[:, : CLASSES + open_world].astype(np.float32), LABELS)


def runs(place: Path, name: str, skills: list[float], first: int, seeds: Any = None, **more: Any) -> list[Path]:
    """One run a seed, each as skilled as the list says."""
    return [
        write_run(
            place / f"{name}-{i}", {"test": said(first + i, skill)}, seed=i if seeds is None else seeds[i], **more
        )
        for i, skill in enumerate(skills)
    ]


def table(*arguments: Any, **more: Any) -> dict[str, Any]:
    return {row.figure: row for row in compare(*arguments, **more)}


def test_the_difference_is_the_first_minus_the_second(tmp_path: Path) -> None:
    good, bad = [2.2, 2.3], [1.5, 1.6]
    rows = table(runs(tmp_path, "good", good, 0), runs(tmp_path, "bad", bad, 10))
    assert list(rows) == ["accuracy", "ece", "ece_renormalised", "nll", "nll_renormalised"]

    def mean(figure: Any, skills: list[float], first: int) -> float:
        return float(np.mean([figure(said(first + i, skill)) for i, skill in enumerate(skills)]))

    def likelihood(arrays: dict[str, np.ndarray]) -> np.ndarray:
        return arrays["probs"][np.arange(COUNT), LABELS].astype(np.float64)

    def alone(arrays: dict[str, np.ndarray]) -> np.ndarray:
        known = arrays["probs"].astype(np.float64)
        return (known / known.sum(1, keepdims=True)).max(1)

    by_hand = {
        "accuracy": lambda arrays: (arrays["label"] == LABELS).mean(),
        "ece": lambda arrays: ece(arrays["confidence"], arrays["label"] == LABELS),
        "ece_renormalised": lambda arrays: ece(alone(arrays), arrays["label"] == LABELS),
        "nll": lambda arrays: -np.log(likelihood(arrays)).mean(),
        "nll_renormalised": lambda arrays: -np.log(likelihood(arrays) / arrays["probs"].sum(1, dtype=float)).mean(),
    }
    for name, figure in by_hand.items():
        first, second = mean(figure, good, 0), mean(figure, bad, 10)
        close = 1e-6 if "renormalised" in name else 1e-9  # from float32 logits, not from float32 probabilities
        assert rows[name].first == pytest.approx(first, rel=close), name
        assert rows[name].second == pytest.approx(second, rel=close)
        assert rows[name].difference == pytest.approx(first - second, abs=close)
        assert rows[name].low < rows[name].high
    assert rows["accuracy"].difference > 0 > rows["nll"].difference
    back = table([tmp_path / "bad-0", tmp_path / "bad-1"], [tmp_path / "good-0", tmp_path / "good-1"])
    assert back["nll"].difference == pytest.approx(-rows["nll"].difference, rel=1e-9)


def test_a_real_difference_has_a_small_p_and_none_a_large_one(tmp_path: Path) -> None:
    good = runs(tmp_path, "good", [2.3] * 3, 0)
    bad, alike = runs(tmp_path, "bad", [1.6] * 3, 10), runs(tmp_path, "alike", [2.3] * 3, 20)
    for one, other in ((good, bad), (good[:1], bad[:1])):
        rows = table(one, other)
        assert rows["accuracy"].p_value < 0.01
        assert rows["nll"].p_value < 0.01
        assert rows["nll"].high < 0 < rows["accuracy"].low
    for row in table(good, alike).values():
        assert row.p_value > 0.05
        assert row.low < 0 < row.high
    for row in table(good, runs(tmp_path, "copy", [2.3] * 3, 0)).values():
        assert (row.difference, row.p_value) == (0, 1)


def test_one_seed_is_the_paired_normal_test(tmp_path: Path) -> None:
    """A twentieth of the skill between two runs that share more than half of their errors."""
    one, other = runs(tmp_path, "one", [2.0], 0), runs(tmp_path, "other", [1.9], 1)
    pairs = (said(0, 2.0)["label"] == LABELS).astype(float) - (said(1, 1.9)["label"] == LABELS)
    error = pairs.std() / np.sqrt(COUNT)
    row = table(one, other, rounds=4000)["accuracy"]
    assert row.difference == pytest.approx(pairs.mean(), abs=1e-12)
    assert row.high - row.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert row.p_value == pytest.approx(2 * norm.sf(abs(pairs.mean()) / error), abs=0.03)


def test_runs_are_paired_by_their_seed(tmp_path: Path) -> None:
    """Seeds that differ much from one another, and hardly between the methods: pairing alone sees the difference."""
    first, second = runs(tmp_path, "first", [1.2, 1.8, 2.4], 0), runs(tmp_path, "second", [1.1, 1.7, 2.3], 0)
    paired = table(first, second)
    assert table(first, [second[2], second[0], second[1]]) == paired
    assert table(first[::-1], second) == paired
    crossed = table(first, runs(tmp_path, "crossed", [1.1, 1.7, 2.3], 0, seeds=[1, 2, 0]))
    assert crossed["nll"].difference == pytest.approx(paired["nll"].difference, abs=1e-12)
    assert paired["nll"].p_value < 0.05 < crossed["nll"].p_value


def test_an_unknown_rate_is_for_the_side_that_has_an_unknown(tmp_path: Path) -> None:
    eow = runs(tmp_path, "eow", [2.0], 0)
    vanilla = [write_run(tmp_path / "vanilla", {"test": said(1, 2.0, open_world=False)})]
    plain, shifted = table(eow, vanilla), table(eow, vanilla, unknown_rate=0.5)
    assert shifted["nll"].second == plain["nll"].second
    logits = said(0, 2.0)["logits"].astype(np.float64)
    logits[:, -1] -= np.log(LAM)  # the odds of a half are 1
    expected = -np.log(softmax(logits, axis=1)[np.arange(COUNT), LABELS]).mean()
    assert shifted["nll"].first == pytest.approx(expected, rel=1e-6)
    assert shifted["nll"].difference == pytest.approx(expected - plain["nll"].second, rel=1e-6)
    assert table(vanilla, eow, unknown_rate=0.5)["nll"].second == pytest.approx(expected, rel=1e-6)
    copy = [write_run(tmp_path / "copy", {"test": said(1, 2.0, open_world=False)})]
    with pytest.raises(EowError, match="none of these runs has an unknown logit"):
        compare(vanilla, copy, unknown_rate=0.5)


def among(seed: int, skill: float, unknown: float, *, open_world: bool = True, count: int = 300) -> dict[str, Any]:
    """What a run says about the test samples and about strange ones, whose unknown logit is higher by `unknown`."""
    strange = spoken(1000 + seed, count, open_world=open_world, skill=0.5, unknown=unknown)
    return {"test": said(seed, skill, open_world=open_world), "strange": strange}


def test_auroc_is_compared_on_the_unknowns_that_all_have_predicted(tmp_path: Path) -> None:
    good = [write_run(tmp_path / f"good-{i}", among(i, 2.0, 2.0), seed=i) for i in range(2)]
    bad = [write_run(tmp_path / f"bad-{i}", among(10 + i, 2.0, 0.5), seed=i) for i in range(2)]
    rows = compare(good, bad)
    found = {row.figure: row for row in rows if row.unknowns == "strange"}
    assert list(found) == ["auroc_confidence", "auroc_entropy", "auroc_unknown"]
    assert [row.unknowns for row in rows[:5]] == [None] * 5
    by_hand: dict[str, Any] = {
        "auroc_confidence": lambda arrays: arrays["confidence"],
        "auroc_entropy": lambda arrays: -entropy(arrays["probs"] + arrays["unknown"][:, None] / CLASSES, axis=1),
        "auroc_unknown": lambda arrays: -arrays["unknown"],
    }
    for name, score in by_hand.items():
        areas = []
        for seed, unknown in ((0, 2.0), (1, 2.0), (10, 0.5), (11, 0.5)):
            test, strange = among(seed, 2.0, unknown).values()
            scores = np.concatenate([score(test), score(strange)]).astype(np.float64)
            areas.append(roc_auc_score(np.arange(len(scores)) < COUNT, scores))
        assert (found[name].first, found[name].second) == pytest.approx((np.mean(areas[:2]), np.mean(areas[2:])))
        assert found[name].difference == pytest.approx(np.mean(areas[:2]) - np.mean(areas[2:]))
        assert found[name].low < found[name].difference < found[name].high
    assert found["auroc_unknown"].p_value < 0.05
    assert {row.figure for row in compare(good, bad, unknowns=False)} == {row.figure for row in rows[:5]}
    copies = [write_run(tmp_path / f"copy-{i}", among(i, 2.0, 2.0), seed=i) for i in range(2)]
    same = [row for row in compare(good, copies) if row.unknowns]
    assert [(row.difference, row.p_value) for row in same] == [(0, 1)] * 3


def test_auroc_by_unknown_needs_one_on_both_sides_and_other_sets_are_left_out(tmp_path: Path) -> None:
    eow = [write_run(tmp_path / "eow", {**among(0, 2.0, 2.0), "own": spoken(7)})]
    vanilla = [write_run(tmp_path / "vanilla", among(1, 2.0, 0.0, open_world=False))]

    def unknowns(*sides: Any, **more: Any) -> list[tuple[str, str]]:
        return [(row.figure, row.unknowns) for row in compare(*sides, **more) if row.unknowns]

    by_both = [("auroc_confidence", "strange"), ("auroc_entropy", "strange")]
    assert unknowns(eow, vanilla) == by_both
    assert unknowns(vanilla, eow, unknown_rate=0.3) == by_both
    few = [[write_run(tmp_path / name, among(0, 2.0, 2.0, count=9))] for name in ("few", "no more")]
    assert unknowns(*few) == []
    shifted, plain = (next(row for row in compare(eow, vanilla, rate) if row.unknowns).first for rate in (0.9, None))
    logits = [each["logits"].astype(np.float64) for each in among(0, 2.0, 2.0).values()]
    for each in logits:
        each[:, -1] += np.log(0.9 / 0.1) - np.log(LAM)
    scores = np.concatenate([softmax(each, axis=1)[:, :-1].max(1).astype(np.float32) for each in logits])
    assert shifted == pytest.approx(roc_auc_score(np.arange(len(scores)) < COUNT, scores), abs=1e-6)
    assert shifted != plain


def test_what_cannot_be_paired_is_refused(tmp_path: Path) -> None:
    first, second = runs(tmp_path, "first", [2.0, 2.0], 0), runs(tmp_path, "second", [2.0, 2.0], 5)
    others = runs(tmp_path, "others", [2.0, 2.0], 5, data_hash="of other samples")
    with pytest.raises(EowError, match="tested on different samples"):
        compare(first, others)
    with pytest.raises(EowError, match="tested on different samples"):
        compare([first[0], others[1]], second)
    with pytest.raises(EowError, match=r"the seeds are \[0, 1\] and \[0\]"):
        compare(first, second[:1])
    with pytest.raises(EowError, match=r"the seeds are \[0\] and \[1\]"):
        compare(first[:1], second[1:])
    with pytest.raises(EowError, match="a seed is there twice"):
        compare([first[0], first[0]], second)
    mixed = write_run(tmp_path / "mixed", {"test": said(8, 2.0)}, seed=1, method="ensemble")
    with pytest.raises(EowError, match="runs of one side are of ensemble, eow"):
        compare([first[0], mixed], second)
    for odd, key in (("train", "epochs"), ("method", "lam"), ("data", "limit")):
        configs = [{"seed": seed, odd: {key: seed + 1}, "train": {"device": f"cuda:{seed}"}} for seed in range(2)]
        configs = [{**each, odd: {**each.get(odd, {}), key: seed + 1}} for seed, each in enumerate(configs)]
        unlike = [runs(tmp_path, f"{odd}{i}", [2.0], i, [i], config=each)[0] for i, each in enumerate(configs)]
        with pytest.raises(EowError, match=rf"more than the seed \({odd}.{key} is 1 and 2\)"):
            compare(unlike, second)
    with pytest.raises(EowError, match="no predictions"):
        compare([tmp_path / "nowhere"], second)
    for sides in (([], []), (first, []), ([], second)):
        with pytest.raises(EowError, match="nothing to compare: give at least one run on either side"):
            compare(*sides)
    for header in ({"seed": None}, {"seed": "0"}, {"data_hash": None}):
        old = write_run(tmp_path / "old", {"test": spoken(0, COUNT)}, **header)
        with pytest.raises(EowError, match="do not say of which seed and data"):
            compare([old], second[:1])


def test_a_run_is_not_compared_with_itself(tmp_path: Path) -> None:
    """By whatever name, and not if it is one of several either: a table of zeros would look like a finding."""
    first, second = runs(tmp_path, "first", [2.0, 2.0], 0), runs(tmp_path, "second", [2.0, 2.0], 5)
    (tmp_path / "link").symlink_to("first-0")
    for sides in ((first, first), (first[:1], [tmp_path / "link"]), (first, [first[0], second[1]])):
        with pytest.raises(EowError, match="first-0 stands on both sides, and no run differs from itself"):
            compare(*sides)


def test_runs_of_other_classes_are_not_compared(tmp_path: Path) -> None:
    """Imported predictions with the same labels are of the same samples, as far as can be seen; if one model chooses
    among more classes, or calls them otherwise, the two do not have the same task."""
    labels = np.arange(60) % 2
    names: dict[str, Any] = {"two": "ab", "three": "abc", "others": "ba", "nameless": ()}
    for name, classes in names.items():
        probs = np.full((60, len(classes) or 2), 1 / (len(classes) or 2))
        import_predictions(tmp_path / name, probs, labels, classes=list(classes), data="x", name="vanilla"[: len(name)])
    two, three, others, nameless = ([tmp_path / name] for name in names)
    with pytest.raises(EowError, match="van chooses among 2 classes and vanil among 3"):
        compare(two, three)
    with pytest.raises(EowError, match="vanil chooses among 3 classes and vanilla among 2"):
        compare(three, nameless)
    with pytest.raises(EowError, match="van calls a class 'a' and vanill calls it 'b'"):
        compare(two, others)
    assert compare(two, nameless)[0].difference == 0
    report([*two, *three, *nameless], tmp_path / "report.md", "md")
    sections = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("## ")]
    assert sections == ["## x, 2 classes", "## x, 3 classes"]
