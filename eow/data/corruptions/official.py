"""The files of CIFAR-10-C and CIFAR-100-C as their authors released them, for figures to set beside those of others.

A folder holds one NAME.npy a corruption, five severities of the 10,000 test images one after the other, and labels.npy.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eow.data.corruptions import check_name
from eow.data.files import at_home, reason
from eow.errors import EowError

COUNT = 10_000
WHERE = (
    "CIFAR-10-C is record 2535967 of zenodo.org and CIFAR-100-C record 3555552: unpack one of them and name its folder"
)


def read_official(folder: str | Path, name: str, severity: int) -> tuple[np.ndarray, np.ndarray]:
    """(images (10000, 3, 32, 32) uint8, labels (10000,) int64), in the order of the test set."""
    check_name(name, severity)
    folder = at_home(folder)
    rows = slice(COUNT * (severity - 1), COUNT * severity)
    images = _opened(folder / f"{name}.npy", (5 * COUNT, 32, 32, 3))[rows]
    labels = _opened(folder / "labels.npy", (5 * COUNT,))[rows]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels.astype(np.int64)


def _opened(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The array in the file, not read yet: only the severity that is asked for will be."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise EowError(f"there is no file {path}: {WHERE}") from None
    except (OSError, ValueError, EOFError) as error:
        raise EowError(f"{path} cannot be read as a .npy file ({reason(error)}): {WHERE}") from None
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype.kind not in "iu":
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        raise EowError(f"{path} holds {found} instead of bytes of shape {shape}: {WHERE}")
    if len(shape) == 4 and array.dtype != np.uint8:
        raise EowError(f"{path} holds {array.dtype} instead of bytes: {WHERE}")
    return array
