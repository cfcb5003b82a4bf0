"""Distances from features to centres, (N, D) and (K, D) -> (N, K), for the methods that classify by them.

By differences: |h|² - 2hc + |c|² would leave rounding errors alone where a feature meets its centre. Their gradient,

    ∂/∂h_n Σ_k g_nk d_nk = Σ_k w_nk (h_n - c_k) = h_n Σ_k w_nk - Σ_k w_nk c_k,   w = g / d,

is a matrix product, and so is that for c; torch.cdist's own backward goes through all N·K·D differences once more, on a
GPU through a tensor of them. Where a feature is its centre there is no direction: the gradient is 0, as torch has it.
"""

from typing import Any

import torch
from torch import Tensor


def distances(features: Tensor, centres: Tensor) -> Tensor:
    """Euclidean distances. In float32 the gradient, a difference of sums, is off by about 1e-7 |h| / d of itself."""
    if torch.is_grad_enabled() and (features.requires_grad or centres.requires_grad):
        found: Tensor = _Distances.apply(features, centres)
        return found
    return _by_differences(features, centres)  # what an export can read


def _by_differences(features: Tensor, centres: Tensor) -> Tensor:
    return torch.cdist(features, centres, compute_mode="donot_use_mm_for_euclid_dist")


class _Distances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, centres: Tensor) -> Tensor:
        found = _by_differences(features, centres)
        ctx.save_for_backward(features, centres, found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        features, centres, found = ctx.saved_tensors
        features, centres = features.to(found), centres.to(found)  # autocast may have measured in another type
        weight = torch.where(found > 0, gradients[0] / found, 0.0)
        with torch.autocast(found.device.type, enabled=False):  # of whoever calls backward inside one
            return (
                features * weight.sum(1, keepdim=True) - weight @ centres,
                centres * weight.sum(0)[:, None] - weight.T @ features,
            )
