"""The chain of langevin.py at the arithmetic's own pace: the same steps, with the tail's gradient written out
(frozen.py) and, on a GPU, all of them captured once as a CUDA graph and replayed.

Everything a replay needs is read inside the graph: the weights are folded and cast there, so that it sees every step of
the optimiser, and the random numbers come from a registered generator. The state is float32 whatever the tail computes
in. In float32 the steps are those of `run_chain` under the same noise; in bfloat16 the energies' statistics agree.

Where the tail begins with an average pool, the chain runs on the pooled vector, with step/HW and noise/sqrt(HW): the
pool passes on no more than that, and the rest of the noise never reaches the tail.
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from eow.sampling import kernels
from eow.sampling.energies import ENERGIES, Energy, energy_named, logit_gradient
from eow.sampling.freezing import freeze
from eow.sampling.frozen import Chained, MeanPool
from eow.sampling.langevin import Chain, check_steps, noise_scale, run_chain, within


def written_out_chain(
    tail: Chained,
    z0: Tensor,
    energy: str,
    *,
    steps: int,
    step: float,
    noise: float | str,
    trust: Tensor | None,
    generator: torch.Generator | None,
    dtype: torch.dtype,
) -> Chain:
    """`run_chain` without autograd. Of the energies it keeps those at the start and at the end."""
    std = noise_scale(noise, step)
    tail.read(dtype)
    if isinstance(tail.pieces[0], MeanPool):
        area = z0.shape[2] * z0.shape[3]
        pooled = z0.mean((2, 3))
        radius = None if trust is None else trust / math.sqrt(area)
        inner = steps_of(
            Chained(tail.pieces[1:]),
            pooled,
            energy,
            steps,
            step / area,
            std / math.sqrt(area),
            radius,
            generator,
            dtype,
        )
        return Chain(z0 + (inner.z - pooled)[:, :, None, None], inner.capped, inner.energy)
    return steps_of(tail, z0, energy, steps, step, std, trust, generator, dtype)


def steps_of(
    tail: Chained,
    start: Tensor,
    energy: str,
    steps: int,
    step: float,
    std: float,
    trust: Tensor | None,
    generator: torch.Generator | None,
    dtype: torch.dtype,
) -> Chain:
    z = start.clone()
    low = z.to(dtype)  # the state as the tail takes it
    capped = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    fused = dtype != z.dtype and trust is None and kernels.fits(z, low)
    seed = torch.randint(2**31, (1,), generator=generator, device=z.device) if fused else None
    eps = torch.empty_like(z)
    energies: list[Tensor] = []
    for number in range(steps):
        value, slope = logit_gradient(energy, tail.forward(low).to(z.dtype), with_value=number == 0)
        if value is not None:
            energies.append(value)
        gradient = tail.backward(slope.to(dtype))
        if seed is not None and kernels.fits(z, low, gradient):
            kernels.langevin_step(z, low, gradient, seed, number, step, std)
            continue
        z.add_(gradient, alpha=-0.5 * step)
        if std > 0:
            z.add_(eps.normal_(generator=generator), alpha=std)
        if trust is not None:
            z, outside = within(z, start, trust)
            capped |= outside
        low = z.to(dtype)
    energies.append(ENERGIES[energy](tail.forward(low).to(z.dtype)))
    return Chain(z, capped, torch.stack(energies))


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
    settings: dict[str, Any] = {"steps": steps, "step": step, "noise": noise}
    if not isinstance(energy, str):
        return run_chain(tail, z0, energy, trust=trust, generator=generator, **settings).z
    return Sampler(tail, energy, **settings).run(as_state(z0), as_radius(trust, z0), generator, autocast=False).z


def as_state(z0: Tensor) -> Tensor:
    """Detached, and in float32 at least: steps are too small for half precision."""
    return z0.detach().float() if z0.dtype in (torch.bfloat16, torch.float16) else z0.detach()


def as_radius(trust: float | Tensor | None, z0: Tensor) -> Tensor | None:
    return None if trust is None else torch.as_tensor(trust, device=z0.device)


class Sampler:
    """`run_chain` for one tail and one set of settings, in the fastest way there is for them."""

    def __init__(self, tail: nn.Module, energy: str, **settings: Any) -> None:
        energy_named(energy)
        check_steps(settings["steps"], settings["step"])
        self.tail, self.energy, self.settings = tail, energy, settings
        self.frozen = freeze(tail)
        self.graphs: dict[Any, Graphed] = {}
        self.graphable = True

    @torch.no_grad()
    def __call__(self, z0: Tensor, trust: Tensor | None, generator: torch.Generator, autocast: bool = False) -> Chain:
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
                reason = str(error).splitlines()[0]
                warnings.warn(
                    f"the chain cannot be captured as a CUDA graph ({reason}): it runs step by step", stacklevel=2
                )
                return self.run(z0, trust, generator, autocast)
        return self.graphs[key].replay(z0, trust)

    @torch.no_grad()
    def run(self, z0: Tensor, trust: Tensor | None, generator: torch.Generator | None, autocast: bool) -> Chain:
        if self.frozen is None:
            return run_chain(self.tail, z0, self.energy, trust=trust, generator=generator, **self.settings)
        dtype = torch.bfloat16 if autocast else z0.dtype
        with torch.autocast(z0.device.type, enabled=False):
            return written_out_chain(
                self.frozen, z0, self.energy, trust=trust, generator=generator, dtype=dtype, **self.settings
            )


class Graphed:
    """A chain as one CUDA graph: static inputs and outputs, everything in between replayed."""

    def __init__(self, run: Any, z0: Tensor, trust: Tensor | None, generator: torch.Generator, autocast: bool) -> None:
        self.z0, self.trust = z0.clone(), None if trust is None else trust.clone()
        state = generator.get_state()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(
            stream
        ):  # libraries choose their algorithms and take their workspaces before the capture
            run(self.z0, self.trust, generator, autocast)
        torch.cuda.current_stream().wait_stream(stream)
        generator.set_state(state)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(generator)
        # Autocast's cache would hand casts made before the capture into the graph.
        with (
            torch.autocast("cuda", torch.bfloat16, enabled=autocast, cache_enabled=False),
            torch.cuda.graph(self.graph),
        ):
            self.chain = run(self.z0, self.trust, generator, autocast)

    def replay(self, z0: Tensor, trust: Tensor | None) -> Chain:
        self.z0.copy_(z0)
        if self.trust is not None and trust is not None:
            self.trust.copy_(trust)
        self.graph.replay()
        return Chain(*(each.clone() for each in self.chain))
