"""Stochastic gradient Langevin dynamics in a latent space: the reference, to be checked against eq. 5 of the paper.

    z <- z - step/2 · dE(z)/dz + noise · ε,   ε ~ N(0, I)

Eq. 5 as printed has noise = sqrt(step), here `noise="langevin"`; only then is the chain a sampler of exp(-E) (up to
the step's bias). The paper's own setting, step 2 with noise 1e-3, is gradient descent with a little noise: step and
noise are two parameters.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models.split import frozen_statistics
from eow.sampling.energies import Energy, energy_named

LARGEST_ENERGY = 1e4  # of chains, in nats and in the mean: beyond, they have run away


class Chain(NamedTuple):
    """Where the chains ended, and what happened on the way; everything stays on the device."""

    z: Tensor
    capped: Tensor  # (N,) bool: the trust region held this chain back at least once
    energy: Tensor  # (steps + 1, N): the energy before every step and at the end; the fast path keeps first and last


class Tally:
    """What happened to the chains since the last reading, added up in place on the device, as a captured step must."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.sums = torch.zeros(4, dtype=torch.float64, device=device)

    def add(self, chain: Chain) -> None:
        self.sums[0] += len(chain.z)
        self.sums[1:] += torch.stack([chain.capped.sum(), chain.energy[0].sum(), chain.energy[-1].sum()])

    def read(self) -> dict[str, float]:
        """The number of chains, how many the trust region held back, and their mean energies; the sums begin anew."""
        chains, capped, start, end = self.sums.tolist()
        self.sums.zero_()
        if not chains:
            return {}
        return {"chains": chains, "capped": capped, "energy_start": start / chains, "energy_end": end / chains}


def noise_scale(noise: float | str, step: float) -> float:
    """The standard deviation of the noise: a number, or "langevin" for eq. 5's sqrt(step)."""
    if noise == "langevin":
        return math.sqrt(step)
    if isinstance(noise, str) or not 0 <= noise < math.inf:
        raise EowError(f'noise is {noise!r}: give a number of at least 0, or "langevin" for sqrt(step)')
    return float(noise)


def check_steps(steps: int, step: float) -> None:
    if not isinstance(steps, int) or steps < 0 or not 0 < step < math.inf:
        raise EowError(f"a chain has {steps} steps of size {step}: steps must be at least 0, and step above 0")


def free_to_look(z: Tensor) -> bool:
    """Whether a value can be read without waiting for a device: only there may a chain take a short cut that depends on
    one. What a GPU does never asks."""
    return z.device.type == "cpu"


def within(z: Tensor, start: Tensor, trust: float | Tensor) -> tuple[Tensor, Tensor]:
    """Each chain pulled back to the ball of radius `trust` (one for all, or one each) around its start, and which ones
    were."""
    move = z - start
    length = torch.linalg.vector_norm(move, dim=tuple(range(1, z.dim())), keepdim=True)
    radius = torch.as_tensor(trust, dtype=z.dtype, device=z.device).expand(len(z)).view_as(length)
    outside = ~(length <= radius)  # a NaN length is outside too
    if free_to_look(z) and not outside.any():
        return z, outside.flatten()
    pulled = torch.addcmul(start, move, radius / length)
    z = torch.where(outside, pulled, z)
    return torch.where(length.isfinite(), z, start), outside.flatten()


def mean_norm(z: Tensor) -> Tensor:
    """The mean length of the rows of z: the unit in which a method's `trust` is given."""
    return z.flatten(1).float().norm(dim=1).mean()


def run_chain(
    tail: nn.Module,
    z0: Tensor,
    energy: str | Energy = "paper",
    *,
    steps: int = 100,
    step: float = 2.0,
    noise: float | str = 1e-3,
    trust: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Chain:
    """`steps` Langevin steps of every row of z0 at once. The tail's parameters and statistics are read, never
    changed."""
    check_steps(steps, step)
    energy_of = energy_named(energy)
    std = noise_scale(noise, step)
    start = z0.detach()
    start = start.float() if start.dtype in (torch.bfloat16, torch.float16) else start  # steps are too small for those
    z = start.clone()
    capped = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    energies = torch.empty(steps + 1, len(z), device=z.device)
    with frozen_statistics(tail), torch.enable_grad():
        for t in range(steps):
            z.requires_grad_(True)
            value = energy_of(tail(z.clone()).to(z.dtype))  # a tail may begin with an operation in place
            (gradient,) = torch.autograd.grad(value.sum(), z)
            energies[t] = value.detach()
            z = z.detach() - 0.5 * step * gradient
            if std > 0:
                z = z + std * torch.empty_like(z).normal_(generator=generator)
            if trust is not None:
                z, outside = within(z, start, trust)
                capped |= outside
        with torch.no_grad():
            energies[steps] = energy_of(tail(z.clone()).to(z.dtype))
    return Chain(z, capped, energies)
