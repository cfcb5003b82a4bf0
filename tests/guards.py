"""Networks that ask something of their input. Not in a test file, where pytest writes every assert anew."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Something of its own in the outermost forward, and then a head."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 8))
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self.layers(x)))

    def own(self, h: Tensor) -> Tensor:
        return h


class AssertsBehind(Net):
    def own(self, h: Tensor) -> Tensor:
        assert (h < 1e3).all(), "too large"
        return h


class Asserts(Net):
    def forward(self, x: Tensor) -> Tensor:
        assert x.ndim == 2 and x.shape[1] % 4 == 0, f"no room for {x.shape}"  # noqa: PT018
        assert not x.shape[1] == 3  # noqa: SIM201
        assert (x < 1e3).all(), "too large"
        return super().forward(x)


class Raises(Net):
    def forward(self, x: Tensor) -> Tensor:
        batch, width = x.shape
        if width % 4:
            message = f"no room for {width}"
            raise ValueError(message)
        if width == 8:
            x = x.view(batch, 8)
        else:
            raise ValueError(f"{width} columns")
        if (x >= 1e3).any():
            raise ValueError("too large")
        return super().forward(x)


class Counts(Net):
    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        assert logits.shape[1] == 3
        return logits
