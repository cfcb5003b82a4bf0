"""Tails with their gradient written out: forward and backward with respect to the input alone, no autograd graph.

A chain asks the same frozen network for the gradient of one number a row, a hundred times in a row. Written out, batch
norm (in evaluation mode a fixed scale and shift) is folded into the convolution before it, 1x1 convolutions are matrix
products over channels-last memory, and nothing is kept but the activations whose signs the way back needs.

    tail = freeze(module)             freezing.py; None where the module holds something that is not known there
    tail.read(torch.bfloat16)         fold and cast the weights as they are now; can be captured in a CUDA graph
    logits = tail.forward(z)
    gradient = tail.backward(dE_dlogits)

A linear tail needs two small matrix products a step: the gradient of log h[K+1] is W^T (e_{K+1} - h).

Here are the pieces that hold no others; blocks.py puts them together.
"""

from typing import Any

import torch
from torch import Tensor, nn

from eow.models.layers import OpenLinear, slope_of
from eow.sampling import kernels

Norm = nn.BatchNorm1d | nn.BatchNorm2d


class Piece:
    """A part of a tail. `forward` keeps what `backward` needs; a piece is used once per pass."""

    axes: int | None = None  # of the tensors it is written out for, the batch among them; None: any

    def read(self, dtype: torch.dtype) -> None:
        """Take the weights over as they are now."""

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, gradient: Tensor) -> Tensor:
        raise NotImplementedError


def slope_below(activation: nn.Module | None) -> float | None:
    """The slope below zero; None where there is no activation."""
    return None if activation is None else slope_of(activation)


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
        self.layer, self.norm, self.slope = layer, norm, slope_below(activation)
        self.convolution = isinstance(layer, nn.Conv2d)
        self.pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride == (1, 1)
        self.axes = 4 if self.convolution else 2

    def read(self, dtype: torch.dtype) -> None:
        self.padding = 0
        self.padded: Tensor | None = None  # another precision or device than the last may need none
        weight = self.layer.weight.detach()
        bias = None if self.layer.bias is None else self.layer.bias.detach()
        if self.norm is not None:
            scale, shift = (each.detach() for each in scale_and_shift(self.norm))
            weight = weight * scale.view(-1, *[1] * (weight.dim() - 1))
            bias = shift if bias is None else bias * scale + shift
        self.weight, self.bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        if self.convolution:
            if self.pointwise:
                self.rows = self.weight.flatten(1)
            if weight.is_cuda:
                self.weight = self.weight.contiguous(memory_format=torch.channels_last)
        elif weight.is_cuda and dtype == torch.bfloat16 and self.slope is None:
            # Products whose rows are no multiples of 16 bytes take kernels of half the speed: the head is padded.
            self.padding = -len(weight) % 8
            self.weight = nn.functional.pad(self.weight, (0, 0, 0, self.padding))
            self.bias = None if self.bias is None else nn.functional.pad(self.bias, (0, self.padding))

    def forward(self, x: Tensor, plus: Tensor | None = None, slope: float | None = None) -> Tensor:
        """activation(layer(x)), or activation(layer(x) + plus) with the block's slope after a residual branch."""
        self.x = x
        slope = self.slope if plus is None else slope
        # A 1x1 convolution is a matrix product over the channels, without a copy if these lie last in memory.
        self.product = self.pointwise and x.is_contiguous(memory_format=torch.channels_last)
        product = self.product or not self.convolution
        self.result = self.multiply(x, plus, slope) if product else self.convolve(x, plus, slope)
        return self.result

    def multiply(self, x: Tensor, plus: Tensor | None, slope: float | None) -> Tensor:
        flat, weight = (channels_as_rows(x), self.rows) if self.convolution else (x, self.weight)
        if plus is not None:
            return self.finish(rows_as_channels(flat @ weight.t(), x), plus, slope)
        if slope == 0 and self.bias is not None and x.is_cuda:
            y = torch._addmm_activation(self.bias, flat, weight.t())  # bias and ReLU inside the product's kernel
        else:
            y = activate(nn.functional.linear(flat, weight, self.bias), slope)
        if self.padding:
            self.padded = self.padded if self.padded is not None else torch.zeros_like(y)
            y = y[:, : -self.padding]
        return rows_as_channels(y, x) if self.convolution else y

    def convolve(self, x: Tensor, plus: Tensor | None, slope: float | None) -> Tensor:
        layer: Any = self.layer
        if slope == 0 and self.bias is not None and plus is None and x.is_cuda and x.dtype == torch.bfloat16:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, layer.stride, layer.padding, (1, 1), 1)
        return self.finish(nn.functional.conv2d(x, self.weight, None, layer.stride, layer.padding), plus, slope)

    def finish(self, y: Tensor, plus: Tensor | None, slope: float | None) -> Tensor:
        """activation(y + bias + plus), in place and in one kernel where there is one for it."""
        low = y.dtype == torch.bfloat16 and y.is_contiguous(memory_format=torch.channels_last)
        if low and self.bias is not None and kernels.fits(y, *([] if plus is None else [plus])):
            return kernels.shift_activate(y, self.bias, slope, plus)
        if self.bias is not None:
            y = y.add_(self.bias.view(1, -1, 1, 1))
        return activate(y if plus is None else y.add_(plus), slope)

    def backward(self, gradient: Tensor) -> Tensor:
        return self.multiply_back(deactivate(gradient, self.result, self.slope))

    def multiply_back(self, gradient: Tensor, plus: Tensor | None = None) -> Tensor:
        """The gradient before this layer's activation, taken to its input; `plus` is added and may be overwritten."""
        if not self.convolution:
            if self.padded is not None:
                self.padded[:, : -self.padding] = gradient
                gradient = self.padded
            return gradient.to(self.weight.dtype) @ self.weight
        if self.product:
            if plus is None:
                return rows_as_channels(channels_as_rows(gradient) @ self.rows, self.x)
            total = channels_as_rows(plus).addmm_(channels_as_rows(gradient), self.rows)
            return rows_as_channels(total, self.x)
        layer: Any = self.layer
        back = torch.ops.aten.convolution_backward(
            gradient, self.x, self.weight, None, layer.stride, layer.padding, (1, 1), False, (0, 0), 1,
            (True, False, False),
        )[0]  # fmt: skip
        return back if plus is None else back.add_(plus)


