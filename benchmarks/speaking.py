"""How the scripts of this folder speak to whoever runs them: what can be put right is one sentence and exit code 2."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eow.errors import EowError


@contextmanager
def in_one_line() -> Iterator[None]:
    """As the command line does it (eow/cli): one line on stderr, and no traceback."""
    try:
        yield
    except EowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: reading or writing failed: {error}", file=sys.stderr)
        # What is still to be printed must go somewhere, or Python complains of it after the sentence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


# Types of options, for argparse


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
