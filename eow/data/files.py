"""What lies where, for the readers: a place that may not be looked at is an error, never an empty one.

pathlib's own questions answer "no" or nothing at all there, which would make an unreadable class of images a missing
one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eow.errors import EowError

PACKED = 100  # images and features shrink to a fifth; what shrinks to less than a hundredth holds nothing
ALWAYS_UNPACKED = 256 << 20  # bytes that any file may unpack to


def most_unpacked(size: int) -> int:
    """How many bytes a compressed file of this size may unpack to: more is a bomb, and not read to its end."""
    return max(PACKED * size, ALWAYS_UNPACKED)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the system refuses inside becomes a sentence that names the place."""
    try:
        yield
    except OSError as error:
        raise EowError(
            f"{error.filename or path} cannot be read ({error.strerror or error}): change its permissions or name "
            "another place"
        ) from error


def reason(error: Exception) -> str:
    """Why numpy could not read a file, without its advice to unpickle it: that would run whatever is in there."""
    text = str(error) or type(error).__name__
    return "it holds Python objects, or is not a numpy file" if "pickle" in text else text


def _mode(path: Path) -> int:
    with readable(path):
        try:
            return path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0


def at_home(path: str | Path) -> Path:
    """The path with ~ as the user's folder; as it is where that names nobody, for whoever then says it is not there."""
    return Path(os.path.expanduser(path))


def is_file(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def entries(folder: Path) -> list[Path]:
    """What lies in the folder itself, sorted; hidden entries do not count."""
    with readable(folder):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def files_below(folder: Path) -> list[Path]:
    """All files at any depth, sorted; hidden files and folders do not count. A link may lead to a file: one to a folder
    could lead in a circle, and one to nothing is a file that is missing."""
    found = []
    for path in entries(folder):
        if is_file(path):
            found.append(path)
        elif path.is_symlink():
            what = "a folder, which could lead in a circle" if is_folder(path) else "no file"
            raise EowError(f"{path} is a link to {what}: put what it stands for in its place, or remove it")
        elif is_folder(path):
            found += files_below(path)
    return sorted(found)
