"""What a model of any library says of samples, as the arrays that predictions are kept in: checked, not changed.

`probs` (N, K) or `logits` (N, K), and `unknown` (N,) where there is one: probs.sum(1) + unknown == 1. With `odds`, the
prior odds of "unknown" in them, logits have K+1 columns, the last the unknown's. Label and confidence are argmax and
max of the probabilities.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from eow.errors import EowError
from eow.metrics.checks import as_array, as_table, block_of, labels_of, more_than_rounding, within_unit
from eow.openworld import LEAST_ODDS, MOST_ODDS, softmax
from eow.predictions import CLOSE, chunks
from eow.typed import as_python, convert

FIELDS = ("probs", "logits", "unknown")
BLUR = 1e-2  # how far float32 may move a probability: logits around 10^5 are moved less, those around 10^6 more

Arrays = dict[str, np.ndarray]


def checked_odds(odds: Any) -> float | None:
    if odds is None:
        return None
    odds = convert(as_python(odds), float, "odds")
    if not LEAST_ODDS <= odds <= MOST_ODDS:
        raise EowError(f"odds is {odds}: give the prior odds of unknown, λ or ρ/(1-ρ), a number above 0")
    return odds


def answers(said: Any, odds: float | None, whose: str, classes: Sequence[Any] = ()) -> Arrays:
    """probs, unknown, label and confidence, and logits where they are given, in float32, from what a model said."""
    given = fields_of(said)
    for table in given.values():
        check_titles(titles_of(table), [*map(str, classes)], whose)
    if "probs" not in given and "logits" not in given:
        raise EowError(f"of {whose} there are neither probs nor logits: give one of them, (N, K)")
    tables = {key: as_table(value, f"{key} of {whose}", 1 if key == "unknown" else 2) for key, value in given.items()}
    if len({len(table) for table in tables.values()}) > 1:
        lengths = ", ".join(f"{key} {len(table):,}" for key, table in tables.items())
        raise EowError(f"of {whose} there are different numbers ({lengths}): they must be of the same samples")
    if odds is not None and {*tables} == {"probs"}:
        raise EowError(f"odds are those of an unknown, and {whose} have none: give `unknown` or K+1 logits, or no odds")
    wide = "logits" in tables and odds is not None
    if (tables["logits"] if "logits" in tables else tables["probs"]).shape[1] - wide < 2:
        raise EowError(f"of {whose} there is one class: of two, give the probabilities of both, (N, 2)")
    return of_logits(tables, odds, whose) if "logits" in tables else of_probs(tables, whose)


def titles_of(table: Any) -> list[str]:
    """What the columns of a data frame are called, if they are: pandas counts those that were not given names."""
    columns = getattr(table, "columns", ())
    titled = isinstance(columns, Iterable) and type(columns).__name__ != "RangeIndex"
    return [str(as_name(each)) for each in columns] if titled else []


def as_name(given: Any) -> Any:
    """A class is called the same whatever type its name was kept in: 1.0 is 1, and bytes are text."""
    if isinstance(given, bytes):
        return given.decode(errors="replace")
    return int(given) if isinstance(given, float) and given.is_integer() else given


def check_titles(titles: list[str], classes: list[str], whose: str) -> None:
    """The columns of a data frame that is titled with the classes are in their order."""
    ours = [each for each in titles if each in classes]
    if ours != classes and sorted(ours) == sorted(classes):
        raise EowError(
            f"the columns of {whose} are {', '.join(ours)!r:.80} and classes {', '.join(classes)!r:.80}: give both in "
            "one order"
        )


def fields_of(said: Any) -> dict[str, Any]:
    """What of FIELDS is there: of a mapping, of an object that has them, or of a table, which is probs."""
    if isinstance(said, Mapping):
        if unread := [str(key) for key in said if key not in FIELDS]:
            raise EowError(f"nothing here reads {unread[0]}: give {', '.join(FIELDS)}, and leave others out")
        found = {key: said.get(key) for key in FIELDS}
    elif hasattr(said, "probs"):
        found = {key: getattr(said, key, None) for key in FIELDS}
    else:
        found = {"probs": said}
    return {key: value for key, value in found.items() if value is not None}


def of_probs(tables: dict[str, Any], whose: str) -> Arrays:
    """Nothing is renormalised here: what is not the classes' must be the unknown's."""
    table, count = tables["probs"], len(tables["probs"])
    unknown = as_array(tables.get("unknown", np.zeros(count)), "unknown", 1)
    for key, each in (("probs", table), ("unknown", unknown)):
        within_unit(each, f"{key} of {whose}")
    probs, total, label = np.empty(table.shape, np.float32), unknown.copy(), np.empty(count, np.int64)
    for rows in chunks(count):
        block = block_of(table, rows)
        probs[rows], label[rows] = block, block.argmax(1)  # what float64 tells apart float32 may not
        total[rows] += block.sum(1)
    row = int(np.abs(total - 1).argmax())
    if more_than_rounding(abs(float(total[row]) - 1), table):
        raise EowError(
            f"probs and unknown of {whose} sum to {total[row]:.6g} in row {row}: give probabilities that sum to 1, "
            "what is left over as `unknown`, or logits as `logits`"
        )
    return {"probs": probs, "unknown": unknown.astype(np.float32), "label": label, "confidence": probs.max(1)}


def of_logits(tables: dict[str, Any], odds: float | None, whose: str) -> Arrays:
    """The answers that logits give. Probabilities that come with them must be theirs."""
    table, count = tables["logits"], len(tables["logits"])
    classes = table.shape[1] - (odds is not None)
    logits, label = np.empty(table.shape, np.float32), np.empty(count, np.int64)
    probs, unknown = np.empty((count, classes), np.float32), np.zeros(count, np.float32)
    if all(are_probabilities(block_of(table, rows)) for rows in chunks(count)):
        raise EowError(f"logits of {whose} are probabilities, no row's sum but 1: give them as `probs` (and `unknown`)")
    for rows in chunks(count):
        block = block_of(table, rows)
        with np.errstate(over="ignore"):
            logits[rows] = block
        check_finite(block, logits[rows], rows.start, whose)
        shares = softmax(logits[rows])
        check_rounding(block, logits[rows], shares, rows.start, whose)
        probs[rows], label[rows] = shares[:, :classes], block[:, :classes].argmax(1)
        if odds is not None:
            unknown[rows] = shares[:, -1]
    for key, found in (("probs", probs), ("unknown", unknown)):
        if key in tables and (tables[key].shape != found.shape or far(tables[key], found)):
            hint = "" if odds is not None else "; where the last logit is that of unknown, say at which odds"
            raise EowError(f"{key} of {whose} are not what the softmax of their logits says: give one of them{hint}")
    return {"probs": probs, "unknown": unknown, "logits": logits, "label": label, "confidence": probs.max(1)}


def are_probabilities(block: np.ndarray) -> bool:
    """Rows of none below 0 that sum to 1, as no network's logits do: their softmax would be close to even."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool((block >= 0).all() and not more_than_rounding(np.abs(block.sum(1) - 1).max(initial=0.0), block))


