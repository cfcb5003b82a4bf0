"""Energy-based Open-World Softmax (Wang, Li, Che, Zhou, Liu, Li: ICCV 2021).

K+1 logits f, h = softmax(f); the K+1-th is "unknown". Eq. 4:

    loss = E_data[-log h(x)[y]] + λ E_chains[-log h(z)[K+1]]

where the chains are Langevin dynamics on the energy log h[K+1] (eq. 3, 5) in the latent space at `model.cut`.
Prediction: label = argmax and confidence = max of the first K entries of the K+1 softmax, unknown = h[K+1].

For negatives of density n the optimum is h[K+1] = λn/(p + λn): λ is a prior odds of "unknown". `unknown_rate` ρ
replaces it by ρ/(1-ρ) when training has ended, or later, at prediction; with `calibrate="holdout"` ρ is the mean
unknown on held-out samples, to which a temperature is fitted as well. The paper's setting is step 2, noise 1e-3, 100
steps, λ 0.1 (recipe `paper`); see recipes.py for ours.

Our result on digits, 8 and 9 unseen, `modern`, three seeds (records/2026-11-18_demo-full; vanilla 98.4, 1.2, 96.0):
accuracy 98.5 %, ECE 1.1 %, AUROC known/unseen 95.8 %, mean unknown .003 on known and .044 on unseen classes. On
CIFAR-100, ResNet-50, 30 epochs, five seeds (records/2026-11-16_settled; vanilla from the same trunk 75.8, 8.3, .932,
its temperature 75.8, 1.5, .860): accuracy 76.1 %, ECE 1.7 % (null 1.0), NLL of K .848; AUROC by unknown 98.2 % on
noise, 99.5 % on permuted. Over 15 epochs, five seeds, 71.3 %, 1.1 % (1.05) and .984 (records/2026-11-16_tables;
vanilla 71.3, 5.4, 1.013).
"""

import math
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eow.errors import EowError
from eow.methods.base import Method, NoOptions, Prediction, open_prediction, shifted_prediction
from eow.methods.fence import Fence
from eow.methods.holdout import checked, collect, require_fitted
from eow.methods.onset import scale_head, settle
from eow.methods.profile import profile_of
from eow.methods.temperature import fit_temperature_and_bias
from eow.models import SplitModel, frozen_statistics
from eow.models.layers import OpenLinear
from eow.openworld import prior_shift
from eow.sampling import NEGATIVE_LOSSES, Sampler, Starts, Tally
from eow.sampling.langevin import mean_norm, noise_scale
from eow.seeds import derive

MOST_FENCED = 50_000  # training samples whose features a fence is fitted on
FEWEST = 30  # held-out samples that a mean unknown can be taken of
PRIOR_WIDTH = 0.5  # of log T before any held-out sample is seen; a few hundred of them outweigh it
CLIMB = 0.5  # of the chains' mean energy over an epoch, from which on it is worth a word: they are meant to fall


@dataclass(frozen=True)
class EOWOptions(NoOptions):
    name: ClassVar[str] = "eow"
    energy: Literal["paper", "proof", "complement"] = "paper"
    lam: float = 0.01  # λ, the weight of the energy term
    unknown_rate: float | str = "trained"  # the share of unknowns that the finished network expects: λ/(1+λ) or ρ
    calibrate: Literal["none", "holdout"] = "none"  # holdout: a temperature and ρ are fitted to data.holdout at the end
    start_epoch: int | float = 0  # the energy term's first epoch (from 0); below 1, a share of the epochs
    onset: Literal["as_is", "settled"] = "as_is"  # settled: the head is fitted to a late term before its first step
    fence: int = 0  # the rank of the fence around the training features (fence.py); 0: none
    chains: int = 64  # a step, on each device
    start: str = "features"  # where chains start, see sampling/starts.py
    start_width: float = 0.1  # of the noise: U(-width, width)
    buffer_size: int = 10_000
    restart: float = 0.05
    steps: int = 20
    step: float = 2.0
    noise: float | str = 1e-3  # its standard deviation, or "langevin" for sqrt(step)
    trust: float = 1.0  # how far a chain may go, in mean feature norms of the batch; 0: as far as it likes
    distances: Literal["one", "spread"] = "one"  # spread: each chain may go a share of `trust` of its own, U(0, 1)
    encoder: Literal["detached", "joint"] = "detached"  # joint: the energy term trains it too, through the starts
    negatives: Literal["eval", "train"] = "eval"  # mode of the tail on negatives: eval leaves batch statistics alone

    @property
    def odds(self) -> float:
        """The prior odds of "unknown" in what the finished network says."""
        rate = self.unknown_rate
        return rate / (1 - rate) if isinstance(rate, float) else self.lam

    @property
    def shift(self) -> float:
        """What the end of training adds to the unknown logit."""
        if self.unknown_rate == "trained":
            return 0.0
        if isinstance(self.unknown_rate, str) or not 0 < self.unknown_rate < 1:
            raise EowError(
                f"method.unknown_rate is {self.unknown_rate!r}: give a share above 0 and below 1, or 'trained' for the "
                "λ/(1+λ) of training"
            )
        return prior_shift(self.unknown_rate, self.lam)

    def first_epoch(self, epochs: int) -> int:
        """The energy term's, of so many."""
        if self.start_epoch < 1:
            return min(round(self.start_epoch * epochs), epochs - 1)
        first = math.ceil(self.start_epoch)
        if first >= epochs:
            raise EowError(
                f"method.start_epoch is {self.start_epoch} of {epochs} epochs: the energy term would never start, "
                "lower it"
            )
        return first


