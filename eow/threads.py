"""How many of torch's threads a piece of work gets, and what becomes of threads where a process forks."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def in_forked_child(function: Callable[[], None]) -> Callable[[], None]:
    """Have it called in every process that is forked from this one: of its threads only the one that forked is there,
    so nobody would ever open a lock that another one held."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=function)
    return function


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
