"""What a model of any library says of samples, as the arrays that predictions are kept in: checked, not changed.

`probs` (N, K) or `logits` (N, K), and `unknown` (N,) where there is one: probs.sum(1) + unknown == 1. With `odds`, the
prior odds of "unknown" in them, logits have K+1 columns, the last the unknown's. Label and confidence are argmax and
max of the probabilities.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eow.errors import EowError
from eow.metrics.checks import SPACING, SUM_SLACK, as_array, as_table, block_of, kept_in, within_unit
from eow.openworld import LEAST_ODDS, MOST_ODDS, softmax
from eow.predictions import CHUNK, CLOSE
from eow.typed import as_python, convert

FIELDS = ("probs", "logits", "unknown")

Arrays = dict[str, np.ndarray]


def checked_odds(odds: Any) -> float | None:
    if odds is None:
        return None
    odds = convert(as_python(odds), float, "odds")
    if not LEAST_ODDS <= odds <= MOST_ODDS:
        raise EowError(f"odds is {odds}: give the prior odds of unknown, λ or ρ/(1-ρ), a number above 0")
    return odds


def answers(said: Any, odds: float | None, whose: str) -> Arrays:
    """probs, unknown, label and confidence, and logits where they are given, in float32, from what a model said."""
    given = fields_of(said)
    if "probs" not in given and "logits" not in given:
        raise EowError(f"of {whose} there are neither probs nor logits: give one of them, (N, K)")
    tables = {key: as_table(value, key, 1 if key == "unknown" else 2) for key, value in given.items()}
    if len({len(table) for table in tables.values()}) > 1:
        lengths = ", ".join(f"{key} {len(table):,}" for key, table in tables.items())
        raise EowError(f"of {whose} there are different numbers ({lengths}): they must be of the same samples")
    if "logits" in tables:
        return of_logits(tables, odds, whose)
    probs = tables["probs"]
    within_unit(probs, "probs")
    unknown = as_array(tables.get("unknown", np.zeros(len(probs))), "unknown", 1)
    within_unit(unknown, "unknown")
    check_sums(probs, unknown, whose)
    found = {"probs": block_of(probs, slice(None)).astype(np.float32), "unknown": unknown.astype(np.float32)}
    return {**found, **decided(found["probs"])}


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


def of_logits(tables: dict[str, Any], odds: float | None, whose: str) -> Arrays:
    """The answers that logits give. Probabilities that come with them must be theirs."""
    logits = block_of(tables["logits"], slice(None)).astype(np.float32)
    if not np.isfinite(logits).all():
        raise EowError(f"logits of {whose} are not all finite numbers: look at what made them")
    classes = logits.shape[1] - (odds is not None)
    probs, unknown = np.empty((len(logits), classes), np.float32), np.zeros(len(logits), np.float32)
    for first in range(0, len(logits), CHUNK):
        rows = slice(first, first + CHUNK)
        shares = softmax(logits[rows])
        probs[rows] = shares[:, :classes]
        if odds is not None:
            unknown[rows] = shares[:, -1]
    for key, table in (("probs", probs), ("unknown", unknown)):
        if key in tables and (tables[key].shape != table.shape or far(tables[key], table)):
            hint = "" if odds is not None else "; where the last logit is that of unknown, say at which odds"
            raise EowError(f"{key} of {whose} are not what the softmax of their logits says: give one of them{hint}")
    return {"probs": probs, "unknown": unknown, "logits": logits, **decided(probs, logits[:, :classes])}


def far(one: Any, other: np.ndarray) -> bool:
    gap = np.abs(block_of(one, slice(None)) - other)
    return not bool((gap <= CLOSE).all())


def decided(probs: np.ndarray, scores: np.ndarray | None = None) -> Arrays:
    """Of the largest score, which for logits need not be told apart in probs."""
    return {"label": (probs if scores is None else scores).argmax(1).astype(np.int64), "confidence": probs.max(1)}


def check_sums(probs: Any, unknown: np.ndarray, whose: str) -> None:
    """Nothing is renormalised here: what is not the classes' must be the unknown's."""
    total = block_of(probs, slice(None)).sum(1) + unknown
    row = int(np.abs(total - 1).argmax())
    off = abs(float(total[row]) - 1)
    if off > SUM_SLACK and off > max((2 * SPACING[name] for name in kept_in(probs)), default=0.0):
        raise EowError(
            f"probs and unknown of {whose} sum to {total[row]:.6g} in row {row}: give probabilities that sum to 1, "
            "what is left over as `unknown`, or logits as `logits`"
        )
