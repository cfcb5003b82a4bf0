"""Textures of frost for the corruption `frost`, drawn instead of photographed: ferns of ice that grow from scattered
seeds, each with a spine and barbs, at three scales, over a thin uneven film.

They are the same on every machine and do not depend on a seed; which window of which texture an image gets does.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from eow.data.corruptions.pixels import LUMA

TEXTURES = 5
TINT = (0.82, 0.92, 1.0)


@lru_cache(maxsize=4)
def textures(shorter_side: int, channels: int) -> np.ndarray:
    """(channels, TEXTURES, side, side) uint8; each closes on itself. The ferns grow with the images up to 96 pixels.

    Bare glass between them is dark: an image under it is only dimmed.
    """
    unit = min(shorter_side, 96)
    grey = np.stack([texture(min(6 * unit, 384), unit, index) for index in range(TEXTURES)])
    if channels == 1:
        return (grey * np.dot(TINT, LUMA)).astype(np.uint8)[None]
    return np.stack([(grey * part).astype(np.uint8) for part in TINT])


def texture(side: int, unit: int, index: int) -> np.ndarray:
    """(side, side), 0 ... 255."""
    random = np.random.RandomState(index)
    sway = unit * 0.12 * np.stack([_cloud(random, side, unit / 2) for _ in range(2)])
    ice = np.zeros((side, side))
    for scale, weight in ((1.3, 1.0), (0.7, 0.85), (0.35, 0.6)):
        ice = np.maximum(ice, weight * _ferns(random, side, scale * unit, sway))
    film = 0.5 + 0.5 * _cloud(random, side, unit / 2)
    grain = 0.5 + 0.5 * _cloud(random, side, 2)
    thickness = _smoothed(0.2 * film + ice * (0.5 + 0.5 * film) + 0.15 * grain, 0.6)
    return 255 / (1 + np.exp(-14 * (thickness - np.quantile(thickness, 0.7))))


def _cloud(random: np.random.RandomState, side: int, size: float) -> np.ndarray:
    """Smooth noise from -1 to 1 with features of about `size` pixels."""
    smooth = _smoothed(random.standard_normal((side, side)), size / 3)
    return np.clip(smooth / (2 * smooth.std()), -1, 1)


def _smoothed(field: np.ndarray, sigma: float) -> np.ndarray:
    """Under a Gaussian, periodic: filtered in frequency."""
    frequency = np.fft.fftfreq(len(field))
    keep = np.exp(-2 * (np.pi * sigma) ** 2 * (frequency[:, None] ** 2 + frequency**2))
    return np.fft.ifft2(np.fft.fft2(field) * keep).real


def _ferns(random: np.random.RandomState, side: int, size: float, sway: np.ndarray) -> np.ndarray:
    """One fern a cell of a jittered grid; a pixel belongs to the nearest seed, and sees it in the fern's own axes."""
    cells = max(2, round(side / size))
    size = side / cells
    seeds = random.random_sample((2, cells, cells))
    turn = random.random_sample((cells, cells)) * np.pi
    length = 0.6 + 0.6 * random.random_sample((cells, cells))
    place = (np.mgrid[:side, :side] + sway) / size
    home = np.floor(place).astype(int)
    cell = home[None] + np.mgrid[-1:2, -1:2].reshape(2, 9).T[..., None, None]
    away = place - cell - seeds[:, cell[:, 0] % cells, cell[:, 1] % cells].swapaxes(0, 1)
    nearest = (away**2).sum(1).argmin(0)[None, None]
    offset = np.take_along_axis(away, nearest, 0)[0]
    owner = tuple(np.take_along_axis(cell, nearest, 0)[0] % cells)
    cos, sin, reach = (values[owner] for values in (np.cos(turn), np.sin(turn), length))
    along, across = offset[1] * cos + offset[0] * sin, np.abs(offset[0] * cos - offset[1] * sin)
    spine = np.exp(-((across * size / 0.9) ** 2)) * (np.abs(along) < reach)
    # Barbs leave the spine at 60 degrees, 4 pixels apart at least, and thin out towards the rim of the leaf.
    barb = np.abs(np.mod((along - across * 0.58) / max(4 / size, 0.1), 1) - 0.5) * 2
    leaf = np.clip(1 - across / (0.55 * reach), 0, 1)
    return np.clip(spine + leaf * np.clip(1.6 * barb - 0.5, 0, 1), 0, 1)
