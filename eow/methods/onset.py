"""Where the energy term begins: a head that fits it, before the first step.

A network that has been trained without the term has learnt that nothing is unknown, and logits as large as its training
allowed. Its chains end where the K+1-th logit lies tens below the others: at λ = 0.02 an MLP on MNIST starts with a
loss of 5, and what it does to get rid of that costs accuracy which the last epochs do not bring back.

So two numbers are set first. With logits s·f + b·e[K+1] eq. 4 is

    L(s, b) = E_data[-log h[y]] + λ E_chains[-log h[K+1]],

which is convex in both. They go into the head's own weights; the order of the K classes stays. Settling takes
confidence away and never adds any: where every sample of the batch is classified correctly and the negatives are far
away, L keeps falling as s grows.
"""

import math
import warnings
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logsumexp
from torch import Tensor

from eow.errors import EowError
from eow.sampling import LARGEST_ENERGY
from eow.training.distributed import mean_over_ranks

ROUNDS = 8  # at most
LOW, HIGH = -1.0, 0.5  # log s of one round at most: chains answer to the change, then comes the next
SETTLED = 0.1  # |log s| of a round that is the last
MOST_DIVIDED = 30  # what the logits are divided by in all rounds: an MLP for MNIST wants 12


def settle(method: Any, x: Tensor, y: Tensor) -> None:
    """Scale the logits of an EOW and shift its unknown until the objective of this batch is lowest, with new chains
    after each change: they go elsewhere then, and where that goes to and fro the steps get shorter. The network is in
    the mode it is trained in, since that objective is meant, and its statistics are put back. Every rank ends with the
    mean of what the ranks find. What is not finite, or has run away, is left to the step's own check."""
    model, head = method.model, method.model.head
    if not all(parameter.requires_grad for parameter in head.parameters()):
        raise EowError("method.onset=settled changes the head, and this one is frozen: set method.onset=as_is")
    counted, found = method.tally.sums.clone(), [each.clone() for each in head.parameters()]
    statistics = {name: each.clone() for name, each in model.named_buffers()}
    total, last, width = 0.0, 0.0, 1.0  # log s of all rounds and of the last one, and how far the next may go
    for _ in range(ROUNDS):
        found_here = one_round(method, x, y, LOW * width, min(HIGH * width, -total))
        log, shift = mean_over_ranks(found_here, x.device, method.world)
        if not math.isfinite(log + shift):
            break
        scale_head(head, math.exp(log), shift)
        total, width, last = total + log, width / 2 if log * last < 0 else width, log
        if abs(log) < SETTLED:
            break
    if total < -math.log(MOST_DIVIDED):
        with torch.no_grad():
            for parameter, before in zip(head.parameters(), found):
                parameter.copy_(before)
        warnings.warn(
            f"settling would divide the logits by more than {MOST_DIVIDED} and has been undone: the chains end too far "
            "out for this network, lower method.step, method.start_width or method.trust",
            RuntimeWarning,
            stacklevel=2,
        )
    method.tally.sums.copy_(counted)
    for name, each in model.named_buffers():
        each.copy_(statistics[name])


def scale_head(head: Any, factor: float, shift: float) -> None:
    """All logits times `factor`, then the unknown plus `shift`, in the head's own parameters."""
    with torch.no_grad():
        wanted = factor * head.weight
        for parameter in head.parameters():
            parameter.mul_(factor)
        if not torch.allclose(head.weight, wanted, rtol=1e-3, atol=1e-6 * float(wanted.abs().max())):
            raise EowError(
                "the head computes its weight of its parameters (torch.nn.utils.parametrizations) in a way that undoes "
                "a temperature: take that off with parametrize.remove_parametrizations, or leave holdout and a settled "
                "onset out"
            )
        head.bias[-1] += shift


def one_round(method: Any, x: Tensor, y: Tensor, low: float, high: float) -> list[float]:
    """The log of the scale, from `low` to `high`, and the shift that settle this batch and new chains."""
    model = method.model
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        z = model.encoder(x.clone())  # somebody's forward may begin in place
        ends = method.draw_negatives(z, y)
        data = model.tail(z.clone()).double().cpu().numpy()
        with method.mode_of_negatives(method.model.tail):
            chains = model.tail(ends.clone()).double().cpu().numpy()
    if not (np.isfinite(data).all() and np.isfinite(chains).all()):
        return [math.nan, math.nan]
    if np.abs(chains[:, -1] - logsumexp(chains, axis=1)).mean() > LARGEST_ENERGY:
        return [math.nan, math.nan]
    return [*scale_and_shift(data, y.cpu().numpy(), chains, method.options.lam, low, high)]


def scale_and_shift(
    data: np.ndarray, labels: np.ndarray, chains: np.ndarray, lam: float, low: float = LOW, high: float = HIGH
) -> tuple[float, float]:
    """(log s, b) at the minimum of L, log s from LOW to HIGH and between `low` and `high`; `data` and `chains` are K+1
    logits in float64."""
    from scipy.optimize import minimize_scalar

    def odds(logits: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
        known = logsumexp(s * logits[:, :-1], axis=1)
        return known, s * logits[:, -1] - known

    def loss(log: float) -> float:
        s = math.exp(log)
        (known, of_data), (_, of_chains) = odds(data, s), odds(chains, s)
        b = balance(of_data, of_chains, lam)
        right = known - s * data[np.arange(len(labels)), labels]
        unknown = np.logaddexp(0, of_data + b).mean() + lam * np.logaddexp(0, -of_chains - b).mean()
        return float(right.mean() + unknown)

    log = min(max(minimize_scalar(loss, bounds=(LOW, HIGH), method="bounded").x, low), high)
    s = math.exp(log)
    return log, balance(odds(data, s)[1], odds(chains, s)[1], lam)


def balance(data: np.ndarray, chains: np.ndarray, lam: float) -> float:
    """The b at which L's derivative in it is zero: of the unknown's log-odds, mean h[K+1] of the data = λ · mean
    (1 - h[K+1]) of the chains."""
    from scipy.optimize import brentq

    def slope(b: float) -> float:
        return float(expit(data + b).mean() - lam * expit(-chains - b).mean())

    ends = np.concatenate([-data, -chains])
    room = abs(math.log(lam)) + 40  # there one of the two means is nothing beside the other
    low, high = ends.min() - room, ends.max() + room
    if slope(low) >= 0 or slope(high) <= 0:  # so large that the room is lost in rounding
        return math.nan
    return float(brentq(slope, low, high, xtol=1e-9))
