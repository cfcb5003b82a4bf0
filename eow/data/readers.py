"""The binary formats of the named sets: idx (MNIST and kin), CIFAR's pickles, SVHN's .mat, and scikit-learn's digits.

A file is read once, into memory; the bytes that were hashed are the bytes that are parsed. A file may be hostile:
whatever is wrong with it becomes an EowError that names it, and unpickling can build nothing but dicts, lists, numbers,
strings and byte arrays.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eow.data.catalog import Entry, File, how_to_get, how_to_repair
from eow.data.dataset import Dataset, stratified_split
from eow.data.files import is_file, most_unpacked, readable
from eow.data.matlab import read_mat
from eow.errors import EowError


def located(file: File, root: Path) -> Path | None:
    """The file as it lies below the root, or None; idx files (…-ubyte) are shipped gzipped and may have stayed so."""
    names = (file.path, f"{file.path}.gz") if file.path.endswith("-ubyte") else (file.path,)
    return next((root / name for name in names if is_file(root / name)), None)


def official_hash(file: File, path: Path) -> str | None:
    """The md5 the file at `path` should have: that of the .gz for a .gz."""
    return file.gz_md5 if path.suffix == ".gz" else file.md5


def _checked_bytes(name: str, file: File, root: Path, allow_unofficial: bool) -> tuple[bytes, bool | None, Path]:
    """(content, official, where it lay); a file whose hash differs is an error unless that is allowed."""
    path = located(file, root)
    if path is None:
        raise EowError(f"{name}: {root / file.path} is missing: {how_to_get(name)}")
    with readable(path):
        content = path.read_bytes()
    expected = official_hash(file, path)
    if expected is None:
        return content, None, path
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected and not allow_unofficial:
        raise EowError(
            f"{path} is not the official file (md5 {found} instead of {expected}): {how_to_repair(name)}, or pass "
            "--allow-unofficial to use it as it is"
        )
    return content, found == expected, path


def _damaged(name: str, what: str) -> EowError:
    """A file of the set holds something else than it should."""
    return EowError(f"{what}: {how_to_repair(name)}")


def _verdict(flags: list[bool | None]) -> bool | None:
    """A set is official when all its files are, unofficial when one is known not to be, and else unsaid."""
    if False in flags:
        return False
    return None if None in flags else True


def read_idx(name: str, root: Path, split: str, entry: Entry, allow_unofficial: bool) -> Dataset:
    """MNIST's format: a big-endian header of magic number and sizes, then bytes."""
    image_file, label_file = entry.train if split == "train" else entry.test
    images, images_official = _idx_array(name, image_file, root, allow_unofficial, dimensions=3)
    labels, labels_official = _idx_array(name, label_file, root, allow_unofficial, dimensions=1)
    if images.shape[1:] != entry.shape[1:]:
        found = f"{name}: the images in {root / image_file.path} are {images.shape[1:]}"
        raise _damaged(name, f"{found}, not {entry.shape[1:]}")
    official = _verdict([images_official, labels_official])
    return Dataset(name, split, images[:, None], labels.astype(np.int64), entry.classes, official)


def _idx_array(
    name: str, file: File, root: Path, allow_unofficial: bool, dimensions: int
) -> tuple[np.ndarray, bool | None]:
    content, official, path = _checked_bytes(name, file, root, allow_unofficial)
    if path.suffix == ".gz":
        most = most_unpacked(len(content))
        try:
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read(most + 1)
            if len(content) > most:
                raise EowError("it unpacks to far more than images do")
        except Exception as error:
            raise _damaged(name, f"{path} is not a whole gzip file ({error})") from error
    header = 4 + 4 * dimensions
    # 0x08 says unsigned bytes, the last byte of the magic number the number of dimensions.
    if len(content) < header or content[:4] != bytes([0, 0, 8, dimensions]):
        raise _damaged(name, f"{path} is not an idx file of unsigned bytes with {dimensions} dimension(s)")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if not all(shape):  # then the other sizes may be any, and numpy refuses some of them
        raise _damaged(name, f"{path} holds nothing, as its header {shape} says")
    if math.prod(shape) != len(content) - header:
        have = len(content) - header
        raise _damaged(name, f"{path} holds {have} bytes of data where its header {shape} asks for another count")
    # A copy, since an array over bytes cannot be written to and torch warns about such arrays.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy(), official


def read_cifar(name: str, root: Path, split: str, entry: Entry, allow_unofficial: bool) -> Dataset:
    """CIFAR-10's or CIFAR-100's pickled batches; the class names come from the meta file."""
    *batches, meta = entry.train if split == "train" else entry.test
    label_key, names_key = ("fine_labels", "fine_label_names") if name == "cifar100" else ("labels", "label_names")
    content, meta_official, meta_path = _checked_bytes(name, meta, root, allow_unofficial)
    names = [_text(value) for value in _listed(name, _unpickled(name, content, meta_path), names_key, meta_path)]
    if len(names) != entry.class_count:
        raise _damaged(name, f"{meta_path} names {len(names)} classes, not {entry.class_count}")
    flags, images, labels = [meta_official], [], []
    for batch in batches:
        content, official, path = _checked_bytes(name, batch, root, allow_unofficial)
        fields = _unpickled(name, content, path)
        data = fields.get("data")
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
            raise _damaged(name, f"{path} has no `data` of shape (N, 3072)")
        values = _listed(name, fields, label_key, path)
        if len(values) != len(data):
            raise _damaged(name, f"{path} has {len(data)} images but {len(values)} labels")
        for index, value in enumerate(values):
            if type(value) is not int or not 0 <= value < entry.class_count:
                label = f"label {value!r:.40} at index {index}"
                raise _damaged(name, f"{path}: {label} is outside 0..{entry.class_count - 1}")
        flags.append(official)
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(np.array(values, np.int64))
    inputs = np.concatenate(images)
    return Dataset(name, split, inputs, np.concatenate(labels), tuple(names), _verdict(flags))


