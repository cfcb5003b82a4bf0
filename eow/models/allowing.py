"""What torch.fx does not read by itself and a graph can keep all the same: decisions of which one side raises, einops'
functions, and sizes of new tensors, torch.zeros(n, 8), of which the first is not known yet.
"""

import dis
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch

from eow.models.keeping import Value

EINOPS = ("rearrange", "reduce", "repeat", "einsum", "pack", "unpack")
SIZED = ("zeros", "ones", "empty", "rand", "randn")


def einops_functions() -> list[Callable[..., Any]]:
    """Each becomes one step of the graph; without them it would look for the stand-in's library and find none."""
    einops = sys.modules.get("einops")
    return [getattr(einops, name) for name in EINOPS if hasattr(einops, name)]


def guarded(frame: FrameType | None) -> bool | None:
    """Which answer a forward goes on with, if it raises on the other: `assert a and not b` wants True of a and False of
    b, `if c: raise ValueError(c)` False of c. None, if it goes on with either."""
    if frame is None:
        return None
    found = [each for each in dis.get_instructions(frame.f_code) if each.opname != "NOT_TAKEN"]
    place = {each.offset: index for index, each in enumerate(found)}
    asking = place[frame.f_lasti]
    asking += found[asking].opname == "TO_BOOL"
    jump = found[asking]
    if not jump.opname.startswith("POP_JUMP") or not jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        return None
    when = jump.opname.endswith("IF_TRUE")
    if raises(found[asking + 1 :]):
        return when
    return not when if raises(found[place[jump.argval] :]) else None


def raises(code: Sequence[dis.Instruction]) -> bool:
    """Whether it ends in a raise, whatever happens."""
    for each in code:
        if each.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in each.opname or each.opname.startswith(("RETURN", "YIELD", "FOR_", "SEND", "RERAISE")):
            return False
    return False


@contextmanager
def sized() -> Iterator[None]:
    """torch.zeros takes a stand-in for a number in a tuple or after a number, but not as the first of its arguments."""
    reading, usual = threading.get_ident(), {name: getattr(torch, name) for name in SIZED}

    def made(name: str, *size: Any, **options: Any) -> Any:
        if len(size) > 1 and isinstance(size[0], Value) and threading.get_ident() == reading:
            size = (size,)
        return usual[name](*size, **options)

    for name in SIZED:
        setattr(torch, name, partial(made, name))
    try:
        yield
    finally:
        for name in SIZED:
            setattr(torch, name, usual[name])
