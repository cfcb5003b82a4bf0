"""`eow.OpenWorldLoss`: the EOW objective for your own training loop, and real outliers beside the chains.

    loss = E_data[-log h(x)[y]] + λ E_chains[-log h(z)[K+1]]                                        without outliers
    loss = E_data[-log h(x)[y]] + λ/2 E_chains[-log h(z)[K+1]] + λ/2 E_outliers[-log h(x)[K+1]]     with them

λ in all stays the prior odds of "unknown", so `unknown_rate` means the same with and without outliers.

An upgraded model's unknown logit lies so low that a few epochs would hardly lift it: before the first step its bias is
set to where the gradient of this objective with respect to it is zero on the first batch. With energy="complement",
whose negatives minimise log s, there is none: the gradient is E_data[h[K+1]] - λ E_chains[h[K+1]], which would ask for
chains with 1/λ times the unknown of the data, and they go where it is small. That training begins where eq. 4's does.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.methods.eow import EOW, EOWOptions
from eow.methods.onset import settle
from eow.models import SplitModel, frozen_statistics
from eow.models.split import unwrapped
from eow.models.surgery import UpgradedModel
from eow.models.widening import WidenedOpenLinear
from eow.own.batches import check_dense, check_finite, check_range, labels_of
from eow.recipes import UPGRADED
from eow.sampling import NEGATIVE_LOSSES
from eow.seeds import derive
from eow.training.distributed import mean_over_ranks, rank_and_world
from eow.typed import build


class OutlierEOW(EOW):
    """EOW whose batches may end in outliers: the rows of x beyond len(y). They train encoder and tail, in the mode in
    which the chains' ends pass: by default no batch statistic takes notice of them."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        terms = super().forward(x[: len(y)], y)
        if "energy" in terms and len(x) > len(y):
            with self.mode_of_negatives(self.model):
                logits = self.model(x[len(y) :]).float()
            terms["energy"] = terms["energy"] / 2
            terms["outliers"] = self.options.lam / 2 * NEGATIVE_LOSSES[self.options.energy](logits).mean()
        return terms


def raise_unknown(method: EOW, x: Tensor, y: Tensor) -> None:
    """Set the bias of the unknown logit where, on this batch, mean h[K+1] of the data = λ · mean (1 - h[K+1]) of the
    negatives: there the derivative of eq. 4 is zero. The K logits stay as they are, so no label changes among the K."""
    model, count = method.model, len(y)
    with torch.no_grad(), frozen_statistics(model), torch.autocast(x.device.type, enabled=False):
        z = model.encoder(x.clone())  # somebody's forward may begin in place
        negatives = [method.draw_negatives(z[:count], y)]
        logits = [model.tail(part.clone()).float() for part in (z[:count], *negatives, z[count:]) if len(part)]
        data, *rest = (each[:, -1] - each[:, :-1].logsumexp(1) for each in logits)
        low, high = (torch.full((), bound, device=x.device) for bound in (-200.0, 200.0))
        for _ in range(40):
            shift = (low + high) / 2
            missing = torch.stack([1 - torch.sigmoid(each + shift).mean() for each in rest]).mean()
            enough = torch.sigmoid(data + shift).mean() > method.options.lam * missing
            low, high = torch.where(enough, low, shift), torch.where(enough, shift, high)
        model.head.bias[-1] += mean_over_ranks([float(shift)], x.device, method.world)[0]


def measure_features(model: UpgradedModel, x: Tensor, world: int) -> None:
    """Tell a quadratic unknown how large the features are that the head reads."""
    head, read = model.head, []
    if not isinstance(head, WidenedOpenLinear):
        return
    handle = head.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(args[0] if args else kwargs["input"]), with_kwargs=True
    )
    try:
        with torch.no_grad(), frozen_statistics(model), torch.autocast(x.device.type, enabled=False):
            model(x.clone())
    finally:
        handle.remove()
    squares = float(read[-1].double().square().sum(-1).mean())
    head.measure(mean_over_ranks([squares], x.device, world)[0])


