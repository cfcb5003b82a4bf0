"""`eow.fit`: the training loop in memory, for a model and data that somebody already has."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from eow.config import TrainConfig, check_training
from eow.console import training_bar
from eow.errors import EowError
from eow.methods import Method, method_named
from eow.methods.eow import EOW
from eow.models import SplitModel
from eow.models.probing import evaluated
from eow.models.surgery import UpgradedModel
from eow.own.batches import (
    LoaderBatches,
    array_loader,
    check_finite,
    check_range,
    dataset_loader,
    is_arrays,
    outlier_loader,
)
from eow.own.loss import OutlierEOW, begin, floating_type, needs_split, upgraded_term
from eow.own.predict import as_sentence, check_rows, takes
from eow.recipes import FITTED, FROM_SCRATCH
from eow.seeds import derive, own_randomness
from eow.switches import needs_gradients
from eow.training.distributed import Place, pick_device
from eow.training.loop import Training
from eow.typed import as_python, build, convert


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
    unknown: Any = None,
    holdout: Any = None,
    **options: Any,
) -> Method:
    """Train a SplitModel in place and return it as a method, whose `predict(x)` gives label, confidence and unknown.

    `data` is a loader of (inputs, labels) batches, a torch Dataset of such pairs, or a pair (X, y) of arrays, as the
    network wants them. `unknown` is a loader, a Dataset, an array, a data frame or nested lists of real outliers: half
    of the negatives' weight λ then goes to them, the other half stays with the chains. `holdout` is given like `data`
    and holds samples that are not in it: when training has ended a temperature is fitted to them and, for an upgraded
    model, the shift that makes the mean unknown there `unknown_rate`, .002 unless you say another. `options` are the
    method's settings: `eow.fit(model, loader, lam=0.05, start="mixed")`.

    For `eow` the head must have one output more than there are classes; `eow.upgrade` sees to that. An upgraded model
    is trained already, so its energy term is on from the first epoch, and its chains go different distances
    (`distances="spread"`). Any other model's begins late, as in the recipe `modern`, with a head that is settled first
    if it has a bias and may change. A later fit without `holdout` trains at the prior odds λ again.

    Parameters without `requires_grad` stay as they are until something is fitted to `holdout` or shifted to
    `unknown_rate`; so do the running statistics of norm layers whose parameters are all frozen. Where the unknown of an
    upgraded model must first be brought to λ, a frozen head is refused.
    """
    needs_split(model)
    needs_gradients("eow.fit")
    kind = kind_of(model, method, unknown)
    upgraded = isinstance(model, UpgradedModel)
    wishes = {"epochs": epochs, "batch": batch, "optimizer": optimizer, "lr": lr, "weight_decay": weight_decay}
    settings = settings_of({**wishes, "device": str(device)}, upgraded)
    seed = convert(as_python(seed), int, "seed")
    check_training(settings, seed, "fit")
    chosen = options_of(kind, model, options, holdout is not None)
    place = Place(pick_device(settings.device, "device"))
    classes = model.head.out_features - kind.extra_outputs
    form: dict[str, Any] = {"dtype": floating_type(model), "integers": getattr(model, "integers", False)}

    def loader_of(given: Any, name: str, training: bool) -> Any:
        if is_arrays(given):
            return array_loader(given[0], given[1], settings.batch, training=training, **form)
        return dataset_loader(given, settings.batch, name, training=training)

    data = loader_of(data, "data", True)
    if unknown is not None:
        unknown = outlier_loader(unknown, settings.batch, **form)
    batches = LoaderBatches(data, classes, place.device, unknown, **form)
    held = None
    if holdout is not None:
        try:
            held = LoaderBatches(loader_of(holdout, "holdout", False), classes, place.device, **form)
            with own_randomness(place.device, seed):
                held_shapes = {tuple(x.shape[1:]) for x, _ in held.in_order()}
        except EowError as error:
            raise EowError(f"holdout: {error}") from None
    with own_randomness(place.device, seed):  # for the loader's shuffling and what a method initialises
        x, y = first_batch(batches)
        with model.shown(x):
            if held is not None and not (held_shapes and all(alike(model, each, x.shape[1:]) for each in held_shapes)):
                found = ", ".join(map(str, held_shapes)) or "no shape: it yields nothing"
                raise EowError(f"a sample of holdout has {found}, one of data {tuple(x.shape[1:])}: prepare both alike")
            trained = kind(model, chosen, classes, tuple(x.shape[1:]), seed)
        trained.to(place.device)
        trained.prepare(place.device)
        with takes(x):
            check_rows(evaluated(model, x[:2]), x[:2])
    if not any(parameter.requires_grad for parameter in trained.parameters()):
        raise EowError("every parameter of the model is frozen: set requires_grad for those that are to be trained")
    refuse_sparse(trained)
    training = Fitting(trained, batches, settings, place, seed, bar=training_bar(progress))
    if isinstance(model, UpgradedModel) and isinstance(trained, EOW):
        trained.stream.manual_seed(derive("raise", seed))
        with own_randomness(place.device, seed), trained_on(x, y):  # a model may draw in evaluation too
            begin(model, trained, x, y)
    for _ in training.epochs():
        pass
    if isinstance(trained, EOW):
        with own_randomness(place.device, seed):
            trained.finish(batches, held)
        if isinstance(model, UpgradedModel):
            model.odds.fill_(chosen.odds)
    return trained.eval()


def kind_of(model: SplitModel, method: str, unknown: Any) -> type[Method]:
    """The method of that name, if it can train this model in memory; with real outliers, the one that takes them."""
    kind = method_named(method)
    if kind.needs_holdout:
        raise EowError(f"eow.fit does not fit {method}, which is made after training: use `eow train`")
    if isinstance(model, UpgradedModel) and not kind.extra_outputs:
        raise EowError(f"{method} has no use for the unknown logit of an upgraded model: fit it with method='eow'")
    if unknown is None:
        return kind
    if method != "eow":
        raise EowError(f"{method} cannot learn from unknowns: leave unknown out, or fit with method='eow'")
    return OutlierEOW


def settings_of(wishes: dict[str, Any], upgraded: bool) -> TrainConfig:
    """The loop's settings, every one checked by its name in `eow.fit`."""
    if isinstance(wishes["optimizer"], torch.optim.Optimizer):
        raise EowError(
            f"the optimizer is of the type {type(wishes['optimizer']).__name__} and made already: name one, "
            "optimizer='adam', or write the loop around eow.OpenWorldLoss"
        )
    # Somebody else's forward may wait for the device, which a captured step must not.
    graph = {"graph": "off"} if upgraded else {}
    settings: TrainConfig = build(TrainConfig, {key: as_python(value) for key, value in wishes.items()} | graph, "fit")
    return settings


