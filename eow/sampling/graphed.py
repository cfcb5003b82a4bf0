"""The chain of langevin.py at the arithmetic's own pace: the same steps, with the tail's gradient written out
(frozen.py) and, on a GPU, all of them captured once as a CUDA graph and replayed.

Everything a replay needs is read inside the graph: the weights are folded and cast there, so that it sees every step of
the optimiser, and the random numbers come from a registered generator. The state is float32 whatever the tail computes
in. In float32 the steps are those of `run_chain` under the same noise; in bfloat16 the energies' statistics agree.

Two closed forms need even less. Where the tail begins with an average pool, the chain runs on the pooled vector, with
step/HW and noise/sqrt(HW): the pool passes on no more than that, and the rest of the noise never reaches the tail.
Before a linear tail f = Wz + b the chain runs on the K+1 logits themselves, with the Gram matrix W W^T.
"""

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.plain import first_line
from eow.sampling import kernels, langevin
from eow.sampling.blocks import Chained
from eow.sampling.energies import ENERGIES, Energy, energy_named, logit_gradient
from eow.sampling.freezing import freeze
from eow.sampling.frozen import Layer, MeanPool
from eow.sampling.langevin import Chain, check_steps, noise_scale, run_chain, within
from eow.training.stepgraph import recording

MOST_NOISE = 2**26  # numbers that may be drawn at once, 256 MiB


class Motion(NamedTuple):
    """How a chain moves: z <- z - step/2 · dE/dz + std · ε, `steps` times."""

    energy: str
    steps: int
    step: float
    std: float


def written_out_chain(
    tail: Chained,
    z0: Tensor,
    motion: Motion,
    trust: Tensor | None,
    generator: torch.Generator | None,
    dtype: torch.dtype,
) -> Chain:
    """`run_chain` without autograd. Of the energies it keeps those at the start and at the end."""
    first, *rest = tail.pieces
    if isinstance(first, MeanPool) and rest:
        area = z0.shape[2] * z0.shape[3]
        slower = motion._replace(step=motion.step / area, std=motion.std / math.sqrt(area))
        pooled, radius = z0.mean((2, 3)), None if trust is None else trust / math.sqrt(area)
        inner = written_out_chain(Chained(rest), pooled, slower, radius, generator, dtype)
        return Chain(z0 + (inner.z - pooled)[:, :, None, None], inner.capped, inner.energy)
    linear = isinstance(first, Layer) and not first.convolution and first.slope is None and not rest
    if linear and motion.energy in ("paper", "proof") and motion.steps * z0.numel() <= MOST_NOISE:
        assert isinstance(first, Layer)
        first.read(z0.dtype)
        if trust is None:
            return logit_chain(first.weight, first.bias, z0, motion, generator)[0]
        if langevin.free_to_look(z0) and generator is not None:
            # Most chains never come near the end of their trust. If none can have, the cheap chain is the right one;
            # a GPU would have to be waited for to find out.
            state = generator.get_state()
            chain, reach = logit_chain(first.weight, first.bias, z0, motion, generator, bounded=True)
            if bool((reach <= trust).all()):
                return chain
            generator.set_state(state)
    tail.read(dtype)
    return latent_chain(tail, z0, motion, trust, generator, dtype)


