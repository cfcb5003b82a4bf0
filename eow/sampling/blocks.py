"""Tails and blocks made of the pieces of frozen.py: one after another, around a residual, or behind a shared entry."""

import torch
from torch import Tensor, nn

from eow.sampling.frozen import Flat, Layer, MeanPool, Piece, Rescale, deactivate, slope_below


class Chained(Piece):
    """Pieces one after another."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def takes(self, axes: int) -> bool:
        """Whether every piece meets a tensor of as many axes as it is written out for: a linear layer of torch's also
        takes maps and sequences, over whose channels a norm after it does not go, and these pieces do not."""
        for piece in self.pieces:
            if piece.axes not in (None, axes):
                return False
            axes = 2 if isinstance(piece, Flat | MeanPool) else axes
        return True

    def read(self, dtype: torch.dtype) -> None:
        for piece in self.pieces:
            piece.read(dtype)

    def forward(self, x: Tensor) -> Tensor:
        for piece in self.pieces:
            x = piece.forward(x)
        return x

    def forward_and_add(self, x: Tensor, plus: Tensor, slope: float | None) -> Tensor:
        """activation(the pieces' result + plus); the last piece must be a layer without an activation of its own."""
        *others, last = self.pieces
        for piece in others:
            x = piece.forward(x)
        assert isinstance(last, Layer) and last.slope is None  # noqa: PT018
        return last.forward(x, plus, slope)

    def backward(self, gradient: Tensor) -> Tensor:
        for piece in reversed(self.pieces):
            gradient = piece.backward(gradient)
        return gradient


class Residual(Piece):
    """ResNet's block: activation(branch(x) + shortcut(x))."""

    axes = 4

    def __init__(self, branch: list[Piece], shortcut: list[Piece], activation: nn.Module) -> None:
        self.branch, self.shortcut, self.slope = Chained(branch), Chained(shortcut), slope_below(activation)

    def read(self, dtype: torch.dtype) -> None:
        self.branch.read(dtype)
        self.shortcut.read(dtype)

    def forward(self, x: Tensor) -> Tensor:
        self.result = self.branch.forward_and_add(x, self.shortcut.forward(x), self.slope)
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

    axes = 4

    def __init__(self, entry: Rescale, branch: list[Piece], projection: Layer | None) -> None:
        self.entry, self.branch, self.projection = entry, Chained(branch), projection

    def read(self, dtype: torch.dtype) -> None:
        for piece in (self.entry, self.branch, self.projection):
            if piece is not None:
                piece.read(dtype)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.entry.forward(x)
        shortcut = x if self.projection is None else self.projection.forward(entered)
        return self.branch.forward_and_add(entered, shortcut, None)

    def backward(self, gradient: Tensor) -> Tensor:
        back = self.branch.backward(gradient)
        if self.projection is None:
            return self.entry.backward(back) + gradient
        return self.entry.backward(self.projection.multiply_back(gradient, plus=back))