def options_of(kind: type[Method], model: SplitModel, options: dict[str, Any], held_out: bool) -> Any:
    """The method's options over `eow.fit`'s own defaults. What could not be kept or fitted in memory is refused."""
    upgraded = isinstance(model, UpgradedModel)
    if issubclass(kind, EOW):
        options = {**(upgraded_term if upgraded else late_term)(model, options), **options}
    if held_out and issubclass(kind, EOW):
        options = {**(FITTED if upgraded else {"calibrate": "holdout"}), **options}
    chosen = build(kind.Options, {key: as_python(value) for key, value in options.items()}, "method")
    if getattr(chosen, "shift", 0.0) and not upgraded:
        raise EowError(
            "the model would not know that its prior was changed, and another fit would change it again: leave "
            "unknown_rate out and give it to eow.predict, or eow.upgrade a model"
        )
    if getattr(chosen, "fence", 0):
        raise EowError("a fence is fitted on a whole training set, which eow.fit does not keep: leave fence out")
    if kind.uses_holdout(chosen) and not held_out:
        raise EowError("calibrate='holdout' is fitted on held-out data: pass some as holdout, or leave it out")
    if held_out and not kind.uses_holdout(chosen):
        raise EowError(
            f"nothing of this is fitted on held-out data ({chosen.name}, calibrate='none'): leave holdout out"
        )
    return chosen


class Fitting(Training):
    """The loop around somebody's forward and data: what fails in a step is a sentence about its batch."""

    advice = "lower lr, or give the chains a trust region, trust=1.0"

    def step(self, x: Tensor, y: Tensor) -> None:
        with trained_on(x, y):
            super().step(x, y)


def trained_on(x: Tensor, y: Tensor) -> AbstractContextManager[None]:
    """What somebody's forward raises on a batch, as a sentence about it."""
    remedy = "look at its inputs and at what the model's forward does with them"
    if len(y) == 1:
        remedy = "drop a last batch of one, DataLoader(..., drop_last=True)"
    return as_sentence(lambda why: f"be trained on a batch of shape {tuple(x.shape)} ({why}): {remedy}")


def refuse_sparse(module: nn.Module) -> None:
    for path, each in module.named_modules():
        if isinstance(each, nn.Embedding | nn.EmbeddingBag) and each.sparse and each.weight.requires_grad:
            name = path.removeprefix("model.")
            raise EowError(
                f"{name} gives sparse gradients, which the optimizers of eow.fit cannot take: set sparse=False, "
                f"model.get_submodule({name!r}).sparse = False"
            )


def alike(model: SplitModel, held: tuple[int, ...], data: tuple[int, ...]) -> bool:
    """Whether the model can take held-out inputs of this shape as it takes the data: texts may differ in length, and
    images in size where the encoder makes latents of one shape of them."""
    if held == tuple(data):
        return True
    if getattr(model, "integers", False):
        return len(held) == len(data)
    try:
        return model.feature_shape(held) == model.feature_shape(data)
    except EowError:
        return False


def late_term(model: SplitModel, options: dict[str, Any]) -> dict[str, Any]:
    """When and how the energy term of a network that is trained from scratch begins: settled, as in the recipe
    `modern`, but where the head cannot be changed or the energy has nothing to settle."""
    head = model.head
    settles = head.bias is not None and all(parameter.requires_grad for parameter in head.parameters())
    return FROM_SCRATCH if settles and options.get("energy") != "complement" else {**FROM_SCRATCH, "onset": "as_is"}


def first_batch(batches: LoaderBatches) -> tuple[Tensor, Tensor]:
    """The first batch. The loader is read on until a second class is seen: of one alone nothing can be learned."""
    first, seen = None, set()
    for x, y in batches.epoch(0):
        first = first or (x, y)
        check_range(y.cpu(), batches.classes)
        seen.update(y.unique().tolist())
        if len(seen) > 1:
            break
    if first is None:
        raise EowError("the loader yields no batches: pass a torch DataLoader or a list of (x, y) batches")
    check_finite(first[0].cpu())
    if len(seen) < 2:
        raise EowError(f"all labels are {seen.pop()}: nothing can be learned of one class, add samples of another")
    return first
