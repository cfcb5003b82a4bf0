"""Where chains start. What a chain begins with decides what it teaches. On CIFAR-100 chains from noise are told
apart at once and change nothing; chains from the batch's features or from mixtures of two classes calibrate
(docs/choosing.md):

    noise      U(-width, width) in every coordinate
    buffer     slots of a replay buffer that keeps the ends of earlier chains; a drawn slot is re-started from noise
               with probability `restart` (the release's way: 10,000 slots, restart 0.05)
    features   the batch's own features
    mixed      a·z_i + (1 - a)·z_j with a ~ U(0, 1), i and j of different classes (of the same one in a batch of one
               class)
    gaussian   unlikely draws from the Gaussians of a queue of features (outliers.py)

or a weighted mixture of these, written `noise:0.5,mixed:0.5`.
"""

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.sampling.outliers import GaussianOutliers

KINDS = ("noise", "buffer", "features", "mixed", "gaussian")


def parse_starts(text: str) -> dict[str, float]:
    """`"mixed"` -> {"mixed": 1.0};  `"noise:1,mixed:3"` -> {"noise": 0.25, "mixed": 0.75}."""
    weights: dict[str, float] = {}
    for part in text.split(","):
        kind, _, weight = (piece.strip() for piece in part.partition(":"))
        if kind not in KINDS:
            raise EowError(
                f"chains cannot start from {kind!r} (in {text!r}): choose {', '.join(KINDS)}, "
                "or weight several as in 'noise:0.5,mixed:0.5'"
            )
        if kind in weights:
            raise EowError(f"{kind!r} stands twice in the chain starts {text!r}: give each kind one weight")
        try:
            weights[kind] = float(weight) if weight else 1.0
        except ValueError:
            raise EowError(
                f"{weight!r} in the chain starts {text!r} is not a weight: write a number after the colon"
            ) from None
        if not 0 < weights[kind] < float("inf"):
            raise EowError(f"the weight of {kind!r} in the chain starts {text!r} is {weight}: it must be above 0")
    total = sum(weights.values())
    return {kind: weight / total for kind, weight in weights.items()}


def apportion(weights: dict[str, float], count: int) -> dict[str, int]:
    """Whole numbers that add up to `count`, as near the weights as can be (largest remainders): shapes stay the same
    every step."""
    exact = {kind: weight * count for kind, weight in weights.items()}
    whole = {kind: int(value) for kind, value in exact.items()}
    by_remainder = sorted(exact, key=lambda kind: whole[kind] - exact[kind])
    for kind in by_remainder[: count - sum(whole.values())]:
        whole[kind] += 1
    return whole


def mixed_pairs(features: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` convex combinations of two rows of different classes."""
    device = features.device
    first = torch.randint(len(features), (count,), generator=generator, device=device)
    preference = torch.rand(count, len(features), generator=generator, device=device)
    preference -= (labels[first, None] == labels[None, :]).to(preference.dtype)  # same class: below every other
    second = preference.argmax(1)
    weight = torch.rand(count, generator=generator, device=device, dtype=features.dtype)
    weight = weight.view(-1, *[1] * (features.dim() - 1))
    return weight * features[first] + (1 - weight) * features[second]


class ReplayBuffer(nn.Module):
    """The ends of earlier chains, on the device. Part of a checkpoint, not of the trained weights; there is none until
    `fill`, so that a finished run is opened without it (3 GB for the `release` recipe)."""

    def __init__(self, size: int, shape: tuple[int, ...], width: float, restart: float) -> None:
        super().__init__()
        if size < 1 or not 0 <= restart <= 1:
            raise EowError(
                f"a replay buffer needs at least 1 slot and a restart probability in 0..1, not {size} and {restart}"
            )
        self.size, self.width, self.restart = size, width, restart
        self.slots: Tensor
        self.register_buffer("slots", torch.empty(0, *shape), persistent=False)
        self.drawn = torch.zeros(0, dtype=torch.long)  # the slots of the chains that are under way

    def fill(self, generator: torch.Generator) -> None:
        self.slots = self.slots.new_empty(self.size, *self.slots.shape[1:])
        self.slots.uniform_(-self.width, self.width, generator=generator)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        if count > self.size:
            raise EowError(
                f"{count} chains cannot be drawn from a replay buffer of {self.size} slots: enlarge the buffer"
            )
        device = self.slots.device
        # Distinct slots, so that storing the ends writes each slot once and the order of writing cannot matter.
        self.drawn = torch.rand(len(self.slots), generator=generator, device=device).topk(count).indices
        z = self.slots[self.drawn]
        fresh = torch.empty_like(z).uniform_(-self.width, self.width, generator=generator)
        again = torch.rand(count, generator=generator, device=device) < self.restart
        return torch.where(again.view(-1, *[1] * (z.dim() - 1)), fresh, z)

    def store(self, ends: Tensor) -> None:
        self.slots[self.drawn] = ends.to(self.slots.dtype)


class Starts(nn.Module):
    """Draws a batch of chain starts from a weighted mixture of kinds, and takes the ends back into the buffer."""

    def __init__(
        self, text: str, shape: tuple[int, ...], count: int, *, width: float, buffer_size: int, restart: float
    ) -> None:
        super().__init__()
        if count < 1:
            raise EowError(f"the number of chains is {count}: it must be at least 1")
        self.counts = apportion(parse_starts(text), count)
        if none := [kind for kind, share in self.counts.items() if not share]:
            raise EowError(
                f"of {count} chains none would start from {', '.join(none)} as {text!r} asks: run more chains, or "
                "change the weights"
            )
        if {"noise", "buffer"} & {*self.counts} and not width > 0:
            raise EowError(f"the noise to start from has a width of {width}: it must be above 0")
        if self.counts.get("buffer", 0) > buffer_size:
            raise EowError(
                f"{self.counts['buffer']} chains cannot start from a buffer of {buffer_size} slots: enlarge it"
            )
        self.shape, self.width = shape, width
        self.buffer = ReplayBuffer(buffer_size, shape, width, restart) if "buffer" in self.counts else None
        drawn = self.counts.get("gaussian", 0)
        self.outliers = GaussianOutliers(buffer_size, shape, drawn) if drawn else None

    def draw(self, features: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Starts in the order of the text. They carry the features' gradient, where they have one: the caller
        detaches."""
        parts = []
        for kind, count in self.counts.items():
            if kind == "noise":
                z = torch.empty(count, *self.shape, device=features.device, dtype=features.dtype)
                parts.append(z.uniform_(-self.width, self.width, generator=generator))
            elif kind == "buffer":
                assert self.buffer is not None
                parts.append(self.buffer.draw(count, generator).to(features.dtype))
            elif kind == "gaussian":
                assert self.outliers is not None
                self.outliers.store(features, labels)
                parts.append(self.outliers.draw(count, generator).to(features.dtype))
            elif kind == "features":
                order = torch.randperm(len(features), generator=generator, device=features.device)
                parts.append(features[order.repeat(-(-count // len(order)))[:count]])
            else:
                parts.append(mixed_pairs(features, labels, count, generator))
        return torch.cat(parts)

    def store(self, ends: Tensor) -> None:
        if self.buffer is not None:
            before = 0
            for kind, count in self.counts.items():
                if kind == "buffer":
                    self.buffer.store(ends[before : before + count])
                before += count
