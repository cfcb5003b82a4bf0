"""Batches on the device: the data set lies there as uint8, and shuffling, cropping, flipping and normalising happen
there.

An epoch's randomness comes from (seed, epoch) alone, so a resumed run needs no state from here; every rank of a
distributed run draws the same permutation and the same augmentation for the whole batch and takes its own rows, so N
ranks see what one would.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from eow.data.dataset import Dataset
from eow.errors import EowError
from eow.mapping import let_go
from eow.seeds import derive


@dataclass(frozen=True)
class Transform:
    """What is done to raw inputs before the network: scale bytes to 0..1, subtract the mean, divide by the
    deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, raw: Tensor) -> Tensor:
        shape = (1, -1) + (1,) * (raw.dim() - 2)
        x = raw.float() / 255 if raw.dtype == torch.uint8 else raw.float()
        return (x - on_device(self.mean, raw.device).view(shape)) / on_device(self.std, raw.device).view(shape)


@lru_cache(maxsize=16)
def on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept, because every copy to a GPU would make the host wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


class Episode(NamedTuple):
    """A batch made of few-shot tasks: each draws `classes` classes and `per_class` samples of each."""

    classes: int
    per_class: int
    tasks: int

    @property
    def size(self) -> int:
        return self.classes * self.per_class * self.tasks


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


def class_members(dataset: Dataset, episode: Episode) -> tuple[Tensor, Tensor]:
    """For every class the indices of its samples, (K, largest class) with zeros behind the end, how many they are."""
    labels = torch.from_numpy(dataset.labels)
    counts = torch.bincount(labels, minlength=len(dataset.classes))
    if episode.classes > len(counts) or episode.per_class > int(counts.min()):
        raise EowError(
            f"an episode of {episode.classes} classes with {episode.per_class} samples each cannot be drawn from "
            f"{dataset.name}, which has {len(counts)} classes and {int(counts.min())} samples in one: lower them"
        )
    members = torch.zeros(len(counts), int(counts.max()), dtype=torch.long)
    for label, count in enumerate(counts.tolist()):
        members[label, :count] = torch.nonzero(labels == label).flatten()
    return members, counts


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
        episode: Episode | None = None,
    ) -> None:
        if augment != "none" and dataset.inputs.ndim != 4:
            raise EowError(
                f"data.augment={augment!r} moves pixels, but {dataset.name} has features: set data.augment=none"
            )
        self.batch = episode.size if episode else min(batch, len(dataset) // world * world)
        if self.batch < world or self.batch % world:
            raise EowError(f"a batch of {batch} cannot be shared by {world} processes: make it a multiple of {world}")
        self.dataset, self.transform, self.device, self.seed, self.augment = dataset, transform, device, seed, augment
        self.rank, self.world, self.resident = rank, world, resident
        self.inputs, self.labels = torch.from_numpy(dataset.inputs), torch.from_numpy(dataset.labels)
        if episode and episode.tasks % world:
            raise EowError(f"{episode.tasks} tasks a step cannot be shared by {world} processes: change method.tasks")
        self.episode = episode
        if episode:
            self.members = class_members(dataset, episode)
        if resident:
            self.inputs, self.labels = self.inputs.to(device), self.labels.to(device)

    @property
    def split(self) -> str:
        return self.dataset.split

    def __len__(self) -> int:
        """Steps of a training epoch: whole batches, each epoch leaving out other samples."""
        return max(1, len(self.dataset) // self.batch)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch."""
        generator = torch.Generator(self.device)
        generator.manual_seed(derive("batches", self.seed, epoch))
        shuffled = torch.randperm(len(self.dataset), generator=generator, device=self.device)
        share = self.batch // self.world
        mine = slice(self.rank * share, (self.rank + 1) * share)
        for step in range(len(self)):
            window = self.window(generator)
            index = shuffled[step * self.batch : (step + 1) * self.batch]
            if self.episode:
                index = self.draw_episode(self.episode, generator)
            x, y = self.rows(index[mine])
            if window is not None:
                rows, columns, flips, margin = window
                x = crop_and_flip(
                    x, rows[mine], columns[mine], flips[mine] if self.augment == "crop_flip" else None, margin
                )
            yield self.transform(x), y

    def draw_episode(self, episode: Episode, generator: torch.Generator) -> Tensor:
        """Indices in the order task, class, sample; no class twice in a task, no sample twice in a class."""
        members, counts = (each.to(self.device) for each in self.members)
        parts = []
        for _ in range(episode.tasks):
            classes = torch.rand(len(counts), generator=generator, device=self.device).topk(episode.classes).indices
            preference = torch.rand(episode.classes, members.shape[1], generator=generator, device=self.device)
            missing = torch.arange(members.shape[1], device=self.device) >= counts[classes, None]
            chosen = (preference - 2 * missing.float()).topk(episode.per_class).indices
            parts.append(members[classes].gather(1, chosen).flatten())
        return torch.cat(parts)

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
        x, y = self.inputs[index].to(self.device), self.labels[index].to(self.device)
        let_go(self.dataset.inputs)
        return x, y

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Every sample once, as it lies, without augmentation: for prediction."""
        for first in range(0, len(self.dataset), self.batch):
            part = slice(first, first + self.batch)
            yield self.transform(self.inputs[part].to(self.device)), self.labels[part].to(self.device)
            let_go(self.dataset.inputs)
