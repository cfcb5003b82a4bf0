"""How many of torch's threads a piece of work gets."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside: networks of a few hundred units gain nothing from more, threads on a busy machine wait for one
    another most of the time, and the workers of a parallel search get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
