"""gaussian_noise, shot_noise, impulse_noise and speckle_noise: each value of each channel draws on its own."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from eow.data.corruptions.pixels import HAIR, to_bytes, unit
from eow.data.corruptions.randomness import BITS, Draws


def gaussian_noise(images: Tensor, draws: Draws, scale: float) -> Tensor:
    return to_bytes(draws.normal(*images.shape[1:]).mul_(scale).add_(unit(images)))


def speckle_noise(images: Tensor, draws: Draws, scale: float) -> Tensor:
    """The noise grows with the brightness: x + x · scale · normal."""
    return to_bytes(draws.normal(*images.shape[1:]).mul_(scale).add_(1).mul_(unit(images)))


def impulse_noise(images: Tensor, draws: Draws, amount: float) -> Tensor:
    """A share `amount` of the values becomes black or white, half of it each."""
    uniform = draws.uniform(*images.shape[1:])
    return images.masked_fill(uniform < amount, 0).masked_fill_(uniform < amount / 2, 255)


def shot_noise(images: Tensor, draws: Draws, photons: float) -> Tensor:
    """Poisson(x · photons) / photons, by the inverse of its distribution function, read off a table of all levels."""
    table = torch.from_numpy(shot_table(photons)).to(images.device)
    level = images.int()
    key = draws.uniform(*images.shape[1:]).mul_(1 << BITS).int().add_((level - 128) << BITS)
    return (torch.searchsorted(table, key, right=True, out_int32=True) - 255 * level).to(torch.uint8)


@lru_cache(maxsize=8)
def shot_table(photons: float) -> np.ndarray:
    """P(byte out <= g | byte in) for g = 0 ... 254, in units of 2^-23, one row a byte in.

    All rows in one ascending sequence: row `level` begins at (level - 128) · 2^23, so that one search finds both.
    """
    from scipy.special import pdtr

    level = np.arange(256)[:, None]
    # The largest count that still gives byte g, since 255 · count / photons is rounded down.
    count = np.ceil((np.arange(1, 256) - HAIR) * photons / 255) - 1
    below = np.rint(pdtr(count, level / 255 * photons) * (1 << BITS)).astype(np.int64)
    return (below + ((level - 128) << BITS)).ravel().astype(np.int32)