def _listed(name: str, fields: dict[str, Any], key: str, path: Path) -> list:
    if not isinstance(fields.get(key), list):
        raise _damaged(name, f"{path} has no list `{key}`, so it is not the CIFAR file it should be")
    return fields[key]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _unpickled(name: str, content: bytes, path: Path) -> dict[str, Any]:
    """The pickled dict, with text keys. No name in the pickle is looked up: the few that arrays need get stand-ins.

    numpy's own reconstruction would let the file choose shapes, dtypes and dtype flags. The stand-ins accept one thing:
    unsigned bytes, as many as the shape says. They are made anew for each file, because a pickle can set attributes on
    what it is given.
    """

    class Array:
        def __init__(self, *arguments: object) -> None:
            self.value: np.ndarray | None = None

        def __setstate__(self, state: tuple) -> None:
            _, shape, kind, fortran, data = state
            sizes = [size for size in shape if type(size) is int and size >= 0]
            if type(kind) is not Kind or kind.name != "u1" or fortran or type(data) is not bytes:
                raise pickle.UnpicklingError("an array of something else than unsigned bytes in C order")
            if len(sizes) != len(shape) or math.prod(sizes) != len(data):
                raise pickle.UnpicklingError("an array whose shape does not fit its data")
            self.value = np.frombuffer(data, np.uint8).reshape(sizes)

    class Kind:
        def __init__(self, name: object, *arguments: object) -> None:
            self.name = _text(name)

        def __setstate__(self, state: tuple) -> None:
            """Byte order and alignment, which unsigned bytes do not have."""

    class NdarrayName:
        """Stands where numpy.ndarray is named as the type to rebuild."""

    def encode(text: str, encoding: str) -> bytes:
        """How Python 3 spells bytes in protocol 2, so that copies saved again can be read."""
        if type(text) is not str or encoding != "latin1":
            raise pickle.UnpicklingError("an encoding other than latin1")
        return text.encode("latin1")

    allowed: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): Array,
        ("numpy._core.multiarray", "_reconstruct"): Array,
        ("numpy", "ndarray"): NdarrayName,
        ("numpy", "dtype"): Kind,
        ("_codecs", "encode"): encode,
    }

    # The one in Python: that in C makes room for as many objects as the file says it will have.
    class Reader(pickle._Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
            return allowed[module, name]

        def persistent_load(self, identifier: object) -> Any:
            raise pickle.UnpicklingError("it asks for a persistent object, which no CIFAR file needs")

    try:
        fields = Reader(io.BytesIO(content), encoding="bytes").load()
        if type(fields) is not dict:
            raise pickle.UnpicklingError("it holds no dict")
        return {_text(key): value.value if type(value) is Array else value for key, value in fields.items()}
    except Exception as error:
        raise _damaged(name, f"{path} cannot be read as a CIFAR file ({error or type(error).__name__})") from error


def read_svhn(name: str, root: Path, split: str, entry: Entry, allow_unofficial: bool) -> Dataset:
    """SVHN's cropped digits: X (32, 32, 3, N) uint8 and y (N, 1) with labels 1..10, where 10 is the digit 0."""
    (file,) = entry.train if split == "train" else entry.test
    content, official, path = _checked_bytes(name, file, root, allow_unofficial)
    try:
        fields = read_mat(content)
    except Exception as error:
        raise _damaged(name, f"{path} cannot be read as a MATLAB file ({error or type(error).__name__})") from error
    images, labels = fields.get("X"), fields.get("y")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[:-1] != (32, 32, 3):
        raise _damaged(name, f"{path} has no uint8 array X of shape (32, 32, 3, N)")
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.size != images.shape[3]:
        raise _damaged(name, f"{path} has no integer array y with a label for each of its {images.shape[3]} images")
    digits = labels.reshape(-1).astype(np.int64)
    wrong = np.flatnonzero((digits < 1) | (digits > 10))
    if len(wrong):
        label = f"label {digits[wrong[0]]} at index {wrong[0]}"
        raise _damaged(name, f"{path}: {label} is outside 1..10 (10 is the digit 0)")
    inputs = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Dataset(name, split, inputs, digits % 10, entry.classes, official)


def read_digits(name: str, root: Path, split: str, entry: Entry, allow_unofficial: bool) -> Dataset:
    """scikit-learn's 8x8 digits, 0..16 stretched to 0..255, in a fixed stratified split of 70 % and 30 %."""
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    labels = bunch.target.astype(np.int64)
    train, test = stratified_split(labels, count=round(0.3 * len(labels)), seed=0)
    chosen = train if split == "train" else test
    inputs = np.round(bunch.images[chosen, None] * (255 / 16)).astype(np.uint8)
    return Dataset(name, split, inputs, labels[chosen], entry.classes)
