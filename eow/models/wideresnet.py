"""WRN-28-10 (Zagoruyko and Komodakis 2016): the only network of the EOW authors' release, which uses it without norm.

The release's form is norm="none", activation="leaky_relu", with noise of 0.01 on the input and after stage 1.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from eow.models.layers import (
    Layers,
    Stages,
    activation_layer,
    conv,
    he_init,
    head_layer,
    norm_layer,
    pool,
    scale_residuals,
    stem_stride,
)

WIDTHS = (160, 320, 640)
# 28 layers: the stem, and three stages of four blocks of two convolutions, with the three projections counted.
BLOCKS = 4


class PreactivationBlock(nn.Module):
    """Norm and activation come before each convolution. Where the shape changes, the shortcut is a projection of the
    activated input, as in the authors' code."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, activation: str, dropout: float) -> None:
        super().__init__()
        bias = norm == "none"
        self.entry = Layers(norm_layer(norm, inputs), activation_layer(activation))
        self.conv1 = conv(inputs, outputs, 3, stride, bias=bias)
        self.middle = Layers(norm_layer(norm, outputs), activation_layer(activation))
        self.dropout = nn.Dropout(dropout) if dropout > 0.0 else nn.Identity()
        self.conv2 = conv(outputs, outputs, 3, 1, bias=bias)
        self.projection: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.projection = conv(inputs, outputs, 1, stride, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        entered = self.entry(x)
        shortcut = x if self.projection is None else self.projection(entered)
        return shortcut + self.conv2(self.dropout(self.middle(self.conv1(entered))))


def wrn28_10(
    outputs: int,
    in_shape: Sequence[int],
    *,
    norm: str = "batch",
    activation: str = "relu",
    dropout: float = 0.0,
    stem: str = "auto",
) -> Stages:
    """`stem`, `stage1` to `stage3` (strides 1, 2, 2), `penultimate` (last norm, activation, average pool), `head`.

    The stem is a 3x3 convolution: stride 1 for 32x32 images (stem "32"), stride 2 for 64x64 ones (stem "64"), chosen by
    the image's shorter side if "auto". Dropout falls between the two convolutions of every block and before the head.
    """
    channels = 16
    stages: Stages = OrderedDict()
    stride = stem_stride("wrn28_10", in_shape, stem)
    stages["stem"] = nn.Sequential(conv(in_shape[0], channels, 3, stride, bias=norm == "none"))
    last_convs: list[nn.Conv2d] = []
    for number, width in enumerate(WIDTHS, start=1):
        stage = nn.Sequential()
        for index in range(BLOCKS):
            stride = 2 if index == 0 and number > 1 else 1
            block = PreactivationBlock(channels, width, stride, norm, activation, dropout)
            last_convs.append(block.conv2)
            stage.append(block)
            channels = width
        stages[f"stage{number}"] = stage
    stages["penultimate"] = Layers(norm_layer(norm, channels), activation_layer(activation), *pool())
    stages["head"] = head_layer(channels, outputs, dropout)
    he_init(stages, activation, norm)
    if norm == "none":
        scale_residuals(last_convs)
    return stages
