"""Which tails can be written out: a module is read into the pieces of frozen.py and blocks.py, or not at all."""

from collections.abc import Iterator

from torch import nn

from eow.models.layers import Layers, OpenLinear
from eow.models.resnet import Block
from eow.models.widening import WidenedLinear, WidenedOpenLinear
from eow.models.wideresnet import PreactivationBlock
from eow.sampling.blocks import Chained, Preactivation, Residual
from eow.sampling.frozen import Flat, Layer, MaxPool, MeanPool, OpenLayer, Piece, Rescale

NOTHING = (nn.Identity, nn.Dropout)  # in evaluation mode


def leaves(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that are called one after another, nested Sequentials opened."""
    if isinstance(module, nn.Sequential) and type(module) in (nn.Sequential, Layers):
        for child in module:
            yield from leaves(child)
    elif type(module) not in NOTHING:
        yield module


def frozen_pieces(module: nn.Module) -> list[Piece] | None:
    """The module as pieces, a layer taken together with the norm and activation after it; None where one is unknown."""
    queue, pieces = list(leaves(module)), []
    while queue:
        head = queue.pop(0)
        piece: Piece | None = None
        if type(head) in (nn.Linear, WidenedLinear) or (type(head) is nn.Conv2d and plain(head)):
            norm = queue.pop(0) if queue and folds(queue[0], head) else None
            activation = queue.pop(0) if queue and known_activation(queue[0]) else None
            piece = Layer(head, norm, activation)  # type: ignore[arg-type]
        elif type(head) in (OpenLinear, WidenedOpenLinear):
            piece = OpenLayer(head)  # type: ignore[arg-type]
        elif known_norm(head) or known_activation(head):
            norm = head if known_norm(head) else None
            follows = bool(queue) and norm is not None and known_activation(queue[0])
            piece = Rescale(norm, queue.pop(0) if follows else None if norm is not None else head)  # type: ignore[arg-type]
        elif type(head) is nn.AdaptiveAvgPool2d and head.output_size in (1, (1, 1)):
            if queue and plain_flatten(queue[0]):
                queue.pop(0)
                piece = MeanPool()
        elif type(head) is nn.MaxPool2d and not head.return_indices:
            piece = MaxPool(head)
        elif plain_flatten(head):
            piece = Flat()
        elif type(head) is Block:
            branch, shortcut = frozen_pieces(head.branch), frozen_pieces(head.shortcut)
            if branch and shortcut is not None:
                piece = Residual(branch, shortcut, head.activation)
        elif type(head) is PreactivationBlock:
            entry = frozen_pieces(head.entry)
            branch = frozen_pieces(nn.Sequential(head.conv1, head.middle, head.conv2))
            if entry and branch and isinstance(entry[0], Rescale):
                piece = Preactivation(entry[0], branch, Layer(head.projection) if head.projection else None)  # type: ignore[arg-type]
        if piece is None:
            return None
        pieces.append(piece)
    return pieces


def plain(layer: nn.Conv2d) -> bool:
    """Zeros around, the same on both sides; a 1x1 product has none."""
    usual = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return usual and isinstance(layer.padding, tuple) and (layer.kernel_size != (1, 1) or layer.padding == (0, 0))


def plain_flatten(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def known_activation(module: nn.Module) -> bool:
    return type(module) is nn.ReLU or (type(module) is nn.LeakyReLU and module.negative_slope >= 0)


def known_norm(module: nn.Module) -> bool:
    return type(module) in (nn.BatchNorm1d, nn.BatchNorm2d) and module.track_running_stats is True


def folds(module: nn.Module, layer: nn.Module) -> bool:
    """Whether it is a norm over what the layer gives for outputs: after a linear layer one of maps is over others."""
    return known_norm(module) and isinstance(module, nn.BatchNorm2d) == isinstance(layer, nn.Conv2d)


def freeze(tail: nn.Module) -> Chained | None:
    """The tail with its gradient written out, or None where it holds something that is not known here.

    Only the very classes of torch and of eow.models count: a subclass may compute something else, and a hook too.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, kind) for module in tail.modules() for kind in hooks):
        return None
    pieces = frozen_pieces(tail)
    return Chained(pieces) if pieces else None
