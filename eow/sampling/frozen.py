"""Tails with their gradient written out: forward and backward with respect to the input alone, no autograd graph.

A chain asks the same frozen network for the gradient of one number a row, a hundred times in a row. Written out, batch
norm (in evaluation mode a fixed scale and shift) is folded into the convolution before it, 1x1 convolutions are matrix
products over channels-last memory, and nothing is kept but the activations whose signs the way back needs.

    tail = freeze(module)             None where the module holds something that is not known here
    tail.read(torch.bfloat16)         fold and cast the weights as they are now; can be captured in a CUDA graph
    logits = tail.forward(z)
    gradient = tail.backward(dE_dlogits)

A linear tail needs two small matrix products a step: the gradient of log h[K+1] is W^T (e_{K+1} - h).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from eow.models.resnet import Block
from eow.models.wideresnet import PreactivationBlock

Norm = nn.BatchNorm1d | nn.BatchNorm2d
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU)
NOTHING = (nn.Identity, nn.Dropout)  # in evaluation mode


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

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        if self.convolution and not self.pointwise:
            self.result = self.convolve(x)
            return self.result
        if self.pointwise:
            x = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
        if self.slope == 0 and self.bias is not None and x.is_cuda:
            y = torch._addmm_activation(self.bias, x, self.weight.t())  # bias and ReLU inside the product's kernel
        else:
            y = activate(nn.functional.linear(x, self.weight, self.bias), self.slope)
        if self.pointwise:
            count, _, height, width = self.shape
            y = y.view(count, height, width, -1).permute(0, 3, 1, 2)
        self.result = y
        return y

    def convolve(self, x: Tensor) -> Tensor:
        layer: Any = self.layer
        if self.slope == 0 and self.bias is not None and x.is_cuda and x.dtype != torch.float32:
            return torch.cudnn_convolution_relu(x, self.weight, self.bias, layer.stride, layer.padding, (1, 1), 1)
        return activate(nn.functional.conv2d(x, self.weight, self.bias, layer.stride, layer.padding), self.slope)

    def backward(self, gradient: Tensor) -> Tensor:
        return self.multiply_back(deactivate(gradient, self.result, self.slope))

    def multiply_back(self, gradient: Tensor, plus: Tensor | None = None) -> Tensor:
        """The gradient before this layer's activation is taken to its input; `plus` is added on the way."""
        if not self.convolution or self.pointwise:
            flat = gradient.permute(0, 2, 3, 1).reshape(-1, gradient.shape[1]) if self.pointwise else gradient
            if plus is not None and self.pointwise:
                back = torch.addmm(plus.permute(0, 2, 3, 1).reshape(-1, plus.shape[1]), flat, self.weight)
                plus = None
            else:
                back = flat @ self.weight
            if self.pointwise:
                count, _, height, width = self.shape
                back = back.view(count, height, width, -1).permute(0, 3, 1, 2)
        else:
            layer: Any = self.layer
            unused = gradient.new_empty(1).expand(self.shape)  # only its shape is read
            back = torch.ops.aten.convolution_backward(
                gradient, unused, self.weight, None, layer.stride, layer.padding, (1, 1), False, (0, 0), 1,
                (True, False, False),
            )[0]  # fmt: skip
        return back if plus is None else back + plus


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

    def forward(self, x: Tensor) -> Tensor:
        for piece in self.pieces:
            x = piece.forward(x)
        return x

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
        self.result = activate(self.branch.forward(x).add_(self.shortcut.forward(x)), self.slope)
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
        return self.branch.forward(entered).add_(shortcut)

    def backward(self, gradient: Tensor) -> Tensor:
        back = self.branch.backward(gradient)
        if self.projection is None:
            return self.entry.backward(back) + gradient
        return self.entry.backward(self.projection.multiply_back(gradient, plus=back))


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that are called one after another, nested Sequentials opened."""
    if isinstance(module, nn.Sequential):
        for child in module:
            yield from leaves(child)
    elif not isinstance(module, NOTHING):
        yield module


def frozen_pieces(module: nn.Module) -> list[Piece] | None:
    """The module as pieces, a layer taken together with the norm and activation after it; None where one is unknown."""
    queue, pieces = list(leaves(module)), []
    while queue:
        head = queue.pop(0)
        piece: Piece | None = None
        if isinstance(head, nn.Linear) or (isinstance(head, nn.Conv2d) and plain(head)):
            norm = queue.pop(0) if queue and known_norm(queue[0]) else None
            activation = queue.pop(0) if queue and isinstance(queue[0], ACTIVATIONS) else None
            piece = Layer(head, norm, activation)  # type: ignore[arg-type]
        elif known_norm(head) or isinstance(head, ACTIVATIONS):
            norm = head if known_norm(head) else None
            follows = bool(queue) and norm is not None and isinstance(queue[0], ACTIVATIONS)
            piece = Rescale(norm, queue.pop(0) if follows else None if norm is not None else head)  # type: ignore[arg-type]
        elif isinstance(head, nn.AdaptiveAvgPool2d) and head.output_size in (1, (1, 1)):
            if queue and isinstance(queue[0], nn.Flatten):
                queue.pop(0)
                piece = MeanPool()
        elif isinstance(head, nn.MaxPool2d) and not head.return_indices:
            piece = MaxPool(head)
        elif isinstance(head, nn.Flatten) and (head.start_dim, head.end_dim) == (1, -1):
            piece = Flat()
        elif isinstance(head, Block):
            branch, shortcut = frozen_pieces(head.branch), frozen_pieces(head.shortcut)
            if branch and shortcut is not None:
                piece = Residual(branch, shortcut, head.activation)
        elif isinstance(head, PreactivationBlock):
            entry = frozen_pieces(head.entry)
            branch = frozen_pieces(nn.Sequential(head.conv1, head.middle, head.conv2))
            if entry and branch and isinstance(entry[0], Rescale):
                piece = Preactivation(entry[0], branch, Layer(head.projection) if head.projection else None)  # type: ignore[arg-type]
        if piece is None:
            return None
        pieces.append(piece)
    return pieces


def plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros" and layer.padding != "same"


def known_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.track_running_stats


def freeze(tail: nn.Module) -> Chained | None:
    """The tail with its gradient written out, or None where it holds something that is not known here."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in tail.modules()):
        return None
    pieces = frozen_pieces(tail)
    return Chained(pieces) if pieces else None
