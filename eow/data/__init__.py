"""Data sets by name: `load("cifar10", split="test")`.

    what there is        catalog.py (names, files, hashes), fetch.py (brings them), dataset.py (what comes back)
    how it is read       readers.py and matlab.py (the named sets), folders.py (images), tables.py and csv_files.py
                         (arrays and tables), inputs.py (what a user wants predictions for); files.py lies under all
    what becomes of it   sets.py (all the data of a run), loader.py (batches), corruptions/

Nothing heavy is imported before it is needed: no torch, scikit-learn, scipy, Pillow or pooch at import time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from eow.data.catalog import CATALOG, Entry, data_root, entry_of, statistics
from eow.data.corruptions import CORRUPTIONS, corrupt
from eow.data.csv_files import read_csv
from eow.data.dataset import Dataset, few, holdout_split, known_unknown, random_state
from eow.data.folders import read_folder, read_tiny_imagenet
from eow.data.readers import read_cifar, read_digits, read_idx, read_svhn
from eow.data.tables import read_npz
from eow.errors import EowError
from eow.mapping import file_of, in_file, let_go, pieces

__all__ = [
    "CATALOG", "CORRUPTIONS", "Dataset", "Entry", "corrupt", "data_root", "few", "holdout_split", "known_unknown",
    "load", "statistics",
]  # fmt: skip

READERS = {
    "digits": read_digits,
    "mnist": read_idx,
    "fashion_mnist": read_idx,
    "notmnist": read_idx,
    "cifar10": read_cifar,
    "cifar100": read_cifar,
    "svhn": read_svhn,
    "tiny_imagenet": read_tiny_imagenet,
}
NOISE_SAMPLES = 2000
LARGEST_NOISE = 1 << 33  # bytes: 2000 images of 3x1024x1024


def load(
    name: str,
    root: str | Path | None = None,
    split: str = "train",
    *,
    allow_unofficial: bool = False,
    shape: tuple[int, ...] | None = None,
    resident: bool = True,
    columns: Sequence[str] = (),
) -> Dataset:
    """The named set: one of the catalog, folder:PATH, npz:PATH, csv:PATH, noise[:CxHxW] or permuted:NAME.

    Files are looked for below `root`, else $EOW_DATA, else the user's cache folder. Files that differ from the official
    ones are an error unless `allow_unofficial`. The split "all" is the test split, or everything where a folder or file
    has none of its own. `shape` (C, H, W) is read by `noise` alone, and `resident` by folders:
    without it their images are decoded into a file and not into memory. Of "all" of a file the labels may be missing:
    an npz has x alone then, a csv the titles `columns` and no others. A permuted set is a copy, and lies where the
    set lies that it was made of.
    """
    if split not in ("train", "test", "all"):
        raise EowError(f"there is no split {split!r}: use train, test or all")
    refuse_twice_permuted(name)
    kind, _, rest = name.partition(":")
    half = "train" if split == "train" else "test"  # of what has a test split of its own
    if kind == "noise":
        return _noise(name, half, shape)
    if kind == "permuted" and rest:
        plain = load(rest, root, split, allow_unofficial=allow_unofficial, shape=shape, resident=resident)
        return _permuted(name, plain)
    if kind == "folder" and rest:
        return read_folder(name, split, resident)
    if kind == "npz" and rest:
        return read_npz(name, split)
    if kind == "csv" and rest:
        return read_csv(name, split, columns)
    entry = entry_of(name)
    if half == "train" and entry.test and not entry.train:
        raise EowError(f"{name} has a test split only: ask for split='test'")
    # A set that is built in has no files, so it needs no folder to look for them.
    return READERS[name](name, data_root(root) if entry.test else Path(), half, entry, allow_unofficial)


def refuse_twice_permuted(name: str) -> None:
    """Refuse `permuted:` before `permuted:`. All else that may be wrong with a name, `load` says."""
    if name.startswith("permuted:permuted:"):
        raise EowError(f"{name[:40]}... is permuted more than once, which changes nothing: name permuted: once")


def _noise(name: str, split: str, shape: tuple[int, ...] | None) -> Dataset:
    """Uniform noise of one class; train and test are different draws, each always the same."""
    spelled = re.fullmatch(r"noise:(\d{1,9})x(\d{1,9})x(\d{1,9})", name)
    if spelled:
        shape = tuple(int(number) for number in spelled.groups())
    elif name != "noise":
        raise EowError(f"{name!r:.60} is not a noise set: spell it noise:CxHxW, for example noise:3x32x32")
    if shape is not None and len(shape) == 1:
        raise EowError(
            "noise is made for images, and the data has rows of numbers: name other outliers, such as csv:PATH"
        )
    if shape is None or len(shape) != 3 or min(shape) < 1:
        raise EowError("noise needs the shape of an image: spell it noise:CxHxW, for example noise:3x32x32")
    if NOISE_SAMPLES * math.prod(shape) > LARGEST_NOISE:
        spelt = "x".join(map(str, shape))
        raise EowError(f"noise of {spelt} is more than any network takes: {LARGEST_NOISE:,} bytes in all are the most")
    random = random_state(0 if split == "train" else 1)
    inputs = random.randint(0, 256, (NOISE_SAMPLES, *shape), dtype=np.uint8)
    return Dataset(name, split, inputs, np.zeros(NOISE_SAMPLES, np.int64), ("noise",))


def _permuted(name: str, dataset: Dataset) -> Dataset:
    """Each image's pixels in an order of their own, the same in all channels: colours stay, shapes go."""
    if dataset.inputs.ndim != 4:
        raise EowError(f"{name}: only images can be permuted, and {dataset.name} has features")
    random = random_state(0)
    pixels = dataset.inputs.reshape(len(dataset), dataset.shape[0], -1)
    shuffled = np.empty_like(pixels) if file_of(pixels) is None else in_file(pixels.shape, pixels.dtype)
    for rows in pieces(shuffled):
        block = pixels[rows]
        order = random.random_sample((len(block), block.shape[2])).argsort(axis=1, kind="stable")
        shuffled[rows] = np.take_along_axis(block, order[:, None], axis=2)
        let_go(pixels)
    return replace(dataset, name=name, inputs=shuffled.reshape(dataset.inputs.shape))
