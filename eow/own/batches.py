"""Somebody's data as the training loop wants it: pairs of tensors on the device, checked before they are used."""

import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from eow.data.dataset import Dataset as StoredDataset
from eow.errors import EowError
from eow.plain import first_line

NOT_FINITE = "the inputs hold NaN or infinite values: clean them first, for example x = torch.nan_to_num(x)"


class LoaderBatches:
    """Somebody's loader of (input, label) pairs. With `unknown`, as many outliers follow the inputs of every batch: the
    rows of x beyond len(y). A loader that goes on beyond its length, a stream say, is read as far as that."""

    split = "train"  # what is passed for training is taken for it

    def __init__(
        self,
        loader: Any,
        classes: int,
        device: torch.device,
        unknown: Any = None,
        *,
        dtype: torch.dtype = torch.float32,
        integers: bool = False,
    ) -> None:
        self.length = length(loader, "loader", "(x, y) batches")
        if unknown is not None:
            length(unknown, "loader of unknowns", "batches")
        self.loader, self.classes, self.device, self.unknown = loader, classes, device, unknown
        self.dtype, self.integers, self.told = dtype, integers, False

    def __len__(self) -> int:
        return self.length

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        outliers = self.outliers() if self.unknown is not None else None
        count = 0
        for count, batch in enumerate(some(self.loader, self.length), 1):  # noqa: B007
            x, y = self.checked(batch)
            if outliers is not None:
                x = torch.cat([x, take(outliers, len(x), x)])
            yield x, y
        if 0 < count < self.length and not self.told:
            self.told = True
            warnings.warn(
                f"the loader has a length of {self.length} and ended after {count} batches in epoch {epoch + 1}: the "
                "learning rate is planned for all of them and never gets to its end, make the length true",
                RuntimeWarning,
                stacklevel=2,
            )

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Everything once, without outliers, in the order of the loader."""
        yield from map(self.checked, some(self.loader, self.length))

    def checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = pair_of(batch)
        x, y = self.inputs(x), labels_of(y)
        if len(x) != len(y) or not len(x):
            raise EowError(
                f"the loader yields a batch of {len(x)} inputs and {len(y)} labels: make it as many, and at least 1"
            )
        check_range(y, self.classes)
        return x, y.to(self.device)

    def inputs(self, values: Any) -> Tensor:
        x = inputs_of(values, self.dtype, self.integers)
        check_finite(x)
        return x.to(self.device)

    def outliers(self) -> Iterator[Tensor]:
        """Batches of outliers without end; labels, where there are any, are not looked at."""
        while True:
            rows = 0
            for batch in self.unknown:
                x = self.inputs(inputs_in(batch, "loader of unknowns"))
                rows += len(x)
                yield x
            if not rows:
                raise EowError(
                    "a pass over the loader of unknowns yields no samples: pass a torch DataLoader or a list of "
                    "batches, which can be read again and again"
                )


def some(loader: Any, count: int) -> Iterator[Any]:
    """Its first `count` batches, and then one look beyond: what a loader does after its last batch, counting its epochs
    say, it does only when asked for another."""
    stream = iter(loader)
    yield from islice(stream, count)
    next(stream, None)


def take(stream: Iterator[Tensor], count: int, like: Tensor) -> Tensor:
    """`count` rows of a stream. What is left of its last batch is not used: outliers are plenty, and are drawn anew."""
    rows: list[Tensor] = []
    while sum(map(len, rows)) < count:
        rows.append(next(stream))
        if rows[-1].shape[1:] != like.shape[1:]:
            raise EowError(
                f"an unknown has the shape {tuple(rows[-1].shape[1:])}, an input {tuple(like.shape[1:])}: prepare both "
                "in the same way"
            )
    return torch.cat(rows)[:count]


def length(loader: Any, what: str, of_what: str) -> int:
    try:
        count = len(loader)
    except TypeError:
        count = 0
    if not count:
        raise EowError(
            f"the {what} has no length or no batches: pass a torch DataLoader or a list of {of_what}"
        ) from None
    return count


def pair_of(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        raise EowError(unpacked(batch, "loader"))
    what = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
    raise EowError(f"the loader yields a {what}: make it yield pairs (inputs, labels) of tensors")


def inputs_in(batch: Any, what: str) -> Any:
    """The inputs of a batch that may have labels."""
    if isinstance(batch, Mapping):
        raise EowError(unpacked(batch, what))
    return batch[0] if isinstance(batch, tuple | list) and batch and hasattr(batch[0], "shape") else batch


def unpacked(batch: Mapping[Any, Any], what: str) -> str:
    """The sentence for a batch that is a dict: how to make pairs of it."""
    labels = next((key for key in batch if str(key).lower() in ("labels", "label", "y", "target", "targets")), "labels")
    inputs = next((key for key in batch if key != labels), "inputs")
    return (
        f"the {what} yields a {type(batch).__name__} with the keys {', '.join(map(str, batch))}: make pairs of it, "
        f"[(batch[{inputs!r}], batch[{labels!r}]) for batch in loader], or by a DataLoader's collate_fn"
    )


def as_tensor(values: Any, what: str) -> Tensor:
    try:
        x = torch.as_tensor(values if isinstance(values, Tensor) else np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError, RuntimeError) as error:
        remedy = "pass an array or a tensor of numbers"
        if what == "labels":
            remedy = "number the classes from 0, for example by numpy.unique(labels, return_inverse=True)[1]"
        raise EowError(f"the {what} cannot be made a tensor ({error}): {remedy}") from None
    check_real(x, what)
    return x


def inputs_of(values: Any, dtype: torch.dtype = torch.float32, integers: bool = False) -> Tensor:
    """Inputs in the precision of the network; whole numbers only where it takes them, as embeddings do."""
    x = as_tensor(values, "inputs")
    check_dense(x)
    if integers and x.dim() and not x.is_floating_point() and not x.is_complex():
        return x.long()
    if not x.is_floating_point() or not x.dim():
        raise EowError(
            f"the inputs are {x.dtype} of shape {tuple(x.shape)}: pass floating-point numbers, sample by sample, "
            "as the network wants them"
        )
    return x.to(dtype)


def labels_of(values: Any) -> Tensor:
    y = as_tensor(values, "labels")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.dim() != 1:
        remedy = "y.argmax(1) for one-hot labels" if y.dim() == 2 and y.shape[1] > 1 else "y.long().flatten()"
        raise EowError(
            f"labels are {y.dtype} of shape {tuple(y.shape)}: pass one whole number a sample, for example {remedy}"
        )
    return y.long()


def check_range(y: Tensor, classes: int) -> None:
    if not y.is_cuda and len(y) and (y.min() < 0 or y.max() >= classes):  # a GPU would have to be waited for
        raise EowError(
            f"labels run from {int(y.min())} to {int(y.max())}, but the model has the classes 0 to {classes - 1}: "
            "number them so"
        )


def check_dense(x: Tensor) -> None:
    if x.layout is not torch.strided:
        raise EowError(f"the inputs are a tensor of layout {x.layout}: pass x.to_dense()")


def check_real(x: Tensor, what: str = "inputs") -> None:
    if x.is_meta:
        raise EowError(f"the {what} lie on the device meta, where they have no values: pass a tensor that has some")


def check_finite(x: Tensor) -> None:
    check_real(x)
    if not x.is_cuda and x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise EowError(NOT_FINITE)


def is_batch(entry: Any) -> bool:
    """Whether this is an (x, y) batch and not an array: a list of two batches looks like a pair of lists."""
    return isinstance(entry, tuple | list) and len(entry) == 2 and all(hasattr(part, "shape") for part in entry)


def is_arrays(data: Any) -> bool:
    return isinstance(data, tuple | list) and len(data) == 2 and not all(map(is_batch, data))


def depth(values: Any) -> int:
    """1 for a list of numbers, 2 for a list of such lists and so on; 0 for anything else."""
    levels = 0
    while isinstance(values, list | tuple) and values:
        values, levels = values[0], levels + 1
    return levels if isinstance(values, Number | np.generic) else 0


def array_loader(
    inputs: Any,
    labels: Any,
    batch: int,
    dtype: torch.dtype = torch.float32,
    integers: bool = False,
    *,
    training: bool = True,
) -> DataLoader[Any]:
    x, y = inputs_of(inputs, dtype, integers), labels_of(labels)
    if len(x) != len(y) or not len(x):
        raise EowError(
            f"there are {len(x)} inputs and {len(y)} labels: pass as many labels as inputs, and at least one"
        )
    check_finite(x)
    return DataLoader(TensorDataset(x, y), batch_size=min(batch, len(x)), shuffle=training, drop_last=training)


def dataset_loader(data: Any, batch: int, what: str, *, training: bool = True) -> Any:
    """A loader for a torch Dataset, in batches that are shuffled and whole for training; anything else as it is."""
    if isinstance(data, StoredDataset):
        raise EowError(
            f"the {what} is a data set of eow's, whose inputs are not yet as a network wants them: pass arrays, for "
            "example data.inputs / 255 and data.labels"
        )
    if not isinstance(data, Dataset):
        if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
            raise EowError(f"the {what} is a {type(data).__name__}: pass an array, a Dataset or a loader of batches")
        return data
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not len(data):
        raise EowError(f"the {what} is a Dataset without samples or without a length: pass a list of its batches")
    try:
        default_collate([data[place] for place in range(min(len(data), 2))])
    except (TypeError, RuntimeError) as error:
        raise EowError(
            f"the samples of the {what} cannot be put into a batch ({first_line(error)}): give the Dataset a "
            "transform to tensors, or pass a DataLoader with its own collate_fn"
        ) from None
    return DataLoader(data, batch_size=min(batch, len(data)), shuffle=training, drop_last=training)


def outlier_loader(unknown: Any, batch: int, dtype: torch.dtype, integers: bool) -> Any:
    """Outliers as a loader: an array, a data frame or nested lists of them, a pair (X, anything) of these, or a loader
    as it is. Two rows are not a pair: both are equally deep."""
    if is_arrays(unknown) and not all(getattr(each, "ndim", 0) > 1 for each in unknown):
        unknown = unknown if depth(unknown[0]) == depth(unknown[1]) > 0 else unknown[0]
    if not (isinstance(unknown, Tensor | np.ndarray) or hasattr(unknown, "to_numpy") or depth(unknown)):
        return dataset_loader(unknown, batch, "unknown")
    x = inputs_of(unknown, dtype, integers)
    check_finite(x)
    if not len(x):
        raise EowError("there are no unknowns in what was passed as unknown: leave it out, or pass at least one")
    return DataLoader(TensorDataset(x), batch_size=min(batch, len(x)), shuffle=True)
