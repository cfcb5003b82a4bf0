"""VGG11 (Simonyan and Zisserman 2015) for small images, with batch norm: the paper's network for CIFAR-10."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from eow.models.layers import Layers, Stages, activation_layer, check_image, conv, he_init, head_layer, norm_layer, pool

# The channels of each stage's convolutions; every stage ends with a max-pool.
WIDTHS = ((64,), (128,), (256, 256), (512, 512), (512, 512))


def vgg11(
    outputs: int,
    in_shape: Sequence[int],
    *,
    norm: str = "batch",
    activation: str = "relu",
    dropout: float = 0.0,
) -> Stages:
    """`stage1` to `stage5`, then `penultimate` (512 features) and `head`, one linear layer for ImageNet's three.

    The max-pools round up, which changes nothing for sides that are multiples of 32 and lets 28x28 through (14, 7, 4,
    2, 1). Below 17 pixels the last pool would have a single pixel left. A map that is larger than 1x1 at the end
    (64x64: 2x2) is averaged. Convolutions keep their bias under batch norm as in the published VGG11-BN; it has no
    effect there, but the parameters are the known ones.
    """
    check_image("vgg11", in_shape, smallest=17)
    stages: Stages = OrderedDict()
    channels = in_shape[0]
    for number, widths in enumerate(WIDTHS, start=1):
        layers: list[nn.Module] = []
        for width in widths:
            layers += [conv(channels, width, 3, 1, bias=True), norm_layer(norm, width), activation_layer(activation)]
            channels = width
        stages[f"stage{number}"] = Layers(*layers, nn.MaxPool2d(2, ceil_mode=True))
    stages["penultimate"] = pool()
    stages["head"] = head_layer(channels, outputs, dropout)
    he_init(stages, activation, norm)
    return stages