def upgraded_term(model: SplitModel, options: Mapping[str, Any]) -> dict[str, Any]:
    """What an upgraded model's energy term has beside the method's defaults; without a trust region there is no
    distance to spread."""
    return UPGRADED if isinstance(model, UpgradedModel) and options.get("trust", 1) else {}


def begin(model: UpgradedModel, method: EOW, x: Tensor, y: Tensor) -> None:
    """Bring an upgraded model's unknown logit to the prior odds of the training that now begins."""
    settled = method.options.onset == "settled"
    if not settled and math.isclose(float(model.odds), method.options.lam, rel_tol=1e-6):
        return  # there it is, and a head that has been frozen since stays as it is
    if not model.head.bias.requires_grad:
        raise EowError(
            "the head's bias is frozen, and training begins by bringing the unknown to the odds λ there: let it "
            "learn, model.head.requires_grad_(True)"
        )
    if not model.odds:
        measure_features(model, x[: len(y)], method.world)
    if settled:
        settle(method, x[: len(y)], y)
    elif not model.odds:
        raise_unknown(method, x, y)
    else:
        with torch.no_grad():
            model.head.bias[-1] += math.log(method.options.lam) - model.odds.log()
    model.odds.fill_(method.options.lam)


@contextmanager
def chains_kept(method: EOW) -> Iterator[None]:
    """The chains of a measurement are none of the training's: random numbers, replay buffer, queue and tally are put
    back."""
    kept = [*method.starts.buffers(), method.tally.sums]
    state, before = method.stream.get_state(), [each.clone() for each in kept]
    try:
        yield
    finally:
        method.stream.set_state(state)
        for each, value in zip(kept, before):
            each.copy_(value)


