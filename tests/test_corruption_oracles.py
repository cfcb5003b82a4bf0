"""Noise, blurs and digital corruptions against plain versions in numpy, scipy and Pillow. jpeg_compression and pixelate
are Pillow's bytes exactly; side_by_side.py says what is allowed elsewhere."""

import io

import matplotlib.colors
import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
from PIL import Image
from side_by_side import SHAPES, assert_same, blurred, both, down, grey, per_channel, streaked, zoomed

from eow.data.corruptions import CONSTANTS, SEVERITIES


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_is_added_where_and_as_large_as_drawn(severity, shape) -> None:
    def channels_last(field):
        return field.transpose(1, 2, 0)

    def gaussian(x, fields, scale):
        return down(x + scale * channels_last(fields[0]))

    def speckle(x, fields, scale):
        return down(x + x * scale * channels_last(fields[0]))

    def impulse(x, fields, amount):
        u = channels_last(fields[0])
        return down(np.where(u < amount / 2, 1, np.where(u < amount, 0, x)))

    assert_same(*both("gaussian_noise", severity, shape, gaussian))
    assert_same(*both("speckle_noise", severity, shape, speckle))
    assert_same(*both("impulse_noise", severity, shape, impulse), share=0)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_is_the_quantile_of_the_poisson_distribution(severity) -> None:
    def plain(x, fields, photons):
        counts = scipy.stats.poisson.ppf(fields[0].transpose(1, 2, 0), x * photons)
        return down(np.maximum(counts, 0) / photons)

    # scipy's quantiles and our table may differ where u lies within 2^-23 of a step, and a step is 255 / photons levels
    ours, theirs = both("shot_noise", severity, (3, 32, 32), plain)
    assert (ours == theirs).mean() > 0.999
    assert np.abs(ours.astype(int) - theirs).max() <= 255 / CONSTANTS["shot_noise"][severity - 1][0] + 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_and_defocus_blur_are_convolutions(severity, shape) -> None:
    def gaussian(x, fields, sigma):
        return down(blurred(x, sigma))

    def defocus(x, fields, radius, alias):
        y, z = np.mgrid[-8:9, -8:9]
        disk = (y**2 + z**2 <= radius**2).astype(float)
        soft = np.exp(-np.array((1, 0, 1)) / (2 * alias**2))
        disk = scipy.ndimage.correlate(disk / disk.sum(), np.outer(soft, soft) / soft.sum() ** 2, mode="constant")
        return down(per_channel(lambda plane: scipy.ndimage.correlate(plane, disk, mode="mirror"), x))

    assert_same(*both("gaussian_blur", severity, shape, gaussian))
    assert_same(*both("defocus_blur", severity, shape, defocus))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_blur_is_the_loop_of_swapped_views(severity, shape) -> None:
    def plain(x, fields, sigma, delta, iterations):
        x = down(blurred(x, sigma))
        for moves in fields[: int(iterations)]:
            for h in range(x.shape[0] - delta, delta, -1):
                for w in range(x.shape[1] - delta, delta, -1):
                    dx, dy = (int(moves[axis, h, w] * 2 * delta) - delta for axis in (0, 1))
                    # Swapping two views copies the second over the first and then itself: this is what CIFAR-C did.
                    x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
        return down(blurred(x / 255, sigma))

    assert_same(*both("glass_blur", severity, shape, plain))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_motion_blur_is_half_a_gaussian_along_the_angle(severity) -> None:
    def plain(x, fields, radius, sigma):
        angle = fields[0] * 90 - 45
        return per_channel(lambda plane: streaked(plane * 255, angle, radius, sigma), x)

    assert_same(*both("motion_blur", severity, (3, 29, 37), plain, count=2))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_zoom_blur_is_the_mean_of_scipys_zooms(severity, shape) -> None:
    def plain(x, fields, largest):
        factors = np.arange(1, largest, 0.01)
        total = x + sum(per_channel(lambda plane, f=factor: zoomed(plane, f), x) for factor in factors)
        return down(total / (len(factors) + 1))

    assert_same(*both("zoom_blur", severity, shape, plain))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_brightness_and_saturate_follow_means_and_hsv(severity, shape) -> None:
    def contrast(x, fields, factor):
        mean = x.mean((0, 1))
        return down((x - mean) * factor + mean)

    def through_hsv(x, change):
        colours = np.broadcast_to(x, (*x.shape[:2], 3))
        hsv = matplotlib.colors.rgb_to_hsv(colours)
        change(hsv)
        out = matplotlib.colors.hsv_to_rgb(hsv)
        return down(out if x.shape[2] == 3 else grey(out))

    def brightness(x, fields, more):
        def change(hsv):
            hsv[..., 2] = np.clip(hsv[..., 2] + more, 0, 1)

        return through_hsv(x, change)

    def saturate(x, fields, factor, more):
        def change(hsv):
            hsv[..., 1] = np.clip(hsv[..., 1] * factor + more, 0, 1)

        return through_hsv(x, change)

    assert_same(*both("contrast", severity, shape, contrast))
    assert_same(*both("brightness", severity, shape, brightness))
    assert_same(*both("saturate", severity, shape, saturate))


def pillow(x: np.ndarray) -> Image.Image:
    pixels = np.rint(x * 255).astype(np.uint8)
    return Image.fromarray(pixels if x.shape[2] == 3 else pixels[..., 0])


def pixels_of(image: Image.Image) -> np.ndarray:
    return np.atleast_3d(np.asarray(image))


@pytest.mark.parametrize("shape", [*SHAPES, (3, 31, 45), (1, 33, 50), (3, 64, 64)])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_and_pixelate_are_pillows_bytes(severity, shape) -> None:
    def jpeg(x, fields, quality):
        file = io.BytesIO()
        pillow(x).save(file, "JPEG", quality=quality)
        return pixels_of(Image.open(file))

    def pixelate(x, fields, factor):
        image = pillow(x)
        small = image.resize((int(image.width * factor), int(image.height * factor)), Image.Resampling.BOX)
        return pixels_of(small.resize(image.size, Image.Resampling.BOX))

    assert_same(*both("jpeg_compression", severity, shape, jpeg, count=8), share=0)
    assert_same(*both("pixelate", severity, shape, pixelate, count=8), share=0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_is_an_affine_map_and_a_field_of_displacements(severity, shape) -> None:
    def plain(x, fields, amount, sigma, corners):
        height, width = x.shape[:2]
        side = min(height, width)
        centre, arm = np.array((width // 2, height // 2)), side // 3
        points = np.array((centre + arm, (centre[0] + arm, centre[1] - arm), centre - arm), float)
        moved = points + corners * side * (2 * fields[0] - 1)
        back = np.linalg.solve(np.column_stack((moved, np.ones(3))), points)  # from where a pixel's value comes
        rows, columns = np.mgrid[:height, :width].astype(float)
        source = np.stack((columns, rows, np.ones_like(rows)), -1) @ back
        x = per_channel(
            lambda plane: scipy.ndimage.map_coordinates(
                plane, (source[..., 1], source[..., 0]), order=1, mode="mirror"
            ),
            x,
        )
        if amount:
            right, under = (
                scipy.ndimage.gaussian_filter(2 * field - 1, sigma * side, mode="reflect", truncate=3) * amount * side
                for field in fields[1]
            )
            x = per_channel(
                lambda plane: scipy.ndimage.map_coordinates(
                    plane, (rows + under, columns + right), order=1, mode="reflect"
                ),
                x,
            )
        return down(x)

    assert_same(*both("elastic_transform", severity, shape, plain))
