"""The only training loop. `eow train` runs it around a folder (runs.py), `eow.fit` in memory.

    training = Training(method, batches, settings, place, seed)
    for line in training.epochs(first):      # one dict for the log after every epoch
        ...training.state()                  # everything that a checkpoint must hold

All randomness of epoch e on rank r comes from (seed, e, r, rollbacks), and the learning rate from the step's number,
so the state is tensors and one count. An epoch whose loss is not finite, or that the method calls diverged, is undone:
the last good state comes back and the epoch is tried with other random numbers at half the rate, a few times at most.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from eow.config import TrainConfig, build, convert
from eow.console import training_bar
from eow.distributed import Place, pick_device
from eow.errors import EowError
from eow.methods import Method, method_named
from eow.models import SplitModel
from eow.seeds import derive, own_randomness

READ_EVERY = 50  # steps between two looks at the loss: on a GPU each look waits for the device


class EpochSource(Protocol):
    """What the loop trains on: data.loader.Batches, or a user's loader."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int) -> Iterable[tuple[Tensor, Tensor]]: ...


def learning_rate(step: int, total: int, steps_per_epoch: int, settings: TrainConfig) -> float:
    """The rate at a step. `onecycle`: from lr/25 up to lr in the first 30 % of the steps and down to lr/250,000 at the
    end, along cosines (torch's OneCycleLR, momentum left alone). `step`: times gamma at every milestone. The last two
    warm up linearly."""
    if settings.schedule == "onecycle":
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


def make_optimizer(module: nn.Module, settings: TrainConfig) -> torch.optim.Optimizer:
    parameters = [p for p in module.parameters() if p.requires_grad]
    fused = bool(parameters) and parameters[0].is_cuda
    if settings.optimizer == "adam":  # decoupled decay where there is any: AdamW; with none it is Adam
        return torch.optim.AdamW(parameters, settings.lr, weight_decay=settings.weight_decay, fused=fused)
    nesterov = settings.nesterov and settings.momentum > 0
    return torch.optim.SGD(
        parameters, settings.lr, settings.momentum, weight_decay=settings.weight_decay, nesterov=nesterov, fused=fused
    )


class Diverged(EowError):
    """An epoch that must not count."""


class Training:
    """A method being trained. The method must already be on its device and prepared (`Method.prepare`)."""

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
        self.method, self.batches, self.holdout, self.settings, self.place, self.seed = (
            method,
            batches,
            holdout,
            settings,
            place,
            seed,
        )
        self.bar = bar or training_bar(show=False)
        self.optimizer = make_optimizer(method, settings)
        self.module: nn.Module = method
        if place.world > 1:
            # Buffers stay each rank's own: replay buffers must differ between ranks.
            devices = [place.device] if place.device.type == "cuda" else None
            self.module = DistributedDataParallel(method, device_ids=devices, broadcast_buffers=False)
        wanted = settings.precision
        self.rollbacks = 0  # so far; part of a checkpoint
        self.bf16 = wanted == "bf16" or (wanted == "auto" and place.device.type == "cuda")

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
                good = {name: tensor.clone() for name, tensor in self.state().items()}
                while True:
                    torch.manual_seed(derive(self.seed, epoch, self.place.rank, self.rollbacks, 0))
                    self.method.stream.manual_seed(derive(self.seed, epoch, self.place.rank, self.rollbacks, 1))
                    self.method.begin_epoch(epoch, count)
                    bar.update(task, epoch=f"{epoch + 1}/{total}", completed=epoch * len(self.batches))
                    began = time.perf_counter()
                    try:
                        line = self.one_epoch(epoch, source, steps, bar, task)
                        break
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
        totals: dict[str, Tensor] = {}
        self.method.train()
        rate = 0.0
        for index, (x, y) in enumerate(source.epoch(epoch)):
            # Held-out epochs come after the schedule and keep its last rate.
            step = min(epoch * len(self.batches) + index, steps - 1)
            rate = learning_rate(step, steps, len(self.batches), self.settings) * 0.5**self.rollbacks
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(self.place.device.type, torch.bfloat16, enabled=self.bf16):
                terms = self.module(x, y)
            loss = torch.stack(list(terms.values())).sum()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if self.settings.clip:
                nn.utils.clip_grad_norm_(self.method.parameters(), self.settings.clip)
            self.optimizer.step()
            for name, term in terms.items():
                totals[name] = totals.get(name, 0) + term.detach()
            seen += len(x) * self.place.world
            bar.advance(task)
            if index % READ_EVERY == READ_EVERY - 1 or index == len(source) - 1:
                means = {name: float(value) / (index + 1) for name, value in totals.items()}
                self.check(means, epoch, index)
                speed = seen / (time.perf_counter() - began)
                bar.update(task, status=" ".join(f"{k} {v:.3f}" for k, v in means.items()) + f"  {speed:,.0f} images/s")
        seconds = time.perf_counter() - began
        return {
            "epoch": epoch,
            **means,
            "lr": rate,
            **self.method.counters(),
            "seconds": seconds,
            "images_per_second": seen / seconds,
        }

    def check(self, means: dict[str, float], epoch: int, index: int) -> None:
        """Stop an epoch that has diverged on any rank."""
        wrong = [f"the loss term {name!r} became {value}" for name, value in means.items() if not math.isfinite(value)]
        trouble = wrong[0] if wrong else self.method.trouble(means)
        if self.place.world > 1:
            flag = torch.tensor(float(trouble is not None), device=self.place.device)
            torch.distributed.all_reduce(flag)
            trouble = trouble or ("another rank diverged" if flag else None)
        if trouble:
            raise Diverged(
                f"{trouble} in epoch {epoch + 1}, by step {index + 1}: "
                "look for extreme inputs, lower train.lr, or give the chains a trust region (method.trust)"
            )

    def state(self) -> dict[str, Tensor]:
        """Parameters, buffers (the replay buffer too) and the optimiser's state, by name."""
        named = {f"method.{name}": tensor for name, tensor in self._tensors().items()}
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
                optimizer.setdefault(int(index), {})[key] = tensor
        self.optimizer.load_state_dict(
            {"state": optimizer, "param_groups": self.optimizer.state_dict()["param_groups"]}
        )

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self.method.named_parameters()), **dict(self.method.named_buffers())}