class OpenWorldLoss(nn.Module):
    """`loss(x, y)`, or `loss(x, y, unknown=outliers)`, is the EOW objective of a batch, a scalar to call backward on.

    `model` is what `eow.upgrade` returns, or any SplitModel of K+1 logits; the loss holds it, so `loss.parameters()`
    are the model's. `options` are EOW's settings (`lam`, `steps`, `start`, ...); an upgraded model's chains go
    different distances unless you say `distances="one"`. `loss.last` has the terms of the last call, detached. Under
    DDP wrap the loss, not the model: `DistributedDataParallel(loss)(x, y)` runs encoder, chains and tail in one
    forward, and each rank draws chains of its own; leave its `broadcast_buffers` on, as for batch norm. Works under
    autocast, with accumulated gradients and compiled.

    It may train a model from its first step, but the level of the unknown is set when it begins: without batch norm,
    one that is not trained yet learns the unknown better in the last fifth of its steps, after cross-entropy on its K
    logits, `cross_entropy(model(x)[:, :-1], y)` (records/2026-11-20_untrained). LBFGS wants
    `line_search_fn="strong_wolfe"`: chains are drawn anew at each call and the gradient of a quadratic unknown is
    scaled for SGD, so without a line search the loss grows.
    """

    def __init__(self, model: SplitModel, *, seed: int = 0, **options: Any) -> None:
        super().__init__()
        needs_split(model)
        floating_type(model)
        if "start_epoch" in options:
            raise EowError("a loss knows no epochs: leave start_epoch out, and use cross-entropy until you want it")
        self.model, self.seed = model, seed
        if {"unknown_rate", "calibrate", "fence"} & options.keys():
            raise EowError(
                "a loss knows no end of training: leave unknown_rate, calibrate and fence out, and give the rate to "
                "eow.predict"
            )
        self.options = build(EOWOptions, {**upgraded_term(model, options), **options}, "loss")
        self.classes = model.head.out_features - EOW.extra_outputs
        self.last: dict[str, Tensor] = {}
        # In a list: registered, the method would put the model into the state dict a second time.
        self._method: list[OutlierEOW] = []
        self._begun = False

    def forward(self, x: Tensor, y: Tensor, unknown: Tensor | None = None) -> Tensor:
        self.check(x, y, unknown)
        if torch.is_inference_mode_enabled():  # a validation: chains need gradients, and tensors that outlive it
            with torch.inference_mode(False), torch.no_grad():
                return self(x.clone(), y.clone(), None if unknown is None else unknown.clone())
        x = x.to(floating_type(self.model)) if x.is_floating_point() else x
        rows, y = x if unknown is None else torch.cat([x, unknown.to(x.device, x.dtype)]), y.long()
        method = self.method(rows, y)
        with nullcontext() if torch.is_grad_enabled() else chains_kept(method):
            terms = method(rows, y)
        self.last = {name: term.detach() for name, term in terms.items()}
        return torch.stack(list(terms.values())).sum()

    def check(self, x: Any, y: Any, unknown: Any) -> None:
        if isinstance(x, Mapping) or not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise EowError(
                f"the loss got a {type(x).__name__} and a {type(y).__name__}: pass tensors, loss(inputs, labels), for "
                "example loss(batch['pixel_values'], batch['labels'])"
            )
        if len(x) != len(labels_of(y)) or not len(x):
            raise EowError(f"the loss got {len(x)} inputs and {len(y)} labels: pass as many, and at least 1")
        check_range(y, self.classes)
        check_dense(x)
        check_finite(x)
        if unknown is not None:
            if not isinstance(unknown, Tensor) or unknown.shape[1:] != x.shape[1:] or not len(unknown):
                shape = tuple(getattr(unknown, "shape", ()))
                raise EowError(
                    f"unknown has the shape {shape}, the inputs {tuple(x.shape)}: pass a batch of outliers like them"
                )
            check_finite(unknown)

    @torch.compiler.disable  # what is done once, in numpy and Python, is nothing to compile
    def method(self, x: Tensor, y: Tensor) -> OutlierEOW:
        """The objective, made when the first batch tells its shape and device."""
        if not self._method or self._method[0].stream.device != x.device:
            with self.model.shown(x):
                made = OutlierEOW(self.model, self.options, self.classes, tuple(x.shape[1:]), self.seed)
            made.starts.to(x.device)
            rank, world = rank_and_world()
            made.prepare(x.device, rank, world)
            made.stream.manual_seed(derive("loss", self.seed, rank))
            self._method, self._begun = [made], False
        if torch.is_grad_enabled() and not self._begun:  # without gradients it is only measured, and stays as it is
            if isinstance(self.model, UpgradedModel):
                begin(self.model, self._method[0], x, y)
            self._begun = True
        return self._method[0]


def needs_split(model: Any) -> None:
    inner = unwrapped(model)
    if inner is not model:
        raise EowError(
            f"the model is wrapped in {type(model).__name__}, but encoder and tail are trained one by one: pass the "
            "model inside; to compile it, call model.encoder.compile(), and to train in parallel wrap an "
            "eow.OpenWorldLoss in DistributedDataParallel"
        )
    if isinstance(model, nn.Module) and any(each.is_meta for each in model.parameters()):
        raise EowError("the model lies on the device meta, where it has no weights: load them first")
    if not isinstance(model, SplitModel):
        raise EowError(
            f"the model is a {type(model).__name__}: pass eow.SplitModel(encoder, tail), made of its parts, or "
            "eow.upgrade(model), which takes it apart"
        )


def floating_type(model: nn.Module) -> torch.dtype:
    """The precision the model's inputs are wanted in; what is trained, and the first, must be in one that can be."""
    weights = [each for each in model.parameters() if each.is_floating_point()]
    types = [each.dtype for each in weights] or [torch.float32]
    trained = [types[0], *(each.dtype for each in weights if each.requires_grad)]
    if coarse := [each for each in trained if each in (torch.float16, torch.bfloat16)]:
        some = "" if set(types) == {coarse[0]} else "some of "
        raise EowError(
            f"{some}the model's weights are {coarse[0]}, whose steps are too coarse to train: call model.float() "
            "first, and use autocast for speed (eow.fit does on a GPU)"
        )
    return types[0]
