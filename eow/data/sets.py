"""All the data of one run, as its settings want it: training, held-out and test sets, and what counts as unknown."""

from dataclasses import dataclass

import numpy as np

from eow.config import DataConfig
from eow.data import Dataset, holdout_split, known_unknown, load, statistics
from eow.data.loader import Transform
from eow.errors import EowError
from eow.seeds import derive


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
    train = load(wanted.name, root, "train", allow_unofficial=allow)
    test = load(wanted.name, root, "test", allow_unofficial=allow)
    if train.shape != test.shape or len(train.classes) != len(test.classes):
        raise EowError(
            f"{wanted.name} trains on {len(train.classes)} classes of shape {train.shape} and tests on "
            f"{len(test.classes)} of shape {test.shape}: make them alike"
        )
    check_apart(train, test)
    outliers: dict[str, Dataset] = {}
    if wanted.unknown_classes:
        train, _ = known_unknown(train, wanted.unknown_classes)
        test, outliers["unknown"] = known_unknown(test, wanted.unknown_classes)
    certify = holdout = None
    if wanted.certify:
        train, certify = holdout_split(train, wanted.certify, derive("certify", seed) % 2**32)
    if wanted.holdout:
        train, holdout = holdout_split(train, wanted.holdout, seed)
    if 0 < wanted.limit < len(train):
        _, train = holdout_split(train, wanted.limit, derive("limit", seed) % 2**32)
    for name in wanted.outliers:
        outlier = load(name, root, "test", allow_unofficial=allow, shape=test.shape)
        if outlier.shape != test.shape:
            raise EowError(
                f"the outliers {name} are of shape {outlier.shape}, but {wanted.name} is {test.shape}: choose others"
            )
        outliers[name] = outlier
    return RunData(train, holdout, certify, test, outliers, Transform(*statistics(train)))


def check_apart(train: Dataset, test: Dataset) -> None:
    """The test set must be other samples than the training set, in whatever order they lie: everything that is cut
    from the latter to fit on would be test data. A few doubles are in most sets, and a table of few values repeats
    itself: what is refused is a test set that mostly stands in a training set which does not."""
    seen = {hash(sample.tobytes()) for sample in train.inputs}
    doubles = np.mean([hash(sample.tobytes()) in seen for sample in test.inputs])
    if train.hash == test.hash or (doubles > 0.5 and len(seen) > 0.5 * len(train)):
        raise EowError(
            f"{train.name} has the same samples for training and for the test ({doubles:.0%} of the test's): what is "
            "measured on them would say nothing, give it a test split of its own"
        )
