"""Joint Energy-based Models (Grathwohl, Wang, Jacobsen, Duvenaud, Norouzi, Swersky: Your Classifier is Secretly an
Energy Based Model and You Should Treat it Like One, ICLR 2020).

The K logits f of a classifier are read as an unnormalised log p(x, y), so p(x) ∝ exp(-E(x)), E(x) = -logsumexp f(x):

    loss = E_data[-log softmax(f(x))[y]] + weight · (E_data[E(x)] - E_chains[E(x)]) + energy_penalty · E[E(x)²]

where the chains are Langevin dynamics on E in the space of inputs, whatever the model's cut, from a replay buffer that
outlives the step. Prediction is the K-way softmax.

The paper's setting, on a WRN-28-10 without normalisation: 20 steps of "step 1" (here step 2), noise 0.01, 10,000 slots
started U(-1, 1), restart 0.05, evaluation mode while sampling, Adam 1e-4. Recipe `release` has that network and rate,
`paper` keeps section 4.1's schedule for JEM as for all others. JEM's images lie in -1..1 and deviate by about 0.5,
our inputs by 1: `start_width` 2 is its U(-1, 1), while step and noise keep its numbers and so are smaller moves.

JEM diverges often. `trouble` sees it in the gap of the energies, and the loop goes back to the last good epoch at half
the rate. An MLP on MNIST, 10 epochs, is given up in the seventh without `energy_penalty`, and with it and a weight of
0.1 is not (records/2026-11-18_mnist-methods: 98.7 %, ECE 0.7 %, NLL .051). On CIFAR-100 with a ResNet-50 chains ran
away within three epochs with five settings without `energy_penalty`, a trust region among them, and with none of seven
that had it; but the best of those, with batch norm, became NaN in its ninth epoch on all images
(records/2026-11-16_methods-seeds).

JEM++ (Yang, Ji: ICCV 2021) starts chains from class-conditional Gaussians of the pixels: `start="informative"`, here
with a variance for each pixel and no covariances, counted while training goes on.

Our result on digits, 8 and 9 unseen, `modern`, three seeds (records/2026-11-18_demo-full; vanilla 98.4, 1.2, 96.0):
accuracy 98.9 %, ECE 1.1 %, AUROC known/unseen 97.4 %, 2.2 s on a CPU.
Steps and start were chosen on held-out training data (classes 0-5, 30 % for validation, three seeds): NLL .029
with the paper's, .015, .015 and .014 with 5, 10 and 20 informative steps; 5 are within a standard error of 20. A look
at the test sets had suggested the same before. On CIFAR-100, ResNet-50, without batch norm, Adam at 3e-4
(records/2026-11-16_methods-seeds and records/2026-11-16_jem-ensemble): 51.5 %, ECE 4.8 % (overconfident), NLL 1.854
after 15 epochs, 57.5 %, 16.7 %, 1.929 after 30, three seeds each. By the energy noise is told apart (AUROC 95 to
100 %), by the confidence not (2 to 6 %).
    eow train --method jem --data digits --unknown-classes 8,9 --seed 0 --out runs/jem
"""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from eow.errors import EowError
from eow.methods.base import Method, NoOptions, Prediction, closed_prediction
from eow.models import SplitModel, alike_in_both_modes, frozen_statistics
from eow.sampling import ENERGIES, ReplayBuffer, Sampler, Tally
from eow.sampling.langevin import mean_norm, noise_scale
from eow.seeds import derive


@dataclass(frozen=True)
class JEMOptions(NoOptions):
    name: ClassVar[str] = "jem"
    weight: float = 1.0  # of log p(x) beside log p(y|x)
    energy_penalty: float = 0.0  # on the squared energies of data and chains
    chains: int = 64  # a step, on each device
    start: Literal["noise", "informative"] = "noise"
    start_width: float = 2.0  # of the noise: U(-width, width)
    buffer_size: int = 10_000
    restart: float = 0.05
    steps: int = 20
    step: float = 2.0
    noise: float | str = 0.01  # its standard deviation, or "langevin" for sqrt(step)
    trust: float = 0.0  # how far a chain may go at a time, in mean input norms of the batch; 0: as far as it likes
    largest_gap: float = 1000.0  # of the mean energies of data and chains: beyond, training has diverged


energy_of = ENERGIES["joint"]


class PixelGaussians(nn.Module):
    """A Gaussian of the inputs for every class, each coordinate by itself, from the batches seen so far. Part of a
    checkpoint, not of the trained weights."""

    def __init__(self, classes: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.counts: Tensor
        self.sums: Tensor
        self.squares: Tensor
        # float64, because a training adds up millions of squares.
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.float64), persistent=False)
        self.register_buffer("sums", torch.zeros(classes, prod(shape), dtype=torch.float64), persistent=False)
        self.register_buffer("squares", torch.zeros(self.sums.shape, dtype=torch.float64), persistent=False)

    def count(self, x: Tensor, y: Tensor) -> None:
        member = one_hot(y, len(self.counts)).double().T
        x = x.detach().flatten(1).double()
        self.counts += member.sum(1)
        self.sums += member @ x
        self.squares += member @ x.square()

    def draw(self, number: int, generator: torch.Generator) -> Tensor:
        """Classes as often as they were seen, then a point of each class's Gaussian."""
        label = torch.multinomial(self.counts.float(), number, replacement=True, generator=generator)
        count = self.counts[label, None]
        mean = self.sums[label] / count
        variance = (self.squares[label] / count - mean.square()).clamp_min(0)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        return (mean + variance.sqrt() * noise).float().view(-1, *self.shape)


