"""Data sets in one file of arrays: an .npz or a .csv.

A set that comes without a test split is cut 80/20, stratified, always in the same way; the split "all" is all of it.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from eow.data.dataset import Dataset, split_80_20
from eow.data.files import at_home, is_file, most_unpacked, reason
from eow.errors import EowError
from eow.plain import shortened

LABEL_COLUMNS = ("label", "class", "target", "y")
CALL_IT = f"call the label's column {', '.join(LABEL_COLUMNS[:-1])} or {LABEL_COLUMNS[-1]}"
COARSE = 0.01  # of a column's deviation: what rounding it may change


def read_npz(name: str, split: str) -> Dataset:
    """Arrays x, y (or X, y), cut 80/20, or x_train, y_train, x_test, y_test; `classes` names the labels 0..K-1."""
    path = there(name, "npz")
    try:
        check_packed(path)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        for key, array in arrays.items():
            if not isinstance(array, np.ndarray) or (array.dtype.kind == "U" and not is_text(array)):
                raise EowError(f"its member {key!r} is no array, or of characters that are none")
    except Exception as error:
        raise EowError(
            f"{path} cannot be read as an .npz of plain arrays ({reason(error)}): write it with numpy.savez, "
            "without objects"
        ) from error
    found = sorted(arrays)
    for capital, usual in (("X", "x"), ("Y", "y")):
        if capital in arrays and usual not in arrays:
            arrays[usual] = arrays.pop(capital)
    if all(key in arrays for key in ("x_train", "y_train", "x_test", "y_test")):
        half = "train" if split == "train" else "test"
        labels, classes = _label_numbers(path, arrays[f"y_{half}"], arrays["y_train"], arrays.get("classes"))
        part = Dataset(name, half, _npz_inputs(path, arrays[f"x_{half}"]), labels, classes)
        if split == "train":  # test rows are rounded more only where they lie far away
            _check_rounding(path, arrays["x_train"])
            _tell_of_untrained(part)
        return part
    if "x" in arrays and "y" in arrays:
        labels, classes = _label_numbers(path, arrays["y"], arrays["y"], arrays.get("classes"))
        whole = Dataset(name, split, _npz_inputs(path, arrays["x"]), labels, classes)
        if split == "train":
            _check_rounding(path, arrays["x"])
            _tell_of_untrained(whole)
        return whole if split == "all" else whole.subset(split_80_20(name, labels, split))
    raise EowError(f"{path} holds {found}, not x and y or x_train, y_train, x_test and y_test")


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


def _check_rounding(path: Path, x: np.ndarray, titles: Sequence[str] = ()) -> None:
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


def read_csv(name: str, split: str) -> Dataset:
    """A header row, float features, and a label in the column label/class/target/y or else the last; cut 80/20."""
    path = there(name, "csv")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EowError(f"{path} cannot be read as a csv file: {error}") from error
    if len(rows) < 2 or len(rows[0]) < 2:
        other = next((sign for sign in ";\t" if rows and sign in rows[0][0]), None)
        hint = f"; are its columns separated by {other!r} instead of commas?" if other else ""
        raise EowError(f"{path} needs a header row, at least one feature column and one label column, and data{hint}")
    header = [title.strip() for title in rows[0]]
    named = [column for column, title in enumerate(header) if title.lower() in LABEL_COLUMNS]
    if len(named) > 1:
        raise EowError(f"{path} has several label columns: {', '.join(header[column] for column in named)}; keep one")
    label_column = named[0] if named else len(header) - 1
    if _is_data(header, label_column, {row[label_column].strip() for row in rows[1:] if len(row) == len(header)}):
        raise EowError(
            f"{path} has no header row, as it seems: its first row is numbers and {header[label_column]!r:.80}; write "
            f"titles above it, and {CALL_IT}"
        )
    for column, title in enumerate(header):
        if column != label_column and re.fullmatch(r"(Unnamed: [\d.]+)?", title):  # row numbers tell how it was sorted
            raise EowError(
                f"{path}: column {column + 1} has no title, as the row numbers that pandas writes: write it with "
                "index=False, or drop the column, or give it a title if it is a feature"
            )
    texts, features = [], np.empty((len(rows) - 1, len(header) - 1), np.float64)
    for index, row in enumerate(rows[1:]):
        if len(row) != len(header):
            raise EowError(f"{path}, data row {index + 1}: {len(row)} fields where the header has {len(header)}")
        texts.append(row[label_column].strip())
        if not texts[-1] or (_is_number(texts[-1]) and math.isnan(float(texts[-1]))):
            raise EowError(
                f"{path}, data row {index + 1}: the label (column {header[label_column]!r}) is "
                f"{texts[-1] or 'empty'}: name its class or remove the row"
            )
        cells = row[:label_column] + row[label_column + 1 :]
        try:
            features[index] = [number_in(cell) for cell in cells]
        except ValueError:
            column = next(i for i, cell in enumerate(row) if i != label_column and not _is_number(cell))
            raise EowError(
                f"{path}, data row {index + 1}, column {header[column]!r}: {row[column]!r} is not a number"
            ) from None
    _check_labels(path, header[label_column], texts, named=bool(named))
    classes = sorted(set(texts), key=_numbers_first)
    number = {text: label for label, text in enumerate(classes)}
    labels = np.array([number[text] for text in texts], np.int64)
    titles = header[:label_column] + header[label_column + 1 :]
    with np.errstate(over="ignore"):
        whole = Dataset(name, split, features.astype(np.float32), labels, tuple(classes), columns=tuple(titles))
    if split == "train":
        _check_rounding(path, features, titles)
        _tell_of_twins(path, classes)
    return whole if split == "all" else whole.subset(split_80_20(name, labels, split))


def _is_data(header: list[str], label_column: int, labels: set[str]) -> bool:
    """Whether the first row looks like one of the others: numbers, and beside them a number or one of the labels below.
    Titles may be numbers too, years or the 0, 1, 2 of pandas, above a label's title that is none of the labels."""
    titles, last = header[:label_column] + header[label_column + 1 :], header[label_column]
    if not all(map(_is_number, titles)):
        return False
    counted = titles == [str(index) for index in range(len(titles))]
    years = len({*titles}) == len(titles) and all(title.isdecimal() for title in titles)
    if last in labels:
        return _is_number(last) or not counted
    return _is_number(last) or not (years or last.lower() in LABEL_COLUMNS)


