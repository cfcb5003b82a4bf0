"""Types of options that the scripts of this folder have in common, for argparse."""

import argparse
from pathlib import Path


def whole(text: str, least: int = 1) -> int:
    """A whole number of at least that."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}: give one")
    return number


def several(text: str, least: int = 1) -> list[int]:
    """Whole numbers, separated by commas."""
    return [whole(each, least) for each in text.split(",")]


def writable(text: str) -> Path:
    """A file that can be written: found out now, and not when there is something to write."""
    path = Path(text)
    there = path.exists()
    try:
        open(path, "ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: {error.strerror or error}; choose another place"
        ) from None
    return path
