"""Kernels in Triton for what a chain would else launch hundreds of small operations for. Only on a GPU that has
Triton, the first two for bfloat16 tails; everything else takes torch's own operations.

    shift_activate     x <- activation(x + bias [+ other]), channels last, in place
    langevin_step      z <- z - step/2 · gradient + noise · ε, and z cast for the tail; ε from Triton's counter-based
                       generator, its seed drawn from the chain's own stream
    logit_steps        a whole chain before a linear tail, in the space of its logits: one launch for all steps
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
    CHAINS = 16  # of one program: the least that tl.dot takes

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

    @triton.jit
    def _logit_steps(  # type: ignore[no-untyped-def]
        f, gram, pushes, pull, half, steps, count, width, CHAINS: tl.constexpr, WIDTH: tl.constexpr
    ):
        row, column = tl.program_id(0) * CHAINS + tl.arange(0, CHAINS), tl.arange(0, WIDTH)
        inside = (row < count)[:, None] & (column < width)[None, :]
        place = row[:, None] * width + column[None, :]
        square = (column < width)[:, None] & (column < width)[None, :]
        matrix = tl.load(gram + column[:, None] * width + column[None, :], square, 0.0)
        logits = tl.load(f + place, inside, -float("inf"))
        total = tl.zeros((CHAINS, WIDTH), tl.float32)
        for number in range(steps):
            top = tl.max(logits, 1)
            raised = tl.where(inside, tl.exp(logits - top[:, None]), 0.0)
            h = raised / tl.maximum(tl.sum(raised, 1), 1e-30)[:, None]  # rows beyond the last chain hold nothing
            total += h
            logits += tl.load(pushes + number * count * width + place, inside, 0.0)
            logits += half * tl.dot(h, matrix, input_precision="ieee")
        tl.store(f + place, logits, inside)
        tl.store(pull + place, total, inside)


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels can walk these tensors as flat memory: on a GPU, dense, and all laid out alike."""
    first = tensors[0]
    dense = first.is_contiguous() or (first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last))
    return AVAILABLE and first.is_cuda and dense and all(each.stride() == first.stride() for each in tensors)


def shift_activate(x: Tensor, bias: Tensor, slope: float | None, other: Tensor | None = None) -> Tensor:
    """In place: activation(x + bias + other) with the channels of x last in memory; None for no activation."""
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


def fits_logits(f: Tensor) -> bool:
    """Whether `logit_steps` can hold the Gram matrix of so many logits."""
    return AVAILABLE and f.is_cuda and f.dtype == torch.float32 and f.shape[1] <= 128


def logit_steps(f: Tensor, gram: Tensor, pushes: Tensor, half: float) -> Tensor:
    """In place: f <- f + pushes[i] + half · softmax(f) gram for every i. Returns the sum of all those softmaxes."""
    pull, width = torch.empty_like(f), max(16, triton.next_power_of_2(f.shape[1]))
    grid: Any = (triton.cdiv(len(f), CHAINS),)
    _logit_steps[grid](f, gram, pushes.contiguous(), pull, half, len(pushes), len(f), f.shape[1], CHAINS, width)
    return pull
