"""Several processes, one training: each finds its place, as torchrun or `eow train --devices N` (launching.py) says."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from eow.errors import EowError
from eow.plain import first_line


class Place(NamedTuple):
    """Which of how many processes this is, and the device it works on."""

    device: torch.device
    rank: int = 0
    world: int = 1


def pick_device(name: str, setting: str = "train.device") -> torch.device:
    """The device of that name; "auto" is EOW_DEVICE where that is set, else a GPU where there is one. `setting` is what
    the caller's user knows the name as."""
    name = os.environ.get("EOW_DEVICE", name) if name == "auto" else name
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise EowError(f"{setting}={name!r} cannot be used here ({first_line(error)}): try auto or cpu") from None
    return device


@contextmanager
def process_group(device_name: str) -> Iterator[Place]:
    """This process's place: alone, unless torchrun's variables say otherwise."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Place(pick_device(device_name))
        return
    device = pick_device(device_name)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Place(device, torch.distributed.get_rank(), world)
    finally:
        gc.collect()  # DDP objects sit in reference cycles; one that outlives its process group ends in an abort
        torch.distributed.destroy_process_group()


def mean_over_ranks(values: list[float], device: torch.device) -> list[float]:
    """The means over all processes there are, the same in each."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(sums)
    return [value / torch.distributed.get_world_size() for value in sums.tolist()]
