"""All the data of one run, as its settings want it: training, held-out and test sets, and what counts as unknown."""

from dataclasses import dataclass

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
    for part in (train, holdout, certify):
        if part is not None and part.hash == test.hash:
            raise EowError(
                f"{wanted.name} has the same samples for training and for the test: what is measured on them would "
                "say nothing, give it a test split of its own"
            )
    for name in wanted.outliers:
        outlier = load(name, root, "test", allow_unofficial=allow, shape=test.shape)
        if outlier.shape != test.shape:
            raise EowError(
                f"the outliers {name} are of shape {outlier.shape}, but {wanted.name} is {test.shape}: choose others"
            )
        outliers[name] = outlier
    return RunData(train, holdout, certify, test, outliers, Transform(*statistics(train)))
