"""Batches: what a training epoch sees, and that ranks together see what one process would."""

import numpy as np
import pytest
import torch

from eow.data import Dataset
from eow.data.loader import Batches, Transform, crop_and_flip
from eow.errors import EowError

PLAIN = Transform((0.0,), (1.0,))
CPU = torch.device("cpu")


def numbered(count: int = 20, side: int = 8) -> Dataset:
    """Image i is filled with the number i, so that a batch says which samples are in it."""
    inputs = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None, None], (count, 1, side, side)).copy()
    return Dataset("numbered", "train", inputs, np.arange(count) % 2, ("even", "odd"))


def seen(batches: Batches, epoch: int) -> list[list[int]]:
    return [(x[:, 0, 0, 0] * 255).round().int().tolist() for x, _ in batches.epoch(epoch)]


def test_an_epoch_is_a_permutation_in_whole_batches() -> None:
    batches = Batches(numbered(), 6, PLAIN, CPU, seed=3)
    first = seen(batches, 0)
    assert [len(part) for part in first] == [6, 6, 6] == [6] * len(batches)
    flat = [number for part in first for number in part]
    assert len(set(flat)) == 18
    assert flat != sorted(flat)
    assert seen(batches, 0) == first  # the same epoch again, without any state
    assert seen(batches, 1) != first
    assert seen(Batches(numbered(), 6, PLAIN, CPU, seed=4), 0) != first


def test_labels_travel_with_their_images() -> None:
    for x, y in Batches(numbered(), 5, PLAIN, CPU).epoch(0):
        assert ((x[:, 0, 0, 0] * 255).round().long() % 2 == y).all()


def test_ranks_share_every_batch() -> None:
    alone = list(Batches(numbered(), 8, PLAIN, CPU, seed=1, augment="crop_flip").epoch(2))
    ranks = [
        list(Batches(numbered(), 8, PLAIN, CPU, seed=1, augment="crop_flip", rank=r, world=2).epoch(2)) for r in (0, 1)
    ]
    for step, (x, y) in enumerate(alone):
        assert torch.equal(x, torch.cat([ranks[0][step][0], ranks[1][step][0]]))
        assert torch.equal(y, torch.cat([ranks[0][step][1], ranks[1][step][1]]))
    with pytest.raises(EowError, match="cannot be shared"):
        Batches(numbered(), 7, PLAIN, CPU, world=2)


def test_streaming_gives_the_same_batches() -> None:
    for (a, b), (c, d) in zip(
        Batches(numbered(), 6, PLAIN, CPU).epoch(0), Batches(numbered(), 6, PLAIN, CPU, resident=False).epoch(0)
    ):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_crop_is_a_window_of_the_padded_image() -> None:
    x = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).view(2, 3, 4, 4)
    rows, columns, flips = torch.tensor([0, 3]), torch.tensor([2, 1]), torch.tensor([False, True])
    cropped = crop_and_flip(x, rows, columns, flips, margin=2)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    np.testing.assert_array_equal(cropped[0], padded[0, :, 0:4, 2:6])
    np.testing.assert_array_equal(cropped[1], padded[1, :, 3:7, 1:5][:, :, ::-1])


def test_augmentation_reaches_every_offset_and_both_mirrors() -> None:
    image = np.zeros((1, 1, 8, 8), np.uint8)
    image[0, 0, 4, 3] = 255
    dataset = Dataset("dot", "train", np.repeat(image, 400, 0), np.arange(400) % 2, ("a", "b"))
    x, _ = next(iter(Batches(dataset, 400, PLAIN, CPU, augment="crop_flip").epoch(0)))
    places = {tuple(index.tolist()) for index in x[:, 0].nonzero()[:, 1:]}
    assert places == {(row, column) for row in (3, 4, 5) for column in (2, 3, 4, 5)}


def test_transform_scales_bytes_and_normalises() -> None:
    raw = torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8)
    x = Transform((0.5, 0.25), (0.5, 0.25))(raw)
    assert x.flatten().tolist() == [-1.0, 3.0]
    features = Transform((1.0, 2.0), (2.0, 4.0))(torch.tensor([[3.0, 10.0]]))
    assert features.tolist() == [[1.0, 2.0]]


def test_in_order_is_every_sample_once() -> None:
    x = torch.cat([x for x, _ in Batches(numbered(), 6, PLAIN, CPU, augment="crop_flip").in_order()])
    assert (x[:, 0, 0, 0] * 255).round().int().tolist() == list(range(20))


def test_features_cannot_be_cropped() -> None:
    dataset = Dataset("rows", "train", np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]), ("a", "b"))
    with pytest.raises(EowError, match="features"):
        Batches(dataset, 2, PLAIN, CPU, augment="crop")
