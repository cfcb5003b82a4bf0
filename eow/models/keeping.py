"""What a graph does not keep of a forward: gradients switched off, a Function's own backward, autocast, random numbers
drawn in Python. While a network is read (tracing.py) it is raised as `Lost`, so that the module is closed, or told.
"""

import inspect
import operator
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.checkpoint import CheckpointFunction

CHANGES = "changes a tensor in place inside torch.no_grad(), and a graph does not keep that"
APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
AUGMENTED = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
IN_PLACE = {operator.setitem, *(getattr(operator, f"i{name}") for name in AUGMENTED)}
VIEWS = {  # by name, as methods and as functions
    "T", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "float", "getattr", "getitem",
    "imag", "mT", "movedim", "narrow", "permute", "ravel", "real", "reshape", "reshape_as", "select", "split",
    "squeeze", "swapaxes", "t", "to", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
}  # fmt: skip


class Lost(Exception):
    """A forward does something that a graph does not keep: what it does, as the rest of a sentence."""


class Value(fx.Proxy):
    """torch.fx's stand-in for a tensor, which takes `a += b` for `a = a + b`: inside torch.no_grad() that is not the
    same."""


def augmented(name: str) -> Any:
    def change(self: Value, other: Any) -> Any:
        if not torch.is_grad_enabled() and outside(self.node):
            raise Lost(CHANGES)
        return getattr(operator, name)(self, other)

    return change


for each in AUGMENTED:
    setattr(Value, f"__i{each}__", augmented(f"__{each}__"))


def refuse_functions() -> None:
    """A torch.autograd.Function runs its forward without gradients, and of that the graph would be made."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not APPLY:
        frame = frame.f_back
    if frame is not None:
        name = frame.f_locals["cls"].__name__
        raise Lost(f"calls {name}, a torch.autograd.Function, and a graph does not keep its backward")


def refuse_in_place(kind: str, target: Any, args: Any, kwargs: dict[str, Any], root: Any) -> None:
    """Without gradients a tensor may be changed behind autograd's back; with them that is another computation."""
    if kind == "call_module":
        changes = bool(getattr(root.get_submodule(target), "inplace", False))
    else:
        name = name_of(target)
        changes = target in IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    changed = [*args[:1], kwargs.get("input")] if changes or kwargs.get("inplace") else [kwargs.get("out")]
    if any(isinstance(each, fx.Node) and outside(each) for each in changed):
        raise Lost(CHANGES)


def outside(node: fx.Node) -> bool:
    """Whether a tensor was made outside torch.no_grad(), or shares the memory of one that was: what may be a view is
    taken for one."""
    if not node.meta["no_grad"]:
        return True
    return name_of(node.target) in VIEWS and any(outside(each) for each in node.all_input_nodes)


def name_of(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", "")


@contextmanager
def plain_checkpoints() -> Iterator[None]:
    """Checkpoints of torch's older kind, a Function too, as calls: what is computed again has the same gradient."""
    CheckpointFunction.apply = lambda function, preserve_rng_state, *args: function(*args)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del CheckpointFunction.apply  # Function has it


@contextmanager
def no_autocast() -> Iterator[None]:
    """Whatever it switches on or off, a graph does not keep it."""

    def enter(self: Any) -> None:
        raise Lost("enters torch.autocast, which a graph does not keep")

    usual = torch.autocast.__enter__
    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = usual  # type: ignore[method-assign]


def generators() -> tuple[Any, ...]:
    """Where the generators stand that a forward may draw from: torch's, numpy's and Python's."""
    _, key, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), np.asarray(key).tobytes(), *rest, random.getstate()


@contextmanager
def forked() -> Iterator[None]:
    """All of them afterwards where they were before."""
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)
