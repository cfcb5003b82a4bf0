"""spatter: drops of water (severities 1 to 3) or of mud (4 and 5) on the lens.

The drops are what of a smoothed normal field lies above a threshold. Water shines by the relief of the distance to the
drops' edges. That is a chain of steps of image processing, each batched here: edges after Canny, Euclidean distance,
histogram equalisation, and a small emboss kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from eow.data.corruptions.pixels import HAIR, colour, gaussian, shifted_sum, to_bytes, unit
from eow.data.corruptions.randomness import Draws

WATER = (175.0, 238.0, 238.0)
MUD = (63.0, 42.0, 20.0)
WEAK, STRONG = 50, 150
FARTHEST = 20
EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))
BOX = ((1.0, 1.0, 1.0),) * 3


def spatter(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: float,
) -> Tensor:
    """`strength` is the brightness of water, or the deviation by which the outlines of mud are smoothed."""
    field = draws.normal(1, *images.shape[2:]).mul_(deviation).add_(mean)
    liquid = gaussian(field, sigma)
    liquid.masked_fill_(liquid < threshold, 0)
    x = unit(images)
    if mud:
        cover = gaussian((liquid > threshold).double(), strength)
        cover.masked_fill_(cover < 0.8, 0)
        return to_bytes(x.mul_(1 - cover).add_(cover * colour(MUD, x)))
    drops = to_bytes(liquid)
    shine = relief(drops).mul_(drops)
    # An image without any drop has no brightest one: it stays as it is.
    shine.div_(shine.amax((1, 2, 3), keepdim=True).clamp_(min=1)).mul_(strength)
    return to_bytes(x.add_(shine * colour(WATER, x)))


def relief(drops: Tensor) -> Tensor:
    """Bytes (N, 1, H, W) to the light on them: the distance to the nearest edge, equalised and embossed."""
    distance = distances(edges(drops), FARTHEST)
    smooth = shifted_sum(distance, BOX).div_(9).add_(HAIR).long()
    embossed = shifted_sum(equalised(smooth, FARTHEST + 1), EMBOSS).clamp_(0, 255)
    return shifted_sum(embossed, BOX).div_(9).round_()


def edges(images: Tensor) -> Tensor:
    """Canny's edges of bytes (N, 1, H, W), as OpenCV finds them: Sobel, |dx| + |dy|, ridges only, two thresholds."""
    height, width = images.shape[2:]
    # Integers, for the shifts and signs below; by way of float32, which holds bytes exactly, because not every torch
    # replicates integers.
    wide = pad(images.float(), (1, 1, 1, 1), mode="replicate").int()
    left, right = wide[..., :-2], wide[..., 2:]
    across = (right - left)[:, :, :-2] + 2 * (right - left)[:, :, 1:-1] + (right - left)[:, :, 2:]
    above, under = wide[:, :, :-2], wide[:, :, 2:]
    down = (under - above)[..., :-2] + 2 * (under - above)[..., 1:-1] + (under - above)[..., 2:]
    size = across.abs() + down.abs()
    around = pad(size, (1, 1, 1, 1))

    def neighbour(dy: int, dx: int) -> Tensor:
        return around[:, :, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    # The direction of the gradient to within 45 degrees, by its tangent in 15 bits: tan 22.5 = 13573 / 2^15.
    flat, steep = across.abs() * 13573, down.abs() << 15
    level = steep < flat
    upright = steep > flat + (across.abs() << 16)
    falling = (across ^ down) >= 0
    ridge = torch.where(
        level,
        (size > neighbour(0, -1)) & (size >= neighbour(0, 1)),
        torch.where(
            upright,
            (size > neighbour(-1, 0)) & (size >= neighbour(1, 0)),
            torch.where(
                falling,
                (size > neighbour(-1, -1)) & (size > neighbour(1, 1)),
                (size > neighbour(-1, 1)) & (size > neighbour(1, -1)),
            ),
        ),
    )
    weak = ridge & (size > WEAK)
    edge = ridge & (size > STRONG)
    while True:  # a weak edge counts where it hangs on a strong one
        grown = _widened(edge) & weak
        if torch.equal(grown, edge):
            return edge
        edge = grown


def _widened(mask: Tensor) -> Tensor:
    """The mask and the eight neighbours of each of its pixels."""
    for axis in (2, 3):
        size = mask.shape[axis]
        wide = mask.clone()
        wide.narrow(axis, 1, size - 1).logical_or_(mask.narrow(axis, 0, size - 1))
        wide.narrow(axis, 0, size - 1).logical_or_(mask.narrow(axis, 1, size - 1))
        mask = wide
    return mask


def distances(mask: Tensor, farthest: int) -> Tensor:
    """Each pixel's Euclidean distance to the nearest one in the mask, cut off at `farthest`.

    The square of it splits into axes: the least over rows of (least over columns of dx^2) + dy^2.
    """
    square = torch.where(mask, 0, farthest**2).to(torch.int16)
    for axis in (2, 3):
        size = square.shape[axis]
        nearest = square.clone()
        for step in range(1, min(farthest, size)):
            moved = square + step**2
            for start, source in ((step, 0), (0, step)):
                part = nearest.narrow(axis, start, size - step)
                torch.minimum(part, moved.narrow(axis, source, size - step), out=part)
        square = nearest
    return square.double().sqrt_()


def equalised(values: Tensor, levels: int) -> Tensor:
    """Whole numbers (N, 1, H, W) below `levels` spread over 0 ... 255 by their ranks within the image, as OpenCV's
    equalizeHist: the least becomes 0, and an image of one value stays as it is."""
    count = len(values)
    image = torch.arange(count, device=values.device).view(-1, 1, 1, 1)
    histogram = torch.bincount((values + levels * image).flatten(), minlength=count * levels).view(count, levels)
    least = values.amin((1, 2, 3)).view(-1, 1)
    total = histogram.sum(1, keepdim=True)
    rest = total - histogram.gather(1, least)
    ranks = histogram.cumsum(1) - (total - rest)
    table = (ranks.double() * (255 / rest)).round_().clamp_(min=0)
    table = torch.where(rest > 0, table, least.double())
    return table.gather(1, values.view(count, -1)).view(values.shape)
