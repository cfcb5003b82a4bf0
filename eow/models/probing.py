"""A batch that somebody else's model can take, and what the model says of it, without a trace left in the model."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eow.errors import EowError
from eow.models.refusing import PAIR
from eow.models.split import frozen_statistics
from eow.plain import first_line
from eow.seeds import seed_torch

SIDES = (32, 64, 224, 28, 8, 16, 96, 128, 256, 299, 384)  # of images, tried in this order
LENGTHS = (128, 1024, 16000)  # of signals
AS_IT_WANTS = "pass example=, a batch of inputs as it wants them"
SMALL, LARGE = 2, 3  # two batch sizes: what differs between them depends on the batch


def probe(model: nn.Module, layers: Iterable[nn.Module], example: Any) -> tuple[Tensor, Tensor]:
    """A batch that the model can take, and its logits: rows of the example, random ones of its shape where they are one
    number all over or not finite, or of a shape guessed from the first layer."""
    tensors = [*model.parameters(), *model.buffers()]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.get_default_dtype())
    generator = torch.Generator().manual_seed(0)
    if example is not None:
        if isinstance(example, Mapping):
            raise EowError(
                f"the example is a {type(example).__name__}, and a model is called with one tensor: pass one, and wrap "
                "a model that takes more in one whose forward makes the rest of it"
            )
        x = torch.as_tensor(example) if isinstance(example, Tensor | np.ndarray) else None
        if x is None or x.dim() < 2 or not len(x):
            raise EowError(
                f"the example is {described(example)}: pass a batch of inputs, a tensor whose rows are samples"
            )
        if x.is_meta:
            raise EowError("the example lies on the device meta, where it has no values: pass a batch that has some")
        x = x.detach()[torch.arange(LARGE) % len(x)]  # of a whole data set no more is moved
        if x.is_floating_point():
            if x.numel() and ((x == x.flatten()[0]).all() or not x.isfinite().all()):
                x = torch.randn(LARGE, *x.shape[1:], generator=generator)
            x = x.to(dtype)
        return rows_out(model, x.to(device))
    failure = "it has no layer that tells"
    for shape in shapes_for(layers):
        try:
            return rows_out(model, torch.randn(LARGE, *shape, generator=generator).to(device, dtype))
        except EowError as error:
            failure = str(error).removesuffix(f": {AS_IT_WANTS}")
    raise EowError(f"the shape of the model's inputs cannot be guessed ({failure}): {AS_IT_WANTS}")


def shapes_for(layers: Iterable[nn.Module]) -> Iterator[tuple[int, ...]]:
    """Shapes of an input that the first layer with weights could take."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            yield from ((layer.in_channels, side, side) for side in SIDES)
        elif isinstance(layer, nn.Conv1d):
            yield from ((layer.in_channels, length) for length in LENGTHS)
        elif isinstance(layer, nn.Linear):
            yield (layer.in_features,)
        elif isinstance(layer, nn.BatchNorm1d):
            yield (layer.num_features,)
        elif isinstance(layer, nn.BatchNorm2d):
            yield from ((layer.num_features, side, side) for side in SIDES)
        elif isinstance(layer, nn.LayerNorm):
            yield tuple(layer.normalized_shape)
        elif not list(layer.parameters(recurse=False)):
            continue
        return


def rows_out(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` and the model's logits, if it gives a row of them for each of its rows."""
    try:
        logits = evaluated(model, x)
    except Exception as error:  # whatever somebody else's forward raises
        raise EowError(
            f"the model cannot take a batch of shape {tuple(x.shape)} ({first_line(error)}): {AS_IT_WANTS}"
        ) from error
    if not isinstance(logits, Tensor):
        raise EowError(f"the model returns {described(logits)}: make its forward return the logits alone, {PAIR}")
    if logits.dim() != 2 or len(logits) != len(x):
        raise EowError(
            f"the model gives {described(logits)} for a batch of shape {tuple(x.shape)}: it must give one row of "
            "logits for each input"
        )
    if not logits.isfinite().any():
        raise EowError(f"the model's logits for a batch of shape {tuple(x.shape)} are not numbers: {AS_IT_WANTS}")
    return x, logits


def evaluated(module: nn.Module, x: Tensor, seed: int = 0) -> Any:
    """The module's output in evaluation mode, the same random numbers each time; nothing of it changes."""
    with at_rest(module, x), torch.no_grad():
        seed_torch(x.device, seed)
        return module(x.clone())


@contextmanager
def at_rest(module: nn.Module, x: Tensor) -> Iterator[None]:
    """The module in evaluation mode, and the generators that may be drawn from for `x` afterwards where they were."""
    with frozen_statistics(module), torch.random.fork_rng([x.device] if x.is_cuda else []):
        yield


def described(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"
