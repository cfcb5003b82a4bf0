"""Two pointwise kernels in Triton for what a chain does between its matrix products, where one pass over the memory
replaces two to four. Only for bfloat16 tails on a GPU that has Triton; everything else takes torch's own operations.

    shift_activate     x <- activation(x + bias [+ other]), channels last, in place
    langevin_step      z <- z - step/2 · gradient + noise · ε, and z cast for the tail; ε from Triton's counter-based
                       generator, its seed drawn from the chain's own stream
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

AVAILABLE = find_spec("triton") is not None and torch.cuda.is_available()

if AVAILABLE:
    import triton
    import triton.language as tl

    BLOCK = 1024

    @triton.jit
    def _shift_activate(x, bias, other, slope, size, channels, HAS_OTHER: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < size
        value = tl.load(x + index, inside, 0.0).to(tl.float32)
        value += tl.load(bias + index % channels, inside, 0.0).to(tl.float32)
        if HAS_OTHER:
            value += tl.load(other + index, inside, 0.0).to(tl.float32)
        value = tl.where(value > 0, value, value * slope)
        tl.store(x + index, value.to(x.dtype.element_ty), inside)

    @triton.jit
    def _langevin_step(z, low, gradient, seed, offset, half_step, noise, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < size
        value = tl.load(z + index, inside, 0.0) - half_step * tl.load(gradient + index, inside, 0.0).to(tl.float32)
        value += noise * tl.randn(tl.load(seed), offset + index)
        tl.store(z + index, value, inside)
        tl.store(low + index, value.to(low.dtype.element_ty), inside)


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels can walk these tensors as flat memory: on a GPU, dense, and all laid out alike."""
    first = tensors[0]
    dense = first.is_contiguous() or (first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last))
    return AVAILABLE and first.is_cuda and dense and all(each.stride() == first.stride() for each in tensors)


def shift_activate(x: Tensor, bias: Tensor, slope: float | None, other: Tensor | None = None) -> Tensor:
    """In place: activation(x + bias + other) with the channels of x last in memory; None is no activation."""
    grid: Any = (triton.cdiv(x.numel(), BLOCK),)
    slope = 1.0 if slope is None else slope
    _shift_activate[grid](
        x, bias, x if other is None else other, slope, x.numel(), x.shape[1], other is not None, BLOCK
    )
    return x


def langevin_step(
    z: Tensor, low: Tensor, gradient: Tensor, seed: Tensor, number: int, step: float, noise: float
) -> None:
    """In place: step `number` of a chain whose state is z (float32), with `low` its copy for the tail."""
    grid: Any = (triton.cdiv(z.numel(), BLOCK),)
    _langevin_step[grid](z, low, gradient, seed, number * z.numel(), 0.5 * step, noise, z.numel(), BLOCK)
