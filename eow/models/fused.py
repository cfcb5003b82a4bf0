"""Batch norm, residual and activation of a training step in Triton: two passes over the memory forwards and two back,
where torch's own kernels take three to five each way. They are 60 % of a ResNet-50's step on 32x32 images.

    y = activation(γ (x - mean) · rstd + β [+ residual])        mean and rstd of the batch, per channel

layers.BatchNorm is the readable form and the only caller; tests/test_fused.py asserts the two equal. Sums are taken in
float32 in a fixed order, so two runs give the same bytes.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

AVAILABLE = find_spec("triton") is not None and torch.cuda.is_available()
ROWS, COLUMNS = 64, 64  # of a tile; a row is a pixel, a column a channel
SUMMING, PASSING = 396, 2112  # programs at a time: 3 and 16 on each of an H200's 132 multiprocessors

if AVAILABLE:
    import triton
    import triton.language as tl

    @triton.jit
    def _sums(x, parts, rows, columns, share, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        """Of x - x[0] and its square over the program's share of the rows: without the shift, the variance of a channel
        whose mean is large would be lost in the difference of two large numbers."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        shift = tl.load(x + column, inside, 0.0).to(tl.float32)
        first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        begin = tl.program_id(1).to(tl.int64) * share
        for start in range(0, share, ROWS):
            row = begin + start + tl.arange(0, ROWS)
            here = (row < rows)[:, None] & inside[None, :]
            value = tl.load(x + row[:, None] * columns + column[None, :], here, 0.0).to(tl.float32)
            value = tl.where(here, value - shift[None, :], 0.0)
            first += value
            second += value * value
        place = parts + tl.program_id(1) * 2 * columns + column
        tl.store(place, tl.sum(first, 0), inside)
        tl.store(place + columns, tl.sum(second, 0), inside)

    @triton.jit
    def _total(parts, count, columns, column, inside, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        for start in range(0, count, ROWS):
            part = start + tl.arange(0, ROWS)
            here = (part < count)[:, None] & inside[None, :]
            place = parts + part[:, None] * 2 * columns + column[None, :]
            first += tl.load(place, here, 0.0)
            second += tl.load(place + columns, here, 0.0)
        return tl.sum(first, 0), tl.sum(second, 0)

    @triton.jit
    def _statistics(  # type: ignore[no-untyped-def]
        x, parts, moments, running_mean, running_var, batches, count, rows, columns, momentum, epsilon,
        ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Mean and 1/deviation of the batch, and the running ones moved towards them."""
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + 1)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        first, second = _total(parts, count, columns, column, inside, ROWS, COLUMNS)
        offset = first / rows
        mean = tl.load(x + column, inside, 0.0).to(tl.float32) + offset
        variance = tl.maximum(second / rows - offset * offset, 0.0)
        tl.store(moments + column, mean, inside)
        tl.store(moments + columns + column, 1.0 / tl.sqrt(variance + epsilon), inside)
        old = tl.load(running_mean + column, inside, 0.0)
        tl.store(running_mean + column, old + momentum * (mean - old), inside)
        old = tl.load(running_var + column, inside, 0.0)
        tl.store(running_var + column, old + momentum * (variance * rows / (rows - 1) - old), inside)

    @triton.jit
    def _activate(  # type: ignore[no-untyped-def]
        x, residual, y, weight, bias, moments, slope, rows, columns, share,
        HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        mean, scale = tl.load(moments + column, inside, 0.0), tl.load(moments + columns + column, inside, 0.0)
        gamma, beta = tl.load(weight + column, inside, 0.0), tl.load(bias + column, inside, 0.0)
        begin = tl.program_id(1).to(tl.int64) * share
        for start in range(0, share, ROWS):
            row = begin + start + tl.arange(0, ROWS)
            here = (row < rows)[:, None] & inside[None, :]
            place = row[:, None] * columns + column[None, :]
            value = tl.load(x + place, here, 0.0).to(tl.float32)
            value = (value - mean[None, :]) * scale[None, :] * gamma[None, :] + beta[None, :]
            if HAS_RESIDUAL:
                value += tl.load(residual + place, here, 0.0).to(tl.float32)
            value = tl.where(value > 0, value, value * slope)
            tl.store(y + place, value.to(y.dtype.element_ty), here)

    @triton.jit
    def _gradient_sums(  # type: ignore[no-untyped-def]
        gradient, x, y, masked, weight, bias, moments, parts, slope, rows, columns, share,
        HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """Of the gradient before the activation and of its product with the normalised x. With a residual, that
        gradient is the residual's own, so it is kept; without, it is cheaper to make it again."""
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        mean, scale = tl.load(moments + column, inside, 0.0), tl.load(moments + columns + column, inside, 0.0)
        gamma, beta = tl.load(weight + column, inside, 0.0), tl.load(bias + column, inside, 0.0)
        first, second = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
        begin = tl.program_id(1).to(tl.int64) * share
        for start in range(0, share, ROWS):
            row = begin + start + tl.arange(0, ROWS)
            here = (row < rows)[:, None] & inside[None, :]
            place = row[:, None] * columns + column[None, :]
            change = tl.load(gradient + place, here, 0.0).to(tl.float32)
            normal = (tl.load(x + place, here, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
            if HAS_RESIDUAL:
                change *= tl.where(tl.load(y + place, here, 0.0).to(tl.float32) > 0, 1.0, slope)
                tl.store(masked + place, change.to(masked.dtype.element_ty), here)
            else:
                change *= tl.where(normal * gamma[None, :] + beta[None, :] > 0, 1.0, slope)
            first += change
            second += tl.where(here, change * normal, 0.0)
        place = parts + tl.program_id(1) * 2 * columns + column
        tl.store(place, tl.sum(first, 0), inside)
        tl.store(place + columns, tl.sum(second, 0), inside)

    @triton.jit
    def _collect(parts, totals, count, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        first, second = _total(parts, count, columns, column, inside, ROWS, COLUMNS)
        tl.store(totals + column, first, inside)
        tl.store(totals + columns + column, second, inside)

    @triton.jit
    def _gradient(  # type: ignore[no-untyped-def]
        gradient, x, change_x, weight, bias, moments, totals, slope, rows, columns, share,
        HAS_RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < columns
        mean, scale = tl.load(moments + column, inside, 0.0), tl.load(moments + columns + column, inside, 0.0)
        gamma, beta = tl.load(weight + column, inside, 0.0), tl.load(bias + column, inside, 0.0)
        first = tl.load(totals + column, inside, 0.0) / rows
        second = tl.load(totals + columns + column, inside, 0.0) / rows
        begin = tl.program_id(1).to(tl.int64) * share
        for start in range(0, share, ROWS):
            row = begin + start + tl.arange(0, ROWS)
            here = (row < rows)[:, None] & inside[None, :]
            place = row[:, None] * columns + column[None, :]
            change = tl.load(gradient + place, here, 0.0).to(tl.float32)
            normal = (tl.load(x + place, here, 0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
            if not HAS_RESIDUAL:
                change *= tl.where(normal * gamma[None, :] + beta[None, :] > 0, 1.0, slope)
            change = (change - first[None, :] - normal * second[None, :]) * (gamma * scale)[None, :]
            tl.store(change_x + place, change.to(change_x.dtype.element_ty), here)


def fits(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None) -> bool:
    """Whether the kernels can do it: training on a GPU, channels last in memory, everything tracked and affine."""
    if not (AVAILABLE and norm.training and isinstance(x, Tensor) and x.is_cuda):  # a tracer's proxy is no Tensor
        return False
    last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and x.numel() > x.shape[1]
    alike = residual is None or (residual.stride() == x.stride() and residual.dtype == x.dtype)
    return last and alike and norm.affine and norm.track_running_stats and norm.momentum is not None


def shares(x: Tensor, programs: int) -> tuple[tuple[int, int], int]:
    """The grid of about so many programs, columns by rows, and the rows of each."""
    rows, columns = x.numel() // x.shape[1], triton.cdiv(x.shape[1], COLUMNS)
    share = triton.cdiv(triton.cdiv(rows, max(1, programs // columns)), ROWS) * ROWS
    return (columns, triton.cdiv(rows, share)), share


class NormActivate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d, slope: float, *affine: Any
    ) -> Tensor:
        weight, bias = affine
        columns = x.shape[1]
        rows, narrow = x.numel() // columns, (triton.cdiv(columns, 16),)
        summing, share = shares(x, SUMMING)
        parts = x.new_empty(summing[1], 2, columns, dtype=torch.float32)
        moments = x.new_empty(2, columns, dtype=torch.float32)
        y = torch.empty_like(x)
        _sums[summing](x, parts, rows, columns, share, ROWS, COLUMNS)
        _statistics[narrow](
            x, parts, moments, norm.running_mean, norm.running_var, norm.num_batches_tracked,
            summing[1], rows, columns, norm.momentum, norm.eps, ROWS, 16,
        )  # fmt: skip
        passing, share = shares(x, PASSING)
        _activate[passing](
            x, x if residual is None else residual, y, weight, bias, moments, slope, rows, columns, share,
            residual is not None, ROWS, COLUMNS,
        )  # fmt: skip
        ctx.save_for_backward(x, y if residual is not None else x, weight, bias, moments)
        ctx.slope, ctx.has_residual = slope, residual is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, moments = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        columns = x.shape[1]
        rows, narrow = x.numel() // columns, (triton.cdiv(columns, 16),)
        summing, share = shares(x, SUMMING)
        parts = x.new_empty(summing[1], 2, columns, dtype=torch.float32)
        totals = x.new_empty(2, columns, dtype=torch.float32)
        masked = torch.empty_like(x) if ctx.has_residual else gradient
        change = torch.empty_like(x)
        _gradient_sums[summing](
            gradient, x, y, masked, weight, bias, moments, parts, ctx.slope, rows, columns, share,
            ctx.has_residual, ROWS, COLUMNS,
        )  # fmt: skip
        _collect[narrow](parts, totals, summing[1], columns, ROWS, 16)
        passing, share = shares(x, PASSING)
        _gradient[passing](
            masked, x, change, weight, bias, moments, totals, ctx.slope, rows, columns, share,
            ctx.has_residual, ROWS, COLUMNS,
        )  # fmt: skip
        return change, masked if ctx.has_residual else None, None, None, totals[1], totals[0]


def norm_activate(norm: nn.BatchNorm2d, x: Tensor, slope: float, residual: Tensor | None = None) -> Tensor:
    """activation(norm(x) + residual) with the slope below zero (1 for no activation); `fits` must hold."""
    return NormActivate.apply(x, residual, norm, slope, norm.weight, norm.bias)
