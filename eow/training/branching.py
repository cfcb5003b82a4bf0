"""Trainings that share their first epochs.

What a late energy term does begins with its first epoch; until then runs of one seed and schedule are the same run.
`trunk` trains it once, `branch` goes on from there as any of them: epoch by epoch what it would have been by itself
(its random numbers depend on seed and epoch alone), at the price of its last epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from eow.training.loop import Training


@dataclass(frozen=True)
class Trunk:
    """What the first epochs have left: the model's and the optimiser's tensors, how often an epoch was undone, and the
    log."""

    epochs: int
    tensors: dict[str, Tensor]
    rollbacks: int
    lines: list[dict[str, Any]]


SHARED = ("method.model.", "optimizer.")  # a method's own tensors, such as a replay buffer, are not the trunk's


def anywhere(name: str) -> str:
    """A tensor's name that does not depend on where the model is cut."""
    return name.replace("model.encoder.", "model.").replace("model.tail.", "model.")


def trunk(training: Training, epochs: int) -> Trunk:
    lines = []
    for line in training.epochs():
        lines.append(line)
        if line["epoch"] + 1 == epochs and "event" not in line:
            break
    shared = {name: each for name, each in training.state().items() if name.startswith(SHARED)}
    tensors = {anywhere(name): each.clone() for name, each in shared.items()}
    return Trunk(epochs, tensors, training.rollbacks, lines)


def branch(training: Training, start: Trunk) -> Iterator[dict[str, Any]]:
    """Go on from a trunk, which may have been cut elsewhere, have had no square in its head or other chains."""
    own = training.state()
    optimizer = {name: each for name, each in start.tensors.items() if name.startswith("optimizer.")}
    training.restore({**{name: start.tensors.get(anywhere(name), each) for name, each in own.items()}, **optimizer})
    training.rollbacks = start.rollbacks
    yield from training.epochs(start.epochs)


def never(training: Training) -> Training:
    """An energy method's training, changed so that the energy term never begins: vanilla with one logit more."""
    method: Any = training.method
    begin = method.begin_epoch

    def begin_epoch(epoch: int, epochs: int) -> None:
        begin(0, epochs)
        assert not method.active, "the trunk must end before the energy term begins"

    method.begin_epoch = begin_epoch
    return training
