"""A multi-layer perceptron: the paper's network for MNIST (784-512-512 with ReLU), and ours for any feature vector."""

from collections import OrderedDict
from collections.abc import Sequence
from math import prod

from torch import nn

from eow.errors import EowError
from eow.models.layers import Stages, activation_layer, head_layer, norm_layer


def mlp(
    outputs: int,
    in_shape: Sequence[int],
    *,
    hidden: Sequence[int] = (512, 512),
    norm: str = "none",
    activation: str = "relu",
    dropout: float = 0.0,
) -> Stages:
    """One stage per hidden layer (`stage1`, `stage2`, ..., the last called `penultimate`), then `head`.

    The first stage flattens, so `in_shape` is (D,) or an image's (C, H, W) and the cut "input" carries that shape.
    With no hidden layer `penultimate` only flattens. Dropout stands at the start of the stage after a hidden layer, so
    that the features at a cut are those without it. Linear layers keep torch's initialisation.
    """
    if len(in_shape) not in (1, 3) or min(in_shape) < 1:
        raise EowError(f"mlp cannot take inputs of shape {tuple(in_shape)}: give (D,) or (C, H, W), all at least 1")
    if any(width < 1 for width in hidden):
        raise EowError(f"every hidden layer of an mlp needs at least one unit: hidden is {tuple(hidden)}")
    if not hidden and (norm, activation) != ("none", "relu"):
        raise EowError("an mlp without hidden layers has no use for 'norm' or 'activation': leave them out")
    features = prod(in_shape)
    head = head_layer((features, *hidden)[-1], outputs, dropout)

    stages: Stages = OrderedDict()
    for number, width in enumerate(hidden, start=1):
        layers: Stages = OrderedDict()
        if number == 1:
            layers["flatten"] = nn.Flatten()
        elif dropout > 0.0:
            layers["dropout"] = nn.Dropout(dropout)
        layers["linear"] = nn.Linear(features, width)
        layers["norm"] = norm_layer(norm, width, images=False)
        layers["activation"] = activation_layer(activation)
        stages["penultimate" if number == len(hidden) else f"stage{number}"] = nn.Sequential(layers)
        features = width
    if not hidden:
        stages["penultimate"] = nn.Sequential(nn.Flatten())
    stages["head"] = head
    return stages
