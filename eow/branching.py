"""Trainings that share their first epochs.

What a late energy term does begins with its first epoch; until then runs of one seed and schedule are the same run.
`trunk` trains it once, `branch` goes on from there as any of them: epoch by epoch what it would have been by itself
(its random numbers depend on seed and epoch alone), at the price of its last epochs.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from eow.training import Training

State = dict[str, Tensor]


def anywhere(name: str) -> str:
    """A tensor's name that does not depend on where the model is cut."""
    return name.replace("model.encoder.", "model.").replace("model.tail.", "model.")


def trunk(training: Training, epochs: int) -> tuple[State, list[dict[str, Any]]]:
    """The state after so many epochs, and their lines for the log."""
    lines = []
    for line in training.epochs():
        lines.append(line)
        if line["epoch"] + 1 == epochs and "event" not in line:
            break
    return {anywhere(name): each.clone() for name, each in training.state().items()}, lines


def branch(training: Training, state: State, first: int) -> Iterator[dict[str, Any]]:
    """Go on from a trunk of `first` epochs, which may have been cut elsewhere or have had no square in its head."""
    own = training.state()
    optimizer = {name: each for name, each in state.items() if name.startswith("optimizer.")}
    training.restore({**{name: state.get(anywhere(name), each) for name, each in own.items()}, **optimizer})
    yield from training.epochs(first)


def never(training: Training) -> Training:
    """The same training, an energy method's, whose term never begins: vanilla with an unknown logit more."""
    method: Any = training.method
    begin = method.begin_epoch

    def begin_epoch(epoch: int, epochs: int) -> None:
        begin(0, epochs)
        assert not method.active, "the trunk must end before the energy term begins"

    method.begin_epoch = begin_epoch
    return training
