"""Controls: EOW's K+1 training with negatives that no chain has moved (steps = 0). What EOW gains over these is what
Langevin dynamics buys; every option of EOW is there, only the defaults differ.

    noise_negatives   uniform noise at the cut, U(-1, 1) in every coordinate
    mixed_negatives   mixtures of two samples of different classes, at the cut (PROSER's data placeholders, Zhou, Ye,
                      Zhan: CVPR 2021, with Beta(1, 1))
    vos               the least likely draws of class-conditional Gaussians on the features (Du, Wang, Cai, Li: VOS,
                      ICLR 2022; their loss is another one, the outliers are theirs): sampling/outliers.py

    loss = E_data[-log h(x)[y]] + λ E_negatives[-log h(z)[K+1]]

Measured:
MEASURED
"""

from dataclasses import dataclass
from typing import ClassVar

from eow.methods.eow import EOW, EOWOptions


@dataclass(frozen=True)
class NoiseNegativesOptions(EOWOptions):
    name: ClassVar[str] = "noise_negatives"
    start: str = "noise"
    start_width: float = 1.0
    steps: int = 0


@dataclass(frozen=True)
class MixedNegativesOptions(EOWOptions):
    name: ClassVar[str] = "mixed_negatives"
    start: str = "mixed"
    steps: int = 0


@dataclass(frozen=True)
class VOSOptions(EOWOptions):
    name: ClassVar[str] = "vos"
    start: str = "gaussian"
    steps: int = 0
    buffer_size: int = 10_000  # of the queue of features


class NoiseNegatives(EOW):
    Options = NoiseNegativesOptions
    summary = "control: K+1 softmax, the unknown trained on noise, no chains"


class MixedNegatives(EOW):
    Options = MixedNegativesOptions
    summary = "control: K+1 softmax, the unknown trained on mixtures of two classes, no chains"


class VOS(EOW):
    Options = VOSOptions
    summary = "control: K+1 softmax, the unknown trained on unlikely draws of class Gaussians, no chains"
