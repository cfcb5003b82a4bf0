"""ResNet-18, -50 and -101 (He et al. 2016) for small images: the paper's networks for CIFAR-100 and Tiny-ImageNet."""

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
    in_turn,
    norm_layer,
    pool,
    scale_residuals,
    stem_stride,
)

# Blocks per stage, and whether they are bottlenecks (1x1, 3x3, 1x1 with four times the channels) or basic (3x3, 3x3).
DEPTHS = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True), 101: ((3, 4, 23, 3), True)}


class Block(nn.Module):
    """activation(branch(x) + shortcut(x)); the shortcut is projected where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool, norm: str, activation: str) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        bias = norm == "none"
        # (inputs, outputs, kernel, stride). A bottleneck strides in its 3x3, as implementations now mostly do: in the
        # 1x1 (the 2016 paper's place) three quarters of the map would be thrown away unread.
        if bottleneck:
            shapes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        else:
            shapes = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
        layers: list[nn.Module] = []
        for shape in shapes:
            layers += [conv(*shape, bias=bias), norm_layer(norm, shape[1]), activation_layer(activation)]
        self.branch = Layers(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = Layers(conv(inputs, outputs, 1, stride, bias=bias), norm_layer(norm, outputs))
        self.activation = activation_layer(activation)

    def forward(self, x: Tensor) -> Tensor:
        return in_turn([*self.branch, self.activation], x, residual=self.shortcut(x))


def resnet(
    outputs: int,
    in_shape: Sequence[int],
    *,
    depth: int,
    norm: str = "batch",
    activation: str = "relu",
    dropout: float = 0.0,
    stem: str = "auto",
) -> Stages:
    """`stem`, `stage1` to `stage4` (strides 1, 2, 2, 2), `penultimate` (average pool), `head`.

    The stem is a 3x3 convolution without max-pool: stride 1 for 32x32 images (stem "32"), stride 2 for 64x64 ones such
    as Tiny-ImageNet's (stem "64"), so that stage 1 works on 32x32 either way. "auto" takes "64" from a side of 64 on.
    """
    stride = stem_stride(f"resnet{depth}", in_shape, stem)
    blocks, bottleneck = DEPTHS[depth]
    channels = 64
    stages: Stages = OrderedDict()
    stages["stem"] = Layers(
        conv(in_shape[0], channels, 3, stride, bias=norm == "none"),
        norm_layer(norm, channels),
        activation_layer(activation),
    )
    last_convs: list[nn.Conv2d] = []
    for number, count in enumerate(blocks, start=1):
        width = 64 * 2 ** (number - 1)
        stage = nn.Sequential()
        for index in range(count):
            stride = 2 if index == 0 and number > 1 else 1
            block = Block(channels, width, stride, bottleneck, norm, activation)
            last_convs += [layer for layer in block.branch if isinstance(layer, nn.Conv2d)][-1:]
            stage.append(block)
            channels = 4 * width if bottleneck else width
        stages[f"stage{number}"] = stage
    stages["penultimate"] = pool()
    stages["head"] = head_layer(channels, outputs, dropout)
    he_init(stages, activation, norm)
    if norm == "none":
        scale_residuals(last_convs)
    return stages
