"""fog, frost and snow."""

from __future__ import annotations

import torch
from torch import Tensor

from eow.data.corruptions.blur import streaked
from eow.data.corruptions.frosting import TEXTURES, textures
from eow.data.corruptions.pixels import HAIR, luma, separable, to_bytes, unit, zoom_matrix
from eow.data.corruptions.randomness import Draws


def fog(images: Tensor, draws: Draws, thickness: float, decay: float) -> Tensor:
    """x + thickness · plasma, scaled so that the image's brightest value stays the brightest."""
    height, width = images.shape[2:]
    side = 1 << (max(height, width) - 1).bit_length()
    haze = plasma(draws.uniform(side, side), decay)[:, None, :height, :width]
    x = unit(images)
    brightest = x.amax((1, 2, 3), keepdim=True)
    return to_bytes((x + thickness * haze).mul_(brightest / (brightest + thickness)))


def plasma(uniform: Tensor, decay: float) -> Tensor:
    """A height map by diamonds and squares, scaled to 0 ... 1: the points of a grid, then those between them, each the
    mean of its four neighbours plus a random step, again and again at half the distance. It closes on itself like a
    torus. The step at a point comes from the uniform number at the same place.
    """
    side = uniform.shape[1]
    steps = uniform * 2 - 1
    heights = torch.zeros_like(uniform)
    size, wobble = side, 100.0
    while size >= 2:
        half = size // 2
        corners = heights[:, ::size, ::size]
        below = corners + corners.roll(-1, 1)
        # CIFAR-C's step is the wobble times a number within plus and minus the wobble.
        jump = steps * wobble**2
        heights[:, half::size, half::size] = (below + below.roll(-1, 2)) / 4 + jump[:, half::size, half::size]
        middles = heights[:, half::size, half::size]
        right = corners + corners.roll(-1, 2) + middles + middles.roll(1, 1)
        heights[:, ::size, half::size] = right / 4 + jump[:, ::size, half::size]
        lower = corners + corners.roll(-1, 1) + middles + middles.roll(1, 2)
        heights[:, half::size, ::size] = lower / 4 + jump[:, half::size, ::size]
        size, wobble = half, wobble / decay
    heights -= heights.amin((1, 2), keepdim=True)
    return heights.div_(heights.amax((1, 2), keepdim=True))


def frost(images: Tensor, draws: Draws, image_weight: float, frost_weight: float) -> Tensor:
    """A window of a frost texture laid over the image, at a random place of one of the textures."""
    count, channels, height, width = images.shape
    stack = torch.from_numpy(textures(min(height, width), channels)).to(images.device)
    side = stack.shape[-1]
    places = draws.uniform(3) * torch.tensor((TEXTURES, side, side), device=images.device)
    which, top, left = places.long().view(count, 3, 1, 1).unbind(1)
    # A texture closes on itself, so a window may reach over its edge.
    row = (top + torch.arange(height, device=images.device).view(1, -1, 1)) % side
    column = (left + torch.arange(width, device=images.device).view(1, 1, -1)) % side
    place = (which * side + row) * side + column
    ice = stack.view(channels, -1)[:, place].transpose(0, 1)
    total = images.double().mul_(image_weight).add_(ice, alpha=frost_weight)
    return total.add_(HAIR).clamp_(0, 255).to(torch.uint8)


def snow(
    images: Tensor,
    draws: Draws,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: float,
    sigma: float,
    keep: float,
) -> Tensor:
    """Flakes are what of a normal field lies above a threshold, enlarged and streaked downwards, laid on twice, the
    second time turned by 180 degrees; below them the image is whitened."""
    height, width = images.shape[2:]
    field = draws.normal(1, height, width).mul_(deviation).add_(mean)
    field = separable(field, zoom_matrix(height, zoom), zoom_matrix(width, zoom))
    flakes = to_bytes(field.masked_fill_(field < threshold, 0))
    flakes = streaked(flakes, draws.uniform() * 90 - 135, radius, sigma)
    x = unit(images)
    white = torch.maximum(x, luma(x) * 1.5 + 0.5)
    return to_bytes(x.mul_(keep).add_(white, alpha=1 - keep).add_(unit(flakes)).add_(unit(flakes.flip(2, 3))))