def check_finite(block: np.ndarray, kept: np.ndarray, first: int, whose: str) -> None:
    """What is kept of some rows of logits, in float32, is numbers."""
    wrong = ~np.isfinite(kept)
    if wrong.any():
        row, column = (int(place[0]) for place in np.nonzero(wrong))
        value = float(block[row, column])
        then = "where a class is ruled out, give probs, which can be 0" if value < 0 else "look at what made them"
        raise EowError(f"logits of {whose} are not all finite numbers ({value:g} in row {first + row}): {then}")


def check_rounding(block: np.ndarray, kept: np.ndarray, shares: np.ndarray, first: int, whose: str) -> None:
    """What float32 keeps of some rows of logits has the shares that they have themselves: a large offset, as that of
    log-densities, may leave it no digits for their differences."""
    if np.abs(kept - block).max() <= BLUR:  # no share is moved by more than the logits are
        return
    off = np.abs(softmax(block) - shares).max(1)
    if off.max() > BLUR:
        row = int(off.argmax())
        raise EowError(
            f"logits of {whose} are so large that float32 rounds their differences away ({block[row].max():g} in row "
            f"{first + row}): subtract the same from all of a row, its maximum for example"
        )


def far(one: Any, other: np.ndarray) -> bool:
    return not all((np.abs(block_of(one, rows) - other[rows]) <= CLOSE).all() for rows in chunks(len(other)))


def class_values(classes: Any) -> list[Any]:
    """The K classes as they are given, words or numbers, each of them once."""
    values = as_python(classes)
    if not isinstance(values, list | tuple):
        raise EowError(f"classes are {values!r:.40}: give a list of K names, in the order of the columns")
    values = [as_name(each) for each in as_python(list(values))]
    if odd := [each for each in values if not isinstance(each, str | int | float)]:
        raise EowError(f"classes hold {odd[0]!r:.40}, which is no name: give a list of K names")
    if twice := [name for name, times in Counter(map(str, values)).items() if times > 1]:
        raise EowError(f"classes have the name {twice[0]!r:.80} twice: give every class one of its own")
    return values


def columns_of(probs: np.ndarray, labels: Any, classes: Sequence[Any], whose: str) -> np.ndarray:
    """The true classes as columns of `probs`. Labels of the kind of `classes`, words or numbers, are looked up there,
    as scikit-learn's `classes_` are meant; numbers beside names are the columns themselves."""
    if labels is None:
        raise EowError(f"{whose} have no labels: give the true classes")
    values = [as_name(each) for each in flat(labels)]
    worded = any(isinstance(each, str) for each in values)
    if worded and not classes:
        raise EowError(f"labels of {whose} are words: give `classes`, the names of the columns in their order")
    if worded or (values and classes and not any(isinstance(each, str) for each in classes)):
        column = {value: number for number, value in enumerate(classes)}
        for row, value in enumerate(values):
            if value not in column:
                raise EowError(f"label {value!r:.40} of {whose}, in row {row}, is not among classes {classes!r:.80}")
        labels = [column[value] for value in values]
    return labels_of(probs, labels, f"probs of {whose}")


def flat(labels: Any) -> list[Any]:
    """Labels one by one; none of them where they are no list of such."""
    values = as_python(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    plain = isinstance(values, list | tuple) and all(isinstance(each, str | bytes | int | float) for each in values)
    return list(values) if plain else []
