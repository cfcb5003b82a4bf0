"""All the data of one run, as its settings want it: training, held-out and test sets, and what counts as unknown."""

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from eow.config import DataConfig
from eow.data import Dataset, few, holdout_split, known_unknown, load, statistics
from eow.data.dataset import known_part, split_80_20
from eow.data.files import at_home
from eow.data.loader import Transform
from eow.errors import EowError
from eow.mapping import blocks
from eow.plain import shortened
from eow.seeds import derive

FEW = 50  # different rows of a test set


@dataclass(frozen=True)
class RunData:
    """`outliers` holds the sets to tell apart from `test`; the one named "unknown" has the test samples of classes that
    were held out of training."""

    train: Dataset
    holdout: Dataset | None
    certify: Dataset | None
    test: Dataset
    outliers: dict[str, Dataset]
    transform: Transform


def load_sets(wanted: DataConfig, seed: int) -> RunData:
    """Training, held-out and test data as the config wants them, and everything that counts as unknown."""
    root, allow = wanted.root or None, wanted.allow_unofficial
    train = load(wanted.name, root, "train", allow_unofficial=allow, resident=wanted.resident)
    test = load(wanted.name, root, "test", allow_unofficial=allow, resident=wanted.resident)
    if train.shape != test.shape or len(train.classes) != len(test.classes):
        raise EowError(
            f"{wanted.name} trains on {len(train.classes)} classes of shape {train.shape} and tests on "
            f"{len(test.classes)} of shape {test.shape}: make them alike"
        )
    check_apart(train, test)
    tell_of_untested(train, test)
    outliers: dict[str, Dataset] = {}
    if wanted.unknown_classes:
        train = known_part(train, wanted.unknown_classes)
        test, outliers["unknown"] = known_unknown(test, wanted.unknown_classes)
        check_apart(train, test)  # samples of the other classes may have made it look better
    certify = holdout = None
    if wanted.certify:
        train, certify = holdout_split(train, wanted.certify, derive("certify", seed) % 2**32)
    if wanted.holdout:
        used = min(wanted.limit or len(train), len(train))
        train, holdout = holdout_split(train, few(used) if wanted.holdout == "auto" else wanted.holdout, seed)
    if 0 < wanted.limit < len(train):
        whole = train
        _, train = holdout_split(whole, wanted.limit, derive("limit", seed) % 2**32)
        tell_of_untrained(whole, train, wanted.limit)
    for name in wanted.outliers:
        outliers[name] = load_outlier(name, wanted, test.shape, test.hash, test.columns)
    return RunData(train, holdout, certify, test, outliers, Transform(*statistics(train)))


def load_outlier(
    name: str, wanted: DataConfig, shape: tuple[int, ...], tested: str, columns: Sequence[str] = ()
) -> Dataset:
    """A set to tell apart from the test set of a run on `wanted`: of the same shape, its columns in the run's order,
    and not the test set itself, whose content hash is `tested`, nor the whole that it is the known classes of. All of
    it where it has no test split of its own, but of the run's own data, permuted, what is tested on."""
    mine, whose = place_of(wanted.name), place_of(name.removeprefix("permuted:"))
    outlier = load(
        name,
        wanted.root or None,
        "test" if whose == mine else "all",
        allow_unofficial=wanted.allow_unofficial,
        shape=shape,
        resident=wanted.resident,
        columns=columns,
    )
    if outlier.shape != shape:
        ways = "give it the run's columns, with a label or without" if columns and outlier.columns else "choose others"
        raise EowError(f"the outliers {name} are of shape {outlier.shape}, but {wanted.name} is {shape}: {ways}")
    if columns and outlier.columns:
        outlier = reordered(outlier, columns)
    alike = [outlier]  # what a copy of the run's own data would be tested on
    if outlier.split == "all" and len(outlier) > 2:
        alike.append(outlier.subset(split_80_20(name, outlier.labels, "test")))
    if wanted.unknown_classes:
        with suppress(EowError):  # of other classes, it is none
            alike.append(known_part(alike[-1], wanted.unknown_classes))
    if place_of(name) == mine or tested in [part.hash for part in alike]:
        raise EowError(f"{name} is what the run is tested on: choose other outliers")
    return outlier


