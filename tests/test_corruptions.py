"""Corruptions as a whole: who may be corrupted, what comes back, and that the randomness is what it claims to be. Each
one's arithmetic is tested in test_corruption_oracles.py."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch
from photographs import photographs

from eow.data.corruptions import CONSTANTS, CORRUPTIONS, SEVERITIES, apply, corrupt
from eow.data.corruptions.frosting import textures
from eow.data.corruptions.randomness import Draws
from eow.errors import EowError

CPU = torch.device("cpu")
# By CIFAR-C's own constants a higher severity of these is not farther from the clean image in every step.
NOT_MONOTONE = {
    "glass_blur": "severity 3 is blurred more than 2, and smoother glass is nearer to the image",
    "motion_blur": "severities 3 and 4 have the same sigma, and the longer radius adds next to nothing",
    "spatter": "severities 1 to 3 are water and 4 and 5 are mud",
    "saturate": "severities 1 and 2 take colour out, 3 to 5 put it in",
    "elastic_transform": "the affine part shrinks from .08 to .03 of a side while the local part grows",
}


def distance(name: str, severity: int, images: np.ndarray) -> float:
    return float(np.abs(corrupt(images, name, severity).astype(float) - images).mean())


def test_the_names_are_those_of_cifar_c_and_need_no_torch() -> None:
    assert len(CORRUPTIONS) == 19
    assert all(len(rows) == 5 for rows in CONSTANTS.values())
    assert set(CORRUPTIONS) == set(apply.OPERATIONS)
    script = "import sys; from eow.data.corruptions import CORRUPTIONS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 40, 56), (1, 64, 64), (3, 70, 33)])
def test_every_size_comes_back_as_it_was_and_changed(name, shape) -> None:
    images = photographs(2, *shape)
    before = images.copy()
    out = [corrupt(images, name, severity) for severity in SEVERITIES]
    assert (images == before).all()
    for each in out:
        assert isinstance(each, np.ndarray)
        assert each.dtype == np.uint8
        assert each.shape == images.shape
    # A grey image has no colour to take out or to stretch; the last two severities shift it and so dim it.
    changed = out[3:] if name == "saturate" and shape[0] == 1 else out
    assert all((each != images).any() for each in changed)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_image_does_not_depend_on_its_batch(name, monkeypatch) -> None:
    images = photographs(7)
    for severity in (1, 3, 5):
        whole = corrupt(images, name, severity, seed=3)
        alone = np.concatenate([corrupt(images[i : i + 1], name, severity, seed=3, first=i) for i in range(7)])
        assert (whole == alone).all()
        with monkeypatch.context() as patch:
            patch.setattr(apply, "CPU_CHUNK", 3 * images[0].size)
            assert (whole == corrupt(images, name, severity, seed=3)).all()
        tensor = corrupt(torch.from_numpy(images), name, severity, seed=3)
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.numpy() == whole).all()


def test_arrays_of_any_layout_give_the_same_images(tmp_path) -> None:
    images = photographs(4)
    expected = corrupt(images, "motion_blur", 4)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    read_only = images.copy()
    read_only.flags.writeable = False
    backwards = images[::-1].copy()[::-1]
    np.save(tmp_path / "images.npy", images)
    for same in (last, read_only, backwards, np.load(tmp_path / "images.npy", mmap_mode="r")):
        assert (corrupt(same, "motion_blur", 4) == expected).all()
    assert corrupt(images[:0], "fog", 1).shape == (0, 3, 32, 32)
    assert (torch.from_numpy(expected) == corrupt(torch.from_numpy(last), "motion_blur", 4)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_gpu_gives_the_same_images_within_one_grey_level(name) -> None:
    images = photographs(200)
    for severity in SEVERITIES:
        out = corrupt(torch.from_numpy(images).cuda(), name, severity)
        assert out.is_cuda
        difference = np.abs(out.cpu().numpy().astype(int) - corrupt(images, name, severity))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-4


def test_severity_grows_the_distance_to_the_clean_image() -> None:
    images = photographs(100)
    table = np.array([[distance(name, severity, images) for severity in SEVERITIES] for name in CORRUPTIONS])
    assert (np.diff(table.mean(0)) > 0).all()  # over all 19
    rising = {name for name, row in zip(CORRUPTIONS, table) if (np.diff(row) > 0).all()}
    assert rising >= set(CORRUPTIONS) - set(NOT_MONOTONE)
    row = dict(zip(CORRUPTIONS, table))
    assert row["glass_blur"][4] > row["glass_blur"][0]
    assert row["motion_blur"][4] > row["motion_blur"][2] > row["motion_blur"][0]
    assert (np.diff(row["spatter"])[[0, 1, 3]] > 0).all()
    assert (np.diff(row["saturate"])[[0, 2, 3]] > 0).all()


def test_the_middle_of_an_elastic_image_is_torn_more_at_every_severity_from_2() -> None:
    # Undo the affine part by leaving it out: what remains is the local field, which the severities do make larger.
    images = torch.from_numpy(photographs(100))
    local = [
        apply.OPERATIONS["elastic_transform"](images, Draws("e", 1, 0, 0, 100, CPU), amount, sigma, 0.0)
        for amount, sigma, _ in CONSTANTS["elastic_transform"]
    ]
    assert (local[0] == images).all()
    assert (np.diff([(each.double() - images).abs().mean() for each in local]) > 0).all()


def reference_bits(draws: Draws, size: int) -> np.ndarray:
    """The same hash in numpy's unsigned integers."""

    def mix(x):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
        return x

    one, two, three, four = (np.uint32(word & 0xFFFFFFFF) for word in draws.words)
    step = np.uint32((draws.draw + 1) * 0x9E3779B9 & 0xFFFFFFFF)
    images = draws.images.numpy().astype(np.uint32)[:, None]
    with np.errstate(over="ignore"):
        outer, inner = mix(mix(images ^ one) + two + step), mix(mix(images ^ three) + four + step)
        return mix(mix(np.arange(size, dtype=np.uint32) ^ outer) + inner)


