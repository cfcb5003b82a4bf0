"""A corruption beside a plain version of it for one image, given the same random numbers.

Both sides round down to bytes, so a value that is whole on paper may come out a level apart: what is allowed is one
grey level in one value of a thousand, except where a test says otherwise.
"""

import math

import numpy as np
import scipy.ndimage
import torch
from photographs import photographs

from eow.data.corruptions import CONSTANTS
from eow.data.corruptions.apply import OPERATIONS
from eow.data.corruptions.randomness import Draws

SHAPES = ((3, 32, 32), (1, 28, 28), (3, 40, 57))
LUMA = np.array((0.299, 0.587, 0.114))


class Recorder(Draws):
    """Draws that remember what they gave: a list of numpy fields."""

    def __init__(self, name: str, severity: int, count: int) -> None:
        super().__init__(name, severity, 5, 0, count, torch.device("cpu"))
        self.given: list[np.ndarray] = []

    def uniform(self, *shape: int) -> torch.Tensor:
        return self._kept(super().uniform(*shape))

    def normal(self, *shape: int) -> torch.Tensor:
        field = super().normal(*shape)
        self.given.clear()  # the uniform numbers it was made of
        return self._kept(field)

    def _kept(self, field: torch.Tensor) -> torch.Tensor:
        self.given.append(field.numpy().copy())
        return field


def both(name, severity, shape, plain, count=3):
    """Our images, and those of `plain(x, fields, *constants)` with x (H, W, C) from 0 to 1; fields are one image's."""
    images = photographs(count, *shape)
    constants = CONSTANTS[name][severity - 1]
    recorder = Recorder(name, severity, count)
    ours = OPERATIONS[name](torch.from_numpy(images), recorder, *constants).numpy()
    theirs = []
    for i, image in enumerate(images):
        fields = [field[i] for field in recorder.given]
        theirs.append(plain(image.transpose(1, 2, 0) / 255, fields, *constants).transpose(2, 0, 1))
    assert ours.dtype == np.uint8
    return ours, np.stack(theirs)


def down(x: np.ndarray) -> np.ndarray:
    return np.uint8(np.clip(x, 0, 1) * 255 + 1e-6)


def assert_same(ours: np.ndarray, theirs: np.ndarray, share: float = 1e-3) -> None:
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= share


def per_channel(function, x: np.ndarray) -> np.ndarray:
    return np.stack([function(x[..., c]) for c in range(x.shape[2])], -1)


def blurred(x: np.ndarray, sigma: float) -> np.ndarray:
    return per_channel(lambda plane: scipy.ndimage.gaussian_filter(plane, sigma, mode="nearest", truncate=4), x)


def zoomed(plane: np.ndarray, factor: float) -> np.ndarray:
    """The middle of the plane, enlarged by scipy and cut to the plane's size."""
    crop = [math.ceil(size / factor) for size in plane.shape]
    window = tuple(slice((size - c) // 2, (size - c) // 2 + c) for size, c in zip(plane.shape, crop))
    large = scipy.ndimage.zoom(plane[window], factor, order=1)
    start = [(have - size) // 2 for have, size in zip(large.shape, plane.shape)]
    return large[start[0] : start[0] + plane.shape[0], start[1] : start[1] + plane.shape[1]]


def streaked(plane: np.ndarray, angle: float, radius: float, sigma: float) -> np.ndarray:
    """ImageMagick's motion blur of bytes, pixel by pixel."""
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * math.ceil(radius) + 1)]
    across, under = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    height, width = plane.shape
    out = np.zeros(plane.shape)
    for i, weight in enumerate(weights):
        x, y = math.ceil(i * across - 0.5), math.ceil(i * under - 0.5)
        for row in range(height):
            for column in range(width):
                source = plane[min(max(row + y, 0), height - 1), min(max(column + x, 0), width - 1)]
                out[row, column] += weight / sum(weights) * source
    return np.rint(out).astype(np.uint8)


def grey(x: np.ndarray) -> np.ndarray:
    return x if x.shape[2] == 1 else (x @ LUMA)[..., None]
