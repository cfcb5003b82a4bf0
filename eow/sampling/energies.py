"""The three readings of the paper's energy, as functions of the K+1 logits.

With h = softmax(f), s = sum_k h[k] over the K classes and h[K+1] the unknown:

    paper       E = log h[K+1]      eq. 3 as printed; chains go where the model is sure that it knows
    proof       E = -log h[K+1]     what the proof of proposition 1 uses: p = h[K+1] / Z
    complement  E' = -log s         eq. 6; its gradient has the direction of eq. 3's, scaled by h[K+1] / s

and, for JEM, joint: E = -logsumexp f, of all the logits there are.

`ENERGIES` is what a chain descends. `NEGATIVE_LOSSES` is what the chain's samples then minimise: -log h[K+1] (eq. 4)
for the first two, log s (eq. 7) for the third.
"""

from collections.abc import Callable

from torch import Tensor

from eow.errors import EowError

Energy = Callable[[Tensor], Tensor]


def log_unknown(logits: Tensor) -> Tensor:
    """log h[K+1] of each row, (N, K+1) -> (N,)."""
    return logits[:, -1] - logits.logsumexp(1)


def log_known(logits: Tensor) -> Tensor:
    """log sum_k h[k] of each row, (N, K+1) -> (N,). Never 1 - h[K+1], which rounds to zero."""
    return logits[:, :-1].logsumexp(1) - logits.logsumexp(1)


ENERGIES: dict[str, Energy] = {
    "paper": log_unknown,
    "proof": lambda logits: -log_unknown(logits),
    "complement": lambda logits: -log_known(logits),
    "joint": lambda logits: -logits.logsumexp(1),
}

NEGATIVE_LOSSES: dict[str, Energy] = {
    "paper": lambda logits: -log_unknown(logits),
    "proof": lambda logits: -log_unknown(logits),
    "complement": log_known,
}


def logit_gradient(energy: str, logits: Tensor) -> Tensor:
    """The energy's gradient with respect to the logits, by hand.

    paper: e_{K+1} - h; proof: h - e_{K+1}; complement: h - g with g the softmax of the K logits alone, and 0;
    joint: -h.
    """
    h = logits.softmax(1)
    if energy == "joint":
        return h.neg_()
    if energy == "complement":
        h[:, :-1] -= logits[:, :-1].softmax(1)
        return h
    h[:, -1] -= 1
    return h if energy == "proof" else h.neg_()


def energy_named(energy: str | Energy) -> Energy:
    """The energy of that name; a function of the tail's output is taken as it is."""
    if callable(energy):
        return energy
    if energy not in ENERGIES:
        raise EowError(
            f"there is no energy {energy!r}: choose one of {', '.join(ENERGIES)}, or pass a function of the logits"
        )
    return ENERGIES[energy]
