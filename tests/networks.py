"""Networks as people write them, small: what `eow.upgrade` is given in the tests."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 3


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 8, 1))
        self.layer2 = nn.Sequential(ResidualBlock(8, 12, 2), ResidualBlock(12, 12, 1))
        self.layer3 = nn.Sequential(ResidualBlock(12, 16, 2))
        self.layer4 = nn.Sequential(ResidualBlock(16, 24, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(64, 20), nn.ReLU(True), nn.Dropout(),
            nn.Linear(20, 20), nn.ReLU(True), nn.Dropout(),
            nn.Linear(20, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class DenseNet(nn.Module):
    """Every layer sees all before it: no cut between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layers = nn.ModuleList([nn.Conv2d(6 + 4 * i, 4, 3, padding=1) for i in range(3)])
        self.norm = nn.BatchNorm2d(18)
        self.classifier = nn.Linear(18, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.layers:
            features.append(F.relu(layer(torch.cat(features, 1))))
        x = F.relu(self.norm(torch.cat(features, 1)), inplace=True)
        x = F.adaptive_avg_pool2d(x, (1, 1))
        return self.classifier(torch.flatten(x, 1))


class InvertedResidual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.BatchNorm2d(2 * width), nn.ReLU6(inplace=True),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width), nn.BatchNorm2d(2 * width), nn.Hardswish(),
            nn.Conv2d(2 * width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), InvertedResidual(8), InvertedResidual(8))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class DropPath(nn.Module):
    """Drops whole branches, in training alone, by a decision that torch.fx would bake in."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        keep = torch.rand(len(x), *[1] * (x.dim() - 1), device=x.device, dtype=x.dtype) >= self.rate
        return x * keep / (1 - self.rate)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(1e-1 * torch.ones(width))
        self.drop_path = DropPath(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.mlp(self.norm(y))
        return x + self.drop_path(y.permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.stages = nn.Sequential(ConvNeXtBlock(8), ConvNeXtBlock(8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((-2, -1))))


class Attention(nn.Module):
    """Its attention dropout is an argument that depends on the mode, which only closes this module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0)
        return self.projection(mixed.transpose(1, 2).reshape(b, n, d))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 17, 8))
        self.blocks = nn.Sequential(TransformerBlock(8), TransformerBlock(8))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n = x.shape[0]
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(n, -1, -1), x], dim=1) + self.positions
        if mask is not None:
            x = x * mask
        return self.head(self.norm(self.blocks(x))[:, 0])


class LeNet(nn.Module):
    """All functions: dropout by the mode, and a batch size that is read first and used last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 10, 5)
        self.fc1, self.fc2 = nn.Linear(160, 20), nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        size = x.size()
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), training=self.training), 2))
        x = x.view(size[0], -1)
        x = F.relu(self.fc1(x))
        x = F.dropout(x, 0.3, training=self.training)
        return self.fc2(x)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(self.relu(self.fc2(x)))


def sequential() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


# Each with the shape of one input, which `upgrade` has to find out for itself.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet": (ResNet, (3, 64, 64)),
    "vgg": (VGG, (3, 32, 32)),
    "densenet": (DenseNet, (3, 16, 16)),
    "mobilenet": (MobileNet, (3, 32, 32)),
    "convnext": (ConvNeXt, (3, 32, 32)),
    "vit": (ViT, (3, 32, 32)),
    "lenet": (LeNet, (1, 28, 28)),
    "mlp": (MLP, (20,)),
    "sequential": (sequential, (12,)),
    "linear": (lambda: nn.Linear(5, CLASSES), (5,)),
}


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The network, its batch statistics those of some data, and the shape of one input."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model = build()
    model(torch.randn(8, *shape))
    return model.eval(), shape
