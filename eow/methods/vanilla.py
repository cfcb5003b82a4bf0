"""Plain training: softmax over the K classes, cross-entropy. The baseline of everything.

loss = -log h[y],   h = softmax(f(x)) over K
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from eow.methods.base import Method, NoOptions, Prediction, closed_prediction


@dataclass(frozen=True)
class VanillaOptions(NoOptions):
    name: ClassVar[str] = "vanilla"


class Vanilla(Method):
    Options: ClassVar[type] = VanillaOptions
    summary = "softmax and cross-entropy"
    capturable = True

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"ce": cross_entropy(self.model(x).float(), y)}

    def answer(self, x: Tensor) -> Prediction:
        return closed_prediction(self.model(x))
