"""Which tails can be written out: a module is read into the pieces of frozen.py, or not at all."""

from collections.abc import Iterator

from torch import nn

from eow.models.resnet import Block
from eow.models.wideresnet import PreactivationBlock
from eow.sampling.frozen import Chained, Flat, Layer, MaxPool, MeanPool, Piece, Preactivation, Rescale, Residual

ACTIVATIONS = (nn.ReLU, nn.LeakyReLU)
NOTHING = (nn.Identity, nn.Dropout)  # in evaluation mode


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