def logit_chain(
    weight: Tensor,
    bias: Tensor | None,
    z0: Tensor,
    motion: Motion,
    generator: torch.Generator | None,
    bounded: bool = False,
) -> tuple[Chain, Tensor]:
    """The chain before a linear tail, in the space of its logits, and if `bounded` how far from z0 each can have been.

    z moves by W^T of something and by noise, so f = Wz + b moves by G = W W^T of it and by W of the noise:
    f <- f - step/2 · (e_{K+1} - h) G + std · Wε: three small operations a step, or one kernel for all of them. At the
    end z is put together again.
    """
    steps, half = motion.steps, 0.5 * motion.step if motion.energy == "paper" else -0.5 * motion.step
    f = nn.functional.linear(z0, weight, bias)
    gram = weight @ weight.t()
    pushes = (-half * gram[-1]).expand(steps, *f.shape)  # what moves f besides its softmax: e_{K+1}, and noise
    eps = None
    if motion.std > 0:
        eps = torch.empty(steps, *z0.shape, dtype=z0.dtype, device=z0.device)
        for each in eps if not eps.is_cuda else [eps]:  # on the CPU step by step, the numbers of the reference
            each.normal_(generator=generator)
        pushes = torch.addmm(-half * gram[-1], eps.flatten(0, 1), weight.t(), alpha=motion.std).view(steps, *f.shape)
    before = ENERGIES[motion.energy](f)
    if kernels.fits_logits(f) and not bounded:
        pull = kernels.logit_steps(f, gram, pushes, half)
    else:
        h = torch.empty(steps, *f.shape, dtype=f.dtype, device=f.device)
        for number in range(steps):
            torch.softmax(f, 1, out=h[number])
            f.add_(pushes[number]).addmm_(h[number], gram, alpha=half)
        pull = h.sum(0)
    pull[:, -1] -= steps  # of e_{K+1} in every step; all in units of half · W
    z = torch.addmm(z0, pull, weight, alpha=half)
    if eps is not None:
        z.add_(eps.sum(0), alpha=motion.std)
    capped = torch.zeros(len(z0), dtype=torch.bool, device=z0.device)
    chain = Chain(z, capped, torch.stack([before, ENERGIES[motion.energy](f)]))
    reach = torch.zeros(len(z0))
    if bounded and steps:
        h[..., -1] -= 1
        pulls = h.cumsum(0)
        reach = abs(half) * ((pulls @ gram) * pulls).sum(2).clamp_min(0).sqrt().amax(0)
        if eps is not None:  # at most the sum of the noise's lengths
            reach = reach + motion.std * torch.linalg.vector_norm(eps, dim=2).sum(0)
    return chain, reach


def latent_chain(
    tail: Chained,
    start: Tensor,
    motion: Motion,
    trust: Tensor | None,
    generator: torch.Generator | None,
    dtype: torch.dtype,
) -> Chain:
    """The chain in the latent space itself, for any tail that is written out."""
    z = start.clone()
    low = z.to(dtype)  # the state as the tail takes it
    capped = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    fused = dtype != z.dtype and trust is None and kernels.fits(z, low)
    seed = torch.randint(2**31, (1,), generator=generator, device=z.device) if fused else None
    eps = torch.empty_like(z)
    logits = tail.forward(low).to(z.dtype)
    before = ENERGIES[motion.energy](logits)
    for number in range(motion.steps):
        gradient = tail.backward(logit_gradient(motion.energy, logits))
        if seed is not None and kernels.fits(z, low, gradient):
            kernels.langevin_step(z, low, gradient, seed, number, motion.step, motion.std)
        else:
            z.add_(gradient, alpha=-0.5 * motion.step)
            if motion.std > 0:
                z.add_(eps.normal_(generator=generator), alpha=motion.std)
            if trust is not None:
                z, outside = within(z, start, trust)
                capped |= outside
            low = z.to(dtype)
        logits = tail.forward(low).to(z.dtype)
    return Chain(z, capped, torch.stack([before, ENERGIES[motion.energy](logits)]))