class JEM(Method):
    Options = JEMOptions
    summary = "softmax, and the inputs' density trained on Langevin chains of pixels"
    steadier = "hold the energies together (method.energy_penalty=0.1)"

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(model, options, classes, in_shape, seed)
        for key in ("weight", "step", "start_width", "largest_gap"):
            if getattr(options, key) <= 0:
                raise EowError(f"method.{key} is {getattr(options, key)}: it must be above 0")
        for key, least in (("energy_penalty", 0), ("trust", 0), ("steps", 0), ("chains", 1)):
            if getattr(options, key) < least:
                raise EowError(f"method.{key} is {getattr(options, key)}: it must be at least {least}")
        if options.chains > options.buffer_size:
            raise EowError(
                f"method.chains is {options.chains}, but a step cannot draw more than method.buffer_size, "
                f"{options.buffer_size}: lower the one or raise the other"
            )
        noise_scale(options.noise, options.step)
        self.buffer = ReplayBuffer(options.buffer_size, self.in_shape, options.start_width, options.restart)
        if options.start == "informative":
            self.gaussians = PixelGaussians(classes, self.in_shape)
            self.buffer.restart = 0.0  # draw_starts restarts slots, and starts each the first time it is drawn
            self.unused: Tensor
            self.register_buffer("unused", torch.ones(options.buffer_size, dtype=torch.bool), persistent=False)
        self.sampler: Sampler | None = None
        self.tally = Tally()

    def prepare(self, device: torch.device, rank: int = 0, world: int = 1) -> None:
        super().prepare(device, rank, world)
        self.tally = Tally(device)
        self.buffer.fill(self.stream.manual_seed(derive("buffer", self.seed, rank)))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        if alike_in_both_modes(self.model):  # the data's logits serve both losses
            negatives = self.draw_negatives(x, y)
            logits = self.model(torch.cat([x, negatives])).float()
            terms = {"ce": cross_entropy(logits[: len(x)], y)}
        else:
            terms = {"ce": cross_entropy(self.model(x).float(), y)}
            negatives = self.draw_negatives(x, y)
            # Both energies with the statistics that the chains saw and prediction will see. In training mode batch norm
            # would normalise data and chains each by themselves: their gap could grow without either being unlikely.
            with frozen_statistics(self.model):
                logits = self.model(torch.cat([x, negatives])).float()
        energies = energy_of(logits)
        terms["energy"] = self.options.weight * (energies[: len(x)].mean() - energies[len(x) :].mean())
        if self.options.energy_penalty:
            terms["penalty"] = self.options.energy_penalty * energies.square().mean()
        return terms

    def draw_starts(self, x: Tensor, y: Tensor) -> Tensor:
        """Slots of the buffer, a few of them started anew."""
        z = self.buffer.draw(self.options.chains, self.stream)
        if self.options.start == "noise":
            return z
        self.gaussians.count(x, y)
        fresh = self.gaussians.draw(len(z), self.stream)
        again = torch.rand(len(z), generator=self.stream, device=z.device) < self.options.restart
        again |= self.unused[self.buffer.drawn]
        self.unused[self.buffer.drawn] = False
        return torch.where(again.view(-1, *[1] * (z.dim() - 1)), fresh, z)

    def draw_negatives(self, x: Tensor, y: Tensor) -> Tensor:
        """The ends of chains in the space of inputs: constants."""
        o = self.options
        if self.sampler is None:
            self.sampler = Sampler(
                nn.Sequential(self.model.encoder, self.model.tail), "joint", steps=o.steps, step=o.step, noise=o.noise
            )
        trust = o.trust * mean_norm(x) if o.trust else None
        start = self.draw_starts(x, y)
        chain = self.sampler(start, trust, self.stream, autocast=torch.is_autocast_enabled(x.device.type))
        self.buffer.store(chain.z)
        self.tally.add(chain)
        return chain.z

    def counters(self) -> dict[str, float]:
        return self.tally.read()

    def trouble(self, means: dict[str, float]) -> str | None:
        gap = means["energy"] / self.options.weight
        if abs(gap) <= self.options.largest_gap:
            return None
        limit = self.options.largest_gap
        return f"the energies of data and chains lie {abs(gap):.4g} apart (method.largest_gap is {limit:g})"

    def answer(self, x: Tensor) -> Prediction:
        return closed_prediction(self.model(x))
