"""Two methods on the same samples: what differs, by how much, and how sure that is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eow.errors import EowError
from eow.evaluate import read_all
from eow.metrics import ece, paired_difference
from eow.predictions import Predictions, losses


class Row(NamedTuple):
    """One figure of both sides, averaged over the seeds; `difference` is the first side minus the second."""

    figure: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float


def compare(
    first: Sequence[str | Path], second: Sequence[str | Path], unknown_rate: float | None = None, rounds: int = 1000
) -> list[Row]:
    """The runs of one method against those of another, seed by seed, on the test samples that all have predicted.

    Intervals and p-values are those of metrics.paired_difference: both sides see the same resampled samples, and with
    several seeds the spread between them is added. An unknown rate is applied to the side that has an unknown logit.
    """
    sides = [sorted((read_run(folder, unknown_rate) for folder in side), key=seed_of) for side in (first, second)]
    check_alike(*sides)
    if unknown_rate is not None and not any(known.open_world for side in sides for known in side):
        raise EowError("none of these runs has an unknown logit: leave the unknown rate out")
    rows = []
    for figure, metric, arrays in FIGURES:
        one, other = (tuple(map(list, zip(*(arrays(known) for known in side)))) for side in sides)
        found = paired_difference(metric, one, other, rounds=rounds)
        value = VALUES[metric]
        ours, theirs = (float(np.mean([value(*arrays(known)) for known in side])) for side in sides)
        rows.append(Row(figure, ours, theirs, found.value, found.low, found.high, found.p_value))
    return rows


FIGURES: tuple[tuple[str, str, Any], ...] = (
    ("accuracy", "accuracy", lambda said: (said.correct,)),
    ("ece", "ece", lambda said: (said.confidence, said.correct)),
    ("nll", "nll", lambda said: (losses(said),)),
    ("nll_renormalised", "nll", lambda said: (losses(said, renormalised=True),)),
)
VALUES: dict[str, Any] = {"accuracy": np.mean, "nll": np.mean, "ece": ece}


def read_run(folder: str | Path, unknown_rate: float | None) -> Predictions:
    known, _ = read_all(folder)
    if not isinstance(known.manifest.get("seed"), int) or not isinstance(known.manifest.get("data_hash"), str):
        raise EowError(f"the predictions in {folder} do not say of which seed and data they are: make them again")
    return known.at_unknown_rate(unknown_rate) if unknown_rate is not None and known.open_world else known


def seed_of(said: Predictions) -> int:
    return int(said.manifest["seed"])


def check_alike(first: list[Predictions], second: list[Predictions]) -> None:
    """The same samples in the same order everywhere, the same seeds on both sides, one method and no seed twice on
    each."""
    for side in (first, second):
        if len(methods := {each.manifest["method"] for each in side}) > 1:
            raise EowError(f"the runs of one side are of {', '.join(sorted(methods))}: give those of one method")
        if len({seed_of(each) for each in side}) < len(side):
            raise EowError("a seed is there twice on one side, which would count as two: give one run a seed")
    if [seed_of(each) for each in first] != [seed_of(each) for each in second]:
        seeds = " and ".join(str([seed_of(each) for each in side]) for side in (first, second))
        raise EowError(f"runs are compared seed by seed, but the seeds are {seeds}: give the same ones on both sides")
    every = first + second
    if len({each.manifest["data_hash"] for each in every}) > 1:
        raise EowError("the runs were tested on different samples, so no difference can be paired: compare others")
