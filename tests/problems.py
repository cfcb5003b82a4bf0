"""Small problems with known answers, shared by the tests."""

import numpy as np
import torch
from torch import Tensor, nn

from eow.models import SplitModel, build


def quadratic(z: Tensor) -> Tensor:
    """E = |z|²/2, whose exact distribution is the standard normal."""
    return z.flatten(1).square().sum(1) / 2


def linear_tail(classes: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(width, classes + 1).to(dtype)


def linear_energy_gradient(tail: nn.Linear, z: Tensor) -> Tensor:
    """Gradient of log h[K+1] before a linear head, by hand: W^T (e_{K+1} - h)."""
    h = tail(z).softmax(1)
    h = -h
    h[:, -1] += 1
    return h @ tail.weight


def blobs(samples: int = 300, classes: int = 3, width: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Well separated Gaussian blobs: any working classifier is right on nearly all of them."""
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    centres = 6 * np.eye(classes, width)
    return (centres[labels] + random.normal(size=(samples, width))).astype(np.float32), labels.astype(np.int64)


def small_model(
    classes: int = 3, width: int = 4, extra: int = 1, norm: str = "none", unknown: str = "linear"
) -> SplitModel:
    torch.manual_seed(0)
    return build("mlp", classes + extra, (width,), hidden=(16, 16), norm=norm, unknown=unknown)