class OpenLayer(Piece):
    """A head whose last logit is quadratic: f[K+1] has v·z² besides, and its gradient 2 v·z."""

    axes = 2

    def __init__(self, head: OpenLinear) -> None:
        self.head, self.linear = head, Layer(head)

    def read(self, dtype: torch.dtype) -> None:
        self.linear.read(dtype)
        self.square = self.head.curvature().detach().to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.curved = x * self.square
        logits = self.linear.forward(x)
        logits[:, -1] += (x * self.curved).sum(1)
        return logits

    def backward(self, gradient: Tensor) -> Tensor:
        gradient = gradient.to(self.curved.dtype)
        return torch.addcmul(self.linear.multiply_back(gradient), gradient[:, -1:], self.curved, value=2)


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
        self.norm, self.slope = norm, slope_below(activation)
        if norm is not None:
            self.axes = 4 if isinstance(norm, nn.BatchNorm2d) else 2

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

    axes = 4

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.mean((2, 3))

    def backward(self, gradient: Tensor) -> Tensor:
        return (gradient / (self.shape[2] * self.shape[3]))[:, :, None, None].expand(self.shape)


class MaxPool(Piece):
    axes = 4

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


def __getattr__(name: str) -> Any:
    """Methods that torch.save wrote before blocks.py was split off look for its pieces here."""
    if name not in ("Chained", "Residual", "Preactivation"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eow.sampling import blocks

    return getattr(blocks, name)
