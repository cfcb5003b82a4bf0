"""gaussian_blur, glass_blur, defocus_blur, motion_blur and zoom_blur."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from eow.data.corruptions.pixels import filtered, gaussian, to_bytes, unit, zoom_matrix
from eow.data.corruptions.randomness import Draws


def gaussian_blur(images: Tensor, draws: Draws, sigma: float) -> Tensor:
    return to_bytes(gaussian(unit(images), sigma))


def glass_blur(images: Tensor, draws: Draws, sigma: float, reach: float, rounds: float) -> Tensor:
    """Blurred, each pixel replaced by one up to `reach` above and to the left of it, blurred again.

    CIFAR-C's code swaps the two pixels, in a loop from the last to the first; but it swaps two views of one array,
    which leaves the value of the second in both. What a pixel takes has then not been visited yet, so all of them can
    take at once, and nothing is lost by not looping.
    """
    count, channels, height, width = images.shape
    step = int(reach)
    x = to_bytes(gaussian(unit(images), sigma)).view(count, channels, -1)
    row = torch.arange(height, device=images.device).view(1, -1, 1)
    column = torch.arange(width, device=images.device).view(1, 1, -1)
    moves = (row > step) & (column > step)
    for _ in range(int(rounds)):
        across, down = (draws.uniform(2, height, width) * 2 * step).long().sub_(step).unbind(1)
        source = torch.where(moves, (row + down) * width + column + across, row * width + column)
        x = x.gather(2, source.view(count, 1, -1).expand_as(x))
    return to_bytes(gaussian(unit(x.view(images.shape)), sigma))


def defocus_blur(images: Tensor, draws: Draws, radius: float, alias: float) -> Tensor:
    return to_bytes(filtered(unit(images), disk_matrix(*images.shape[2:], radius, alias)))


@lru_cache(maxsize=8)
def disk_matrix(height: int, width: int, radius: float, alias: float) -> scipy.sparse.csr_array:
    """The pixels within `radius` of the middle, their edge softened by a 3x3 Gaussian of deviation `alias`; the image
    is mirrored at its edge pixels."""
    offsets = np.arange(-3, 4)
    disk = (offsets**2 + offsets[:, None] ** 2 <= radius**2).astype(float)
    side = math.exp(-1 / (2 * alias**2))
    soft = np.array((side, 1.0, side)) / (1 + 2 * side)
    for axis in (0, 1):
        disk = np.apply_along_axis(np.convolve, axis, disk, soft, "same")
    disk /= disk.sum()
    pixels = np.arange(height * width).reshape(height, width)
    padded = np.pad(pixels, 3, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (7, 7)).reshape(-1, 49)
    taps = np.flatnonzero(disk.ravel() > 1e-12)
    entries = (np.tile(disk.ravel()[taps], height * width), (np.repeat(pixels, len(taps)), windows[:, taps].ravel()))
    return _summed(scipy.sparse.coo_array(entries, shape=(height * width,) * 2))


def motion_blur(images: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    angle = draws.uniform() * 90 - 45
    return streaked(images, angle, radius, sigma)


def streaked(images: Tensor, angle: Tensor, radius: float, sigma: float) -> Tensor:
    """Half a Gaussian in the direction of each image's angle, in degrees, as ImageMagick's motion blur: 2 radius + 1
    taps at whole pixels, the edge repeated beyond the image, the result rounded to bytes."""
    count, channels, height, width = images.shape
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    radians = angle.view(-1, 1, 1) * (math.pi / 180)
    along, down = radians.cos(), radians.sin()
    row = torch.arange(height, device=images.device).view(1, -1, 1)
    column = torch.arange(width, device=images.device).view(1, 1, -1)
    flat = images.reshape(count, channels, -1)
    total = torch.zeros(flat.shape, dtype=torch.float64, device=images.device)
    for tap, weight in zip(taps.tolist(), weights.tolist()):
        if weight < 1e-8:
            break
        y = (row + (tap * down - 0.5).ceil().long()).clamp_(0, height - 1)
        x = (column + (tap * along - 0.5).ceil().long()).clamp_(0, width - 1)
        source = (y * width + x).view(count, 1, -1).expand_as(flat)
        total.add_(flat.gather(2, source), alpha=weight)
    return total.round_().clamp_(0, 255).to(torch.uint8).view(images.shape)


def zoom_blur(images: Tensor, draws: Draws, largest: float) -> Tensor:
    return to_bytes(filtered(unit(images), zoomed_matrix(*images.shape[2:], largest)))


@lru_cache(maxsize=8)
def zoomed_matrix(height: int, width: int, largest: float) -> scipy.sparse.csr_array:
    """The mean of the image and of its enlargements by 1, 1.01, 1.02 ... `largest`.

    The factors are those of numpy's arange, as in CIFAR-C: whether the last one is among them is up to rounding.
    """
    factors = np.arange(1, largest, 0.01)
    total = scipy.sparse.csr_array((height * width,) * 2)
    for factor in (1.0, *factors.tolist()):
        rows, columns = (scipy.sparse.coo_array(zoom_matrix(size, factor)) for size in (height, width))
        total = total + scipy.sparse.kron(rows, columns, format="csr")
    return _summed(total / (len(factors) + 1))


def _summed(matrix: scipy.sparse.sparray) -> scipy.sparse.csr_array:
    """One entry a position, and none that is zero."""
    csr = matrix.tocsr()
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return csr
