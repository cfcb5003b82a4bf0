"""What a caller may have switched in torch before it calls: gradients, and the type of new tensors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eow.errors import EowError
from eow.threads import in_forked_child


def needs_gradients(function: str) -> None:
    """An error where torch keeps none, so that nothing could be trained."""
    if not torch.is_grad_enabled():
        raise EowError(
            f"gradients are switched off here, by torch.no_grad or inference_mode: call {function} outside it"
        )


LOCK = threading.Lock()
# Who is inside, and the caller's default, once for everyone: it is one for all threads.
INSIDE: list[tuple[int, torch.dtype]] = []


@contextmanager
def float32_default() -> Iterator[None]:
    """New tensors are float32 inside, whatever torch.set_default_dtype has said: runs are of that type. The last to
    leave brings the caller's back."""
    with LOCK:
        entry = threading.get_ident(), INSIDE[0][1] if INSIDE else torch.get_default_dtype()
        INSIDE.append(entry)
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with LOCK:
            INSIDE.remove(entry)
            if not INSIDE:
                torch.set_default_dtype(entry[1])


@in_forked_child
def alone_after_fork() -> None:
    """A forked process has the thread that forked and no other: nobody would ever open a lock that another one held,
    nor leave what it was inside of."""
    global LOCK
    LOCK = threading.Lock()
    gone = [entry for entry in INSIDE if entry[0] != threading.get_ident()]
    for entry in gone:
        INSIDE.remove(entry)
    if gone and not INSIDE:
        torch.set_default_dtype(gone[0][1])
