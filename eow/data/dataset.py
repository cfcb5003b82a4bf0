"""What a data set is to the rest of the package: arrays that were checked once, class names, and a content hash.

Everything downstream may rely on the checks made here, so nothing downstream repeats them. numpy only: a data set can
be read, split and hashed where torch is not installed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property

import numpy as np

from eow.errors import EowError
from eow.mapping import blocks, take
from eow.plain import brief, shortened

NUMBER = r"[+-]?\d+(\.\d*)?"


@dataclass(frozen=True, eq=False)
class Dataset:
    """uint8 images (N, C, H, W) or float32 features (N, D), with int64 labels 0..K-1 and K class names.

    `official` is True when the bytes read matched the official hashes, False when they differ and the caller allowed
    that, and None when the set has no official hashes. `indices` says where the samples of a part stood in the split
    they were taken from; None is all of it, in order. `columns` are the titles of features that have some.
    """

    name: str
    split: str
    inputs: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    official: bool | None = None
    indices: np.ndarray | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images = self.inputs.dtype == np.uint8 and self.inputs.ndim == 4
        features = self.inputs.dtype == np.float32 and self.inputs.ndim == 2
        if not (images or features):
            raise EowError(
                f"{self.name}: inputs must be uint8 (N, C, H, W) images or float32 (N, D) features, "
                f"not {self.inputs.dtype} of shape {self.inputs.shape}"
            )
        if self.labels.dtype != np.int64 or self.labels.ndim != 1:
            raise EowError(
                f"{self.name}: labels must be int64 of shape (N,), not {self.labels.dtype} of {self.labels.shape}"
            )
        if len(self.inputs) != len(self.labels):
            raise EowError(f"{self.name}: {len(self.inputs)} inputs but {len(self.labels)} labels")
        if self.inputs.size == 0:
            lacks = "samples" if not len(self.inputs) else "numbers in its samples"
            raise EowError(f"{self.name}: the {self.split} split has no {lacks} (inputs of shape {self.inputs.shape})")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.classes)))
        if len(wrong):
            raise EowError(
                f"{self.name}: label {self.labels[wrong[0]]} at index {wrong[0]} is outside 0..{len(self.classes) - 1} "
                f"({len(self.classes)} classes)"
            )
        if features and not np.isfinite(self.inputs).all():
            row, column = np.argwhere(~np.isfinite(self.inputs))[0]
            raise EowError(
                f"{self.name}: the feature in row {row}, column {column} (counted from 0) is "
                f"{self.inputs[row, column]}, not a finite float32: clean or fill it first"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W) or (D,)."""
        return self.inputs.shape[1:]

    @cached_property
    def hash(self) -> str:
        """sha256 over shape, dtype, input bytes, label bytes and class names; the name and the split do not enter."""
        digest = hashlib.sha256(f"{self.inputs.shape} {self.inputs.dtype.str}\n".encode())
        for block in blocks(self.inputs):
            digest.update(np.ascontiguousarray(block).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        # A length before each name, so that ("ab", "c") and ("a", "bc") differ.
        for name in self.classes:
            digest.update(f"{len(name)}:{name}".encode(errors="surrogateescape"))  # a folder's may be no UTF-8
        return digest.hexdigest()

    @property
    def index_hash(self) -> str:
        """sha256 of the samples' places in the split, so that a manifest can show who saw which."""
        places = np.arange(len(self)) if self.indices is None else self.indices
        return hashlib.sha256(places.astype("<i8").data).hexdigest()

    def subset(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """The samples at these indices, in this order, with the same classes."""
        chosen = np.asarray(indices, dtype=np.int64)
        places = chosen if self.indices is None else self.indices[chosen]
        return replace(self, inputs=take(self.inputs, chosen), labels=self.labels[chosen], indices=places)


def random_state(seed: int) -> np.random.RandomState:
    """numpy's frozen generator: RandomState is the one whose stream numpy promises never to change, so splits last."""
    if seed < 0:
        raise EowError(f"a seed must be 0 or larger, not {seed}")
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))


