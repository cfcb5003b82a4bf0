"""What every metric asks of its arrays before it counts, and how it walks over the large ones.

A tensor is taken through its own methods: nothing here imports torch. Arrays with a row per sample are never copied
whole: `over_rows` hands out float64 blocks of a fixed size, so memory grows with the block and not with the samples.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from eow.errors import EowError
from eow.mapping import let_go

NOTHING: Any = object()  # in place of `correct` or `labels`, where they do not matter
SLACK = 1e-6  # float32 softmax outputs leave [0, 1] by rounding; anything further out is a mistake
SUM_SLACK = 1e-4  # a row's sum collects K of those roundings
SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # just above 1, of the types that round coarser than SUM_SLACK
LARGEST = 2.0**53  # whole numbers up to here are told apart in float64 too
BLOCK = 2**17  # entries a block: 1 MB of float64, which stays in a core's cache
THREADS = min(8, os.cpu_count() or 1)  # numpy lets go of the interpreter while it computes

Result = TypeVar("Result")


def as_array(values: Any, name: str, dimensions: int) -> np.ndarray:
    """`values` as a non-empty float64 array. A tensor is detached and brought to the CPU; the caller keeps its own."""
    table = as_table(values, name, dimensions)
    return block_of(table, slice(None))


def as_table(values: Any, name: str, dimensions: int = 2) -> Any:
    """`values` as a non-empty array or tensor of numbers that keeps its own type and place: nothing is copied."""
    table = plain_table(values, name)
    if table.ndim != dimensions:
        expected = "one value per sample" if dimensions == 1 else "one row per sample and one column per class"
        raise EowError(f"{name} has shape {tuple(table.shape)}: give {expected}.")
    if 0 in table.shape:
        raise EowError(f"{name} is empty: a metric needs at least one sample.")
    return table


def plain_table(values: Any, name: str) -> Any:
    """`values` as an array or tensor of numbers, of whatever shape."""
    return plain_tensor(values, name) if hasattr(values, "detach") else plain_array(values, name)


def plain_array(values: Any, name: str) -> np.ndarray:
    if np.ma.is_masked(values):
        raise EowError(f"{name} has masked values: leave those samples out.")
    try:
        table = np.asarray(values)
        if table.dtype.kind in "cmMSU" or table.dtype.names:
            raise TypeError(f"its type is {table.dtype}")
        if table.dtype.kind not in "fiub":  # lists of something odd, and number types that numpy does not know
            table = table.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise EowError(f"{name} is not an array of numbers ({error}).") from None
    return table


def plain_tensor(values: Any, name: str) -> Any:
    if values.is_sparse or values.is_meta or values.is_quantized or values.is_complex():
        raise EowError(f"{name} is a sparse, meta, quantised or complex tensor: give a dense one of real numbers.")
    table = values.detach()
    if table.is_floating_point():
        return table.float() if table.element_size() == 1 else table  # float8 can hardly do anything
    return table.cpu().numpy()


def block_of(table: Any, rows: slice) -> np.ndarray:
    """Some rows of a table in float64. They may be the table's own memory: read them, do not write."""
    part = table[rows]
    if hasattr(part, "detach"):
        part = part.cpu()
        part = (part.double() if part.is_floating_point() else part).numpy()  # numpy has no bfloat16
    return part.astype(np.float64, copy=False)


def over_rows(function: Callable[[np.ndarray, slice], Result], table: Any) -> Iterator[Result]:
    """function(block, rows) for one float64 block of the table after the other, on threads; the results in order."""
    return over_slices(lambda rows: function(block_of(table, rows), rows), table)


