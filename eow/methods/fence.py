"""A fence around the training features: what lies far outside is raised towards "unknown", whatever the logits say.

Networks are often surest of what is least like their data: noise and shuffled pixels drive the last features far out,
and every logit of a head with them. Chains that stay near the data teach nothing about such places. The fence does: it
is probabilistic PCA (Tipping, Bishop: JRSS B, 1999) of the features z that the head reads, after training,

    D(z) = (z - m)' C^-1 (z - m) / dimensions,   C: `rank` axes of their own, one variance for the rest
    unknown logit + SLOPE · max(0, D(z)/τ - 1)

fitted on one half of the training samples; τ is the 99 % quantile of D on the other half, so that about one known
sample in a hundred is touched, and little, however few samples there are. Inside the fence nothing changes.

Ours: docs/choosing.md.
"""

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models.layers import FARTHEST
from eow.seeds import own_randomness

SLOPE = 10.0  # at twice the distance of the fence the odds of "unknown" are e^10 times as high
INSIDE = 0.99  # the share of the second half that lies inside
NARROWEST = 0.01  # no direction counts as narrower than this share of the typical deviation
ROUNDING = 1e-5  # of the features' size: what single precision may get wrong is not a distance
HIGHEST = 1e4  # the most that a logit is raised
WIDEST, FEWEST = 1000, 300  # dimensions, or samples, up to which all axes are found and not the first alone


class Fence(nn.Module):
    """`rise(z)` is what to add to the unknown logit. NaN until `fit`."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        rank = min(rank, width - 1)
        self.middle: Tensor
        self.axes: Tensor
        self.spread: Tensor
        self.rest: Tensor
        self.radius: Tensor
        self.register_buffer("middle", torch.full((width,), torch.nan))
        self.register_buffer("axes", torch.full((width, rank), torch.nan))  # of length 1
        self.register_buffer("spread", torch.full((rank,), torch.nan))  # standard deviations along them
        self.register_buffer("rest", torch.tensor(torch.nan))  # and in all other directions
        self.register_buffer("radius", torch.tensor(torch.nan))  # τ

    def fit(self, features: Tensor) -> None:
        """The fence of (N, D) features, in double precision."""
        # Shuffled: in their own order the halves might be two classes.
        order = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))
        z = features.detach().double()[order.to(features.device)]
        one, other = z[::2], z[1::2]
        if len(other) < 2:
            raise EowError(f"a fence needs at least 4 training samples, not {len(z)}: set method.fence=0")
        self.place(one)
        # A network says the same row in another batch with another rounding, which must be inside.
        rounding = float(ROUNDING * one.mean(0).square().mean().sqrt())
        self.spread.clamp_min_(rounding)
        self.rest.clamp_min_(rounding)
        reach = self.distance(other.to(self.middle)).double()
        self.radius.copy_(reach.quantile(INSIDE).clamp_min((rounding / float(self.rest)) ** 2).clamp_min(1e-30))

    def place(self, z: Tensor) -> None:
        """All but τ, from (N, D) features in double precision."""
        middle, rank = z.mean(0), self.axes.shape[1]
        values, axes, others = principal_axes(z - middle, rank)
        typical = (values.sum() + others * (len(middle) - rank)) / len(middle)
        # Where the features do not move at all, any step would be infinitely far, and rounding is a step.
        rest = others.clamp_min(NARROWEST**2 * typical).clamp_min(1e-30)
        self.middle.copy_(middle)
        self.axes.copy_(axes)
        self.spread.copy_(values.clamp_min(rest).sqrt())
        self.rest.copy_(rest.sqrt())

    def distance(self, z: Tensor) -> Tensor:
        """D(z): 1 on average where the model is right. Finite for all finite features."""
        move = (z.float() - self.middle).clamp(-FARTHEST, FARTHEST)
        along = move @ self.axes
        across = move - along @ self.axes.T  # subtracted before squaring: squares would cancel
        parts = torch.cat([along / self.spread, across / self.rest], 1).clamp(-FARTHEST, FARTHEST)
        return parts.square().sum(1) / z.shape[1]

    def rise(self, z: Tensor) -> Tensor:
        return (SLOPE * (self.distance(z) / self.radius - 1)).clamp_min(0).clamp_max(HIGHEST)


def principal_axes(moves: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest `rank` variances of (N, D) centred samples, their axes (columns), and the mean of the other D - rank
    variances. N samples have N axes at most: further ones are 0, with a variance of 0, which leaves them to the rest.
    All axes of many dimensions would take a hundred times as long as these few, which are found by iteration."""
    count, width = moves.shape
    if width <= min(WIDEST, count):
        values, axes = (each.flip(-1) for each in torch.linalg.eigh(moves.T @ moves / count))
    elif count <= FEWEST:
        _, lengths, rows = torch.linalg.svd(moves, full_matrices=False)
        values, axes = lengths.square() / count, rows.T
    else:
        with own_randomness(moves.device, 0):
            _, lengths, axes = torch.svd_lowrank(moves, min(3 * rank + 10, count, width), niter=6)
        values = lengths.square() / count
    values, missing = values[:rank], max(rank - len(values), 0)
    others = (moves.square().sum() / count - values.sum()).clamp_min(0) / max(width - rank, 1)
    return nn.functional.pad(values, (0, missing)), nn.functional.pad(axes[:, :rank], (0, missing)), others
