"""Two methods on the same samples: what differs, by how much, and how sure that is."""

import os
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eow.config import settings_of
from eow.errors import EowError
from eow.evaluate import read_all, scores_of
from eow.metrics import auroc, ece, paired_difference
from eow.metrics.statistics import FEWEST
from eow.predictions import Predictions, losses


class Row(NamedTuple):
    """One figure of both sides, averaged over the seeds; `difference` is the first side minus the second. `unknowns`
    is the set that an AUROC tells the test samples from."""

    figure: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    unknowns: str | None = None


def compare(
    first: Sequence[str | Path],
    second: Sequence[str | Path],
    unknown_rate: float | None = None,
    rounds: int = 1000,
    *,
    unknowns: bool = True,
) -> list[Row]:
    """The runs of one method against those of another, seed by seed, on the test samples that all have predicted.

    Intervals and p-values are those of metrics.paired_difference: both sides see the same resampled samples, and with
    several seeds the spread between them is added. An unknown rate is applied to the side that has an unknown logit.

    AUROC is compared, unless `unknowns` is False, on every set of unknowns that all runs have predicted, 10 samples or
    more: by confidence, by entropy, and by unknown where both sides have one.
    """
    if not first or not second:
        raise EowError("there is nothing to compare: give at least one run on either side")
    theirs = {os.path.realpath(folder) for folder in second}
    if both := [folder for folder in first if os.path.realpath(folder) in theirs]:
        raise EowError(f"{both[0]} stands on both sides, and no run differs from itself: give the other method's run")
    sides = [
        sorted((read_run(folder, unknown_rate, unknowns) for folder in side), key=lambda run: seed_of(run[0]))
        for side in (first, second)
    ]
    check_alike(*([known for known, _ in side] for side in sides))
    opened = [all(known.open_world for known, _ in side) for side in sides]
    if unknown_rate is not None and not any(opened):
        raise EowError("none of these runs has an unknown logit: leave the unknown rate out")

    def row(figure: str, metric: str, arrays: Any, unknowns: str | None = None) -> Row:
        """`arrays(known, others)` are what the metric takes of a run."""
        of_runs = [[arrays(*run) for run in side] for side in sides]
        one, other = (tuple(map(list, zip(*side))) for side in of_runs)
        found = paired_difference(metric, one, other, rounds=rounds)
        ours, theirs = (float(np.mean([VALUES[metric](*run) for run in side])) for side in of_runs)
        return Row(figure, ours, theirs, found.value, found.low, found.high, found.p_value, unknowns)

    rows = [row(*each) for each in FIGURES]
    for name in shared_sets([others for side in sides for _, others in side]):
        for score, of in SCORES.items():
            if score != "unknown" or (all(opened) and unknown_rate != 0):  # at a rate of 0 there is none
                pair = partial(lambda known, others, name, of: (of(known), of(others[name])), name=name, of=of)
                rows.append(row(f"auroc_{score}", "auroc", pair, name))
    return rows


FIGURES: tuple[tuple[str, str, Any], ...] = (
    ("accuracy", "accuracy", lambda said, _: (said.correct,)),
    ("ece", "ece", lambda said, _: (said.confidence, said.correct)),
    ("ece_renormalised", "ece", lambda said, _: (said.renormalised, said.correct)),
    ("nll", "nll", lambda said, _: (losses(said),)),
    ("nll_renormalised", "nll", lambda said, _: (losses(said, renormalised=True),)),
)
SCORES: dict[str, Any] = {
    "confidence": lambda said: said.confidence,
    "entropy": lambda said: scores_of(said)["entropy"],
    "unknown": lambda said: -said.unknown,
}
VALUES: dict[str, Any] = {"accuracy": np.mean, "nll": np.mean, "ece": ece, "auroc": auroc}


def read_run(
    folder: str | Path, unknown_rate: float | None, unknowns: bool
) -> tuple[Predictions, dict[str, Predictions]]:
    known, others = read_all(folder)
    others = others if unknowns else {}
    if not isinstance(known.manifest.get("seed"), int) or not isinstance(known.manifest.get("data_hash"), str):
        raise EowError(f"the predictions in {folder} do not say of which seed and data they are: make them again")
    if unknown_rate is None or not known.open_world:
        return known, others
    return known.at_unknown_rate(unknown_rate), {n: each.at_unknown_rate(unknown_rate) for n, each in others.items()}


def shared_sets(runs: list[dict[str, Predictions]]) -> list[str]:
    """The sets of unknowns that all runs have predicted, sample for sample, and that are large enough to resample."""
    first, *rest = runs

    def shared(name: str, said: Predictions) -> bool:
        theirs = [others[name].manifest.get("data_hash") if name in others else None for others in rest]
        return len(said.label) >= FEWEST and all(each == said.manifest.get("data_hash") for each in theirs)

    return [name for name, said in first.items() if said.manifest.get("data_hash") and shared(name, said)]


def seed_of(said: Predictions) -> int:
    return int(said.manifest["seed"])


def check_alike(first: list[Predictions], second: list[Predictions]) -> None:
    """The same samples in the same order and the same classes everywhere, the same seeds on both sides, one method with
    one setting and no seed twice on each."""
    for side in (first, second):
        if len(methods := {each.manifest["method"] for each in side}) > 1:
            raise EowError(f"the runs of one side are of {', '.join(sorted(methods))}: give those of one method")
        if len({seed_of(each) for each in side}) < len(side):
            raise EowError("a seed is there twice on one side, which would count as two: give one run a seed")
        one, *others = (settings_of(each.manifest.get("config") or {}) for each in side)
        for other in others:
            if odd := sorted(key for key in {*one, *other} if one.get(key) != other.get(key)):
                found = f"{odd[0]} is {one.get(odd[0])!r} and {other.get(odd[0])!r}"
                raise EowError(
                    f"the runs of one side differ in more than the seed ({found}): give those of one setting"
                )
    if [seed_of(each) for each in first] != [seed_of(each) for each in second]:
        seeds = " and ".join(str([seed_of(each) for each in side]) for side in (first, second))
        raise EowError(f"runs are compared seed by seed, but the seeds are {seeds}: give the same ones on both sides")
    every = first + second
    if len({each.manifest["data_hash"] for each in every}) > 1:
        raise EowError("the runs were tested on different samples, so no difference can be paired: compare others")
    for pair in combinations(every, 2):
        check_classes(*pair)


def check_classes(one: Predictions, other: Predictions) -> None:
    """The same classes, by number and, where both name them, by name: of what was imported the samples are told by
    their labels alone, which say nothing of the classes beside theirs."""
    first, second = one.manifest["method"], other.manifest["method"]
    ours, theirs = one.probs.shape[1], other.probs.shape[1]
    if ours != theirs:
        raise EowError(
            f"{first} chooses among {ours} classes and {second} among {theirs}, so their figures are not of one task: "
            "compare runs of the same classes"
        )
    for mine, yours in zip(one.manifest.get("classes") or (), other.manifest.get("classes") or ()):
        if mine != yours:
            raise EowError(
                f"{first} calls a class {mine!r:.80} and {second} calls it {yours!r:.80}: compare runs of the same "
                "classes, or import one again with the other's names"
            )
