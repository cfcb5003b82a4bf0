"""Tables of comma-separated values: a header row, columns of numbers, and mostly a label.

A column is known by its title, so that later files may have them in another order (`read_rows`).
"""

from __future__ import annotations

import csv
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eow.data.dataset import Dataset, split_80_20
from eow.data.tables import check_rounding, there, unlabelled
from eow.errors import EowError
from eow.plain import brief, shortened

LABEL_COLUMNS = ("label", "class", "target", "y")
CALL_IT = f"call the label's column {', '.join(LABEL_COLUMNS[:-1])} or {LABEL_COLUMNS[-1]}"


def read_csv(name: str, split: str, columns: Sequence[str] = ()) -> Dataset:
    """A header row, float features, and a label in the column label/class/target/y or else the last; cut 80/20. A table
    that is wanted whole may have no label, where its titles are exactly these `columns`."""
    path = there(name, "csv")
    header, rows = read_cells(path)
    if split == "all" and columns and Counter(header) == Counter(columns):
        with np.errstate(over="ignore"):
            return unlabelled(name, numbers_in(path, header, rows, range(len(header))).astype(np.float32), header)
    if not rows or len(header) < 2:
        other = next((sign for sign in ";\t" if header and sign in header[0]), None)
        hint = f"; are its columns separated by {other!r} instead of commas?" if other else ""
        raise EowError(f"{path} needs a header row, at least one feature column and one label column, and data{hint}")
    named = [column for column, title in enumerate(header) if title.lower() in LABEL_COLUMNS]
    if len(named) > 1:
        raise EowError(f"{path} has several label columns: {', '.join(header[column] for column in named)}; keep one")
    label_column = named[0] if named else len(header) - 1
    if _is_data(header, label_column, {row[label_column].strip() for row in rows if len(row) == len(header)}):
        raise EowError(
            f"{path} has no header row, as it seems: its first row is numbers and {header[label_column]!r:.80}; write "
            f"titles above it, and {CALL_IT}"
        )
    others = [column for column in range(len(header)) if column != label_column]
    for column in others:
        if re.fullmatch(r"(Unnamed: [\d.]+)?", header[column]):  # row numbers tell how it was sorted
            raise EowError(
                f"{path}: column {column + 1} has no title, as the row numbers that pandas writes: write it with "
                "index=False, or drop the column, or give it a title if it is a feature"
            )
    features = numbers_in(path, header, rows, others)
    texts = [row[label_column].strip() for row in rows]
    for index, text in enumerate(texts, 1):
        if not text or (_is_number(text) and math.isnan(float(text))) or has_break(text):
            what = "has a line break in it" if has_break(text) else f"is {text or 'empty'}"
            how = "is a quote not closed there?" if has_break(text) else "name its class or remove the row"
            raise EowError(f"{path}, data row {index}: the label (column {header[label_column]!r}) {what}: {how}")
    _check_labels(path, header[label_column], texts, named=bool(named), without=columns if split == "all" else ())
    classes = sorted(set(texts), key=_numbers_first)
    number = {text: label for label, text in enumerate(classes)}
    labels = np.array([number[text] for text in texts], np.int64)
    titles = [header[column] for column in others]
    with np.errstate(over="ignore"):
        whole = Dataset(name, split, features.astype(np.float32), labels, tuple(classes), columns=tuple(titles))
    if split == "train":
        check_rounding(path, features, titles)
        _tell_of_twins(path, classes)
    return whole if split == "all" else whole.subset(split_80_20(name, labels, split))


def read_rows(path: Path, columns: Sequence[str]) -> np.ndarray:
    """The rows of a table to predict, (N, D) in the order of `columns`, by their titles; one column more, as the label
    is, may stand among them and is not read."""
    header, rows = read_cells(path)
    ours, theirs = Counter(columns), Counter(header)
    spare = list((theirs - ours).elements())
    if absent := sorted((ours - theirs).elements()):
        raise EowError(
            f"{path} has no column {shortened(absent)}: this model takes {len(columns)} of them, {', '.join(columns)}"
        )
    if len(spare) > 1 or ours.keys() & {*spare}:
        raise EowError(
            f"{path} has columns that this model was not trained on, or one twice ({shortened(spare)}): leave out all "
            f"but {', '.join(columns)} and a label"
        )
    if len(ours) < len(columns) and [title for title in header if title not in spare] != [*columns]:
        raise EowError(f"{path} has columns of one title in another order than this model was trained on: {columns}")
    places: dict[str, list[int]] = {}
    for place, title in enumerate(header):
        places.setdefault(title, []).append(place)
    order = [places[title].pop(0) for title in columns]
    if not rows:
        raise EowError(f"{path} has titles and no row under them: give at least one")
    with np.errstate(over="ignore"):
        found = numbers_in(path, header, rows, order).astype(np.float32)
    if not np.isfinite(found).all():
        row, column = np.argwhere(~np.isfinite(found))[0]
        raise EowError(f"{path}, data row {row + 1}, column {columns[column]!r}: no finite float32, clean it first")
    return found


