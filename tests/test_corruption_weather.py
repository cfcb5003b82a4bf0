"""Fog, frost, snow and spatter against plain versions in numpy and scipy; side_by_side.py says what is allowed."""

import math
from collections import deque

import numpy as np
import pytest
import scipy.ndimage
import torch
from photographs import photographs
from side_by_side import LUMA, SHAPES, assert_same, both, down, grey, streaked, zoomed

from eow.data.corruptions import SEVERITIES
from eow.data.corruptions.frosting import textures
from eow.data.corruptions.spatter import distances, edges
from eow.data.corruptions.spatter import equalised as spread


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_is_a_diamond_square_height_map(severity, shape) -> None:
    def plain(x, fields, thickness, decay):
        u = fields[0]
        side = len(u)
        assert side == (64 if max(x.shape) > 32 else 32)
        heights, size, wobble = np.zeros((side, side)), side, 100.0

        def fill(row, column, neighbours):
            mean = sum(heights[(row + dy) % side, (column + dx) % side] for dy, dx in neighbours) / 4
            heights[row, column] = mean + wobble * wobble * (2 * u[row, column] - 1)

        while size >= 2:
            half = size // 2
            for row in range(half, side, size):
                for column in range(half, side, size):
                    fill(row, column, ((-half, -half), (-half, half), (half, -half), (half, half)))
            for row in range(0, side, half):
                for column in range(0, side, half):
                    if (row // half + column // half) % 2:
                        fill(row, column, ((-half, 0), (half, 0), (0, -half), (0, half)))
            size, wobble = half, wobble / decay
        haze = (heights - heights.min()) / (heights.max() - heights.min())
        haze = haze[: x.shape[0], : x.shape[1], None]
        return down((x + thickness * haze) * x.max() / (x.max() + thickness))

    assert_same(*both("fog", severity, shape, plain, count=2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_lays_a_window_of_a_texture_over_the_image(severity, shape) -> None:
    def plain(x, fields, image_weight, frost_weight):
        stack = textures(min(x.shape[:2]), x.shape[2])
        which, top, left = (fields[0] * (stack.shape[1], stack.shape[2], stack.shape[3])).astype(int)
        window = np.roll(stack[:, which], (-top, -left), (1, 2))[:, : x.shape[0], : x.shape[1]]
        return down(image_weight * x + frost_weight * window.transpose(1, 2, 0) / 255)

    assert_same(*both("frost", severity, shape, plain))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 36)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_is_streaked_flakes_laid_on_twice(severity, shape) -> None:
    def plain(x, fields, mean, deviation, zoom, threshold, radius, sigma, keep):
        layer = zoomed(mean + deviation * fields[0][0], zoom)
        layer[layer < threshold] = 0
        layer = streaked(down(layer), fields[1] * 90 - 135, radius, sigma)[..., None] / 255
        x = keep * x + (1 - keep) * np.maximum(x, grey(x) * 1.5 + 0.5)
        return down(x + layer + np.rot90(layer, 2))

    assert_same(*both("snow", severity, shape, plain, count=2))


def canny(image: np.ndarray, low: int, high: int) -> np.ndarray:
    """The textbook's steps in OpenCV's order, with a queue."""
    wide = np.pad(image.astype(int), 1, mode="edge")
    gx = scipy.ndimage.correlate(wide, np.array(((-1, 0, 1), (-2, 0, 2), (-1, 0, 1))))[1:-1, 1:-1]
    gy = scipy.ndimage.correlate(wide, np.array(((-1, -2, -1), (0, 0, 0), (1, 2, 1))))[1:-1, 1:-1]
    size = np.pad(np.abs(gx) + np.abs(gy), 1)
    kind = np.zeros(image.shape, int)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            m, x, y = size[row + 1, column + 1], gx[row, column], gy[row, column]
            slope = math.degrees(math.atan2(abs(y), abs(x)))
            if slope < 22.5:
                before, after, strict = (0, -1), (0, 1), False
            elif slope > 67.5:
                before, after, strict = (-1, 0), (1, 0), False
            else:
                side = -1 if x * y < 0 else 1
                before, after, strict = (-1, -side), (1, side), True
            first = size[row + 1 + before[0], column + 1 + before[1]]
            last = size[row + 1 + after[0], column + 1 + after[1]]
            if m > low and m > first and (m > last or (m == last and not strict)):
                kind[row, column] = 2 if m > high else 1
    queue = deque(zip(*np.nonzero(kind == 2)))
    while queue:
        row, column = queue.popleft()
        for y in range(max(row - 1, 0), min(row + 2, image.shape[0])):
            for x in range(max(column - 1, 0), min(column + 2, image.shape[1])):
                if kind[y, x] == 1:
                    kind[y, x] = 2
                    queue.append((y, x))
    return kind == 2


def equalised(values: np.ndarray) -> np.ndarray:
    counts = np.bincount(values.ravel(), minlength=256)
    first = counts.nonzero()[0][0]
    if counts[first] == values.size:
        return values
    table = np.rint((counts.cumsum() - counts[first]) * 255 / (values.size - counts[first]))
    return table[values]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 36)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_spatter_is_water_or_mud(severity, shape) -> None:
    def box(plane):
        return scipy.ndimage.correlate(plane, np.ones((3, 3)), mode="mirror") / 9

    def plain(x, fields, mean, deviation, sigma, threshold, strength, mud):
        liquid = scipy.ndimage.gaussian_filter(mean + deviation * fields[0][0], sigma, mode="nearest")
        liquid[liquid < threshold] = 0
        if mud:
            cover = scipy.ndimage.gaussian_filter((liquid > threshold).astype(float), strength, mode="nearest")
            cover[cover < 0.8] = 0
            brown = np.array((63, 42, 20)) / 255
            brown = brown if x.shape[2] == 3 else brown @ LUMA
            return down(x * (1 - cover[..., None]) + cover[..., None] * brown)
        drops = down(liquid)
        distance = scipy.ndimage.distance_transform_edt(~canny(drops, 50, 150))
        light = equalised((box(np.minimum(distance, 20)) + 1e-6).astype(int))
        emboss = np.array(((-2, -1, 0), (-1, 1, 1), (0, 1, 2)))
        light = np.clip(scipy.ndimage.correlate(light.astype(float), emboss, mode="mirror"), 0, 255)
        shine = drops * np.rint(box(light))
        pale = np.array((175, 238, 238)) / 255
        pale = pale if x.shape[2] == 3 else pale @ LUMA
        return down(x + strength * (shine / max(shine.max(), 1))[..., None] * pale)

    ours, theirs = both("spatter", severity, shape, plain, count=4)
    assert_same(ours, theirs)
    assert (ours != photographs(4, *shape)).any()


def test_edges_and_distances_equal_the_plain_ones_on_photographs() -> None:
    images = photographs(6, 1, 33, 47)
    found = edges(torch.from_numpy(images))
    for i, image in enumerate(images):
        assert (found[i, 0].numpy() == canny(image[0], 50, 150)).all()
    far = distances(found, 6).numpy()
    with_edges = [i for i in range(len(images)) if found[i].any()]  # without any, scipy's answer means nothing
    assert len(with_edges) > 3
    for i in with_edges:
        exact = scipy.ndimage.distance_transform_edt(~found[i, 0].numpy())
        np.testing.assert_allclose(far[i, 0], np.minimum(exact, 6), rtol=1e-12)
    assert (distances(torch.zeros(1, 1, 30, 30, dtype=torch.bool), 20) == 20).all()


def test_equalised_images_are_the_plain_ones_also_where_they_have_one_value() -> None:
    random = np.random.default_rng(0)
    flat = [np.full((9, 11), level) for level in (0, 7, 20)]
    images = np.stack([*flat, random.integers(0, 21, (9, 11)), random.integers(19, 21, (9, 11))])
    found = spread(torch.from_numpy(images)[:, None], 21)[:, 0].numpy()
    for image, ours in zip(images, found):
        np.testing.assert_array_equal(ours, equalised(image))