def _check_labels(path: Path, title: str, texts: list[str], *, named: bool) -> None:
    """A column of measurements would make about one class a row. Two rows a class are enough for labels, and five for
    numbers with a fraction, which are seldom labels; where the column is called a label, one and two."""
    numbers = [float(text) if _is_number(text) else math.nan for text in texts]
    fractions = all(map(math.isfinite, numbers)) and not all(number.is_integer() for number in numbers)
    fewest = (5, 2)[named] if fractions else (2, 1)[named]
    if len(texts) < fewest * len(set(texts)):
        ways = [] if named else [CALL_IT]
        ways += ["write classes as words or whole numbers"] if fractions else []
        raise EowError(
            f"{path}: the label (column {title!r}) has {len(set(texts))} different values in {len(texts)} rows, as a "
            f"measurement has: {', and '.join(ways)}"
        )


def _tell_of_twins(path: Path, classes: list[str]) -> None:
    for one, other in pairwise(classes):
        if _is_number(one) and _is_number(other) and float(one) == float(other):
            warnings.warn(
                f"{path}: the labels {one!r} and {other!r} are two classes and one number: write them alike if they "
                "mean the same",
                RuntimeWarning,
                stacklevel=3,
            )


def number_in(text: str) -> float:
    """Without the 1_000 of Python's own source, which elsewhere is no number."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _is_number(text: str) -> bool:
    try:
        number_in(text)
    except ValueError:
        return False
    return True


def _numbers_first(text: str) -> tuple[bool, float, str]:
    """Sort 9 before 10, and words, inf among them, after numbers."""
    return (False, float(text), text) if _is_number(text) and math.isfinite(float(text)) else (True, 0.0, text)
