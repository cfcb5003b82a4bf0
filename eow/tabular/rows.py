"""Rows of a table as `EOWClassifier` takes them: standardised for its network, and fenced in where it was trained.

No chain goes far out, and the network is often surest there. So a fence (methods/fence.py) stands around the training
rows z, standardised and not cut off:

    unknown logit + 10 · max(0, D(z)/τ - 1),   D: squared distance by probabilistic PCA with `RANK` axes,
                                               τ: its 99 % quantile on rows that it was not fitted on, all classes
                                                  counting the same

Inside it nothing changes, and the K classes keep their odds everywhere. A new value in a column that was constant in
training is a step out of it, in the column's own units. `RANK` was chosen where the defaults were, and on iris, after
somebody's look at rank 10 on other splits of the same sets. Breast cancer's rows were the hardest: in a wrong unit none
were answered (25 % with 5 axes, 25 % with 20), ten times too far from the mean 4 % (5 % and 23 %), with one column ten
deviations off 4 % (16 % and 8 %). Known rows were answered less often by .8 points at most. Three times too far from
the mean is too near for it: on breast cancer and digits most of these are answered.
"""

import numpy as np
import torch
from sklearn.preprocessing import StandardScaler

from eow.data.dataset import Dataset
from eow.errors import EowError
from eow.methods.eow import MOST_FENCED
from eow.methods.fence import INSIDE, Fence
from eow.seeds import derive

FARTHEST = 5.0  # deviations that the network is shown
OUTERMOST = 1e4  # deviations that the fence is shown: enough to see one column among millions; float32 has the squares
RANK, FOLDS = 10, 5  # of the fence
FINEST = 1e-150  # the square of less is not a normal number
AT_ONCE = 2**19  # numbers of a table, for predictions; no more than 2**11 rows, whose hidden units count too
OF_EACH = 100  # rows of every class that the fence of a large table is drawn around


def scaler_of(X: np.ndarray) -> StandardScaler:
    with np.errstate(over="ignore", invalid="ignore"):
        scaler = StandardScaler().fit(X)
        spread = X.max(0) - X.min(0)
    for wrong, how in ((~np.isfinite(scaler.var_), "large"), ((spread > 0) & (spread < FINEST), "small")):
        if wrong.any():
            raise EowError(
                f"column {wrong.argmax()} of X (counted from 0) is too {how} to be standardised: rescale it first"
            )
    return scaler


def standardised(scaler: StandardScaler, X: np.ndarray) -> np.ndarray:
    """Mean 0 and deviation 1 in every column of the training data; a constant column is only centred. At most
    `OUTERMOST`, for the fence. The network is shown `FARTHEST` at most: a column that hardly ever moved in training
    would else decide alone which class it is when it does."""
    with np.errstate(over="ignore"):
        return np.clip((X - scaler.mean_) / scaler.scale_, -OUTERMOST, OUTERMOST)


def table_of(scaler: StandardScaler, X: np.ndarray, labels: np.ndarray, classes: int) -> Dataset:
    """The rows as a network is trained on them."""
    near = standardised(scaler, X).astype(np.float32)
    np.clip(near, -FARTHEST, FARTHEST, out=near)
    return Dataset("X", "train", near, labels.astype(np.int64), tuple(map(str, range(classes))))


def in_parts(rows: np.ndarray) -> list[np.ndarray]:
    """As many rows at a time as a processor keeps at hand."""
    step = min(2**11, max(2**8, AT_ONCE // rows.shape[1]))
    return np.split(rows, range(step, len(rows), step))


def rows_to_fence(labels: np.ndarray, seed: int) -> np.ndarray:
    """All rows, shuffled, or `MOST_FENCED` of them, among which `OF_EACH` of every class come first."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive("fence", seed))).numpy()
    if len(order) <= MOST_FENCED:
        return order
    classes = np.unique(labels)
    each = min(OF_EACH, MOST_FENCED // len(classes))
    first = np.concatenate([np.flatnonzero(labels[order] == label)[:each] for label in classes])
    return order[np.concatenate([first, np.setdiff1d(np.arange(len(order)), first)])[:MOST_FENCED]]


def fence_around(scaled: np.ndarray, labels: np.ndarray) -> Fence:
    """The fence of standardised rows. τ is made of distances from the fence of other rows, for each fifth of them once:
    a table may have too few to give half of them away. Around a handful it is very wide. All classes count the same: a
    rare one could else lie outside as a whole. So the farthest row of a class of few decides how wide it is."""
    rows = torch.from_numpy(scaled)
    fence, fold = Fence(rows.shape[1], RANK).double(), torch.arange(len(rows)) % FOLDS
    reach = torch.zeros(len(rows), dtype=torch.float64)
    for out in (fold == number for number in fold.unique()):
        fence.place(rows[~out])
        reach[out] = torch.cat([fence.distance(torch.from_numpy(part)) for part in in_parts(scaled[out.numpy()])])
    fence.place(rows)
    nearest = reach.argsort()
    weight = torch.from_numpy(1 / np.bincount(labels)[labels])[nearest].cumsum(0)
    fence.radius.fill_(reach[nearest][weight >= INSIDE * weight[-1]][0].clamp_min(1e-30))
    return fence