@pytest.mark.parametrize("size", [1, 7, 64, 1003])
def test_the_hash_wraps_like_unsigned_integers(size) -> None:
    draws = Draws("fog", 2, 9, 12345, 5, CPU)
    for _ in range(3):
        expected = reference_bits(draws, size)
        assert (draws.bits(size).numpy().astype(np.uint32) == expected).all()


def test_uniform_numbers_are_uniform_and_independent() -> None:
    draws = Draws("fog", 1, 0, 0, 200, CPU)
    field = draws.uniform(5000).numpy()
    assert field.min() > 0
    assert field.max() < 1
    counts = np.histogram(field, 1024, (0, 1))[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    bits = draws.bits(5000).numpy().view(np.uint32)
    ones = np.array([(bits >> k & 1).mean() for k in range(32)])
    assert np.abs(ones - 0.5).max() < 4 * 0.5 / 1000
    neighbours = [
        (field[:, :-1], field[:, 1:]),  # positions
        (field[:-1], field[1:]),  # images
        (field, draws.uniform(5000).numpy()),  # draws
        (field, Draws("fog", 2, 0, 0, 200, CPU).uniform(5000).numpy()),
        (field, Draws("fog", 1, 1, 0, 200, CPU).uniform(5000).numpy()),
        (field, Draws("snow", 1, 0, 0, 200, CPU).uniform(5000).numpy()),
    ]
    for one, other in neighbours:
        correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 4 / 1000
        pairs = np.histogram2d(one.ravel(), other.ravel(), 16, ((0, 1), (0, 1)))[0]
        assert scipy.stats.chisquare(pairs.ravel()).pvalue > 1e-4


def test_no_two_of_many_images_share_their_numbers() -> None:
    field = Draws("fog", 1, 0, 0, 20_000, CPU).uniform(64).numpy()
    assert len(np.unique(field[:, :4], axis=0)) == 20_000
    sample = field[:2000] - 0.5
    correlation = np.corrcoef(sample)
    np.fill_diagonal(correlation, 0)
    # Of two million pairs of 64 numbers the largest correlation by chance is about 5.2 / sqrt(64).
    assert np.abs(correlation).max() < 6.2 / 8


def test_normal_numbers_are_normal() -> None:
    field = Draws("snow", 1, 0, 0, 100, CPU).normal(3, 333, 7).numpy()
    assert field.shape == (100, 3, 333, 7)
    flat = field.ravel()
    n = len(flat)
    assert abs(flat.mean()) < 4 / np.sqrt(n)
    assert abs(flat.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs(scipy.stats.skew(flat)) < 4 * np.sqrt(6 / n)
    assert abs(scipy.stats.kurtosis(flat)) < 4 * np.sqrt(24 / n)
    assert scipy.stats.kstest(flat, "norm").pvalue > 1e-3
    halves = flat.reshape(100, -1)[:, :6992].reshape(100, 2, -1)  # sines and cosines of the same angles
    assert abs(np.corrcoef(halves[:, 0].ravel(), halves[:, 1].ravel())[0, 1]) < 4 / np.sqrt(n / 2)


def grey(level: int, count: int = 60) -> np.ndarray:
    return np.full((count, 3, 32, 32), level, np.uint8)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_noise_is_as_large_as_its_constant(severity) -> None:
    def constant(name: str) -> float:
        return CONSTANTS[name][severity - 1][0]

    n = grey(0).size
    # Rounding down to bytes adds the variance of a uniform number, 1/12, and takes half a level off the mean.
    noisy = corrupt(grey(128), "gaussian_noise", severity).astype(float)
    expected = np.hypot(255 * constant("gaussian_noise"), 12**-0.5)
    assert abs(noisy.std() / expected - 1) < 4 / np.sqrt(2 * n)
    assert abs(noisy.mean() - 127.5) < 4 * expected / np.sqrt(n)

    noisy = corrupt(grey(100), "speckle_noise", severity).astype(float)
    expected = np.hypot(100 * constant("speckle_noise"), 12**-0.5)
    assert abs(noisy.std() / expected - 1) < 4 / np.sqrt(2 * n)

    amount = constant("impulse_noise")
    noisy = corrupt(grey(100), "impulse_noise", severity)
    for value in (0, 255):
        assert abs((noisy == value).mean() - amount / 2) < 4 * np.sqrt(amount / 2 / n)
    assert set(np.unique(noisy)) == {0, 100, 255}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("level", [5, 60, 120])
def test_shot_noise_counts_photons(severity, level) -> None:
    photons = CONSTANTS["shot_noise"][severity - 1][0]
    noisy = corrupt(grey(level), "shot_noise", severity).astype(float)
    rate = level / 255 * photons
    count = np.arange(2000)
    chance = scipy.stats.poisson.pmf(count, rate)
    byte = np.floor(np.minimum(count / photons, 1) * 255 + 1e-6)
    mean = (chance * byte).sum()
    deviation = np.sqrt((chance * (byte - mean) ** 2).sum())
    assert abs(noisy.mean() - mean) < 4 * deviation / np.sqrt(noisy.size)
    assert abs(noisy.std() / deviation - 1) < 0.015
    if photons <= 100:  # a photon is more than two levels, so the counts can be read off the bytes
        photon_counts = np.round((noisy + 0.5) / 255 * photons)
        assert abs(photon_counts.mean() / rate - 1) < 0.02
        assert abs(photon_counts.var() / rate - 1) < 0.03
    assert (corrupt(grey(0, 2), "shot_noise", severity) == 0).all()


def test_what_is_drawn_differs_between_corruptions_severities_seeds_and_images() -> None:
    images = grey(128, 40)

    def noise(**changed):
        arguments = {"images": images, "name": "gaussian_noise", "severity": 3, "seed": 0} | changed
        return corrupt(**arguments).astype(float).ravel()

    base = noise()
    assert (base == noise()).all()
    for other in (noise(severity=4), noise(seed=1), noise(name="speckle_noise"), noise(first=40), noise(first=1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / np.sqrt(base.size)


def test_frost_textures_close_on_themselves_and_cover_dark_to_white() -> None:
    stack = textures(32, 3).astype(float)
    assert stack.shape == (3, 5, 192, 192)
    inner = np.abs(np.diff(stack, axis=3)).mean()
    seam = np.abs(stack[..., 0] - stack[..., -1]).mean()
    assert seam < 1.3 * inner
    assert np.quantile(stack, 0.1) < 30
    assert np.quantile(stack, 0.95) > 190
    assert (stack[2] >= stack[0]).all()  # ice is bluish


def test_black_and_flat_images_stay_defined() -> None:
    for level in (0, 128, 255):
        for name in CORRUPTIONS:
            for severity in (1, 5):
                out = corrupt(grey(level, 2), name, severity)
                assert out.shape == (2, 3, 32, 32)
    assert (corrupt(grey(0, 2), "fog", 3) == 0).all()  # its brightest value stays the brightest
    assert (corrupt(grey(0, 1), "brightness", 5) == 76).all()
    assert (corrupt(grey(200, 1), "contrast", 5) == 200).all()
    levels = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None, None], (256, 3, 32, 32))
    for name in ("gaussian_blur", "defocus_blur", "zoom_blur", "glass_blur", "motion_blur", "pixelate", "contrast"):
        # A sum of weights that is 1 on paper must not cost a grey level.
        assert (corrupt(levels, name, 5) == levels).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1]], "fog", 1), "numpy array or a tensor"),
        ((photographs(1).astype(np.float32), "fog", 1), "uint8"),
        ((torch.zeros(1, 3, 32, 32), "fog", 1), "uint8"),
        ((photographs(1)[0], "fog", 1), "N, C, H, W"),
        ((photographs(1)[:, :2], "fog", 1), "1 or 3 channels"),
        ((photographs(1)[:, :, :27], "fog", 1), "27x32 are too small"),
        ((photographs(1), "rain", 1), "no corruption 'rain'"),
        ((photographs(1), "fog", 0), "no severity 0"),
        ((photographs(1), "fog", 6), "no severity 6"),
        ((photographs(1), "fog", 1.5), "no severity 1.5"),
        ((photographs(1), "fog", True), "no severity True"),
        ((photographs(1), "fog", 1, -1), "seed must be"),
        ((photographs(1), "fog", 1, 0.5), "seed must be"),
        ((photographs(1), "fog", 1, 0, -3), "first must be"),
    ],
)
def test_what_cannot_be_corrupted_is_said(arguments, message) -> None:
    with pytest.raises(EowError, match=message):
        corrupt(*arguments)


def test_numpys_integers_are_integers() -> None:
    images = photographs(2)
    assert (corrupt(images, "fog", np.int64(2), np.uint8(3)) == corrupt(images, "fog", 2, 3)).all()
    assert corrupt(images, "fog", 2, 2**80).shape == images.shape


def test_a_thread_born_afterwards_has_as_many_of_torchs_as_before() -> None:
    """In a process of its own: the number is torch's for all threads to come, and other tests may have set it."""
    code = (
        "import numpy as np, torch; from threading import Thread; from eow.data.corruptions import corrupt;"
        "torch.set_num_threads(2); corrupt(np.zeros((300, 3, 32, 32), np.uint8), 'contrast', 1);"
        "late = Thread(target=lambda: print(torch.get_num_threads())); late.start(); late.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"]