def place_of(name: str) -> str:
    """A data set's name, a file's or folder's in one spelling."""
    kind, _, path = name.partition(":")
    return f"{kind}:{os.path.abspath(at_home(path))}" if kind in ("folder", "npz", "csv") else name


def reordered(part: Dataset, columns: Sequence[str]) -> Dataset:
    """The features by their titles, as the run knows them."""
    if part.columns == tuple(columns):
        return part
    ours, theirs = Counter(columns), Counter(part.columns)
    if odd := sorted((ours - theirs) + (theirs - ours)):
        raise EowError(
            f"{part.name} has other columns than the run was trained on ({shortened(odd)} not in both): give it the "
            "same titles"
        )
    if len(ours) < len(columns):
        raise EowError(
            f"{part.name} has the run's columns in another order, and {ours.most_common(1)[0][0]} is the title of "
            "several: give it the run's order"
        )
    order = [part.columns.index(title) for title in columns]
    return replace(part, inputs=np.ascontiguousarray(part.inputs[:, order]), columns=tuple(columns))


def check_apart(train: Dataset, test: Dataset) -> None:
    """The test set must be other samples than the training set, in whatever order they lie: everything that is cut
    from the latter to fit on would be test data. A few doubles are in most sets; in a table of few values both parts
    repeat themselves (or the test, too small for that, has few rows that differ): all else is refused when most of
    the test set stands in the training set."""
    trained, tested = fingerprints(train), fingerprints(test)
    seen, rows = set(trained), len(set(tested))
    doubles = np.mean([each in seen for each in tested])
    repeats = len(seen) <= 0.5 * len(trained) and (rows <= 0.5 * len(tested) or rows < FEW)
    if train.hash == test.hash or (doubles > 0.5 and not repeats):
        raise EowError(
            f"{train.name} has the same samples for training and for the test ({doubles:.0%} of the test's): what is "
            "measured on them would say nothing, give it a test split of its own"
        )


def tell_of_untested(train: Dataset, test: Dataset) -> None:
    """Of a class that has one sample, or a few, the cut may leave none to test."""
    untested = [train.classes[label] for label in np.setdiff1d(train.labels, test.labels)]
    if untested:
        warnings.warn(
            f"{train.name}: {len(untested)} of {len(train.classes)} classes have no test sample "
            f"({shortened(untested)}), so no figure speaks of them: give each five samples or more, or a test split of "
            "its own",
            RuntimeWarning,
            stacklevel=3,
        )


def tell_of_untrained(whole: Dataset, train: Dataset, limit: int) -> None:
    """Fewer samples than classes leave some of these out of training."""
    left_out = [whole.classes[label] for label in np.setdiff1d(whole.labels, train.labels)]
    if left_out:
        warnings.warn(
            f"{whole.name}: with data.limit={limit}, {len(left_out)} of {len(whole.classes)} classes have no training "
            f"sample ({shortened(left_out)}): raise it, or name them as unknown classes",
            RuntimeWarning,
            stacklevel=3,
        )


def fingerprints(part: Dataset) -> list[int]:
    """One number a sample, the same for the same inputs; 0 and -0 are the same."""
    floats = part.inputs.dtype.kind == "f"
    pieces = (block + np.float32(0) if floats else block for block in blocks(part.inputs))
    return [hash(sample.tobytes()) for piece in pieces for sample in piece]


def without_copies(part: Dataset, *others: Dataset | None) -> Dataset | None:
    """The samples of `part` that stand in none of the others; None where all do."""
    seen = {each for other in others if other is not None for each in fingerprints(other)}
    fresh = [index for index, each in enumerate(fingerprints(part)) if each not in seen]
    return part if len(fresh) == len(part) else part.subset(fresh) if fresh else None
