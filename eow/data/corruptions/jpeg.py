"""jpeg_compression: what a baseline JPEG file keeps of an image, without the file.

The arithmetic is that of libjpeg-turbo's default path, which Pillow uses: colours in 16-bit fixed point, chroma halved
in both directions, the "slow integer" cosine transform in 13-bit fixed point, quality-scaled tables of the standard
(ITU-T T.81, annex K), and chroma brought back with a triangle filter. Entropy coding loses nothing and is left out. All
values are whole numbers below 2^53 in float64, so every device gives the same bytes, and they are Pillow's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from eow.data.corruptions.randomness import Draws

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
COSINE_BITS, EXTRA_BITS = 13, 2  # of the transform's constants, and of what lies between its two passes


def jpeg_compression(images: Tensor, draws: Draws, quality: float) -> Tensor:
    x = images.double()
    if images.shape[1] == 1:
        return _through_blocks(x[:, 0], LUMINANCE, quality).unsqueeze(1).to(torch.uint8)
    red, green, blue = x.unbind(1)
    bright = shift(19595 * red + 38470 * green + 7471 * blue, 16)
    # The constant is 128 and a half, less one unit: libjpeg rounds a half down here.
    cb = shift(-11059 * red - 21709 * green + 32768 * blue + (128 << 16) - 1, 16)
    cr = shift(32768 * red - 27439 * green - 5329 * blue + (128 << 16) - 1, 16)
    bright = _through_blocks(bright, LUMINANCE, quality)
    cb, cr = (_chroma(part, quality) - 128 for part in (cb, cr))
    red = bright + shift(91881 * cr, 16)
    green = bright + shift(-22554 * cb - 46802 * cr, 16)
    blue = bright + shift(116130 * cb, 16)
    return torch.stack((red, green, blue), 1).clamp_(0, 255).to(torch.uint8)


def _chroma(x: Tensor, quality: float) -> Tensor:
    height, width = x.shape[1:]
    small = _through_blocks(halved(x), CHROMINANCE, quality)[:, :, : (width + 1) // 2]
    return doubled(small)[:, :height, :width]


def shift(x: Tensor, bits: int) -> Tensor:
    """x / 2^bits, rounded, a half up."""
    return (x * 2.0**-bits).add_(0.5).floor_()


def _repeated(x: Tensor, height: int, width: int) -> Tensor:
    """The last row and column repeated up to a multiple of height and width."""
    return pad(x, (0, -x.shape[2] % width, 0, -x.shape[1] % height), mode="replicate")


def halved(x: Tensor) -> Tensor:
    """Means of 2x2 pixels; a remainder is rounded with 1 and 2 in turn along a row. Rows beyond the image are repeated
    after halving and columns before it, as libjpeg does, so only columns are filled up to a whole block here."""
    x = _repeated(x, 2, 16)
    total = x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]
    bias = torch.arange(total.shape[2], device=x.device) % 2 + 1
    return (total + bias).mul_(0.25).floor_()


def doubled(x: Tensor) -> Tensor:
    """Each value between its neighbours at 3 to 1, in both directions; the border repeated."""
    x = torch.stack((3 * x + _next(x, 1, -1), 3 * x + _next(x, 1, 1)), 2).flatten(1, 2)
    left, right = 3 * x + _next(x, 2, -1) + 8, 3 * x + _next(x, 2, 1) + 7
    return torch.stack((left, right), 3).flatten(2, 3).mul_(1 / 16).floor_()


def _next(x: Tensor, axis: int, step: int) -> Tensor:
    """The neighbour along an axis, at the border the value itself."""
    size = x.shape[axis]
    places = (torch.arange(size, device=x.device) + step).clamp_(0, size - 1)
    return x.index_select(axis, places)


def _through_blocks(x: Tensor, table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Bytes (N, H, W) as they come back from transformed and quantised blocks of 8x8."""
    count, height, width = x.shape
    full = _repeated(x, 8, 8)
    rows, columns = full.shape[1] // 8, full.shape[2] // 8
    blocks = (full - 128).view(count, rows, 8, columns, 8).transpose(2, 3)
    forward = torch.from_numpy(cosines()).to(x.device)
    step = torch.tensor(scaled(table, int(quality)), dtype=torch.float64, device=x.device)
    # Rows first, with EXTRA_BITS more; the result is 8 times the coefficient.
    once = shift(blocks @ forward.T, COSINE_BITS - EXTRA_BITS)
    coefficient = shift(forward @ once, COSINE_BITS + EXTRA_BITS)
    size = (coefficient.abs() + 4 * step).div_(8 * step).floor_()
    kept = size.mul_(step).copysign_(coefficient)
    # Back: columns first, and 3 bits more for the factor 8 of both passes.
    once = shift(forward.T @ kept, COSINE_BITS - EXTRA_BITS)
    pixels = shift(once @ forward, COSINE_BITS + EXTRA_BITS + 3).add_(128).clamp_(0, 255)
    return pixels.transpose(2, 3).reshape(full.shape)[:, :height, :width]


@lru_cache(maxsize=16)
def scaled(table: tuple[tuple[int, ...], ...], quality: int) -> tuple[tuple[int, ...], ...]:
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return tuple(tuple(min(max((step * percent + 50) // 100, 1), 255) for step in row) for row in table)


@lru_cache(maxsize=1)
def cosines() -> np.ndarray:
    """The 8-point cosine transform, times sqrt(8), in units of 2^-13.

    libjpeg works it out from twelve rounded constants (Loeffler, Ligtenberg and Moschytz 1989): an entry is a sum of
    them, and can be a unit away from the rounded cosine. The way back is the transpose.
    """

    def fixed(constant: float) -> int:
        return round(constant * (1 << COSINE_BITS))

    unit = np.eye(8, dtype=np.int64)
    plus, minus = unit[:4] + unit[:3:-1], unit[:4] - unit[:3:-1]
    outer, inner = plus[0] - plus[3], plus[1] - plus[2]
    turn = fixed(0.541196100) * (outer + inner)
    a, b, c, d = minus
    common = fixed(1.175875602) * (a + b + c + d)
    near, far = -fixed(0.899976223) * (a + d), -fixed(2.562915447) * (b + c)
    even, odd = common - fixed(1.961570560) * (b + d), common - fixed(0.390180644) * (a + c)
    return np.stack(
        (
            plus.sum(0) << COSINE_BITS,
            fixed(1.501321110) * a + near + odd,
            turn + fixed(0.765366865) * outer,
            fixed(3.072711026) * b + far + even,
            (plus[0] + plus[3] - plus[1] - plus[2]) << COSINE_BITS,
            fixed(2.053119869) * c + far + odd,
            turn - fixed(1.847759065) * inner,
            fixed(0.298631336) * d + near + even,
        )
    ).astype(np.float64)
