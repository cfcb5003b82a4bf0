"""`eow.fit`: the training loop in memory, for a model and data that somebody already has."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from eow.config import TrainConfig, build, check_training, convert
from eow.console import training_bar
from eow.distributed import Place, pick_device
from eow.errors import EowError
from eow.methods import Method, method_named
from eow.models import SplitModel
from eow.seeds import own_randomness
from eow.training import Training


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
            x, y = inputs_of(batch[0]), labels_of(batch[1])
            if len(x) != len(y) or not len(x):
                raise EowError(
                    f"the loader yields a batch of {len(x)} inputs and {len(y)} labels: make it as many, and at least 1"
                )
            if not y.is_cuda and (y.min() < 0 or y.max() >= self.classes):
                raise EowError(
                    f"labels run from {int(y.min())} to {int(y.max())}, "
                    f"but the model has the classes 0 to {self.classes - 1}"
                )
            yield x.to(self.device), y.to(self.device)


def as_tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values if isinstance(values, Tensor) else np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise EowError(f"the {what} cannot be made a tensor ({error}): pass an array or a tensor of numbers") from None


def inputs_of(values: Any) -> Tensor:
    """Inputs in single precision, as the networks are."""
    x = as_tensor(values, "inputs")
    if not x.is_floating_point() or not x.dim():
        raise EowError(
            f"the inputs are {x.dtype} of shape {tuple(x.shape)}: pass floating-point numbers, sample by sample, "
            "as the network wants them"
        )
    return x.float()


def labels_of(values: Any) -> Tensor:
    y = as_tensor(values, "labels")
    if y.is_floating_point() or y.is_complex() or y.dim() != 1:
        raise EowError(f"labels are {y.dtype} of shape {tuple(y.shape)}: pass one whole number a sample")
    return y.long()


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
    if not isinstance(model, SplitModel):
        raise EowError(f"the model is a {type(model).__name__}: pass eow.SplitModel(encoder, tail), made of its parts")
    kind = method_named(method)
    if kind.needs_holdout:
        raise EowError(
            f"{method} is fitted on held-out data after training, which eow.fit has none of: use `eow train`"
        )
    wishes = {"epochs": epochs, "batch": batch, "optimizer": optimizer, "lr": lr, "weight_decay": weight_decay}
    settings = build(TrainConfig, {**plain(wishes), "device": str(device)}, "fit")
    seed = convert(plain({"seed": seed})["seed"], int, "seed")
    check_training(settings, seed, "fit")
    chosen = build(kind.Options, plain(options), "method")
    place = Place(pick_device(settings.device))
    classes = model.head.out_features - kind.extra_outputs
    if isinstance(data, tuple | list) and len(data) == 2 and not all(map(is_batch, data)):
        data = array_loader(data[0], data[1], settings.batch)
    batches = LoaderBatches(data, classes, place.device)
    with own_randomness(place.device, seed):  # for the loader's shuffling and what a method initialises
        first = next(iter(batches.epoch(0)))[0]
        if not bool(torch.isfinite(first).all()):
            raise EowError("the inputs hold NaN or infinite values: clean them before fitting")
        trained = kind(model, chosen, classes, tuple(first.shape[1:]), seed)
        trained.to(place.device)
        trained.prepare(place.device)
    if not any(parameter.requires_grad for parameter in trained.parameters()):
        raise EowError("every parameter of the model is frozen: set requires_grad for those that are to be trained")
    for _ in Training(trained, batches, settings, place, seed, bar=training_bar(progress)).epochs():
        pass
    return trained.eval()


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Python's numbers for numpy's, which come out of arrays and grids."""
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in settings.items()}


def is_batch(entry: Any) -> bool:
    """Whether this is an (x, y) batch and not an array: a list of two batches looks like a pair of lists."""
    return isinstance(entry, tuple | list) and len(entry) == 2 and all(hasattr(part, "shape") for part in entry)


def array_loader(inputs: Any, labels: Any, batch: int) -> DataLoader[Any]:
    x, y = inputs_of(inputs), labels_of(labels)
    if len(x) != len(y) or not len(x):
        raise EowError(
            f"there are {len(x)} inputs and {len(y)} labels: pass as many labels as inputs, and at least one"
        )
    if not bool(torch.isfinite(x).all()):
        raise EowError("the inputs must be finite numbers, as the network wants them: scale and clean them first")
    return DataLoader(TensorDataset(x, y), batch_size=min(batch, len(x)), shuffle=True, drop_last=True)
