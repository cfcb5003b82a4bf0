"""The only training loop. `eow train` runs it around a folder (eow/runs.py), `eow.fit` in memory
(eow/own/fit.py).

    training = Training(method, batches, settings, place, seed)
    for line in training.epochs(first):      # one dict for the log after every epoch
        ...training.state()                  # everything that a checkpoint must hold

The batches of epoch e come from (seed, e), all other randomness on rank r from (seed, e, r, rollbacks), and the
learning rate from the step's number, so the state is tensors and one count. An epoch whose loss is not finite, or that
the method calls diverged, is undone: the last good state comes back and the epoch is tried with the same batches and
other random numbers at half the rate, a few times at most.
"""

import math
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from eow.config import TrainConfig
from eow.console import training_bar
from eow.errors import EowError
from eow.methods import Method
from eow.sampling import LARGEST_ENERGY
from eow.seeds import derive, own_randomness, seed_torch
from eow.training import stopping
from eow.training.distributed import Place
from eow.training.stepgraph import StepGraph

FEWEST_OF_A_CYCLE = 4  # steps: of fewer the cycle would be its end, where nothing is learnt
READ_EVERY = 50  # steps between two looks at the loss: on a GPU each look waits for the device
AGREE_EVERY = 10  # steps between two times that processes ask one another whether one was told to stop


