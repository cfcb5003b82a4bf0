"""Arrays that lie in a file and are fetched as they are looked at, for what is larger than memory.

The system counts what it has fetched as a process's memory until it needs the room; `let_go` gives it back at once, so
that memory grows with the piece that is worked on. Every function takes arrays of the usual kind too and does to them
what one would expect: who works on an array need not know where it lies.
"""

import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from eow.errors import EowError

PIECE = 3 << 20  # bytes worked on at a time: 1024 images of 32x32, fewer of larger ones


def in_file(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros in a file without a name, which is gone with the array. It lies in TMPDIR, else in the system's
    folder for temporary files, where it takes up its room now: a full disk is said here and not met later."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return np.asarray(np.memmap(file, dtype, "r+", shape=shape))
    except OSError as error:
        raise EowError(
            f"{size:,} bytes do not fit into {tempfile.gettempdir()} ({error.strerror or error}): set TMPDIR to a "
            "folder on a larger disk"
        ) from None


def file_of(array: Any) -> mmap.mmap | None:
    """The mapping that the array is a view of, if it is one."""
    while isinstance(array, np.ndarray):
        if getattr(array, "mode", "") == "c":  # what somebody wrote to it lies in memory alone
            return None
        array = array.base
    return array if isinstance(array, mmap.mmap) else None


def let_go(array: Any) -> None:
    """What was fetched of the array counts as memory no longer, and is fetched again where it is looked at again."""
    if (mapping := file_of(array)) is not None:
        mapping.madvise(mmap.MADV_DONTNEED)


def pieces(array: np.ndarray) -> Iterator[slice]:
    """The rows of the array, so many at a time; what was fetched of it is let go in between."""
    rows = min(1024, max(1, PIECE // max(1, array[:1].nbytes)))
    for first in range(0, len(array), rows):
        yield slice(first, min(first + rows, len(array)))
        let_go(array)


def blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The array in pieces, one after the other."""
    for rows in pieces(array):
        yield array[rows]


def take(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """array[indices]; of an array in a file, in a file of its own."""
    if file_of(array) is None:
        return array[indices]
    taken = in_file((len(indices), *array.shape[1:]), array.dtype)
    for rows in pieces(taken):
        taken[rows] = array[indices[rows]]
        let_go(array)
    return taken
