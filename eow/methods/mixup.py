"""Mixup (Zhang, Cissé, Dauphin, Lopez-Paz: ICLR 2018; for calibration Thulasidasan, Chennupati, Bilmes, Bhattacharya,
Michalak: NeurIPS 2019).

    x' = λ x + (1 - λ) x[π],   λ ~ Beta(α, α),   π a permutation of the batch
    loss = λ CE(f(x'), y) + (1 - λ) CE(f(x'), y[π])

which is the cross-entropy with the mixed soft label, since that is linear in the label. One λ is drawn for a batch, as
in the authors' code. Prediction is vanilla's. Setting: α = 0.2, where calibration is best; Zhang et al. use 1 on CIFAR.
Our result on digits, 8 and 9 unseen, `modern`, three seeds (records/2026-11-18_demo-full; vanilla 98.4, 1.2, 96.0):
accuracy 99.2 %, ECE 4.4 %, AUROC known/unseen 97.7 %. On CIFAR-100, ResNet-50, 30 epochs, three seeds, all
images (records/2026-11-16_methods-30): 76.6 %, NLL .852, ECE 5.3, 1.3 and 1.4 % by seed.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from eow.errors import EowError
from eow.methods.vanilla import Vanilla, VanillaOptions
from eow.models import SplitModel


@dataclass(frozen=True)
class MixupOptions(VanillaOptions):
    name: ClassVar[str] = "mixup"
    alpha: float = 0.2  # of Beta(α, α): near 0 hardly ever mixes, 1 mixes in every proportion alike


class Mixup(Vanilla):
    Options = MixupOptions
    summary = "cross-entropy on mixes of two samples and their labels"

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(model, options, classes, in_shape, seed)
        if options.alpha <= 0:
            raise EowError(f"method.alpha is {options.alpha}: it must be above 0, such as 0.2")

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        share = symmetric_beta(self.options.alpha, 1, x.device, self.stream)[0]
        order = torch.randperm(len(x), generator=self.stream, device=x.device)
        logits = self.model(share * x + (1 - share) * x[order]).float()
        return {"ce": share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, y[order])}


def symmetric_beta(alpha: float, count: int, device: torch.device, generator: torch.Generator) -> Tensor:
    """`count` draws of Beta(α, α), drawn on the device so that no step waits for the host.

    torch.distributions takes no generator. A Beta is G/(G + G') of two Gamma(α), and Gamma(α) is Gamma(α + 1) U^(1/α).
    For small α that power underflows, often in both at once, so the quotient is formed from the logarithms.
    """
    gamma = torch._standard_gamma(torch.full((2, count), alpha + 1, device=device), generator=generator)
    uniform = 1 - torch.rand(2, count, generator=generator, device=device)  # in (0, 1]: its logarithm is finite
    first, second = gamma.log() + uniform.log() / alpha
    return torch.sigmoid(first - second)