class EpochSource(Protocol):
    """What the loop trains on: data.loader.Batches, or a user's loader."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int) -> Iterable[tuple[Tensor, Tensor]]: ...


def learning_rate(step: int, total: int, steps_per_epoch: int, settings: TrainConfig) -> float:
    """The rate at a step. `onecycle`: from lr/25 up to lr in the first 30 % of the steps and down to lr/250,000 at the
    end, along cosines (torch's OneCycleLR, momentum left alone); the few steps that make no cycle have lr. `step`:
    times gamma at every milestone. `step` and `constant` warm up linearly."""
    if settings.schedule == "onecycle":
        if total < FEWEST_OF_A_CYCLE:
            return settings.lr
        low, peak, end = settings.lr / 25, settings.lr, settings.lr / 25e4
        top = 0.3 * total - 1
        if step <= top:
            return _cosine(low, peak, step / top)
        return _cosine(peak, end, min(1.0, (step - top) / max(total - 1 - top, 1e-9)))
    warm = min(1.0, (step + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    passed = (
        sum(step >= milestone * steps_per_epoch for milestone in settings.milestones)
        if settings.schedule == "step"
        else 0
    )
    return settings.lr * warm * settings.gamma**passed


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def make_optimizer(module: nn.Module, settings: TrainConfig, rate: Tensor) -> torch.optim.Optimizer:
    """On a GPU fused, with the rate as a tensor there, so that a captured step sees it change."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    cuda, decay = rate.is_cuda, settings.weight_decay
    lr: Any = rate if cuda else settings.lr
    if settings.optimizer == "adam":  # decoupled decay where there is any: AdamW; with none it is Adam
        return torch.optim.AdamW(parameters, lr, weight_decay=decay, fused=cuda, capturable=cuda)
    nesterov = settings.nesterov and settings.momentum > 0
    sgd = torch.optim.SGD(parameters, lr, settings.momentum, weight_decay=decay, nesterov=nesterov, fused=cuda)
    if settings.momentum:  # as torch's first step would; but fused, a parameter that joins later finds none and fails
        for parameter in parameters:
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def distributed(method: Method, place: Place) -> DistributedDataParallel:
    """DDP around the method. Buffers stay each rank's own, since replay buffers must differ; and a method may leave
    parameters out of a step, for whose gradients DDP would otherwise wait."""
    devices = [place.device] if place.device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its successor would share the buffers once, at the start
        return DistributedDataParallel(method, device_ids=devices, broadcast_buffers=False, find_unused_parameters=True)


def hold_frozen_norms(module: nn.Module) -> None:
    """Puts norm layers whose parameters are all frozen into evaluation mode: their statistics would still move. A norm
    without parameters goes by those of the innermost module around it that has some."""
    for path, layer in module.named_modules():
        if not isinstance(layer, _NormBase):
            continue
        own, around = list(layer.parameters()), path
        while not own and around:
            around = around.rpartition(".")[0]
            own = list(module.get_submodule(around).parameters())
        if own and not any(each.requires_grad for each in own):
            layer.eval()


class Diverged(EowError):
    """An epoch that must not count."""


class Training:
    """A method being trained. The method must already be on its device and prepared (`Method.prepare`)."""

    advice = ""  # against divergence, where the settings have other names than a run's

    def __init__(
        self,
        method: Method,
        batches: EpochSource,
        settings: TrainConfig,
        place: Place,
        seed: int,
        *,
        holdout: EpochSource | None = None,
        bar: Progress | None = None,
    ) -> None:
        self.method, self.batches, self.holdout = method, batches, holdout
        self.settings, self.place, self.seed = settings, place, seed
        self.bar = bar or training_bar(show=False)
        cuda = place.device.type == "cuda"
        if cuda:
            method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.rate = torch.tensor(settings.lr, device=place.device)
        self.optimizer = make_optimizer(method, settings, self.rate)
        self.totals: dict[str, Tensor] = {}  # sums of the loss terms since the epoch began, on the device
        self.graphs: dict[Any, StepGraph] = {}
        able = cuda and method.capturable and place.world == 1
        if settings.graph == "on" and not able:
            raise EowError("train.graph=on needs one GPU and a method that can be captured: leave it at auto")
        self.graphed = able and settings.graph != "off"
        if settings.compile:
            method.model.encoder.compile(dynamic=False)
        self.module: nn.Module = method
        if place.world > 1:
            self.module = distributed(method, place)
            self.stops = torch.distributed.new_group(backend="gloo")  # on the CPU: no device is waited for
        self.bf16 = settings.precision == "bf16" or (settings.precision == "auto" and cuda)
        self.rollbacks = 0  # so far; part of a checkpoint
        method.begin_epoch(0, settings.epochs)  # what cannot be trained like this is said before it is begun

    def epochs(self, first: int = 0) -> Iterator[dict[str, Any]]:
        """Train epoch after epoch, beginning with number `first`; a line for the log after each."""
        count = self.settings.epochs
        total = count + (self.settings.holdout_epochs if self.holdout is not None else 0)
        steps = count * len(self.batches)
        with self.bar as bar, own_randomness(self.place.device, self.seed):
            task = bar.add_task(self.method.options.name, total=total * len(self.batches), epoch="", status="")
            bar.advance(task, first * len(self.batches))
            for epoch in range(first, total):
                source = self.batches if epoch < count or self.holdout is None else self.holdout
                good, rollbacks = {name: tensor.clone() for name, tensor in self.state().items()}, self.rollbacks
                while True:
                    seed_torch(self.place.device, derive("global", self.seed, epoch, self.place.rank, self.rollbacks))
                    self.method.stream.manual_seed(derive("method", self.seed, epoch, self.place.rank, self.rollbacks))
                    self.method.begin_epoch(epoch, count)
                    bar.update(task, epoch=f"{epoch + 1}/{total}", completed=epoch * len(self.batches))
                    began = time.perf_counter()
                    try:
                        # Several processes must stop at the same step: they agree on it there.
                        with stopping.allowed() if self.place.world == 1 else nullcontext():
                            line = self.one_epoch(epoch, source, steps, bar, task)
                        break
                    except stopping.STOPS:
                        self.restore(good)
                        self.rollbacks = rollbacks
                        raise
                    except Diverged as diverged:
                        self.restore(good)
                        if self.rollbacks == self.settings.rollbacks:
                            raise
                        self.rollbacks += 1
                        self.method.counters()
                        yield self.rollback_line(epoch, str(diverged), time.perf_counter() - began)
                yield line

    def rollback_line(self, epoch: int, reason: str, seconds: float) -> dict[str, Any]:
        """What the log says of an epoch that was undone."""
        rate = 0.5**self.rollbacks
        return {"epoch": epoch, "event": "rollback", "reason": reason, "rate_factor": rate, "seconds": seconds}

    def one_epoch(self, epoch: int, source: EpochSource, steps: int, bar: Progress, task: Any) -> dict[str, Any]:
        began, seen = time.perf_counter(), 0
        for total in self.totals.values():
            total.zero_()
        self.method.train()
        hold_frozen_norms(self.method)
        rate, index, means = 0.0, -1, {}
        for index, (x, y) in enumerate(source.epoch(epoch)):
            if self.place.world > 1 and index % AGREE_EVERY == 0:
                self.agree_to_stop()
            # Held-out epochs come after the schedule and keep its last rate.
            step = min(epoch * len(self.batches) + index, steps - 1)
            rate = learning_rate(step, steps, len(self.batches), self.settings) * 0.5**self.rollbacks
            self.set_rate(rate)
            if index == 0:
                self.method.first_batch(x, y)
            if self.graphed:
                key = (self.method.phase(), x.shape)
                if key not in self.graphs:
                    self.graphs[key] = StepGraph(self.step, self.method.stream)
                self.graphs[key](x, y)
            else:
                self.step(x, y)
            seen += len(x) * self.place.world
            bar.advance(task)
            if (index + 1) % READ_EVERY == 0:
                means = self.look(epoch, index)
                speed = seen / (time.perf_counter() - began)
                bar.update(task, status=" ".join(f"{k} {v:.3f}" for k, v in means.items()) + f"  {speed:,.0f} images/s")
        if index < 0:
            raise EowError(f"the data yields no batches in epoch {epoch + 1}: pass a loader that begins anew each time")
        if (index + 1) % READ_EVERY:  # a loader may yield fewer batches than its length says
            means = self.look(epoch, index)
        seconds = time.perf_counter() - began
        return {
            "epoch": epoch,
            "steps": index + 1,
            **means,
            "lr": rate,
            **self.method.counters(),
            "seconds": seconds,
            "images_per_second": seen / seconds,
        }

    def set_rate(self, rate: float) -> None:
        if self.rate.is_cuda:
            self.rate.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step of the optimiser. Nothing here waits for the device."""
        if x.is_cuda and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        # Autocast's cache would hand casts made outside a captured step into it.
        with torch.autocast(self.place.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=not self.graphed):
            terms = self.module(x, y)
        loss = torch.stack(list(terms.values())).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.method.parameters(), self.settings.clip)
        self.optimizer.step()
        for name, term in terms.items():
            self.totals.setdefault(name, torch.zeros((), device=term.device)).add_(term.detach())

    def look(self, epoch: int, index: int) -> dict[str, float]:
        """The means after this step; an epoch that has diverged ends here."""
        means = self.means(index + 1)
        self.check(means, epoch, index)
        return means

    def means(self, steps: int) -> dict[str, float]:
        """The loss terms' means since the epoch began, over all ranks: the loop's only look at the device."""
        values = torch.stack(list(self.totals.values()))
        if self.place.world > 1:
            torch.distributed.all_reduce(values)
        return {name: value / steps / self.place.world for name, value in zip(self.totals, values.tolist())}

    def agree_to_stop(self) -> None:
        """Raise on every rank, at the same step, when one of them was told to stop."""
        flag = torch.tensor(int(stopping.asked()))
        torch.distributed.all_reduce(flag, group=self.stops)
        if flag:
            raise stopping.stop()

    def runaway(self) -> str | None:
        """What is wrong with the chains since the epoch began, or None. They may run away while every loss term stays
        finite; their tally, on the device, shows it. Methods without chains have none."""
        tally = getattr(self.method, "tally", None)
        if tally is None:
            return None
        chains, _, start, end = tally.sums.tolist()
        worst = max(abs(start), abs(end), key=lambda value: (math.isnan(value), value)) / max(chains, 1.0)
        if worst <= LARGEST_ENERGY:
            return None
        return f"the chains' mean energy reached {worst:.4g} (beyond {LARGEST_ENERGY:g} they have run away)"

    def check(self, means: dict[str, float], epoch: int, index: int) -> None:
        """Stop an epoch that has diverged on any rank."""
        wrong = [f"the loss term {name!r} became {value}" for name, value in means.items() if not math.isfinite(value)]
        trouble = self.runaway() or (wrong[0] if wrong else self.method.trouble(means))
        if self.place.world > 1:
            flag = torch.tensor(float(trouble is not None), device=self.place.device)
            torch.distributed.all_reduce(flag)
            trouble = trouble or ("another rank diverged" if flag else None)
        if trouble:
            advice = self.advice or ", ".join(filter(None, (self.method.steadier, "or lower train.lr")))
            raise Diverged(f"{trouble} in epoch {epoch + 1}, by step {index + 1}: look for extreme inputs, {advice}")

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers (the replay buffer too) and the optimiser's state, by name."""
        # Detached: a copy that autograd knows of would tie later steps to the stream it was made on.
        named = {f"method.{name}": tensor.detach() for name, tensor in self._tensors().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            named.update(
                {f"optimizer.{index}.{key}": value for key, value in values.items() if isinstance(value, Tensor)}
            )
        return named

    def restore(self, state: dict[str, Tensor]) -> None:
        """Back to a state that `state` gave."""
        optimizer: dict[int, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                tensor.copy_(state[f"method.{name}"])
        for name, tensor in state.items():
            kind, _, rest = name.partition(".")
            if kind == "optimizer":
                index, _, key = rest.partition(".")
                # load_state_dict would keep the tensor itself.
                optimizer.setdefault(int(index), {})[key] = tensor.clone()
        self.optimizer.load_state_dict(
            {"state": optimizer, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )
        # It has copied the rate, and put new tensors where captured steps still know the old ones.
        self.graphs.clear()
        if self.rate.is_cuda:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.method.named_parameters()), **dict(self.method.named_buffers())}
