"""Randomness: one seed makes a run. Every stream is derived from it and from what the stream is for; none is shared,
so a resumed run needs no generator's state: epoch 7 of rank 1 draws the same numbers whether or not epoch 6 ran in
this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch


def derive(purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose, from small numbers such as run seed, epoch and rank.

    The purpose and the count of numbers enter, because SeedSequence pads with zeros: to it (3, 2) and (3, 2, 0) are
    the same.
    """
    words = (crc32(purpose.encode()), len(numbers), *numbers)
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def own_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Torch's global generators seeded inside and restored outside, for what can only draw from them: initialisation,
    dropout."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_torch(device, seed)
        yield


def seed_torch(device: torch.device, seed: int) -> None:
    """The CPU's global generator and the device's. torch.manual_seed would seed those of all GPUs, which nobody puts
    back."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
