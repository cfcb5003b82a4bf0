"""Where the random generators stand that a forward may draw from: torch's, numpy's, Python's and a model's own. Two
looks that differ mean that it has drawn.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def state_and_setter(generator: Any) -> tuple[Any, Any]:
    """Where a generator stands, and the function that sets it back there."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state, lambda state: setattr(generator.bit_generator, "state", state)
    if isinstance(generator, random.Random):
        return generator.getstate(), generator.setstate
    return generator.get_state(), generator.set_state


def content(value: Any) -> list[Any]:
    """What can be compared of tensors and arrays, and of what holds them: types, shapes and bytes."""
    return [bytes_of(each) if isinstance(each, Tensor | np.ndarray) else each for each in pytree.tree_leaves(value)]


def bytes_of(numbers: Tensor | np.ndarray) -> tuple[Any, ...]:
    array = numbers
    if isinstance(array, Tensor):
        dense = array.detach() if array.layout == torch.strided else array.detach().to_dense()
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        array = (real.double() if real.is_floating_point() else real).cpu().numpy()
    return numbers.dtype, tuple(numbers.shape), array.tobytes()


def own_generators(model: nn.Module) -> list[Any]:
    """The generators that modules keep among their attributes, but for the system's, which has no state."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    found = [each for module in model.modules() for each in vars(module).values() if isinstance(each, kinds)]
    return [each for each in found if not isinstance(each, random.SystemRandom)]


def generators(others: Iterable[Any]) -> tuple[Any, ...]:
    """Where the generators stand that a forward may draw from: torch's, numpy's, Python's and others."""
    _, key, *rest = np.random.get_state()
    own = [content(state_and_setter(each)[0]) for each in others]
    return torch.get_rng_state().numpy().tobytes(), np.asarray(key).tobytes(), *rest, random.getstate(), *own


@contextmanager
def forked(model: nn.Module) -> Iterator[None]:
    """Every generator that a forward may draw from stands afterwards where it stood before."""
    numpys, pythons = np.random.get_state(), random.getstate()
    own = [state_and_setter(each) for each in own_generators(model)]
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)
        for state, back in own:
            back(state)
