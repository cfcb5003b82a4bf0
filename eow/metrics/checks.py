"""What every metric asks of its arrays before it counts. A tensor is taken through its own methods: nothing here
imports torch."""

from typing import Any

import numpy as np

from eow.errors import EowError

SLACK = 1e-6  # float32 softmax outputs leave [0, 1] by rounding; anything further out is a mistake


def as_array(values: Any, name: str, dimensions: int) -> np.ndarray:
    """`values` as a non-empty float64 array. A tensor is detached and brought to the CPU; the caller keeps its own."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
    try:
        array = np.asarray(values).astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise EowError(f"{name} is not an array of numbers ({error}).") from None
    if array.ndim != dimensions:
        expected = "one value per sample" if dimensions == 1 else "one row per sample and one column per class"
        raise EowError(f"{name} has shape {array.shape}: give {expected}.")
    if array.size == 0:
        raise EowError(f"{name} is empty: a metric needs at least one sample.")
    return array


def finite(array: np.ndarray, name: str) -> None:
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise EowError(f"{name} has {bad} values that are nan or infinite: find out where the model produced them.")


def as_integers(values: Any, name: str) -> np.ndarray:
    array = as_array(values, name, 1)
    finite(array, name)
    if np.any(array != np.floor(array)):
        raise EowError(f"{name} holds fractions: give class numbers.")
    return array.astype(np.int64)


def as_confidence(values: Any) -> np.ndarray:
    array = as_array(values, "confidence", 1)
    within_unit(array, "confidence")
    return np.clip(array, 0.0, 1.0)


def as_correct(values: Any) -> np.ndarray:
    array = as_array(values, "correct", 1)
    if np.any((array != 0) & (array != 1)):
        raise EowError("correct holds something other than True/False or 0/1: give label == labels.")
    return array


def as_probs(values: Any) -> np.ndarray:
    array = as_array(values, "probs", 2)
    within_unit(array, "probs")
    return array


def within_unit(array: np.ndarray, name: str) -> None:
    finite(array, name)
    low, high = float(array.min()), float(array.max())
    if low < -SLACK or high > 1 + SLACK:
        raise EowError(
            f"{name} ranges from {low:.6g} to {high:.6g}: give values in [0, 1] (no logits, no percentages)."
        )


def same_length(one: np.ndarray, other: np.ndarray, name: str, other_name: str) -> None:
    if len(one) != len(other):
        raise EowError(
            f"{name} has {len(one)} samples and {other_name} has {len(other)}: they must be the same samples."
        )


def of_labels(table: np.ndarray, labels: np.ndarray, name: str = "probs") -> np.ndarray:
    """The entry of each row of `table` that its label names."""
    same_length(table, labels, name, "labels")
    low, high, classes = int(labels.min()), int(labels.max()), table.shape[1]
    if low < 0 or high >= classes:
        raise EowError(
            f"labels range from {low} to {high}, but {name} has {classes} columns: labels are 0 to {classes - 1}."
        )
    return table[np.arange(len(labels)), labels]
