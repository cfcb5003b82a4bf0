"""The 19 corruptions of CIFAR-C at five severities, for images of any size from 28x28 up, in batched torch.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
The constants are those of CIFAR-C. What they measure in pixels (blurs, streaks, drops) stays in pixels at every image
size; what they measure in sides of the image (elastic_transform) or as factors (zoom, pixelate) grows with it. The
released files were made without a seed, so no one can make the same bytes again: official.py reads them where they are
at hand. One channel is treated as a grey image of three, and the luma of the result is kept.

Nothing heavy is imported before an image is corrupted: no torch, no scipy.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

from eow.errors import EowError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Images = TypeVar("Images", np.ndarray, Tensor)

# One row of constants a severity, in the order in which the function of the same name takes them.
CONSTANTS: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "elastic_transform": ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
}
CORRUPTIONS = tuple(CONSTANTS)
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST_SIDE = 28


def corrupt(images: Images, name: str, severity: int, seed: int = 0, first: int = 0) -> Images:
    """uint8 images (N, C, H, W), as a numpy array or a tensor on any device, corrupted: the same kind comes back.

    Image i of the set draws from (seed, name, severity, i) alone, so a set may be corrupted in any parts: `first` is
    the index of images[0]. A CPU and a GPU give the same images: in theory rounding can move a pixel by one grey level,
    on an H200 it moved none of 190,000 images.
    """
    import numpy as np
    import torch

    if not isinstance(images, np.ndarray | torch.Tensor):
        raise EowError(f"corrupt wants a numpy array or a tensor of images, not {type(images).__name__}")
    if images.dtype not in (np.uint8, torch.uint8):
        raise EowError(f"corrupt wants images of bytes (uint8, 0 to 255), not {images.dtype}: convert them first")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise EowError(f"corrupt wants images (N, C, H, W) of 1 or 3 channels, not of shape {tuple(images.shape)}")
    if min(images.shape[2:]) < SMALLEST_SIDE:
        raise EowError(
            f"images of {images.shape[2]}x{images.shape[3]} are too small to corrupt: "
            f"{SMALLEST_SIDE}x{SMALLEST_SIDE} is the least"
        )
    check_name(name, severity)
    for label, number in (("seed", seed), ("first", first)):
        if not _is_integer(number) or number < 0:
            raise EowError(f"{label} must be an integer from 0 up, not {number!r}")

    from eow.data.corruptions.apply import in_chunks

    return in_chunks(images, name, int(severity), int(seed), int(first))


def check_name(name: str, severity: int) -> None:
    if name not in CORRUPTIONS:
        raise EowError(f"there is no corruption {name!r}: use one of {', '.join(CORRUPTIONS)}")
    if not _is_integer(severity) or severity not in SEVERITIES:
        raise EowError(f"there is no severity {severity!r}: use 1, 2, 3, 4 or 5")


def _is_integer(value: Any) -> bool:
    """Python's and numpy's integers, but no bool: a severity of True is a slip."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)
