"""What post-hoc methods share: outputs on a part of the training set, and the refusal to be fitted on anything else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from eow.data.loader import Batches
from eow.errors import EowError
from eow.methods.base import Method
from eow.models import frozen_statistics
from eow.seeds import derive, own_randomness


def checked(method: Method, part: Batches | None) -> Batches:
    """`part`, which must be there and come from a training split."""
    name = method.options.name
    if part is None:
        raise EowError(f"{name} is fitted on held-out data and this run has none: set data.holdout, such as 0.1")
    if part.split != "train":
        raise EowError(
            f"{name} would be fitted on the {part.split} split of {part.dataset.name}, where it is to be judged: give "
            "it a part of the training split (data.holdout)"
        )
    return part


@contextmanager
def at_rest(method: Method, device: torch.device) -> Iterator[None]:
    """Evaluation mode, no gradients, and noise layers that draw the same numbers every time."""
    with frozen_statistics(method), torch.no_grad(), own_randomness(device, derive("holdout", method.seed)):
        yield


def collect(method: Method, part: Batches | None, of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """`of(x)` for every sample of `part` in order, and the labels, on the CPU."""
    part = checked(method, part)
    with at_rest(method, part.device):
        pairs = [(of(x).cpu(), y.cpu()) for x, y in part.in_order()]
    if not pairs:
        raise EowError(f"{method.options.name} is fitted on held-out data, which yields nothing: pass it as a list")
    return torch.cat([value for value, _ in pairs]), torch.cat([y for _, y in pairs])


def require_fitted(method: Method, fitted: Tensor) -> None:
    """Values that `finish` sets are NaN until then: predicting with a made-up one would pass for the real thing."""
    if bool(fitted.isnan().any()):
        raise EowError(
            f"{method.options.name} has not been fitted yet: train it with `eow train`, or call its finish(train, "
            "holdout) after training"
        )
