"""Controls: EOW's K+1 training with negatives that no chain has moved (steps = 0). What EOW gains over these is what
Langevin dynamics buys; every option of EOW is there, only the defaults differ.

    feature_negatives the features of the batch themselves: EOW of `modern` with its steps taken away, nothing else
    noise_negatives   uniform noise at the cut, U(-3, 3) in every coordinate: wide, three deviations of an input
    mixed_negatives   mixtures of two samples of different classes, at the cut (PROSER's data placeholders, Zhou, Ye,
                      Zhan: CVPR 2021, with Beta(1, 1))
    vos               the least likely draws of class-conditional Gaussians on the features (Du, Wang, Cai, Li: VOS,
                      ICLR 2022; their loss is another one, the outliers are theirs): sampling/outliers.py

    loss = E_data[-log h(x)[y]] + λ E_negatives[-log h(z)[K+1]]

Ours, `modern`. Digits with 8 and 9 unseen, three seeds (records/2026-11-18_demo-full; eow: 98.5, 1.1, .043, 95.8,
.003 / .044):

                      accuracy   ECE    NLL    AUROC   unknown: known / unseen classes
    feature_negatives 98.5       1.0    .044   95.6    .004 / .068
    noise_negatives   98.3       1.3    .058   96.0    .008 / .204
    mixed_negatives   98.5       1.1    .048   95.8    .006 / .132
    vos               98.5       1.0    .044   95.5    .004 / .058

CIFAR-100, ResNet-50, branches of one trunk, three seeds (NLL of K, AUROC by unknown). 30 epochs
(records/2026-11-16_methods-30; vanilla on the same images 75.7, 8.2, .932), and below 15 epochs
(records/2026-11-16_tables; 71.2, 5.4, 1.017):

                        accuracy   ECE    NLL     noise   permuted
    eow                 75.9       1.9    .850    97      100
    feature_negatives   75.8       1.5    .852    69      85
    noise_negatives     75.7       1.7    .862    44      67
    mixed_negatives     75.6       1.1    .858    42      67
    vos                 75.8       1.6    .852    71      86

    eow                 71.2       1.2    .988    99      100
    feature_negatives   71.2       1.3    .993    43      53
    noise_negatives     71.2       1.4    .992    49      50
    mixed_negatives     71.2       1.2    .994    33      36
    vos                 71.2       1.2    .992    46      59
"""

from dataclasses import dataclass
from typing import ClassVar

from eow.methods.eow import EOW, EOWOptions


@dataclass(frozen=True)
class FeatureNegativesOptions(EOWOptions):
    name: ClassVar[str] = "feature_negatives"
    start: str = "features"
    steps: int = 0


@dataclass(frozen=True)
class NoiseNegativesOptions(EOWOptions):
    name: ClassVar[str] = "noise_negatives"
    start: str = "noise"
    start_width: float = 3.0
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


class FeatureNegatives(EOW):
    Options = FeatureNegativesOptions
    summary = "control: K+1 softmax, the unknown trained on the batch's own features, no chains"


class NoiseNegatives(EOW):
    Options = NoiseNegativesOptions
    summary = "control: K+1 softmax, the unknown trained on noise, no chains"


class MixedNegatives(EOW):
    Options = MixedNegativesOptions
    summary = "control: K+1 softmax, the unknown trained on mixtures of two classes, no chains"


class VOS(EOW):
    Options = VOSOptions
    summary = "control: K+1 softmax, the unknown trained on unlikely draws of class Gaussians, no chains"
    capturable = False  # a Cholesky factor every step, which no CUDA graph is sure to hold
