"""Checkpoints of a training: everything that is needed to go on as if nothing had happened, renamed into place."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eow import storage
from eow.errors import EowError
from eow.training.distributed import Place
from eow.training.loop import Training

FILE = "checkpoint.safetensors"  # rank 0's, beside those of other ranks
FILES = (FILE, "checkpoint-rank*.safetensors")
PARTS = {"data": "training", "test": "test"}  # whose hashes a checkpoint has, by their key in its header


def save(training: Training, folder: Path, place: Place, epoch: int, hashes: Mapping[str, str]) -> None:
    """A checkpoint. Other ranks write theirs first; rank 0's file makes the epoch count."""
    state = {name: each.detach().cpu().contiguous() for name, each in training.state().items()}
    header = {"epoch": epoch, "rollbacks": training.rollbacks, "world": place.world, "bf16": training.bf16, **hashes}
    header["sum"] = checksum(state)
    if place.rank:
        storage.write_tensors(rank_file(folder, place.rank, epoch), state, header)
    if place.world > 1:
        torch.distributed.barrier()
    if place.rank == 0:
        storage.write_tensors(folder / FILE, state, header)
        for file in folder.glob("checkpoint-rank*"):
            if not file.name.endswith(f"-{epoch}.safetensors"):
                file.unlink()


def exists(folder: Path) -> bool:
    """Whether an epoch has been kept."""
    return (folder / FILE).exists()


def remove(folder: Path) -> None:
    for file in (each for pattern in FILES for each in folder.glob(pattern)):
        file.unlink()


def restore(training: Training, folder: Path, place: Place, hashes: Mapping[str, str]) -> int:
    """The epoch of the last checkpoint, whose state the training now has."""
    state, header = read(folder / FILE)
    try:
        epoch, rollbacks = counts_in(header, training)
        for key, part in PARTS.items():
            if header[key] != hashes[key]:
                raise EowError(
                    f"the {part} data is not that of the checkpoint in {folder}: bring it back, or start anew"
                )
        if header["world"] != place.world:
            raise EowError(f"the checkpoint in {folder} was made by {header['world']} processes: resume with as many")
        if header.get("bf16", training.bf16) != training.bf16:  # train.precision=auto is the device's own
            here, there = ("bf16", "fp32") if training.bf16 else ("fp32", "bf16")
            raise EowError(
                f"the run in {folder} was trained in {there} and would go on in {here} on this device: resume it on "
                "one of the same kind, or start anew"
            )
        if place.rank:
            state, _ = read(rank_file(folder, place.rank, epoch))
        training.restore(state)
        training.rollbacks = rollbacks
    except EowError:
        raise
    except (KeyError, TypeError, RuntimeError, ValueError, OverflowError) as error:
        raise EowError(
            f"the checkpoint in {folder} does not fit this model ({error}): start again in another folder"
        ) from None
    return epoch


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a checkpoint, which are what was written."""
    state, header = storage.read_tensors(path)
    if "sum" in header and header["sum"] != checksum(state):
        raise EowError(f"{path} is damaged (its sum is another one): start again in another folder")
    return state, header


def checksum(state: Mapping[str, Tensor]) -> int:
    """Of all bytes, by name: a disk's slips are to be seen, not an attack, at several gigabytes a second."""
    found = 0
    for name in sorted(state):
        content: Any = state[name].reshape(-1).view(torch.uint8).numpy()
        found = zlib.crc32(content, zlib.crc32(name.encode(), found))
    return found


def counts_in(header: dict[str, Any], training: Training) -> tuple[int, int]:
    """The epoch and how many were undone, which this training must be able to reach."""
    settings = training.settings
    total = settings.epochs + (settings.holdout_epochs if training.holdout is not None else 0)
    for key, least, most in (("epoch", 0, total - 1), ("rollbacks", 0, settings.rollbacks)):
        if type(header[key]) is not int or not least <= header[key] <= most:
            raise ValueError(f"its {key} is {header[key]!r:.40} and not from {least} to {most}")
    return header["epoch"], header["rollbacks"]


def rank_file(folder: Path, rank: int, epoch: int) -> Path:
    return folder / f"checkpoint-rank{rank}-{epoch}.safetensors"