def stratified_split(labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices (rest, held_out): `count` samples held out, each class in proportion as far as whole samples go.

    Each class gives floor(n_c · count / N), the remainder goes to the largest fractions; a class keeps at least one
    sample in the rest as long as another class can give one instead.
    """
    sizes = np.bincount(labels)
    quota = sizes * count / len(labels)
    taken = np.minimum(quota.astype(np.int64), np.maximum(sizes - 1, 0))
    for limit in (np.maximum(sizes - 1, 0), sizes):
        while (missing := count - int(taken.sum())) > 0 and (taken < limit).any():
            room = np.flatnonzero(taken < limit)
            order = room[np.argsort(-(quota - taken)[room], kind="stable")]
            taken[order[:missing]] += 1
    random = random_state(seed)
    held = [random.permutation(np.flatnonzero(labels == label))[: taken[label]] for label in range(len(sizes))]
    held_out = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def split_80_20(name: str, labels: np.ndarray, split: str) -> np.ndarray:
    """The indices of one side of the fixed cut that sets without a test split of their own get."""
    count = round(0.2 * len(labels))
    if count == 0:
        raise EowError(f"{name}: {len(labels)} sample(s) are too few to be cut into train and test: give at least 3")
    train, test = stratified_split(labels, count, seed=0)
    return train if split == "train" else test


def few(count: int) -> int:
    """How many of `count` training samples to hold out where a number or two are to be fitted: four times the root, at
    most a tenth (CIFAR-100: 894 of 50,000).

    What is fitted on h samples errs by about 1/√h, and what training loses without them grows with h: on CIFAR-100 a
    twentieth cost vanilla .7 points of accuracy (records/2026-11-15_cifar100).
    """
    return max(1, min(round(4 * count**0.5), count // 10))


def holdout_split(dataset: Dataset, amount: int | float | str, seed: int) -> tuple[Dataset, Dataset]:
    """(rest, held_out): `amount` samples (an int), a fraction of them (a float below 1) or "auto": `few`; stratified by
    class."""
    amount = few(len(dataset)) if amount == "auto" else amount
    if isinstance(amount, bool) or not isinstance(amount, int | float | np.integer | np.floating):
        raise EowError(
            f"the held-out amount must be a number of samples or a fraction below 1, not {type(amount).__name__}"
        )
    total = len(dataset)
    if isinstance(amount, float | np.floating):
        if not 0 < amount < 1:
            raise EowError(
                f"a held-out fraction must lie between 0 and 1, not {amount}: for a number of samples give an int"
            )
        count = round(float(amount) * total)
    else:
        count = int(amount)
    if not 0 < count < total:
        raise EowError(
            f"{dataset.name}: cannot hold out {count} of {total} samples: at least one must stay on each side"
        )
    rest, held_out = stratified_split(dataset.labels, count, seed)
    return dataset.subset(rest), dataset.subset(held_out)


def known_unknown(dataset: Dataset, unknown_classes: Sequence[int | str]) -> tuple[Dataset, Dataset]:
    """Hold classes out, by name or by number: (known, unknown), each relabelled from 0 in the old order, each with its
    own class names."""
    known, unknown = parted(dataset, unknown_classes)
    return _relabelled(dataset, known), _relabelled(dataset, unknown)


def known_part(dataset: Dataset, unknown_classes: Sequence[int | str]) -> Dataset:
    """What `known_unknown` gives first, also where there is no sample of the unknown classes to hold out."""
    return _relabelled(dataset, parted(dataset, unknown_classes)[0])


def parted(dataset: Dataset, unknown_classes: Sequence[int | str]) -> tuple[list[int], list[int]]:
    """The classes that stay known and those that do not, as numbers."""
    unknown = [class_number(dataset, label) for label in unknown_classes]
    total = len(dataset.classes)
    if not unknown:
        raise EowError("no unknown classes were named: give at least one class")
    for label in unknown:
        if not 0 <= label < total:
            raise EowError(f"{dataset.name}: unknown class {label} is outside 0..{total - 1}")
    if len(set(unknown)) < len(unknown):
        raise EowError(f"{dataset.name}: the unknown classes {unknown} name a class twice")
    if total - len(unknown) < 2:
        raise EowError(
            f"{dataset.name}: {len(unknown)} unknown of {total} classes leaves fewer than 2 known ones: hold out fewer"
        )
    return [label for label in range(total) if label not in unknown], sorted(unknown)


def class_number(dataset: Dataset, label: int | str) -> int:
    """A class by its name. A number is a name where names are numbers, as a table's 1, 2, 3 or 1.0, 2.0, 3.0; else it
    counts from 0."""
    if str(label) in dataset.classes:
        return dataset.classes.index(str(label))
    numbers = {place: float(name) for place, name in enumerate(dataset.classes) if re.fullmatch(NUMBER, name)}
    if not isinstance(label, str):
        if not numbers:
            return int(label)
        if len(same := [place for place, number in numbers.items() if number == label]) == 1:
            return same[0]
    near = get_close_matches(str(label), dataset.classes, 1)
    hint = f"did you mean {brief(near[0])!r}?" if near else f"its first are {shortened(dataset.classes, 5)}"
    raise EowError(f"{dataset.name} has no class {brief(str(label))!r}: {hint}")


def _relabelled(dataset: Dataset, kept: list[int]) -> Dataset:
    places = np.flatnonzero(np.isin(dataset.labels, kept))
    if not len(places):
        names = shortened([dataset.classes[label] for label in kept])
        raise EowError(f"{dataset.name}: the {dataset.split} split has no sample of {names}: hold out other classes")
    part = dataset.subset(places)
    labels = np.searchsorted(kept, part.labels).astype(np.int64)
    return replace(part, labels=labels, classes=tuple(dataset.classes[label] for label in kept))