class EOW(Method):
    Options = EOWOptions
    summary = "K+1 softmax, the unknown trained on Langevin chains in the latent space"
    extra_outputs = 1
    capturable = True
    steadier = "give the chains a trust region (method.trust)"

    def __init__(self, model: SplitModel, options: Any, classes: int, in_shape: tuple[int, ...], seed: int = 0) -> None:
        super().__init__(model, options, classes, in_shape, seed)
        if options.lam <= 0 or options.trust < 0 or options.start_epoch < 0:
            raise EowError(
                f"method.lam is {options.lam}, method.trust {options.trust}, method.start_epoch {options.start_epoch}: "
                "lam must be above 0, trust and start_epoch at least 0"
            )
        if options.steps < 0 or options.step <= 0:
            raise EowError(
                f"method.steps is {options.steps} and method.step {options.step}: they must be at least 0 and above 0"
            )
        if options.distances == "spread" and not options.trust:
            raise EowError("method.distances=spread shares out method.trust, which is 0: give it a number above 0")
        self.shift = options.shift  # what is wrong with it is said now, not after training
        if (self.shift or options.calibrate == "holdout" or options.onset == "settled") and model.head.bias is None:
            raise EowError(
                "method.unknown_rate, method.calibrate=holdout and method.onset=settled shift a bias, and this model's "
                "head has none: leave the first two out and set method.onset=as_is"
            )
        if options.onset == "settled" and options.energy == "complement":
            raise EowError(
                "method.onset=settled fits eq. 4, which complement does not minimise: set method.onset=as_is"
            )
        noise_scale(options.noise, options.step)
        self.starts = Starts(
            options.start, model.feature_shape(self.in_shape), options.chains,
            width=options.start_width, buffer_size=options.buffer_size, restart=options.restart,
        )  # fmt: skip
        if options.encoder == "joint" and not {"features", "mixed"} & self.starts.counts.keys():
            raise EowError(
                f"method.encoder='joint' needs chains that start from features or mixed, not {options.start!r}"
            )
        self.fence = self.make_fence() if options.fence else None
        self.active, self.begins = True, False
        self.sampler: Sampler | None = None
        self.tally, self.climbed = Tally(), False

    @classmethod
    def uses_holdout(cls, options: Any) -> bool:
        return bool(options.calibrate == "holdout")

    def make_fence(self) -> Fence:
        if self.options.fence < 0 or self.model.cut is None:
            raise EowError(
                f"method.fence is {self.options.fence}: give a rank of at least 1, and a model of named stages, or "
                "0 for none"
            )
        return Fence(self.model.head.in_features, self.options.fence)

    def prepare(self, device: torch.device, rank: int = 0, world: int = 1) -> None:
        super().prepare(device, rank, world)
        self.tally = Tally(device)
        if self.starts.buffer is not None:
            self.starts.buffer.fill(self.stream.manual_seed(derive("buffer", self.seed, rank)))

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        first = self.options.first_epoch(epochs)
        self.active, self.begins = epoch >= first, epoch == first > 0
        if isinstance(self.model.head, OpenLinear):
            self.model.head.curved = self.active

    def phase(self) -> bool:
        return self.active

    def first_batch(self, x: Tensor, y: Tensor) -> None:
        if self.begins and self.options.onset == "settled":
            settle(self, x[: len(y)], y)

    def mode_of_negatives(self, part: nn.Module) -> AbstractContextManager[Any]:
        """The mode in which that part of the model sees what is to be unknown. The head is in evaluation mode always:
        the units of an upgraded one follow the features of data alone."""
        return frozen_statistics(part if self.options.negatives == "eval" else self.model.head)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.project()
        z = self.model.encoder(x)
        # Chains start before the tail sees z: a tail may begin with an operation in place.
        negatives = self.draw_negatives(z, y) if self.active else None
        terms = {"ce": cross_entropy(self.model.tail(z).float(), y)}
        if negatives is not None:
            with self.mode_of_negatives(self.model.tail):
                logits = self.model.tail(negatives).float()
            terms["energy"] = self.options.lam * NEGATIVE_LOSSES[self.options.energy](logits).mean()
        return terms

    def project(self) -> None:
        if isinstance(self.model.head, OpenLinear):
            self.model.head.project()

    def draw_negatives(self, z: Tensor, y: Tensor) -> Tensor:
        """The ends of chains in the latent space: constants, or with encoder="joint" starts plus constant moves, so
        that a gradient reaches the encoder through the start."""
        o = self.options
        start = self.starts.draw(z if o.encoder == "joint" else z.detach(), y, self.stream)
        trust = self.trust_radius(z.detach(), self.stream)
        if self.sampler is None or self.sampler.tail is not self.model.tail:
            self.sampler = Sampler(self.model.tail, o.energy, steps=o.steps, step=o.step, noise=o.noise)
        chain = self.sampler(start, trust, self.stream, autocast=torch.is_autocast_enabled(start.device.type))
        self.starts.store(chain.z)
        self.tally.add(chain)
        return chain.z if o.encoder == "detached" else start + (chain.z - start).detach()

    def trust_radius(self, z: Tensor, generator: torch.Generator) -> Tensor | None:
        """How far the chains may go: one number for all, or one each, so that some end near the data and some far."""
        if not self.options.trust:
            return None
        radius = self.options.trust * mean_norm(z)
        if self.options.distances == "one":
            return radius
        return radius * torch.rand(self.options.chains, generator=generator, device=z.device)

    def counters(self) -> dict[str, float]:
        """What the chains did since the last call (`Tally.read`). Once a training it warns that they climb, though they
        are meant to descend: steps longer than the energy's valley is wide throw them out of it, and, but for `proof`,
        to where "unknown" is certain already, so that the energy term teaches nothing."""
        found, o = self.tally.read(), self.options
        start, end = found.get("energy_start", 0.0), found.get("energy_end", 0.0)
        falls = o.steps and o.noise != "langevin" and o.energy != "proof"
        if falls and end > start + CLIMB and not self.climbed:
            self.climbed = True
            warnings.warn(
                f"the chains climb, from a mean energy of {start:.3g} to {end:.3g}: their steps are too long for this "
                f"network and the energy term teaches little, lower method.step ({o.step:g}) or method.lam ({o.lam:g}) "
                "(in eow.fit step or lam, in EOWClassifier lam)",
                RuntimeWarning,
                stacklevel=2,
            )
        return found

    def conclude(self) -> None:
        """Replace the prior odds λ of training by those of `unknown_rate`, in the bias of the unknown logit."""
        if self.shift:
            with torch.no_grad():
                self.model.head.bias[-1] += self.shift

    def fit_to(self, holdout: Any) -> None:
        """Divide the logits by a temperature and shift the unknown, in the head's own weights: then the K classes'
        likelihood on held-out data is highest and the mean unknown there is `unknown_rate`, or what it was. The mean of
        a few samples says nothing: then the temperature leaves it as it was, and the shift is that of `conclude`."""
        rate = None if self.options.unknown_rate == "trained" else self.options.unknown_rate
        logits, labels = collect(self, holdout, self.model)
        few = len(labels) < FEWEST
        temperature, bias = fit_temperature_and_bias(logits, labels, None if few else rate, width=PRIOR_WIDTH)
        if few:
            told = f"{len(labels)} held-out samples are too few to measure the mean unknown"
            warnings.warn(
                f"{told}: the unknown rate is set by λ; hold out {FEWEST} or more", RuntimeWarning, stacklevel=2
            )
            bias += self.shift
        scale_head(self.model.head, 1 / temperature, bias)

    def finish(self, train: Any, holdout: Any) -> None:
        self.project()  # after the last step
        if self.options.calibrate == "holdout":
            self.fit_to(holdout)
        else:
            self.conclude()
        if self.fence is not None:
            self.fence.fit(self.last_features(train))

    def last_features(self, train: Any) -> Tensor:
        """What the head reads of the training set, or of a random part of it where it is too large."""
        share, stream = MOST_FENCED / len(train.dataset), torch.Generator().manual_seed(derive("fence", self.seed))
        train = checked(self, train)
        body, parts = self.before_head().encoder, []
        with frozen_statistics(body), torch.no_grad():
            for x, _ in train.in_order():
                z = body(x).float().cpu()
                parts.append(z if share >= 1 else z[torch.rand(len(z), generator=stream) < share])
        return torch.cat(parts)

    def before_head(self) -> SplitModel:
        return self.model.recut(self.model.cuts[-1])

    def diagnose(self, train: Any) -> dict[str, Any] | None:
        return profile_of(self, train)

    def predict(self, x: Tensor, unknown_rate: float | None = None) -> Prediction:
        if self.fence is not None:
            require_fitted(self, self.fence.radius)
        return super().predict(x, unknown_rate)

    def answer(self, x: Tensor) -> Prediction:
        if self.fence is None:
            return open_prediction(self.model(x))
        split = self.before_head()
        z = split.encoder(x)
        return shifted_prediction(split.tail(z).float(), self.fence.rise(z)[:, None])
