"""The energy along one batch of a trained EOW's chains, for the report."""

import math
from copy import deepcopy
from typing import Any

import torch

from eow.models import frozen_statistics
from eow.sampling.langevin import mean_norm, run_chain
from eow.seeds import derive, own_randomness

PROFILED = 256  # training samples whose features the chains may start from
MOST_STEPS = 100  # that are told


def profile_of(method: Any, train: Any) -> dict[str, Any] | None:
    """The energy before every step and at the end, mean and 10 and 90 % quantiles, at no more than MOST_STEPS + 1 of
    these places, and the chains' mean norm at the end in mean norms of the features ("reach"): {"energy", "start",
    "chains", "reach", "step": [...], "mean": [...], "low": [...], "high": [...]}. None where chains take no steps. They
    start as in training, from other random numbers, and the encoder is in evaluation mode."""
    o, device = method.options, next(method.parameters()).device
    if not o.steps:
        return None
    generator = torch.Generator(device).manual_seed(derive("chain", method.seed))
    x, y = (part[:PROFILED] for part in next(iter(train.epoch(0))))
    starts = method.starts if method.starts.outliers is None else deepcopy(method.starts)  # its queue takes features in
    with own_randomness(device, derive("chain", method.seed)), frozen_statistics(method), torch.no_grad():
        z = method.model.encoder(x)
        chain = run_chain(
            method.model.tail, starts.draw(z, y, generator), o.energy, steps=o.steps, step=o.step, noise=o.noise,
            trust=method.trust_radius(z, generator), generator=generator,
        )  # fmt: skip
    places = torch.linspace(0, o.steps, min(o.steps, MOST_STEPS) + 1, dtype=torch.float64).round().long()
    energy = chain.energy.double().cpu()[places]
    quantiles = energy.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), dim=1)
    curves = {"mean": energy.mean(1), "low": quantiles[0], "high": quantiles[1]}
    reach = (mean_norm(chain.z) / mean_norm(z)).item()
    return {
        "energy": o.energy, "start": o.start, "chains": energy.shape[1], "step": places.tolist(),
        "reach": reach if math.isfinite(reach) else None,
        **{name: [v if math.isfinite(v) else None for v in curve.tolist()] for name, curve in curves.items()},
    }  # fmt: skip