class LoaderBatches:
    """Somebody's loader of (input, label) pairs, as the loop wants it: on the device, and checked."""

    def __init__(self, loader: Any, classes: int, device: torch.device) -> None:
        if not hasattr(loader, "__len__") or not len(loader):
            raise EowError(
                "the loader has no length or no batches: pass a torch DataLoader or a list of (x, y) batches"
            )
        self.loader, self.classes, self.device = loader, classes, device

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2:
                raise EowError(
                    f"the loader yields a {type(batch).__name__}: make it yield pairs (inputs, labels) of tensors"
                )
            x, y = batch
            if y.dtype.is_floating_point or y.dim() != 1:
                raise EowError(f"labels are {y.dtype} of shape {tuple(y.shape)}: pass one whole number a sample")
            if not y.is_cuda and (y.min() < 0 or y.max() >= self.classes):
                raise EowError(
                    f"labels run from {int(y.min())} to {int(y.max())}, "
                    f"but the model has the classes 0 to {self.classes - 1}"
                )
            yield x.to(self.device), y.to(self.device, torch.long)


def fit(
    model: SplitModel,
    data: Any,
    *,
    method: str = "eow",
    epochs: int = 5,
    batch: int = 128,
    optimizer: str = "adam",
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    seed: int = 0,
    device: str = "auto",
    progress: bool = False,
    **options: Any,
) -> Method:
    """Train a SplitModel in place and return it as a method, whose `predict(x)` gives label, confidence and unknown.

    `data` is a loader of (inputs, labels) batches or a pair (X, y) of arrays, as the network wants them. `options` are
    the method's settings: `eow.fit(model, loader, lam=0.05, start="mixed")`. The head must have one output more than
    classes for `eow`.
    """
    kind = method_named(method)
    place = Place(pick_device(device))
    settings = build(
        TrainConfig,
        {"epochs": epochs, "batch": batch, "optimizer": optimizer, "lr": lr, "weight_decay": weight_decay},
        "fit",
    )
    chosen = build(kind.Options, options, "method")
    classes = model.head.out_features - kind.extra_outputs
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple | list):
        data = array_loader(data[0], data[1], batch)
    batches = LoaderBatches(data, classes, place.device)
    first = next(iter(batches.epoch(0)))[0]
    if not bool(torch.isfinite(first).all()):
        raise EowError("the inputs hold NaN or infinite values: clean them before fitting")
    trained = kind(model, chosen, classes, tuple(first.shape[1:]), convert(seed, int, "seed"))
    trained.to(place.device)
    trained.prepare(place.device)
    for _ in Training(trained, batches, settings, place, seed, bar=training_bar(progress)).epochs():
        pass
    return trained.eval()


def array_loader(inputs: Any, labels: Any, batch: int) -> Sequence[Any] | DataLoader[Any]:
    x, y = torch.as_tensor(inputs), torch.as_tensor(labels)
    if len(x) != len(y) or not len(x):
        raise EowError(
            f"there are {len(x)} inputs and {len(y)} labels: pass as many labels as inputs, and at least one"
        )
    if not x.is_floating_point() or not bool(torch.isfinite(x).all()):
        raise EowError(
            "the inputs must be finite floating-point numbers, as the network wants them: scale and clean them first"
        )
    return DataLoader(TensorDataset(x.float(), y), batch_size=min(batch, len(x)), shuffle=True, drop_last=True)
