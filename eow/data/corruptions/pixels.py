"""Between bytes and numbers from 0 to 1, and the linear filters that several corruptions share.

All arithmetic is in float64: what a thousand images make of a rounding error must not depend on how they are batched,
nor on the device. A filter along one axis is a matrix of that axis, with what happens at the border built in; a filter
that does not split into axes is one sparse matrix of the whole image.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

LUMA = (0.299, 0.587, 0.114)
HAIR = 1e-6  # of a grey level: a sum that is a whole number on paper must not fall below it by rounding


def unit(images: Tensor) -> Tensor:
    return images.double().div_(255)


def to_bytes(x: Tensor) -> Tensor:
    """Numbers from 0 to 1 as bytes, rounded down as CIFAR-C does. x is used up."""
    return x.mul_(255).add_(HAIR).clamp_(0, 255).to(torch.uint8)


def luma(x: Tensor) -> Tensor:
    """(N, 1, H, W): the grey image."""
    if x.shape[1] == 1:
        return x
    red, green, blue = LUMA
    return red * x[:, :1] + green * x[:, 1:2] + blue * x[:, 2:]


def colour(values: tuple[float, float, float], like: Tensor) -> Tensor:
    """(1, C, 1, 1): a colour of bytes as numbers from 0 to 1, or its luma where the images have one channel."""
    rgb = torch.tensor(values, dtype=torch.float64, device=like.device).view(1, 3, 1, 1) / 255
    return rgb if like.shape[1] == 3 else luma(rgb)


def separable(x: Tensor, rows: np.ndarray, columns: np.ndarray) -> Tensor:
    """The filter `rows` down each column and `columns` along each row."""
    down, along = torch.from_numpy(rows).to(x.device), torch.from_numpy(columns).to(x.device)
    return down @ (x @ along.T)


def gaussian(x: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    height, width = x.shape[-2:]
    return separable(
        x, gaussian_matrix(height, sigma, truncate, border), gaussian_matrix(width, sigma, truncate, border)
    )


@lru_cache(maxsize=64)
def gaussian_matrix(size: int, sigma: float, truncate: float, border: str) -> np.ndarray:
    """Row i holds the weights of the window around i. `border`: "nearest" (a a|a b) or "reflect" (b a|a b)."""
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-(offsets**2) / (2 * sigma**2)) if radius else np.ones(1)
    source = np.arange(size)[:, None] + offsets
    if border == "nearest":
        source = source.clip(0, size - 1)
    else:
        source %= 2 * size
        source = np.minimum(source, 2 * size - 1 - source)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], source), weights / weights.sum())
    return matrix


@lru_cache(maxsize=64)
def zoom_matrix(size: int, factor: float) -> np.ndarray:
    """The middle of an axis enlarged by the factor, between neighbours by their distance, and cut to size again."""
    crop = int(np.ceil(size / factor))
    enlarged = round(crop * factor)
    position = (np.arange(size) + (enlarged - size) // 2) * (crop - 1) / (enlarged - 1)
    lower = np.minimum(position.astype(int), crop - 2)
    matrix = np.zeros((size, size))
    pixel, top = np.arange(size), (size - crop) // 2
    matrix[pixel, top + lower] = 1 - (position - lower)
    matrix[pixel, top + lower + 1] = position - lower
    return matrix


def filtered(x: Tensor, matrix: scipy.sparse.csr_array) -> Tensor:
    """Each channel, its pixels in one row, times the sparse matrix: a pixel is a weighted bag of pixels. (torch's own
    sparse tensors warn, and what silences them is a switch for the whole process.)"""
    count, channels, height, width = x.shape
    sources, starts, weights = (
        torch.from_numpy(part).to(x.device) for part in (matrix.indices, matrix.indptr[:-1], matrix.data)
    )
    pixels = x.reshape(count * channels, height * width).T.contiguous()
    return embedding_bag(sources, pixels, starts, mode="sum", per_sample_weights=weights).T.reshape(x.shape)


def shifted_sum(x: Tensor, kernel: tuple[tuple[float, ...], ...]) -> Tensor:
    """A small odd kernel laid over each pixel of (N, C, H, W), the image mirrored at its edge pixels (c b|a b c)."""
    reach = len(kernel) // 2
    padded = torch.nn.functional.pad(x, (reach,) * 4, mode="reflect")
    height, width = x.shape[2:]
    total = torch.zeros_like(x)
    for i, row in enumerate(kernel):
        for j, weight in enumerate(row):
            if weight:
                total.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return total
