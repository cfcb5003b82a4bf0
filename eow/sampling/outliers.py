"""Unlikely features, as VOS makes them (Du, Wang, Cai, Li: ICLR 2022): a Gaussian for every class, all with one
covariance, estimated from a queue of the newest features; of 10,000 draws the least likely ones are kept.

With one covariance Σ = LLᵀ a draw is μ_k + Lε, and its log-density for its own class is -|ε|²/2 + constant: the least
likely draws are those with the longest ε, so that candidates need neither L nor a density, only those that are kept.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from eow.errors import EowError

CANDIDATES = 10_000  # a step, over all classes
RIDGE = 1e-3  # added to the covariance's diagonal, in mean variances: a feature that is always 0 has none


class GaussianOutliers(nn.Module):
    """The queue and the draws, on the device. Part of a checkpoint, not of the trained weights.

    The queue holds the newest `size` features whatever their class, so the classes have their shares of the data in
    it; until it is full, the Gaussians are those of what it holds. The full covariance and its Cholesky factor are
    made anew every step: size·D² + D³/6 multiplications, 4e10 for 10,000 features of 2048.
    """

    def __init__(self, size: int, shape: tuple[int, ...], count: int) -> None:
        super().__init__()
        if len(shape) != 1:
            raise EowError(
                f"gaussian outliers need a feature vector, but the latent at the cut is of shape {shape}: "
                "set model.cut=penultimate"
            )
        if size < 2 or count > CANDIDATES:
            raise EowError(
                f"gaussian outliers need a queue of at least 2 features and at most {CANDIDATES} chains, not {size} "
                f"and {count}: set method.buffer_size and method.chains"
            )
        self.features: Tensor
        self.labels: Tensor
        self.position: Tensor
        self.register_buffer("features", torch.zeros(size, *shape), persistent=False)
        self.register_buffer("labels", torch.full((size,), -1), persistent=False)  # -1: nothing there yet
        self.register_buffer("position", torch.zeros((), dtype=torch.long), persistent=False)

    def store(self, features: Tensor, labels: Tensor) -> None:
        """The newest features take the places of the oldest."""
        features, labels = features.detach()[-len(self.labels) :], labels[-len(self.labels) :]
        rows = (self.position + torch.arange(len(labels), device=labels.device)) % len(self.labels)
        self.features[rows] = features.to(self.features.dtype)
        self.labels[rows] = labels
        self.position += len(labels)

    def gaussians(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of each stored feature's class, (size, D), with the empty rows first; how many are not empty; and
        the covariance, (D, D)."""
        labels, order = self.labels.sort()
        features = self.features[order]
        group = pad((labels.diff() != 0).cumsum(0), (1, 0))  # numbers the classes that are there, in order
        sums = torch.zeros_like(features).index_add_(0, group, features)
        counts = torch.zeros_like(features[:, 0]).index_add_(0, group, torch.ones_like(features[:, 0]))
        means = (sums / counts.clamp_min(1)[:, None])[group]
        filled = labels >= 0
        centred = (features - means) * filled[:, None]
        covariance = centred.T @ centred / filled.sum()
        return means, filled.sum(), covariance

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The `count` least likely of the candidates."""
        device, (size, width) = self.features.device, self.features.shape
        with torch.autocast(device.type, enabled=False):
            means, filled, covariance = self.gaussians()
            ridge = RIDGE * covariance.diagonal().mean() + 1e-12
            ridged = covariance.double() + ridge * torch.eye(width, device=device, dtype=torch.float64)
            factor, failed = torch.linalg.cholesky_ex(ridged)  # the one that does not make the host wait
            factor = torch.where(failed == 0, factor, torch.nan).float()  # the loop finds a loss that is not finite
            noise = torch.randn(CANDIDATES, width, generator=generator, device=device)
            longest = noise[noise.norm(dim=1).topk(count).indices]
            place = torch.rand(count, generator=generator, device=device, dtype=torch.float64) * filled
            return means[size - 1 - place.long()] + longest @ factor.T
