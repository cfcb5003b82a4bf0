"""Tails with their gradient written out: forward and backward with respect to the input alone, no autograd graph.

A chain asks the same frozen network for the gradient of one number a row, a hundred times in a row. Written out, batch
norm (in evaluation mode a fixed scale and shift) is folded into the convolution before it, 1x1 convolutions are matrix
products over channels-last memory, and nothing is kept but the activations whose signs the way back needs.

    tail = freeze(module)             freezing.py; None where the module holds something that is not known there
    tail.read(torch.bfloat16)         fold and cast the weights as they are now; can be captured in a CUDA graph
    logits = tail.forward(z)
    gradient = tail.backward(dE_dlogits)

A linear tail needs two small matrix products a step: the gradient of log h[K+1] is W^T (e_{K+1} - h).
"""

from typing import Any

import torch
from torch import Tensor, nn

from eow.sampling import kernels

Norm = nn.BatchNorm1d | nn.BatchNorm2d


class Piece:
    """A part of a tail. `forward` keeps what `backward` needs; a piece is used once per pass."""

    def read(self, dtype: torch.dtype) -> None:
        """Take the weights over as they are now."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, gradient: Tensor) -> Tensor:
        raise NotImplementedError


def slope_of(activation: nn.Module | None) -> float | None:
    """The slope below zero: 0 for ReLU; None where there is no activation."""
    if activation is None:
        return None
    return activation.negative_slope if isinstance(activation, nn.LeakyReLU) else 0.0


def activate(x: Tensor, slope: float | None) -> Tensor:
    if slope is None:
        return x
    return torch.relu_(x) if slope == 0 else nn.functional.leaky_relu_(x, slope)


def deactivate(gradient: Tensor, result: Tensor, slope: float | None) -> Tensor:
    """The way back through an activation, from the signs of its result: one kernel."""
    if slope is None:
        return gradient
    if slope == 0:
        return torch.ops.aten.threshold_backward(gradient, result, 0)
    return torch.ops.aten.leaky_relu_backward(gradient, result, slope, True)


def scale_and_shift(norm: Norm) -> tuple[Tensor, Tensor]:
    """Batch norm in evaluation mode is x * scale + shift."""
    assert norm.running_mean is not None and norm.running_var is not None  # noqa: PT018
    scale = (norm.running_var + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    return scale, shift + norm.bias if norm.affine else shift


class Layer(Piece):
    """A linear layer or a convolution, the batch norm after it folded in, and the activation after that."""

    def __init__(
        self, layer: nn.Linear | nn.Conv2d, norm: Norm | None = None, activation: nn.Module | None = None
    ) -> None:
        self.layer, self.norm, self.slope = layer, norm, slope_of(activation)
        self.convolution = isinstance(layer, nn.Conv2d)
        # A 1x1 convolution without stride is a matrix product over the channels.
        self.pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride == (1, 1)

    def read(self, dtype: torch.dtype) -> None:
        weight = self.layer.weight.detach()
        bias = None if self.layer.bias is None else self.layer.bias.detach()
        if self.norm is not None:
            scale, shift = (each.detach() for each in scale_and_shift(self.norm))
            weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
            bias = shift if bias is None else bias * scale + shift
        if self.pointwise:
            weight = weight.flatten(1)
        self.weight, self.bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        if self.convolution and not self.pointwise:
            self.weight = self.weight.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """activation(layer(x) + plus); only a layer without an activation of its own is given something to add."""
        self.x = x
        if self.convolution and not self.pointwise:
            y = self.convolve(x, plus)
        else:
            y = self.multiply(x)
            y = y if plus is None else y.add_(plus)
        self.result = y
        return y

    def multiply(self, x: Tensor) -> Tensor:
        flat = channels_as_rows(x) if self.pointwise else x
        if self.slope == 0 and self.bias is not None and x.is_cuda:
            y = torch._addmm_activation(self.bias, flat, self.weight.t())  # bias and ReLU inside the product's kernel
        else:
            y = activate(nn.functional.linear(flat, self.weight, self.bias), self.slope)
        return rows_as_channels(y, x) if self.pointwise else y

    def convolve(self, x: Tensor, plus: Tensor | None) -> Tensor:
        layer: Any = self.layer
        low = x.is_cuda and x.dtype != torch.float32
        if low and self.slope == 0 and self.bias is not None and plus is None:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, layer.stride, layer.padding, (1, 1), 1)
        y = nn.functional.conv2d(x, self.weight, None, layer.stride, layer.padding)
        rows = y.is_contiguous(memory_format=torch.channels_last)
        if low and rows and self.bias is not None and kernels.fits(y, *([] if plus is None else [plus])):
            return kernels.shift_activate(y, self.bias, self.slope, plus)
        if self.bias is not None:
            y = y.add_(self.bias.view(1, -1, 1, 1))
        return activate(y if plus is None else y.add_(plus), self.slope)

    def backward(self, gradient: Tensor) -> Tensor:
        return self.multiply_back(deactivate(gradient, self.result, self.slope))

    def multiply_back(self, gradient: Tensor, plus: Tensor | None = None) -> Tensor:
        """The gradient before this layer's activation, taken to its input; `plus` is added and may be overwritten."""
        if not self.convolution:
            return gradient @ self.weight
        if self.pointwise:
            if plus is None:
                return rows_as_channels(channels_as_rows(gradient) @ self.weight, self.x)
            total = channels_as_rows(plus).addmm_(channels_as_rows(gradient), self.weight)
            return rows_as_channels(total, self.x)
        layer: Any = self.layer
        back = torch.ops.aten.convolution_backward(
            gradient, self.x, self.weight, None, layer.stride, layer.padding, (1, 1), False, (0, 0), 1,
            (True, False, False),
        )[0]  # fmt: skip
        return back if plus is None else back.add_(plus)


