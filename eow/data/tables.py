"""Data sets in one file of arrays: an .npz; and what a .csv (csv_files.py) shares with it.

A set that comes without a test split is cut 80/20, stratified, always in the same way; the split "all" is all of it.
"""

from __future__ import annotations

import warnings
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eow.data.dataset import Dataset, split_80_20
from eow.data.files import at_home, is_file, most_unpacked, reason
from eow.errors import EowError
from eow.plain import shortened

OUTLIER = "outlier"  # the class of what has no label
COARSE = 0.01  # of a column's deviation: what rounding it may change


def read_npz(name: str, split: str) -> Dataset:
    """Arrays x, y (or X, y), cut 80/20, or x_train, y_train, x_test, y_test; `classes` names the labels 0..K-1."""
    path = there(name, "npz")
    arrays = npz_arrays(path)
    found = sorted(arrays)
    for capital, usual in (("X", "x"), ("Y", "y")):
        if capital in arrays and usual not in arrays:
            arrays[usual] = arrays.pop(capital)
    if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
        half = "train" if split == "train" else "test"
        labels, classes = _label_numbers(path, arrays[f"y_{half}"], arrays["y_train"], arrays.get("classes"))
        part = Dataset(name, half, _npz_inputs(path, arrays[f"x_{half}"]), labels, classes)
        if split == "train":  # test rows are rounded more only where they lie far away
            check_rounding(path, arrays["x_train"])
            _tell_of_untrained(part)
        return part
    if split == "all" and "x" in arrays and "y" not in arrays:  # outliers need no label
        return unlabelled(name, _npz_inputs(path, arrays["x"]))
    if "x" in arrays and "y" in arrays:
        labels, classes = _label_numbers(path, arrays["y"], arrays["y"], arrays.get("classes"))
        whole = Dataset(name, split, _npz_inputs(path, arrays["x"]), labels, classes)
        if split == "train":
            check_rounding(path, arrays["x"])
            _tell_of_untrained(whole)
        return whole if split == "all" else whole.subset(split_80_20(name, labels, split))
    raise EowError(f"{path} holds {found}, not x and y or x_train, y_train, x_test and y_test")


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """Everything in an .npz file, none of it an object."""
    try:
        check_packed(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        for key, array in arrays.items():
            if not isinstance(array, np.ndarray) or (array.dtype.kind == "U" and not is_text(array)):
                raise EowError(f"its member {key!r} is not an array, or holds invalid characters")
    except Exception as error:
        raise EowError(
            f"{path} cannot be read as an .npz of plain arrays ({reason(error)}): write it with numpy.savez, "
            "without objects"
        ) from error
    return arrays


def unlabelled(name: str, inputs: np.ndarray, columns: Sequence[str] = ()) -> Dataset:
    """Samples that are outliers, and nothing else is said of them."""
    return Dataset(name, "all", inputs, np.zeros(len(inputs), np.int64), (OUTLIER,), columns=tuple(columns))


def there(name: str, kind: str) -> Path:
    """The file that npz:PATH or csv:PATH names."""
    path = at_home(name.removeprefix(f"{kind}:"))
    if not is_file(path):
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise EowError(f"{path} cannot be read ({what}): name a .{kind} file, as {kind}:PATH")
    return path


def is_text(array: np.ndarray) -> bool:
    """numpy takes any 32 bits for a character, and fails where it has to show them."""
    codes = np.ascontiguousarray(array).reshape(-1).view(f"{array.dtype.byteorder}u4".replace("|", "="))
    return not codes.size or int(codes.max()) <= 0x10FFFF


def check_packed(path: Path) -> None:
    """What unpacks to far more than it is would fill the memory before anything could be said about it."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > most_unpacked(path.stat().st_size):
        raise EowError(f"it unpacks to {unpacked:,} bytes, far more than arrays do: save it with numpy.savez")


def _npz_inputs(path: Path, x: np.ndarray) -> np.ndarray:
    if x.ndim == 2 and x.dtype.kind in "fiu":
        # Too large a float64 becomes inf here, and the data set's own check names it.
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(x, np.float32)
    if x.dtype == np.uint8 and x.ndim == 3:
        return np.ascontiguousarray(x[:, None])
    if x.dtype == np.uint8 and x.ndim == 4:
        first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
        if first and last:
            raise EowError(f"{path}: images of shape {x.shape} could be NCHW or NHWC: save them at another size")
        if first or last:
            return np.ascontiguousarray(x if first else x.transpose(0, 3, 1, 2))
    raise EowError(
        f"{path}: inputs are {x.dtype} of shape {x.shape}: save images as uint8 (0..255) in NCHW, NHWC (1 or 3 "
        "channels) or NHW, and features as floats (N, D)"
    )


def lost_in_float32(rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """How far rounding to float32 moves a value of each column at most, in units of `scale`."""
    return np.abs(rows.astype(np.float32) - rows).max(0) / scale


def check_rounding(path: Path, x: np.ndarray, titles: Sequence[str] = ()) -> None:
    """Networks take float32, which has seven digits: smaller differences would be gone before they are standardised."""
    if np.can_cast(x.dtype, np.float32):
        return
    rows = x.astype(np.float64)
    peak = np.abs(rows).max(0)
    share = (rows / np.where(peak > 0, peak, 1)).std(0)  # of what is 1 at most: the squares of 1e-200 would be 0
    constant = share <= 1e-11  # but for what arithmetic in float64 has rounded
    lost = lost_in_float32(x, np.where(constant, np.inf, share * peak))
    worst = int(lost.argmax())
    if lost[worst] > COARSE:
        column = repr(titles[worst]) if titles else f"{worst} (counted from 0)"
        raise EowError(
            f"{path}: float32 is too coarse for column {column}, which it rounds by {lost[worst]:.2g} standard "
            f"deviations: drop it, or subtract an offset such as {x[:, worst].min():.10g} here and in all later inputs"
        )


def _tell_of_untrained(part: Dataset) -> None:
    """`classes` may name some that never occur."""
    absent = [part.classes[label] for label in np.setdiff1d(np.arange(len(part.classes)), part.labels)]
    if absent:
        warnings.warn(
            f"{part.name}: {len(absent)} of {len(part.classes)} classes have no training sample ({shortened(absent)}): "
            "leave their names out or give them samples, unless they are unknown classes",
            RuntimeWarning,
            stacklevel=3,
        )


def _label_numbers(
    path: Path, y: np.ndarray, y_train: np.ndarray, names: np.ndarray | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as 0..K-1 with K names: integers that `classes` names stay as they are, others are looked up by value."""
    y, y_train = (labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels for labels in (y, y_train))
    if y.ndim != 1 or y.dtype.kind not in "iuU":
        raise EowError(
            f"{path}: labels are {y.dtype} of shape {y.shape}: save them as integers or strings, one a sample"
        )
    values = (np.unique(y_train) if names is None else names.reshape(-1)).tolist()
    if twice := [name for name, times in Counter(map(str, values)).items() if times > 1]:
        raise EowError(f"{path}: `classes` has the name {twice[0]!r:.80} twice: give every class one of its own")
    if names is not None and y.dtype.kind != "U":
        return y.astype(np.int64), tuple(str(value) for value in values)
    number = {value: label for label, value in enumerate(values)}
    for index, value in enumerate(y.tolist()):
        if value not in number:
            raise EowError(f"{path}: label {value!r} at index {index} is not among the classes {values!r:.80}")
    return np.array([number[value] for value in y.tolist()], np.int64), tuple(str(value) for value in values)
