"""Langevin chains in a network's latent space.

energies.py   what a chain descends           starts.py, outliers.py   where it starts
langevin.py   the reference, to be checked against eq. 5
graphed.py    the same at the arithmetic's own pace: with the tail's gradient written out (freezing.py reads a tail
              into the pieces of frozen.py and blocks.py) and on a GPU as one CUDA graph, or kernels.py in Triton
"""

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
