"""Reads finished runs and sorts them: runs that differ in nothing but the seed are a group, groups that were tested on
the same samples are a section."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eow import storage
from eow.certify import Threshold, stored
from eow.config import settings_of
from eow.errors import EowError
from eow.evaluate import KNOWN, calibration, intervals, kind_of, open_world, read_all, scores_of
from eow.predictions import Predictions
from eow.report.soundness import check_run, is_numbers

KINDS = ("unseen", "near", "far", "other")
HUGE = 1e6  # what no share, loss or severity reaches, nor NaN
PALETTE = 8  # colours; beyond, lines are dashed as well
FIRST = ("eow", "vanilla")  # have the first two colours in every report


@dataclass(frozen=True)
class Loaded:
    """What the report needs of a run. Of its predictions the probabilities and logits are gone once they are
    measured: for many runs they would not fit in memory."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    environment: dict[str, Any]
    log: list[dict[str, Any]]
    known: Predictions
    others: dict[str, Predictions]
    kinds: dict[str, str]
    open_world: bool
    figures: dict[str, dict[str, Any]]
    intervals: dict[str, dict[str, Any]]  # of a run that is alone in its group; others have their spread
    corruptions: dict[str, Any] | None
    threshold: Threshold | None

    @property
    def method(self) -> str:
        return str(self.config["method"]["name"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def imported(self) -> bool:
        """Whether there are predictions alone: no network, no training and no images that eow knows of."""
        return bool(self.config.get("recipe") == storage.IMPORTED)


@dataclass(frozen=True)
class Group:
    """The runs of one method and setting, by seed, and the colour that stands for it in every figure."""

    label: str
    colour: int
    runs: list[Loaded]

    @property
    def first(self) -> Loaded:
        return self.runs[0]


@dataclass(frozen=True)
class Bunch:
    """Groups on the same test data. `sets` names what is unknown to them, with its kind, nearest first."""

    title: str
    groups: list[Group]
    sets: dict[str, str]


def gather(folders: Sequence[str | Path], unknown_rate: float | None = None) -> list[Bunch]:
    """All runs, read, grouped and named. A run that is given twice counts once."""
    every = [run for folder in folders for run in runs_in(Path(folder))]
    distinct = {os.path.realpath(run): run for run in reversed(every)}
    if not distinct:
        raise EowError("a report needs runs: give the folders of finished ones, such as runs/*")
    loaded = [read_run(folder, unknown_rate) for folder in reversed(distinct.values())]
    if unknown_rate is not None and not any(run.open_world for run in loaded):
        methods = ", ".join(sorted({run.method for run in loaded}))
        raise EowError(
            f"none of these runs ({methods}) has an unknown logit: leave the unknown rate out, or add a run of eow"
        )
    bunches: dict[tuple[str, str, int], list[Loaded]] = {}
    for run in loaded:
        classes = run.known.probs.shape[1]  # of what was imported, the test data's hash may be one and these two
        bunches.setdefault((title_of(run), str(run.known.manifest.get("data_hash")), classes), []).append(run)
    titles, hashes = ([key[place] for key in bunches] for place in range(2))

    def named(title: str, data_hash: str, classes: int) -> str:
        if titles.count(title) == 1:
            return title
        return f"{title}, {classes} classes" if hashes.count(data_hash) > 1 else f"{title}, test data {data_hash[:8]}"

    return [make_bunch(named(*key), runs, unknown_rate) for key, runs in bunches.items()]


def runs_in(folder: Path) -> list[Path]:
    """The folder itself where it is a run's; of a bench's folder the finished runs in its table's rows, of any other
    the finished runs right below it."""
    if (folder / "config.json").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/summary.json"))
    if (folder / "runs").is_dir() and (table := folder / "table.json").is_file():
        try:
            rows = json.loads(storage.read_text(table))["rows"]
            found = [folder / "runs" / name for row in rows for name in row["runs"]]
        except OSError as error:
            raise storage.unreadable(table, error) from None
        except (ValueError, RecursionError, TypeError, KeyError):
            raise EowError(f"{table} does not name its runs: remove it and run the bench again") from None
        found = [run for run in found if (run / "summary.json").exists()]
    return found or [folder]


def read_run(folder: Path, unknown_rate: float | None) -> Loaded:
    if not folder.is_dir():
        raise EowError(f"there is no run folder {folder}: give the --out of an `eow train`")
    known, others = predictions_of(folder, unknown_rate)
    ranked = scores_of(known) if others else None
    summary = storage.read_json(folder / "summary.json", "metrics", "train_seconds", "weights", "sets")
    config = storage.read_json(folder / "config.json", "seed", "data", "model", "method", "train")
    log = storage.Log(folder / "log.jsonl").read()
    check_run(folder, config, summary, log)
    figures = {KNOWN: calibration(known), **{name: open_world(known, each, ranked) for name, each in others.items()}}
    return Loaded(
        folder, config, summary, storage.read_json(folder / "environment.json"), log, small(known),
        {name: small(each) for name, each in others.items()}, {name: kind_of(each) for name, each in others.items()},
        known.open_world, figures, {}, read_corruptions(folder),
        stored(folder, summary["weights"]),
    )  # fmt: skip


def read_corruptions(folder: Path) -> dict[str, Any] | None:
    """The run's corruption figures, if it has any, found fit for drawing."""
    path = folder / "corruptions.json"
    if not path.exists():
        return None
    table = storage.read_json(path, "corruptions", "severities", "severity", "source", "accuracy", "ece", "nll")
    try:
        rows, columns = len(table["corruptions"]), len(table["severities"])
        matrices = np.array([table[name] for name in ("accuracy", "ece", "nll")], float)
        fits = matrices.shape == (3, rows, columns) and bool((np.abs(matrices) < HUGE).all())
        spreads = [
            [[each["mean"], each["std"]] for each in table["severity"][name]] for name in ("accuracy", "ece", "unknown")
        ]
        fits = fits and np.array(spreads, float).shape == (3, columns, 2) and bool((np.abs(spreads) < HUGE).all())
        fits = fits and is_numbers(table["severities"]) and max(map(abs, table["severities"])) < HUGE
        fits = fits and all(isinstance(each, str) for each in (*table["corruptions"], table["source"]))
    except (TypeError, KeyError, ValueError):
        fits = False
    if not fits:
        raise EowError(f"{path} does not hold corruption figures: make it again with `eow evaluate --corruptions`")
    return table


def predictions_of(folder: Path, unknown_rate: float | None) -> tuple[Predictions, dict[str, Predictions]]:
    """All predictions of a run, for the unknown rate where it has an unknown logit."""
    known, others = read_all(folder)
    return read_all(folder, unknown_rate) if unknown_rate is not None and known.open_world else (known, others)


def small(said: Predictions) -> Predictions:
    return replace(said, probs=said.probs[:0].copy(), logits=None)


def title_of(run: Loaded) -> str:
    data = run.config["data"]
    unseen = data.get("unknown_classes") or []
    words = ", ".join(map(str, unseen))
    return data["name"] + (f", class{'es' if len(unseen) > 1 else ''} {words} unseen" if unseen else "")


def make_bunch(title: str, runs: list[Loaded], unknown_rate: float | None) -> Bunch:
    from eow.methods import METHODS

    groups: dict[str, list[Loaded]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        groups.setdefault(json.dumps(settings_of(run.config), sort_keys=True), []).append(run)
    order = {name: place for place, name in enumerate(METHODS)}
    listed = sorted(groups.values(), key=lambda group: (order.get(group[0].method, len(order)), group[0].imported))
    for group in listed:
        for one, next_one in pairwise(group):
            if one.seed == next_one.seed:
                then = "give one of them" + ", or import one with another name or seed" * one.imported
                raise EowError(f"{one.folder} and {next_one.folder} are runs of the same settings and seed: {then}")
    listed = [
        group if len(group) > 1
        else [replace(group[0], intervals=intervals(*predictions_of(group[0].folder, unknown_rate)))]
        for group in listed
    ]  # fmt: skip
    labels, colours = labels_of(listed), colours_of([group[0].method for group in listed])
    sets = kinds_of_unknowns(runs)
    return Bunch(title, [Group(*each) for each in zip(labels, colours, listed)], sets)


def labels_of(groups: list[list[Loaded]]) -> list[str]:
    """The method's name, and where it stands more than once, the settings in which its groups differ. What was imported
    has none that could be compared with a run's."""
    names, trained = [group[0].method for group in groups], {each[0].method for each in groups if not each[0].imported}
    labels = []
    for name, group in zip(names, groups):
        alike = [each[0] for each in groups if (each[0].method, each[0].imported) == (name, group[0].imported)]
        twins, mine = [settings_of(each.config) for each in alike], settings_of(group[0].config)
        differing = [key for key in mine if any(twin.get(key) != mine[key] for twin in twins)]
        words = [f"{key.removeprefix('method.')} {plain(mine[key])}" for key in differing]
        twofold = group[0].imported and name in trained
        labels.append(", ".join([name, *(["imported"] if twofold else []), *words]))
    return labels


def plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def colours_of(methods: list[str]) -> list[int]:
    """eow is always the first colour and vanilla the second; the others take what is free, in order."""
    taken = {methods.index(name): place for place, name in enumerate(FIRST) if name in methods}
    free = iter(place for place in range(len(methods) + len(FIRST)) if place not in taken.values())
    return [taken[index] if index in taken else next(free) for index in range(len(methods))]


def kinds_of_unknowns(runs: list[Loaded]) -> dict[str, str]:
    """The sets that are unknown to any of the runs, and their kinds; a name must be the same samples in all."""
    found: dict[str, tuple[Any, Loaded]] = {}
    kinds: dict[str, str] = {}
    for run in runs:
        for name, each in run.others.items():
            data_hash, other = found.setdefault(name, (each.manifest.get("data_hash"), run))
            if each.manifest.get("data_hash") != data_hash:
                raise EowError(
                    f"{name} is not the same data in {other.folder} and {run.folder}: predict it again with "
                    f"`eow evaluate --on {name}`, or leave one out"
                )
            kinds[name] = run.kinds[name]
    return dict(sorted(kinds.items(), key=lambda item: KINDS.index(item[1])))
