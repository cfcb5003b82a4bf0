"""contrast, brightness, saturate, pixelate and elastic_transform."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from eow.data.corruptions.pixels import gaussian, luma, to_bytes, unit
from eow.data.corruptions.randomness import Draws


def contrast(images: Tensor, draws: Draws, factor: float) -> Tensor:
    """Towards the mean of each channel."""
    x = unit(images)
    mean = x.mean((2, 3), keepdim=True)
    return to_bytes(x.sub_(mean).mul_(factor).add_(mean))


def brightness(images: Tensor, draws: Draws, more: float) -> Tensor:
    """The value of HSV raised, hue and saturation kept: that multiplies all channels alike, and black becomes grey."""
    x = unit(images)
    value = x.amax(1, keepdim=True)
    raised = (value + more).clamp_(max=1)
    return to_bytes(torch.where(value > 0, x * (raised / value), raised))


def saturate(images: Tensor, draws: Draws, factor: float, more: float) -> Tensor:
    """The saturation of HSV stretched, hue and value kept. A grey pixel has the hue 0 there, which is red: where `more`
    is not 0 it turns towards red."""
    grey = images.shape[1] == 1
    x = unit(images).expand(-1, 3, -1, -1)
    value = x.amax(1, keepdim=True)
    saturation = (value - x.amin(1, keepdim=True)) / value.clamp(min=1 / 255)
    wanted = (saturation * factor + more).clamp_(max=1)
    missing = torch.where(saturation > 0, (value - x) * (wanted / saturation), value * wanted * not_red(x))
    x = value - missing
    return to_bytes(luma(x) if grey else x)


def not_red(x: Tensor) -> Tensor:
    return torch.tensor((0.0, 1.0, 1.0), dtype=x.dtype, device=x.device).view(1, 3, 1, 1)


def pixelate(images: Tensor, draws: Draws, factor: float) -> Tensor:
    """Made smaller and larger again by means over boxes, in Pillow's fixed-point arithmetic: exactly its bytes."""
    height, width = images.shape[2:]
    small = int(height * factor), int(width * factor)
    x = images.double()
    for before, after in (((height, width), small), (small, (height, width))):
        x = _fixed_point(x @ torch.from_numpy(box_matrix(before[1], after[1])).to(x.device).T)
        x = _fixed_point(torch.from_numpy(box_matrix(before[0], after[0])).to(x.device) @ x)
    return x.to(torch.uint8)


def _fixed_point(x: Tensor) -> Tensor:
    """Sums in units of 2^-22 rounded to whole numbers; in float64 they are exact."""
    return x.mul_(2.0**-22).add_(0.5).floor_()


@lru_cache(maxsize=32)
def box_matrix(before: int, after: int) -> np.ndarray:
    """Row i holds the weights of the pixels whose middle lies in box i, in whole units of 2^-22."""
    scale = before / after
    reach = 0.5 * max(scale, 1.0)
    matrix = np.zeros((after, before))
    for i in range(after):
        middle = (i + 0.5) * scale
        window = np.arange(max(int(middle - reach + 0.5), 0), min(int(middle + reach + 0.5), before))
        offset = (window - middle + 0.5) / (2 * reach)
        inside = window[(offset > -0.5) & (offset <= 0.5)]
        matrix[i, inside] = np.floor(2.0**22 / len(inside) + 0.5)
    return matrix


def elastic_transform(images: Tensor, draws: Draws, amount: float, sigma: float, corners: float) -> Tensor:
    """An affine map that moves three points by up to `corners`, then a smooth random field of displacements; all three
    constants in units of the shorter side."""
    height, width = images.shape[2:]
    side = min(height, width)
    moves = draws.uniform(3, 2).mul_(2).sub_(1).mul_(corners * side)
    x, y = affine_sources(moves, height, width)
    image = _sampled(unit(images), x, y, edge_twice=False)
    if amount:
        field = draws.uniform(2, height, width).mul_(2).sub_(1)
        right, down = gaussian(field, sigma * side, truncate=3.0, border="reflect").mul_(amount * side).unbind(1)
        grid_y, grid_x = _pixels(height, width, image.device)
        image = _sampled(image, grid_x + right, grid_y + down, edge_twice=True)
    return to_bytes(image)


def _pixels(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows = torch.arange(height, dtype=torch.float64, device=device).view(1, -1, 1)
    columns = torch.arange(width, dtype=torch.float64, device=device).view(1, 1, -1)
    return rows, columns


def affine_sources(moves: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Where each pixel's value comes from, x and y (N, H, W), when three points of the image move by `moves` (N, 3, 2)
    in x and y."""
    centre = torch.tensor((width // 2, height // 2), dtype=torch.float64, device=moves.device)
    arm = min(height, width) // 3
    points = centre + arm * torch.tensor(((1, 1), (1, -1), (-1, -1)), dtype=torch.float64, device=moves.device)
    moved = points + moves
    # The map back: from the triangle of the moved points to that of the points, written with its two sides.
    one, two = (moved[:, 0] - moved[:, 1]).unbind(1), (moved[:, 2] - moved[:, 1]).unbind(1)
    area = one[0] * two[1] - one[1] * two[0]
    rows, columns = _pixels(height, width, moves.device)
    from_x, from_y = columns - moved[:, 1, 0].view(-1, 1, 1), rows - moved[:, 1, 1].view(-1, 1, 1)
    a, b, c, d = (part.div(area).view(-1, 1, 1) for part in (two[1], two[0], one[1], one[0]))
    along_one, along_two = from_x * a - from_y * b, from_y * d - from_x * c
    # Undisturbed, the sides are (0, 2 arm) and (-2 arm, 0).
    return points[1, 0] - 2 * arm * along_two, points[1, 1] + 2 * arm * along_one


def _sampled(image: Tensor, x: Tensor, y: Tensor, edge_twice: bool) -> Tensor:
    """Values between pixels by their four neighbours, the image mirrored at its border: (b a|a b) where the edge counts
    twice, else (c b|a b c)."""
    height, width = image.shape[2:]
    if edge_twice:
        grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), -1)
    else:
        grid = torch.stack((2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1), -1)
    return grid_sample(image, grid, mode="bilinear", padding_mode="reflection", align_corners=not edge_twice)
