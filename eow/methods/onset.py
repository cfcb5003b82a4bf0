"""Where the energy term begins: a head that fits it, before the first step.

A network that has been trained without the term has learnt that nothing is unknown, and logits as large as its training
allowed. Its chains end where the K+1-th logit lies tens below the others: at λ = 0.02 an MLP on MNIST starts with a
loss of 5, and what it does to get rid of that costs accuracy which the last epochs do not bring back.

So two numbers are set first. With logits s·f + b·e[K+1] eq. 4 is

    L(s, b) = E_data[-log h[y]] + λ E_chains[-log h[K+1]],

which is convex in both. They go into the head's own weights; the order of the K classes stays. Settling takes
confidence away and never adds any: of a batch that is all right and negatives that are far off L falls with s for ever.
"""

import math

import numpy as np
from scipy.special import expit, logsumexp

LOW, HIGH = -1.0, 0.5  # log s of one round at most: chains answer to the change, then comes the next


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
