"""The paper's tables, as printed, to stand beside ours.

    figure("table1_calibration", "ece_pct", {"dataset": "mnist", "model": "mlp", "method": "eow"})      # 0.88

A figure that the paper does not have is None. Tables 3 and 4 are of EOW-Softmax alone and have no column for the
method; the position that table 4 calls pixel is our cut `input`.
"""

import csv
from functools import cache
from importlib.resources import files

from eow.errors import EowError

OUR_NAMES = {"pixel": "input"}


@cache
def read(table: str) -> tuple[dict[str, str], ...]:
    """The rows of a table, by its file's name without .csv."""
    file = files("eow.paper") / f"{table}.csv"
    if not file.is_file():
        known = sorted(each.name.removesuffix(".csv") for each in files("eow.paper").iterdir() if ".csv" in each.name)
        raise EowError(f"the paper has no table {table!r}: choose one of {', '.join(known)}")
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple({"method": "eow", **{key: OUR_NAMES.get(value, value) for key, value in row.items()}} for row in rows)


def figure(table: str, column: str, keys: dict[str, str | float]) -> float | None:
    """The one number in `column` whose row has these keys; None where the paper has no such row or left it out."""
    rows = read(table)
    for name in (column, *keys):
        if name not in rows[0]:
            raise EowError(f"the paper's {table} has no column {name!r}: it has {', '.join(rows[0])}")
    found = [row for row in rows if all(same(row[key], wanted) for key, wanted in keys.items())]
    if len(found) > 1:
        raise EowError(f"{len(found)} rows of the paper's {table} fit {keys}: say which, with another key")
    return float(found[0][column]) if found and found[0][column] else None


def same(text: str, wanted: str | float) -> bool:
    """Whether a CSV's cell says what is wanted; numbers are compared as numbers."""
    if isinstance(wanted, str):
        return text == wanted
    try:
        return float(text) == wanted
    except ValueError:
        return False
