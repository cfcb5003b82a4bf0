"""Label smoothing (Szegedy, Vanhoucke, Ioffe, Shlens, Wojna: CVPR 2016; for calibration Müller, Kornblith, Hinton:
NeurIPS 2019).

    loss = -sum_k t[k] log h[k],   t = (1 - ε) onehot(y) + ε/K,   h = softmax(f(x)) over K

The true class keeps 1 - ε + ε/K, so the optimum is no longer at infinite logits. Prediction is vanilla's: h itself, not
un-smoothed. Setting: ε = 0.1, as in both papers.
Our result on digits, 8 and 9 unseen, `modern`, three seeds (records/2026-11-18_demo-full; vanilla 98.4, 1.2, 96.0):
accuracy 99.2 %, ECE 10.9 %, AUROC known/unseen 97.9 %. On CIFAR-100, ResNet-50, 30 epochs, three seeds, all
images (records/2026-11-16_methods-30): 76.3 %, ECE 4.7 % (underconfident), NLL .949.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy

from eow.errors import EowError
from eow.methods.vanilla import Vanilla, VanillaOptions
from eow.models import SplitModel


@dataclass(frozen=True)
class LabelSmoothingOptions(VanillaOptions):
    name: ClassVar[str] = "label_smoothing"
    smoothing: float = 0.1  # ε, the share of every label that is spread evenly over all K classes


class LabelSmoothing(Vanilla):
    Options = LabelSmoothingOptions
    summary = "cross-entropy with a share of each label spread over all classes"

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(model, options, classes, in_shape, seed)
        if not 0 <= options.smoothing < 1:
            raise EowError(f"method.smoothing is {options.smoothing}: give a share from 0 to below 1, such as 0.1")

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"ce": cross_entropy(self.model(x).float(), y, label_smoothing=self.options.smoothing)}