def over_slices(function: Callable[[slice], Result], table: Any) -> Iterator[Result]:
    """The same with the rows alone, for what can be asked of them in their own type."""
    size, width = len(table), table.shape[1] if table.ndim == 2 else 1
    step = max(64, BLOCK // width)  # a class's sums cost as much as some rows: with many classes, take 64 at a time
    parts = [slice(start, min(start + step, size)) for start in range(0, size, step)]
    if len(parts) == 1:
        yield function(parts[0])
        return
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(0, len(parts), 2 * THREADS):  # results are fetched before more are made
            yield from pool.map(function, parts[start : start + 2 * THREADS])
            let_go(table)


def row_sums(block: np.ndarray) -> np.ndarray:
    """block.sum(1), in a third of its time where the rows are short."""
    return np.einsum("nk->n", block)


def extremes(table: Any, name: str) -> tuple[float, float]:
    """The smallest and the largest value, after making sure that all are finite: nan would come out as either."""
    ends = list(over_slices(lambda rows: (float(table[rows].min()), float(table[rows].max())), table))
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    if not np.isfinite(ends).all():
        bad = sum(over_rows(lambda block, _: np.count_nonzero(~np.isfinite(block)), table))
        raise EowError(f"{name} has {bad} values that are nan or infinite: find out where the model produced them.")
    return low, high


def finite(table: Any, name: str) -> None:
    extremes(table, name)


def as_integers(values: Any, name: str) -> np.ndarray:
    table = as_table(values, name, 1)
    if not (isinstance(table, np.ndarray) and table.dtype.kind in "iu"):
        table = block_of(table, slice(None))
        finite(table, name)
        if np.any(table != np.floor(table)):
            raise EowError(f"{name} holds fractions: give class numbers.")
    if float(table.max()) >= LARGEST or float(table.min()) <= -LARGEST:
        raise EowError(f"{name} ranges from {table.min()} to {table.max()}: give class numbers.")
    return table.astype(np.int64, copy=False)


def as_confidence(values: Any) -> np.ndarray:
    array = as_array(values, "confidence", 1)
    within_unit(array, "confidence")
    return np.clip(array, 0.0, 1.0)


def as_correct(values: Any) -> np.ndarray:
    array = as_array(values, "correct", 1)
    zero_or_one(array)
    return array


def as_probs(values: Any) -> Any:
    """(N, K) probabilities in their own type, each of them within [0, 1]; the rows' sums are the metric's business."""
    table = as_table(values, "probs")
    within_unit(table, "probs")
    return table


def whole_number(value: Any, name: str, advice: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise EowError(f"{name} is {value!r}: give a whole number of at least 1 ({advice}).")


def within_unit(table: Any, name: str) -> None:
    low, high = extremes(table, name)
    if low < -SLACK or high > 1 + SLACK:
        raise EowError(
            f"{name} ranges from {low:.6g} to {high:.6g}: give values in [0, 1] (no logits, no percentages)."
        )


def zero_or_one(table: Any) -> None:
    if any(over_slices(lambda rows: bool(((table[rows] != 0) & (table[rows] != 1)).any()), table)):
        raise EowError("correct holds something other than True/False or 0/1: give label == labels.")


def sums_within_one(highest: float, table: Any, instead: str) -> None:
    """The highest sum of a row of probabilities is 1 but for rounding."""
    if more_than_rounding(highest - 1, table):
        raise EowError(f"probs has a row that sums to {highest:.6g}: give probabilities, or use {instead}.")


def more_than_rounding(off: float, table: Any) -> bool:
    """Whether a row of probabilities misses its sum by more than the rounding of the softmax and of the type the table
    was kept in.

    Rounding each entry to a type moves it by at most half the spacing, relatively, and so the whole row: by 2^-11 in
    float16, 2^-8 in bfloat16. Four times that, 0.002 and 0.016, is allowed for a softmax that was itself computed so.
    A wider type gets that slack only if all its values are also the narrower type's, as they are after a cast: others
    that sum to 1.001 are not probabilities.
    """
    return off > SUM_SLACK and off > max((2 * SPACING[name] for name in kept_in(table)), default=0.0)


def kept_in(table: Any) -> set[str]:
    """The half precisions that hold every value of the table as it is: its own, or one it was cast from."""

    def of_block(block: np.ndarray, _: slice) -> set[str]:
        single = block.astype(np.float32)
        cut = (single.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # bfloat16 is float32's upper half
        halves: dict[str, np.ndarray] = {"float16": single.astype(np.float16), "bfloat16": cut}
        return {name for name, half in halves.items() if np.array_equal(half.astype(np.float64), block)}

    return set.intersection(*over_rows(of_block, table))


def same_length(one: Any, other: Any, name: str, other_name: str) -> None:
    if len(one) != len(other):
        raise EowError(
            f"{name} has {len(one)} samples and {other_name} has {len(other)}: they must be the same samples."
        )


def labels_of(table: Any, labels: Any, name: str = "probs") -> np.ndarray:
    """`labels` as int64, each of them one of the table's columns."""
    true = as_integers(labels, "labels")
    same_length(table, true, name, "labels")
    low, high, classes = int(true.min()), int(true.max()), table.shape[1]
    if low < 0 or high >= classes:
        raise EowError(
            f"labels range from {low} to {high}, but {name} has {classes} columns: labels are 0 to {classes - 1}."
        )
    return true
