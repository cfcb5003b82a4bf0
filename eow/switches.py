"""What a caller may have switched in torch before it calls: gradients, and the type of new tensors."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eow.errors import EowError


def needs_gradients(function: str) -> None:
    """An error where torch keeps none, so that nothing could be trained."""
    if not torch.is_grad_enabled():
        raise EowError(
            f"gradients are switched off here, by torch.no_grad or inference_mode: call {function} outside it"
        )


LOCK = threading.Lock()
INSIDE: list[torch.dtype] = []  # the caller's default, once for everyone who is inside: it is one for all threads


@contextmanager
def float32_default() -> Iterator[None]:
    """New tensors are float32 inside, whatever torch.set_default_dtype has said: runs are of that type. The last to
    leave brings the caller's back."""
    with LOCK:
        INSIDE.append(INSIDE[0] if INSIDE else torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with LOCK:
            before = INSIDE.pop()
            if not INSIDE:
                torch.set_default_dtype(before)
