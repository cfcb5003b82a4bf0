"""Batches on the device: the data set lies there as uint8, and shuffling, cropping, flipping and normalising happen
there.

An epoch's randomness comes from (seed, epoch) alone, so a resumed run needs no state from here; every rank of a
distributed run draws the same permutation and the same augmentation for the whole batch and takes its own rows, so N
ranks see what one would.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from eow.data.dataset import Dataset
from eow.errors import EowError
from eow.seeds import derive


@dataclass(frozen=True)
class Transform:
    """What is done to raw inputs before the network: scale bytes to 0..1, subtract the mean, divide by the
    deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, raw: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (raw.dim() - 2)
        mean = torch.tensor(self.mean, device=raw.device).view(shape)
        std = torch.tensor(self.std, device=raw.device).view(shape)
        x = raw.float() / 255 if raw.dtype == torch.uint8 else raw.float()
        return (x - mean) / std


def crop_and_flip(x: Tensor, rows: Tensor, columns: Tensor, flips: Tensor | None, margin: int) -> Tensor:
    """Each image padded by `margin` zeros, then the window whose corner is (rows, columns), mirrored where flips says
    so."""
    count, channels, height, width = x.shape
    padded = pad(x, (margin, margin, margin, margin))
    down = rows[:, None] + torch.arange(height, device=x.device)
    along = columns[:, None] + torch.arange(width, device=x.device)
    if flips is not None:
        along = torch.where(flips[:, None], along.flip(1), along)
    image = torch.arange(count, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[image, channel, down[:, None, :, None], along[:, None, None, :]]


class Batches:
    """The batches of a data set, epoch by epoch. `rank` of `world` processes gets its rows of every batch."""

    def __init__(
        self,
        dataset: Dataset,
        batch: int,
        transform: Transform,
        device: torch.device,
        *,
        seed: int = 0,
        augment: str = "none",
        resident: bool = True,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if augment != "none" and dataset.inputs.ndim != 4:
            raise EowError(
                f"data.augment={augment!r} moves pixels, but {dataset.name} has features: set data.augment=none"
            )
        self.batch = min(batch, len(dataset) // world * world)
        if self.batch < world or self.batch % world:
            raise EowError(f"a batch of {batch} cannot be shared by {world} processes: make it a multiple of {world}")
        self.dataset, self.transform, self.device, self.seed, self.augment = dataset, transform, device, seed, augment
        self.rank, self.world, self.resident = rank, world, resident
        self.inputs, self.labels = torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.labels)
        if resident:
            self.inputs, self.labels = self.inputs.to(device), self.labels.to(device)

    def __len__(self) -> int:
        """Steps of a training epoch: whole batches, each epoch leaving out other samples."""
        return len(self.dataset) // self.batch

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch."""
        generator = torch.Generator(self.device)
        generator.manual_seed(derive(self.seed, epoch))
        order = torch.randperm(len(self.dataset), generator=generator, device=self.device)
        share = self.batch // self.world
        mine = slice(self.rank * share, (self.rank + 1) * share)
        for step in range(len(self)):
            window = self.window(generator)
            x, y = self.rows(order[step * self.batch : (step + 1) * self.batch][mine])
            if window is not None:
                rows, columns, flips, margin = window
                x = crop_and_flip(
                    x, rows[mine], columns[mine], flips[mine] if self.augment == "crop_flip" else None, margin
                )
            yield self.transform(x), y

    def window(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, int] | None:
        """Where each image of the whole batch is cropped (padding an eighth of its side, 4 of 32) and whether it is
        mirrored."""
        if self.augment == "none":
            return None
        margin = self.dataset.inputs.shape[-1] // 8
        rows, columns = torch.randint(2 * margin + 1, (2, self.batch), generator=generator, device=self.device)
        return rows, columns, torch.rand(self.batch, generator=generator, device=self.device) < 0.5, margin

    def rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        if self.resident:
            return self.inputs[index], self.labels[index]
        index = index.cpu()
        return self.inputs[index].to(self.device), self.labels[index].to(self.device)

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, as it lies, without augmentation: for prediction."""
        for first in range(0, len(self.dataset), self.batch):
            part = slice(first, first + self.batch)
            yield self.transform(self.inputs[part].to(self.device)), self.labels[part].to(self.device)
