"""A fence around the training features: what lies far outside is raised towards "unknown", whatever the logits say.

Networks are often surest of what is least like their data: noise and shuffled pixels drive the last features far out,
and every logit of a head with them. Chains that stay near the data teach nothing about such places. The fence does: it
is probabilistic PCA (Tipping, Bishop: JRSS B, 1999) of the features z that the head reads, after training,

    D(z) = mean over the D dimensions of (z - m)' C^-1 (z - m),   C: `rank` axes of their own, one variance for the rest
    unknown logit + SLOPE · max(0, D(z)/τ - 1)

fitted on one half of the training samples; τ is the 99 % quantile of D on the other half, so that about one known
sample in a hundred is touched, and little, however few samples there are. Inside the fence nothing changes.

Ours, on held-out training data (benchmarks/recipe.py): docs/choosing.md.
"""

import torch
from torch import Tensor, nn

from eow.errors import EowError

SLOPE = 10.0  # at twice the distance of the fence the odds of "unknown" are e^10 times as high
INSIDE = 0.99  # the share of the second half that lies inside


class Fence(nn.Module):
    """`rise(z)` is what to add to the unknown logit. NaN until `fit`."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        rank = min(rank, width - 1)
        self.middle: Tensor
        self.axes: Tensor
        self.rest: Tensor
        self.radius: Tensor
        self.register_buffer("middle", torch.full((width,), torch.nan))
        self.register_buffer("axes", torch.full((width, rank), torch.nan))  # divided by their standard deviations
        self.register_buffer("rest", torch.tensor(torch.nan))  # standard deviation in all other directions
        self.register_buffer("radius", torch.tensor(torch.nan))  # τ

    def fit(self, features: Tensor) -> None:
        """The fence of (N, D) features, in double precision."""
        z = features.detach().double()
        one, other = z[::2], z[1::2]
        if len(other) < 2:
            raise EowError(f"a fence needs at least 4 training samples, not {len(z)}: set method.fence=0")
        middle, rank = one.mean(0), self.axes.shape[1]
        values, vectors = torch.linalg.eigh((one - middle).T @ (one - middle) / len(one))
        values, vectors = values.flip(0), vectors.flip(1)
        # Where all features are the same in some direction, any step in it would be infinitely far.
        rest = values[rank:].mean().clamp_min(1e-9 * values.mean()).clamp_min(1e-30)
        self.middle.copy_(middle)
        self.axes.copy_(vectors[:, :rank] * values[:rank].clamp_min(rest).rsqrt())
        self.rest.copy_(rest.sqrt())
        reach = self.distance(other.to(self.middle)).double()
        self.radius.copy_(reach.quantile(INSIDE).clamp_min(1e-30))

    def distance(self, z: Tensor) -> Tensor:
        """D(z): 1 on average where the model is right."""
        move = (z - self.middle).float()
        inside = move @ self.axes
        # The part along the axes, at the scale of the rest, so that both are of one size before they are subtracted.
        along = inside / (self.axes.norm(dim=0) * self.rest)
        outside = ((move / self.rest).square().sum(1) - along.square().sum(1)).clamp_min(0)
        return (inside.square().sum(1) + outside) / z.shape[1]

    def rise(self, z: Tensor) -> Tensor:
        return SLOPE * (self.distance(z) / self.radius - 1).clamp_min(0)