def read_cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Titles and rows as texts. A quote that is not closed swallows the rows below it, so it is an error."""
    rows = rows_of(path)
    header = [title.strip() for title in rows[0]] if rows else []
    if broken := [title for title in header if has_break(title)]:
        raise EowError(f"{path}: the title {broken[0]!r:.80} has a line break in it: is a quote not closed there?")
    return header, rows[1:]


def rows_of(path: Path) -> list[list[str]]:
    rows, begins = [], 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            # Strictly, a blank behind a closing quote is an error too, which is nobody's slip.
            trimmed = (re.sub(r'"[ \t]+(?=,|\r?\n?$)', '"', whole(line)) for line in stream)
            lines = csv.reader(trimmed, strict=True)
            for row in lines:
                rows += [row] if row else []
                begins = lines.line_num + 1
    except csv.Error as error:
        raise EowError(
            f"{path} cannot be read as a csv file from line {begins} on ({error}): is a quote not closed there?"
        ) from error
    except UnicodeError as error:
        raise EowError(f"{path} cannot be read as a csv file ({error}): save it as text in UTF-8") from error
    except OSError as error:
        raise EowError(f"{path} cannot be read as a csv file: {error}") from error
    return rows


def whole(line: str) -> str:
    """A crash fills files with zeros, and the name of a class would not show them."""
    if "\0" in line:
        raise UnicodeError("it has a zero byte, so it is not text")
    return line


def has_break(text: str) -> bool:
    return "\n" in text or "\r" in text


def numbers_in(path: Path, header: list[str], rows: list[list[str]], columns: Sequence[int]) -> np.ndarray:
    """These columns of all rows, as float64."""
    found = np.empty((len(rows), len(columns)), np.float64)
    for index, row in enumerate(rows):
        if len(row) != len(header):
            raise EowError(f"{path}, data row {index + 1}: {len(row)} fields where the header has {len(header)}")
        try:
            found[index] = [number_in(row[column]) for column in columns]
        except ValueError:
            wrong = next(column for column in columns if not _is_number(row[column]))
            raise EowError(
                f"{path}, data row {index + 1}, column {header[wrong]!r}: {row[wrong]!r:.80} is not a number"
            ) from None
    return found


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


def _check_labels(path: Path, title: str, texts: list[str], *, named: bool, without: Sequence[str]) -> None:
    """A column of measurements would make about one class a row. Two rows a class are enough for labels, and five for
    numbers with a fraction, which are seldom labels; where the column is called a label, one and two."""
    numbers = [float(text) if _is_number(text) else math.nan for text in texts]
    fractions = all(map(math.isfinite, numbers)) and not all(number.is_integer() for number in numbers)
    fewest = (5, 2)[named] if fractions else (2, 1)[named]
    if len(texts) < fewest * len(set(texts)):
        ways = [] if named else [CALL_IT]
        ways += ["write classes as words or whole numbers"] if fractions else []
        ways += [f"without a label have exactly the run's columns ({', '.join(without)})"] if without else []
        raise EowError(
            f"{path}: the label (column {title!r}) has {len(set(texts))} different values in {len(texts)} rows, as a "
            f"measurement has: {', and '.join(ways)}"
        )


def _tell_of_twins(path: Path, classes: list[str]) -> None:
    """Of labels that differ in nothing one means by them: a trailing .0, capitals, blanks, two ways to write an é."""
    first: dict[float | str, str] = {}
    for other in classes:
        plain = " ".join(unicodedata.normalize("NFKC", other).casefold().split())
        one = first.setdefault(float(other) if _is_number(other) else plain, other)
        if one != other:
            what = "one number" if _is_number(other) else "written almost alike"
            warnings.warn(
                f"{path}: the labels {brief(one)!r} and {brief(other)!r} are two classes and {what}: write them alike "
                "if they mean the same",
                RuntimeWarning,
                stacklevel=3,
            )


def number_in(text: str) -> float:
    """Without the 1_000 of Python's own source, which is not a number elsewhere."""
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