def sample(
    tail: nn.Module,
    z0: Tensor,
    energy: str | Energy = "paper",
    *,
    steps: int = 100,
    step: float = 2.0,
    noise: float | str = 1e-3,
    trust: float | Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The ends of Langevin chains that start at z0 and descend `energy`: z <- z - step/2 · dE/dz + noise · ε, detached.

    `energy` is a name (`paper`, `proof`, `complement`) or any function of the tail's output that gives one value a row.
    `trust`, a number or one number a chain, is the farthest a chain may end from its start: what keeps it from running
    away where the energy is unbounded below, as it always is for `paper` before a linear head. A loop that samples from
    the same tail again and again keeps a `Sampler`.
    """
    if not isinstance(energy, str):
        trust = as_radius(trust, z0)
        return run_chain(tail, z0, energy, steps=steps, step=step, noise=noise, trust=trust, generator=generator).z
    return (
        Sampler(tail, energy, steps=steps, step=step, noise=noise)
        .run(as_state(z0), as_radius(trust, z0), generator, False)
        .z
    )


def as_state(z0: Tensor) -> Tensor:
    """Detached, and in float32 at least: steps are too small for half precision."""
    return z0.detach().float() if z0.dtype in (torch.bfloat16, torch.float16) else z0.detach()


def as_radius(trust: float | Tensor | None, z0: Tensor) -> Tensor | None:
    """One radius for all chains or one for each, none of them negative."""
    if trust is None:
        return None
    radius = torch.as_tensor(trust, device=z0.device)
    if radius.dim() > 1 or (radius.dim() == 1 and len(radius) != len(z0)) or not bool((radius >= 0).all()):
        raise EowError(f"trust is {trust!r}: give a number of at least 0, or a tensor of one such number a chain")
    return radius


class Sampler:
    """`run_chain` for one tail and one set of settings, in the fastest way there is for them."""

    def __init__(self, tail: nn.Module, energy: str, *, steps: int, step: float, noise: float | str) -> None:
        energy_named(energy)
        check_steps(steps, step)
        self.tail, self.motion = tail, Motion(energy, steps, step, noise_scale(noise, step))
        self.frozen = freeze(tail)
        if self.frozen is None:
            warnings.warn("this tail's gradient is not written out here: its chains run under autograd", stacklevel=2)
        self.graphs: dict[Any, Graphed] = {}
        self.graphable = True

    @torch.no_grad()
    def __call__(self, z0: Tensor, trust: Tensor | None, generator: torch.Generator, autocast: bool = False) -> Chain:
        """Chains from z0. `autocast`: the tail computes in bfloat16."""
        z0 = as_state(z0)
        if not z0.is_cuda or not self.graphable or torch.cuda.is_current_stream_capturing():
            return self.run(z0, trust, generator, autocast)  # a step that is being captured takes the chain in whole
        weights = tuple(tensor.data_ptr() for tensor in (*self.tail.parameters(), *self.tail.buffers()))
        key = (z0.shape, z0.stride(), z0.dtype, trust is None, autocast, id(generator), weights)
        if key not in self.graphs:
            try:
                self.graphs[key] = Graphed(self.run, z0, trust, generator, autocast)
            except RuntimeError as error:
                self.graphable = False
                reason = first_line(error)
                warnings.warn(
                    f"the chain cannot be captured as a CUDA graph ({reason}): it runs step by step", stacklevel=2
                )
                return self.run(z0, trust, generator, autocast)
        return self.graphs[key].replay(z0, trust)

    @torch.no_grad()
    def run(self, z0: Tensor, trust: Tensor | None, generator: torch.Generator | None, autocast: bool) -> Chain:
        if self.frozen is None or not self.frozen.takes(z0.dim()):
            energy, steps, step, std = self.motion
            return run_chain(self.tail, z0, energy, steps=steps, step=step, noise=std, trust=trust, generator=generator)
        with torch.autocast(z0.device.type, enabled=False):
            dtype = torch.bfloat16 if autocast else z0.dtype
            return written_out_chain(self.frozen, z0, self.motion, trust, generator, dtype)


class Graphed:
    """A chain as one CUDA graph: static inputs and outputs, everything in between replayed."""

    def __init__(self, run: Any, z0: Tensor, trust: Tensor | None, generator: torch.Generator, autocast: bool) -> None:
        self.z0, self.trust = z0.clone(), None if trust is None else trust.clone()
        state = generator.get_state()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries choose their algorithms and take their workspaces before the capture
            run(self.z0, self.trust, generator, autocast)
        torch.cuda.current_stream().wait_stream(side)
        generator.set_state(state)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        # Autocast's cache would hand casts made before the capture into the graph.
        casting = torch.autocast("cuda", torch.bfloat16, enabled=autocast, cache_enabled=False)
        with casting, recording(self.graph, side):
            self.chain = run(self.z0, self.trust, generator, autocast)

    def replay(self, z0: Tensor, trust: Tensor | None) -> Chain:
        self.z0.copy_(z0)
        if self.trust is not None and trust is not None:
            self.trust.copy_(trust)
        self.graph.replay()
        return Chain(*(each.clone() for each in self.chain))
