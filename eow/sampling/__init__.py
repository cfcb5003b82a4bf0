"""Langevin chains in a network's latent space: energies, the reference sampler, and where chains start."""

from eow.sampling.energies import ENERGIES, NEGATIVE_LOSSES
from eow.sampling.graphed import Sampler, sample
from eow.sampling.langevin import LARGEST_ENERGY, Chain, Tally, run_chain
from eow.sampling.starts import ReplayBuffer, Starts, parse_starts

__all__ = [
    "ENERGIES",
    "LARGEST_ENERGY",
    "NEGATIVE_LOSSES",
    "Chain",
    "ReplayBuffer",
    "Sampler",
    "Starts",
    "Tally",
    "parse_starts",
    "run_chain",
    "sample",
]
