"""Several processes, one training: each finds its place, as torchrun or `eow train --devices N` (launching.py) says."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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


def from_chief(word: Any, place: Place) -> Any:
    """What rank 0 says, in every process."""
    if place.world == 1:
        return word
    words = [word]
    torch.distributed.broadcast_object_list(words)
    return words[0]


def rank_and_world() -> tuple[int, int]:
    """Which of how many processes this is in a group that somebody else has made."""
    group = torch.distributed
    return (group.get_rank(), group.get_world_size()) if group.is_available() and group.is_initialized() else (0, 1)


def mean_over_ranks(values: list[float], device: torch.device, world: int) -> list[float]:
    """The means over the `world` processes of one training, the same in each. A training of one process must not ask
    the others, which may be doing something else."""
    if world == 1:
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(sums)
    return [value / world for value in sums.tolist()]