def channels_as_rows(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N·H·W, C), without a copy where the channels lie last in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def rows_as_channels(rows: Tensor, like: Tensor) -> Tensor:
    """Back to a map of the height and width of `like`, channels last in memory."""
    count, _, height, width = like.shape
    return rows.view(count, height, width, -1).permute(0, 3, 1, 2)


class Rescale(Piece):
    """A batch norm that follows no convolution, and an activation: the entry of a pre-activation block."""

    def __init__(self, norm: Norm | None, activation: nn.Module | None) -> None:
        self.norm, self.slope = norm, slope_of(activation)

    def read(self, dtype: torch.dtype) -> None:
        if self.norm is not None:
            shape = (1, -1, 1, 1) if isinstance(self.norm, nn.BatchNorm2d) else (1, -1)
            self.scale, self.shift = (each.detach().to(dtype).view(shape) for each in scale_and_shift(self.norm))

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.norm is None else torch.addcmul(self.shift, x, self.scale)
        if self.slope is not None:
            y = torch.relu(y) if self.slope == 0 else nn.functional.leaky_relu(y, self.slope)
        self.result = y
        return y

    def backward(self, gradient: Tensor) -> Tensor:
        gradient = deactivate(gradient, self.result, self.slope)
        return gradient if self.norm is None else gradient * self.scale


class MeanPool(Piece):
    """The mean over the map, flattened."""

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.mean((2, 3))

    def backward(self, gradient: Tensor) -> Tensor:
        return (gradient / (self.shape[2] * self.shape[3]))[:, :, None, None].expand(self.shape)


class MaxPool(Piece):
    def __init__(self, pool: nn.MaxPool2d) -> None:
        def pair(value: Any) -> tuple[int, int]:
            return value if isinstance(value, tuple) else (value, value)

        self.settings = (*map(pair, (pool.kernel_size, pool.stride, pool.padding, pool.dilation)), pool.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        y, self.where = torch.ops.aten.max_pool2d_with_indices(x, *self.settings)
        return y

    def backward(self, gradient: Tensor) -> Tensor:
        return torch.ops.aten.max_pool2d_with_indices_backward(gradient, self.x, *self.settings, self.where)


class Flat(Piece):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, gradient: Tensor) -> Tensor:
        return gradient.reshape(self.shape)


class Chained(Piece):
    """Pieces one after another."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def read(self, dtype: torch.dtype) -> None:
        for piece in self.pieces:
            piece.read(dtype)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """The last piece's result, with `plus` added by it; it must then be a layer without an activation."""
        if not self.pieces:  # an identity
            return x
        *others, last = self.pieces
        for piece in others:
            x = piece.forward(x)
        if plus is None:
            return last.forward(x)
        assert isinstance(last, Layer)
        return last.forward(x, plus)

    def backward(self, gradient: Tensor) -> Tensor:
        for piece in reversed(self.pieces):
            gradient = piece.backward(gradient)
        return gradient


class Residual(Piece):
    """ResNet's block: activation(branch(x) + shortcut(x))."""

    def __init__(self, branch: list[Piece], shortcut: list[Piece], activation: nn.Module) -> None:
        self.branch, self.shortcut, self.slope = Chained(branch), Chained(shortcut), slope_of(activation)

    def read(self, dtype: torch.dtype) -> None:
        self.branch.read(dtype)
        self.shortcut.read(dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.result = activate(self.branch.forward(x, self.shortcut.forward(x)), self.slope)
        return self.result

    def backward(self, gradient: Tensor) -> Tensor:
        gradient = deactivate(gradient, self.result, self.slope)
        along = self.shortcut.backward(gradient)
        first, *rest = self.branch.pieces
        for piece in reversed(rest):
            gradient = piece.backward(gradient)
        assert isinstance(first, Layer)
        return first.multiply_back(deactivate(gradient, first.result, first.slope), plus=along)


class Preactivation(Piece):
    """The wide ResNet's block: shortcut + conv2(middle(conv1(entry))), the shortcut x or a projection of entry."""

    def __init__(self, entry: Rescale, branch: list[Piece], projection: Layer | None) -> None:
        self.entry, self.branch, self.projection = entry, Chained(branch), projection

    def read(self, dtype: torch.dtype) -> None:
        for piece in (self.entry, self.branch, self.projection):
            if piece is not None:
                piece.read(dtype)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.entry.forward(x)
        shortcut = x if self.projection is None else self.projection.forward(entered)
        return self.branch.forward(entered, shortcut)

    def backward(self, gradient: Tensor) -> Tensor:
        back = self.branch.backward(gradient)
        if self.projection is None:
            return self.entry.backward(back) + gradient
        return self.entry.backward(self.projection.multiply_back(gradient, plus=back))
