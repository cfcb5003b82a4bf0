"""How many of torch's threads a piece of work gets, and what becomes of threads where a process forks."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


def in_forked_child(function: Callable[[], None]) -> Callable[[], None]:
    """Have it called in every process that is forked from this one: of its threads only the one that forked is there,
    so nobody would ever open a lock that another one held."""
    if hasattr(os, "register_at_fork"):  # Windows has no fork
        os.register_at_fork(after_in_child=function)
    return function


LOCK = threading.Lock()
INSIDE: list[int] = []  # how many threads each of the blocks below came with


class Here(threading.local):
    inside = False  # whether this thread is in such a block


here = Here()


@in_forked_child
def nobody_waits() -> None:
    """In a forked process: whoever held the lock was left behind."""
    global LOCK
    LOCK = threading.Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside: networks of a few hundred units gain nothing from more, threads on a busy machine wait for one
    another most of the time, and the workers of a parallel search get in each other's way. A thread that asks torch for
    the first time while another is inside is told 1: it gets what the other one had. A block inside a block changes
    nothing."""
    if here.inside:
        yield
        return
    with LOCK:
        before = max([torch.get_num_threads(), *INSIDE])
        INSIDE.append(before)
        torch.set_num_threads(1)
    here.inside = True
    try:
        yield
    finally:
        here.inside = False
        with LOCK:
            torch.set_num_threads(before)
            INSIDE.remove(before)
