"""Data sets: the checks, the splits, each reader on files written here, hostile files, and facts about the real
sets."""

import contextlib
import gzip
import hashlib
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from eow import mapping
from eow.config import DataConfig, resolve
from eow.data import Dataset, csv_files, holdout_split, known_unknown, load, statistics
from eow.data.catalog import CATALOG, data_root
from eow.data.dataset import known_part, stratified_split
from eow.data.matlab import read_mat
from eow.data.sets import RunData, load_outlier, load_sets
from eow.errors import EowError

RANDOM = np.random.default_rng(0)
CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def images(count: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, (count, *shape), dtype=np.uint8)


def toy(labels: list[int], classes: int = 3, dimension: int = 2) -> Dataset:
    inputs = np.arange(len(labels) * dimension, dtype=np.float32).reshape(-1, dimension)
    return Dataset("toy", "train", inputs, np.array(labels, np.int64), tuple("abcdefghij"[:classes]))


# ---- the Dataset itself


def test_dataset_basics() -> None:
    data = toy([0, 1, 2, 1])
    assert len(data) == 4
    assert data.shape == (2,)
    part = data.subset([3, 0])
    assert part.labels.tolist() == [1, 0]
    assert part.inputs.tolist() == [[6, 7], [0, 1]]
    assert part.classes == data.classes


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros((2, 3), np.float64), [0, 1], "float64"),
        (np.zeros((2, 4, 4), np.uint8), [0, 1], r"\(2, 4, 4\)"),
        (np.zeros((2, 3), np.float32), [0], "2 inputs but 1 labels"),
        (np.zeros((0, 3), np.float32), [], "no samples"),
        (np.zeros((2, 0), np.float32), [0, 1], "no numbers in its samples"),
        (np.zeros((3, 3), np.float32), [0, 5, -1], r"label 5 at index 1 is outside 0\.\.1 \(2 classes\)"),
        (np.zeros((2, 3), np.float32), [0, -1], "label -1 at index 1"),
        (np.array([[0, 0, 0], [0, 0, np.nan]], np.float32), [0, 1], "row 1, column 2"),
        (np.array([[0, 0, 0], [np.inf, 0, 0]], np.float32), [0, 1], "row 1, column 0"),
    ],
)
def test_dataset_refuses(inputs: np.ndarray, labels: list[int], message: str) -> None:
    with pytest.raises(EowError, match=message):
        Dataset("toy", "train", inputs, np.array(labels, np.int64), ("a", "b"))
    with pytest.raises(EowError, match="labels must be int64"):
        Dataset("toy", "train", np.zeros((1, 2), np.float32), np.zeros(1, np.int32), ("a",))


def test_hash_is_sha256_of_content() -> None:
    data = toy([0, 1], classes=2)
    content = b"(2, 2) <f4\n" + data.inputs.tobytes() + data.labels.tobytes() + b"1:a1:b"
    assert data.hash == hashlib.sha256(content).hexdigest()
    view = Dataset("other", "test", np.asfortranarray(data.inputs), data.labels, data.classes)
    assert view.hash == data.hash  # memory layout, name and split are not content
    hashes = {data.hash}
    for changed in (
        Dataset("toy", "train", data.inputs + 1, data.labels, data.classes),
        Dataset("toy", "train", data.inputs, data.labels[::-1].copy(), data.classes),
        Dataset("toy", "train", data.inputs, data.labels, ("a", "c")),
        Dataset("toy", "train", data.inputs, data.labels, ("a1:b", "")),
        Dataset("toy", "train", data.inputs.reshape(2, 2, 1, 1).astype(np.uint8), data.labels, data.classes),
    ):
        hashes.add(changed.hash)
    assert len(hashes) == 6


# ---- splits


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.data())
@settings(max_examples=100, deadline=None)
def test_stratified_split(labels: list[int], draw: st.DataObject) -> None:
    array = np.array(labels)
    count = draw.draw(st.integers(1, len(labels) - 1))
    rest, held = stratified_split(array, count, seed=3)
    assert len(held) == count
    assert sorted([*rest, *held]) == list(range(len(labels)))
    sizes, taken = np.bincount(array, minlength=5), np.bincount(array[held], minlength=5)
    present = (sizes > 0).sum()
    if count <= len(labels) - present:
        assert (taken < np.maximum(sizes, 1)).all()  # no class loses all its samples where that can be avoided
    again = stratified_split(array, count, seed=3)
    assert all((first == second).all() for first, second in zip((rest, held), again))


def test_split_is_proportional() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    _, held = stratified_split(labels, 32, seed=0)
    assert np.bincount(labels[held]).tolist() == [20, 10, 2]
    assert not np.array_equal(held, stratified_split(labels, 32, seed=1)[1])


def test_holdout_split() -> None:
    data = toy([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    rest, held = holdout_split(data, 5, seed=0)
    assert (len(rest), len(held)) == (5, 5)
    assert np.bincount(held.labels).tolist() == [2, 2, 1]
    rows = np.concatenate([rest.inputs, held.inputs])[:, 0]
    assert sorted(rows) == data.inputs[:, 0].tolist()
    assert len(holdout_split(data, 0.3, seed=0)[1]) == 3
    for wrong in (0, 10, 11, -1, 0.0, 1.0, 1.5, 0.01, True, "3"):
        with pytest.raises(EowError):
            holdout_split(data, wrong, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (2, 1), (9, 1), (19, 1), (20, 2), (1198, 119), (1599, 159),  # a tenth is less
        (1600, 160), (1650, 162), (50_000, 894), (60_000, 980),  # four roots are
    ],
)  # fmt: skip
def test_an_automatic_holdout_is_four_roots_and_at_most_a_tenth(total: int, expected: int) -> None:
    data = toy([0, 1] * (total // 2) + [0] * (total % 2))
    rest, held = holdout_split(data, "auto", seed=0)
    assert (len(rest), len(held)) == (total - expected, expected)
    by_count = holdout_split(data, expected, seed=0)[1]
    assert np.array_equal(held.inputs, by_count.inputs)


def test_an_automatic_holdout_counts_what_is_trained_on() -> None:
    data = load_sets(resolve({"data": {"name": "digits", "holdout": "auto", "limit": 400}}).data, seed=0)
    assert (len(data.train), len(data.holdout)) == (400, 40)  # a tenth of 400, not of 1,258


def test_no_other_word_says_how_much_is_held_out() -> None:
    assert resolve({"method": {"name": "vanilla"}, "data": {"holdout": "auto"}}).data.holdout == "auto"
    for wrong in ("most", "Auto", "0.1", ""):
        with pytest.raises(EowError, match=f"^data\\.holdout is '{wrong}': give a count, a share below 1, or 'auto'$"):
            resolve({"data": {"holdout": wrong}})
    with pytest.raises(EowError, match="cannot hold out 1 of 1 samples"):
        holdout_split(toy([0]), "auto", seed=0)


def test_known_unknown() -> None:
    data = toy([0, 1, 2, 3, 3, 1], classes=4)
    known, unknown = known_unknown(data, [3, 1])
    assert known.classes == ("a", "c")
    assert unknown.classes == ("b", "d")
    assert known.labels.tolist() == [0, 1]
    assert known.inputs[:, 0].tolist() == [0, 4]
    assert unknown.labels.tolist() == [0, 1, 1, 0]
    assert unknown.inputs[:, 0].tolist() == [2, 6, 8, 10]
    assert known_unknown(data, ["d", "b"])[1].hash == unknown.hash
    for wrong, message in (
        ([4], "outside 0..3"),
        (["e"], "no class 'e'"),
        ([-1], "outside"),
        ([1, 1], "twice"),
        ([0, 1, 2], "fewer"),
        ([], "no"),
    ):
        with pytest.raises(EowError, match=message):
            known_unknown(data, wrong)
    absent = toy([0, 2], classes=3)
    with pytest.raises(EowError, match="the train split has no sample of b: hold out other classes"):
        known_unknown(absent, ["b"])
    assert known_part(absent, ["b"]).classes == ("a", "c")


def test_a_number_is_a_class_s_name_where_names_are_numbers() -> None:
    """A table's 1, 2, 3: `--unknown-classes 1` must not hold out the class called 2."""
    data = replace(toy([0, 1, 2], classes=3), classes=("1", "2", "3"))
    for label in (1, "1"):
        known, unknown = known_unknown(data, [label])
        assert (known.classes, unknown.classes) == (("2", "3"), ("1",))
    with pytest.raises(EowError, match="has no class '0'"):
        known_unknown(data, [0])
    floats = replace(data, classes=("1.0", "2.0", "3.5"))
    assert known_unknown(floats, [2])[1].classes == ("2.0",)
    for wrong in (0, 3, "2"):
        with pytest.raises(EowError, match=f"has no class '{wrong}'"):
            known_unknown(floats, [wrong])


# ---- statistics


def test_statistics_agree_with_numpy() -> None:
    data = Dataset("toy", "train", images(2500, 3, 4, 5), np.zeros(2500, np.int64), ("a",))
    mean, std = statistics(data)
    scaled = data.inputs.astype(np.float64) / 255
    np.testing.assert_allclose(mean, scaled.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, scaled.std((0, 2, 3)), rtol=1e-12)
    features = np.column_stack([RANDOM.normal(1e6, 1, 2500), np.full(2500, 7.0)]).astype(np.float32)
    mean, std = statistics(Dataset("toy", "train", features, np.zeros(2500, np.int64), ("a",)))
    np.testing.assert_allclose(mean, features.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(std[0], features[:, 0].astype(np.float64).std(), rtol=1e-9)
    assert std[1] == 1


# ---- idx


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(root: Path, pixels: np.ndarray, labels: np.ndarray, gz: bool = False, folder: str = "MNIST") -> Path:
    raw = root / folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, array in (("t10k-images-idx3-ubyte", pixels), ("t10k-labels-idx1-ubyte", labels)):
        content = idx_bytes(array)
        path = raw / (f"{name}.gz" if gz else name)
        path.write_bytes(gzip.compress(content) if gz else content)
    return raw


@pytest.mark.parametrize("gz", [False, True])
def test_idx(tmp_path: Path, gz: bool) -> None:
    pixels, labels = images(6, 28, 28), np.array([0, 9, 1, 5, 5, 2], np.uint8)
    write_mnist(tmp_path, pixels, labels, gz)
    with pytest.raises(EowError, match=r"not the official file \(md5 [0-9a-f]{32} instead of .*--allow-unofficial"):
        load("mnist", tmp_path, "test")
    data = load("mnist", tmp_path, "test", allow_unofficial=True)
    np.testing.assert_array_equal(data.inputs[:, 0], pixels)
    np.testing.assert_array_equal(data.labels, labels)
    assert data.official is False
    assert data.inputs.flags.writeable
    with pytest.raises(EowError, match=r"train-images-idx3-ubyte is missing.*eow data fetch mnist"):
        load("mnist", tmp_path, "train", allow_unofficial=True)


def test_idx_with_the_official_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = images(2, 28, 28), np.array([3, 4], np.uint8)
    write_mnist(tmp_path, pixels, labels)
    entry = CATALOG["mnist"]
    md5s = [hashlib.md5(idx_bytes(array)).hexdigest() for array in (pixels, labels)]
    files = tuple(type(file)(file.path, md5) for file, md5 in zip(entry.test, md5s))
    monkeypatch.setitem(CATALOG, "mnist", type(entry)(**{**vars(entry), "test": files}))
    assert load("mnist", tmp_path, "test").official is True


def test_notmnist_has_no_hash_and_no_training_split(tmp_path: Path) -> None:
    write_mnist(tmp_path, images(3, 28, 28), np.array([0, 1, 9], np.uint8), folder="notMNIST")
    data = load("notmnist", tmp_path, "test")
    assert data.official is None
    assert data.classes[9] == "J"
    with pytest.raises(EowError, match="test split only"):
        load("notmnist", tmp_path)


@pytest.mark.parametrize("damage", ["cut", "longer", "magic", "empty", "huge", "size", "label", "gzip"])
def test_damaged_idx(tmp_path: Path, damage: str) -> None:
    labels = np.array([0, 12 if damage == "label" else 1], np.uint8)
    raw = write_mnist(tmp_path, images(2, 8, 8) if damage == "size" else images(2, 28, 28), labels, damage == "gzip")
    path = raw / ("t10k-images-idx3-ubyte" + (".gz" if damage == "gzip" else ""))
    content = path.read_bytes()
    changed = {
        "cut": content[:-1],
        "longer": content + b"x",
        "magic": b"\0\0\x0d\x03" + content[4:],
        "empty": b"",
        "huge": content[:4] + b"\xff" * 12 + content[16:],
        "gzip": content[: len(content) // 2],
    }
    path.write_bytes(changed.get(damage, content))
    with pytest.raises(
        EowError, match="label 12 at index 1" if damage == "label" else "t10k-images-idx3-ubyte"
    ) as told:
        load("mnist", tmp_path, "test", allow_unofficial=True)
    assert damage == "label" or str(told.value).endswith("fetch it again with `eow data fetch mnist`")


def test_damaged_files_that_cannot_be_fetched(tmp_path: Path) -> None:
    raw = write_mnist(tmp_path, images(3, 28, 28), np.array([0, 1, 9], np.uint8), folder="notMNIST")
    (raw / "t10k-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(EowError, match=r"is not an idx file.*: notMNIST has no official idx files to fetch: put"):
        load("notmnist", tmp_path, "test")


# ---- CIFAR


def write_cifar10(root: Path, batch: object, protocol: int = 4, names: list[str] | None = None) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    meta = {"label_names": CIFAR10_NAMES if names is None else names}
    (folder / "batches.meta").write_bytes(pickle.dumps(meta, protocol))
    content = batch if isinstance(batch, bytes) else pickle.dumps(batch, protocol)
    (folder / "test_batch").write_bytes(content)
    return folder / "test_batch"


def read_cifar10(root: Path) -> Dataset:
    return load("cifar10", root, "test", allow_unofficial=True)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar10(tmp_path: Path, protocol: int) -> None:
    pixels = images(4, 3072)
    write_cifar10(tmp_path, {"data": pixels, "labels": [3, 0, 9, 9], "batch_label": "x"}, protocol)
    data = read_cifar10(tmp_path)
    np.testing.assert_array_equal(data.inputs, pixels.reshape(4, 3, 32, 32))
    assert data.labels.tolist() == [3, 0, 9, 9]
    assert data.classes == tuple(CIFAR10_NAMES)
    assert data.official is False
    assert data.inputs.flags.writeable


def test_cifar10_training_batches_in_order(tmp_path: Path) -> None:
    write_cifar10(tmp_path, {})
    for number in range(1, 6):
        batch = {b"data": np.full((2, 3072), number, np.uint8), b"labels": [number, 0]}
        (tmp_path / f"cifar-10-batches-py/data_batch_{number}").write_bytes(pickle.dumps(batch))
    data = load("cifar10", tmp_path, allow_unofficial=True)
    assert data.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert data.inputs[:, 2, 31, 31].tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_cifar100_reads_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    names = [f"name{number}" for number in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names, "coarse_label_names": ["x"]}))
    batch = {"data": images(2, 3072), "fine_labels": [99, 5], "coarse_labels": [1, 2]}
    (folder / "train").write_bytes(pickle.dumps(batch))
    data = load("cifar100", tmp_path, allow_unofficial=True)
    assert data.labels.tolist() == [99, 5]
    assert data.classes == tuple(names)


class Call:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


class Persistent(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        return "mine" if value == "persistent" else None


@pytest.mark.parametrize("function", ["os.system", "eval", "exec", "open", "codecs", "load", "getattr"])
def test_hostile_pickle_runs_nothing(tmp_path: Path, function: str) -> None:
    marker = tmp_path / "marker"
    call = {
        "os.system": Call(os.system, f"touch {marker}"),
        "eval": Call(eval, f"open({str(marker)!r}, 'w')"),
        "exec": Call(exec, f"open({str(marker)!r}, 'w')"),
        "open": Call(open, str(marker), "w"),
        "codecs": Call(__import__("codecs").open, str(marker), "w"),
        "load": Call(np.load, str(marker), None, True),
        "getattr": Call(getattr, "text", "format"),
    }[function]
    write_cifar10(tmp_path, {"data": call, "labels": [0]})
    with pytest.raises(EowError, match="which no CIFAR file needs"):
        read_cifar10(tmp_path)
    assert not marker.exists()


def test_hostile_pickle_is_live(tmp_path: Path) -> None:
    """The control of the test above: plain pickle does run such a file."""
    marker = tmp_path / "marker"
    path = write_cifar10(tmp_path, {"data": Call(os.system, f"touch {marker}")})
    pickle.loads(path.read_bytes())
    assert marker.exists()


def test_pickle_with_persistent_object(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path, b"")
    with path.open("wb") as stream:
        Persistent(stream).dump({"data": "persistent"})
    with pytest.raises(EowError, match="persistent"):
        read_cifar10(tmp_path)


def test_unofficial_pickle_is_refused_before_it_is_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path, {"data": Call(os.system, "true")})
    with pytest.raises(EowError, match="is not the official file"):
        load("cifar10", tmp_path, "test")


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\x80\x04",
        b"not a pickle",
        [1, 2],
        {"labels": [0]},
        {"data": "text", "labels": [0]},
        {"data": np.zeros((1, 3072), object), "labels": [0]},
        {"data": np.zeros((1, 3072), np.float32), "labels": [0]},
        {"data": np.zeros((1, 3072), np.int8), "labels": [0]},
        {"data": np.zeros((1, 100), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": 0},
        {"data": np.zeros((1, 3072), np.uint8)},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [10]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [-1]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [2**80]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": ["0"]},
        {"data": np.zeros((1, 3072), np.uint8), "labels": [True]},
        {"data": np.zeros((0, 3072), np.uint8), "labels": []},
    ],
    ids=str,
)
def test_malformed_cifar(tmp_path: Path, batch: object) -> None:
    write_cifar10(tmp_path, batch)
    with pytest.raises(EowError, match=r"test_batch.*: fetch it again with `eow data fetch cifar10`|has no samples"):
        read_cifar10(tmp_path)


def test_cifar_cut_anywhere_and_flipped_anywhere(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path, {"data": images(1, 3072), "labels": [0]})
    content = path.read_bytes()
    for end in [*range(0, 200, 3), *range(200, len(content), 211)]:
        path.write_bytes(content[:end])
        with pytest.raises(EowError):
            read_cifar10(tmp_path)
    for place in [*range(140), *range(len(content) - 60, len(content))]:
        spoilt = bytearray(content)
        spoilt[place] ^= 0xFF
        path.write_bytes(spoilt)
        # Either the damage does not matter or it is an EowError; any other exception fails the test.
        with contextlib.suppress(EowError):
            read_cifar10(tmp_path)


def test_pickle_cannot_claim_a_huge_array(tmp_path: Path) -> None:
    """A shape of 10^12 x 3072 over four bytes of data, spelled in opcodes."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01\x8a\x06\x00\x10\xa5\xd4\xe8\x00"
        b"M\x00\x0c\x86cnumpy\ndtype\nX\x02\x00\x00\x00u1K\x00K\x01\x87R\x89C\x04abcdtb"
    )
    write_cifar10(tmp_path, b"\x80\x04}(X\x04\x00\x00\x00data" + array + b"u.")
    with pytest.raises(EowError, match="shape does not fit its data"):
        read_cifar10(tmp_path)


def test_cifar_meta_with_too_few_names(tmp_path: Path) -> None:
    write_cifar10(tmp_path, {"data": images(1, 3072), "labels": [0]}, names=["cat", "dog"])
    with pytest.raises(EowError, match="names 2 classes, not 10: fetch it again with `eow data fetch cifar10`"):
        read_cifar10(tmp_path)


# ---- SVHN


def test_svhn(tmp_path: Path) -> None:
    pixels = images(32, 32, 3, 4)
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": pixels, "y": np.array([[1], [10], [9], [10]], np.uint8)})
    data = load("svhn", tmp_path, "test", allow_unofficial=True)
    assert data.labels.tolist() == [1, 0, 9, 0]
    assert data.inputs[2, 1, 30, 7] == pixels[30, 7, 1, 2]
    np.testing.assert_array_equal(data.inputs[3].transpose(1, 2, 0), pixels[..., 3])


@pytest.mark.parametrize(
    "fields",
    [
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[0], [1]])},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1.0], [1.5]])},
        {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1]])},
        {"X": np.zeros((32, 32, 3, 2)), "y": np.array([[1], [2]])},
        {"X": np.zeros((2, 32, 32, 3), np.uint8), "y": np.array([[1], [2]])},
        {"y": np.array([[1], [2]])},
    ],
)
def test_malformed_svhn(tmp_path: Path, fields: dict) -> None:
    scipy.io.savemat(tmp_path / "test_32x32.mat", fields)
    with pytest.raises(EowError, match=r"test_32x32\.mat.*: fetch it again with `eow data fetch svhn`"):
        load("svhn", tmp_path, "test", allow_unofficial=True)


def test_complex_numbers_are_not_taken_for_their_real_parts(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "x.mat", {"z": np.array([[1 + 2j, 3j]]), "a": np.array([[1.0, 2.0]])})
    found = read_mat((tmp_path / "x.mat").read_bytes())
    assert {name: array.tolist() for name, array in found.items()} == {"a": [[1.0, 2.0]]}


def test_cut_svhn(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    scipy.io.savemat(path, {"X": images(32, 32, 3, 2), "y": np.array([[1], [2]])})
    content = path.read_bytes()
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        with pytest.raises(EowError, match=r"test_32x32\.mat"):
            load("svhn", tmp_path, "test", allow_unofficial=True)


# ---- digits, noise, permuted pixels


def test_digits_against_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    train, test = load("digits"), load("digits", split="test")
    assert (len(train), len(test)) == (1258, 539)
    both = np.concatenate([train.inputs, test.inputs])[:, 0]
    bunch = load_digits()
    assert sorted(map(bytes, np.rint(both / 255 * 16).astype(np.uint8))) == sorted(
        map(bytes, bunch.images.astype(np.uint8))
    )
    assert both.max() == 255
    totals = np.bincount(bunch.target)
    np.testing.assert_allclose(np.bincount(test.labels) / totals, 0.3, atol=0.005)


def test_digits_split_never_changes() -> None:
    """Written down once: results of other versions stay comparable only as long as this holds."""
    assert load("digits", split="test").labels[:12].tolist() == [1, 5, 1, 3, 4, 8, 9, 0, 1, 3, 4, 7]


def test_noise() -> None:
    data = load("noise:3x16x16")
    assert data.inputs.shape == (2000, 3, 16, 16)
    assert data.classes == ("noise",)
    counts = np.bincount(data.inputs.reshape(-1), minlength=256)
    expected = data.inputs.size / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 350  # 255 degrees of freedom: p < 1e-4 above
    assert load("noise", shape=(3, 16, 16)).hash == data.hash
    assert load("noise:3x16x16", split="test").hash != data.hash
    for huge in ("noise:1000000x1000000x1000000", "noise:3x2000x2000", "noise:999999999x1x1"):
        with pytest.raises(EowError, match=r"noise of \d+x\d+x\d+ is more than any network takes"):
            load(huge)
    for wrong in ("noise", "noise:", "noise:3x16", "noise:axbxc", "noise:0x4x4", f"noise:{5000 * '9'}x1x1"):
        with pytest.raises(EowError, match="noise:CxHxW"):
            load(wrong)


def test_permuted(tmp_path: Path) -> None:
    pixels = np.stack([np.arange(32 * 32) % 251, np.arange(32 * 32) % 241, np.arange(32 * 32) // 4], 0)
    write_cifar10(tmp_path, {"data": np.tile(pixels.astype(np.uint8).reshape(1, 3072), (3, 1)), "labels": [1, 2, 3]})
    data = load("permuted:cifar10", tmp_path, "test", allow_unofficial=True)
    plain = read_cifar10(tmp_path)
    assert data.name == "permuted:cifar10"
    assert data.labels.tolist() == [1, 2, 3]
    assert data.official is False
    for image, original in zip(data.inputs, plain.inputs):
        # The same pixels as (r, g, b) triples, in another place.
        triples, originals = image.reshape(3, -1).T.tolist(), original.reshape(3, -1).T.tolist()
        assert sorted(triples) == sorted(originals)
        assert triples != originals
    assert data.inputs[0].tobytes() != data.inputs[1].tobytes()  # each image has an order of its own
    assert load("permuted:cifar10", tmp_path, "test", allow_unofficial=True).hash == data.hash


def test_a_permuted_set_lies_where_the_set_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    for index in range(30):
        Image.fromarray(images(4, 6, 3)).save(tmp_path / f"a/{index}.png")
    name = f"permuted:folder:{tmp_path}"
    data = load(name)
    assert mapping.file_of(data.inputs) is None
    monkeypatch.setattr(mapping, "PIECE", 7 * 4 * 6 * 3)  # its pieces are others, and its order the same
    streamed = load(name, resident=False)
    assert mapping.file_of(streamed.inputs) is not None
    assert streamed.hash == data.hash != load(f"folder:{tmp_path}").hash


# ---- outliers


def test_the_test_set_is_no_outlier_of_itself(tmp_path: Path) -> None:
    some = images(60, 4, 4)
    for name, pixels in (("a", some), ("copy", some), ("b", 255 - some)):
        np.savez(tmp_path / f"{name}.npz", x=pixels, y=np.arange(60) % 3)
    a, copy, b, again = (f"npz:{tmp_path}/{name}.npz" for name in ("a", "copy", "b", "./a"))
    assert load_sets(DataConfig(a, outliers=(b, f"permuted:{a}")), 0).outliers.keys() == {b, f"permuted:{a}"}
    for wanted, name in (
        (DataConfig(a, outliers=(b, a)), a),
        (DataConfig(a, outliers=(copy,)), copy),
        (DataConfig(a, outliers=(a,), unknown_classes=(0,)), a),  # of which the test set is a part
        (DataConfig(a, outliers=(again,), unknown_classes=(0,)), again),
        (DataConfig(a, outliers=(copy,), unknown_classes=(0,)), copy),
    ):
        with pytest.raises(EowError, match=rf"^{name} is what the run is tested on: choose other outliers$"):
            load_sets(wanted, 0)


def test_outliers_lie_where_the_run_wants_its_data(tmp_path: Path) -> None:
    for index in range(10):
        write_image(tmp_path / f"a/{index}.png", shade=index)
    name = f"folder:{tmp_path}"
    for resident in (True, False):
        part = load_outlier(name, DataConfig(resident=resident), (3, 4, 6), "")
        assert (mapping.file_of(part.inputs) is None) == resident
    with pytest.raises(EowError, match=r"are of shape \(3, 4, 6\), but digits is \(1, 8, 8\): choose others"):
        load_outlier(name, DataConfig(), (1, 8, 8), "")


def test_outliers_are_all_of_a_file_without_a_test_split(tmp_path: Path) -> None:
    """Whatever stands in its column of labels; of a set that has a test split, and of the run's own, that."""
    rows = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    for name, labels in (("a", np.arange(100) % 2), ("b", np.zeros(100, int))):
        np.savez(tmp_path / f"{name}.npz", x=rows, y=labels)
        found = load_outlier(f"npz:{tmp_path}/{name}.npz", DataConfig("csv:x.csv"), (4,), "")
        np.testing.assert_array_equal(found.inputs, rows)
    np.savez(tmp_path / "c.npz", x_train=rows, y_train=np.arange(100) % 2, x_test=rows[:7], y_test=np.arange(7) % 2)
    assert len(load_outlier(f"npz:{tmp_path}/c.npz", DataConfig("csv:x.csv"), (4,), "")) == 7
    for index in range(10):
        write_image(tmp_path / f"tree/a/{index}.png", shade=index)
    tree = f"folder:{tmp_path}/tree"
    assert len(load_outlier(tree, DataConfig(), (3, 4, 6), "")) == 10
    assert len(load_outlier(f"permuted:{tree}", DataConfig(), (3, 4, 6), "")) == 10
    assert len(load_outlier(f"permuted:{tree}", DataConfig(tree), (3, 4, 6), "")) == 2
    assert len(load_outlier("digits", DataConfig("mnist"), (1, 8, 8), "")) == len(load("digits", split="test"))


def test_a_limit_that_leaves_classes_out_is_told_of(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=random.normal(size=(100, 4)), y=np.arange(100) % 10)
    wanted = DataConfig(f"npz:{tmp_path}/a.npz", limit=4)
    with pytest.warns(
        RuntimeWarning, match=r"with data.limit=4, 6 of 10 classes have no training sample \(.*, \.\.\.\)"
    ):
        found = load_sets(wanted, 0)
    assert len(set(found.train.labels)) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_sets(replace(wanted, limit=10), 0)


def test_outliers_need_no_labels(tmp_path: Path) -> None:
    """A table has the run's own titles then, in any order; arrays are x alone. To train on, both need them."""
    rows = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=rows)
    (tmp_path / "b.csv").write_text("b,a\n" + "".join(f"{b},{a}\n" for a, b in rows.tolist()))
    for name, columns in ((f"npz:{tmp_path}/a.npz", ()), (f"csv:{tmp_path}/b.csv", ("a", "b"))):
        found = load_outlier(name, DataConfig("csv:x.csv"), (2,), "", columns)
        np.testing.assert_array_equal(found.inputs, rows)
        assert found.columns == columns
        assert (found.classes, set(found.labels)) == (("outlier",), {0})
        for split in ("train", "test"):
            with pytest.raises(EowError):
                load(name, split=split, columns=columns)
    with pytest.raises(EowError, match=r"without a label have exactly the run's columns \(a, b, c\)"):
        load_outlier(f"csv:{tmp_path}/b.csv", DataConfig("csv:x.csv"), (3,), "", ("a", "b", "c"))
    with pytest.raises(EowError, match="give it the run's columns, with a label or without"):
        load_outlier(write_csv(tmp_path, "a,label", *["1,x"] * 9), DataConfig("csv:x.csv"), (2,), "", ("a", "b"))


@pytest.mark.parametrize("name", ["csv:~who is that/a.csv", "npz:~who is that/a.npz", "folder:~who is that"])
def test_the_folder_of_a_user_who_is_none(name: str) -> None:
    with pytest.raises(EowError, match=r"~who is that.*(cannot be read|is not a folder)"):
        load(name)


def test_outliers_columns_are_known_by_their_titles(tmp_path: Path) -> None:
    rows = [f"{index},{index / 4},{'xy'[index % 2]}" for index in range(20)]
    trained = load(write_csv(tmp_path, "a,b,label", *rows))
    assert trained.columns == trained.subset([0]).columns == ("a", "b")
    (tmp_path / "other.csv").write_text("b,label,a\n" + "".join(f"{i},z,{100 + i}\n" for i in range(6)))
    wanted, other = DataConfig(f"csv:{tmp_path}/a.csv"), f"csv:{tmp_path}/other.csv"
    for found in (load_outlier(other, wanted, (2,), "", ("a", "b")), load_sets(replace(wanted, outliers=(other,)), 0)):
        inputs = found.outliers[other].inputs if isinstance(found, RunData) else found.inputs
        np.testing.assert_array_equal(inputs, [[100 + i, i] for i in range(6)])
    with pytest.raises(EowError, match=r"other columns than the run was trained on \(a, c not in both\)"):
        load_outlier(other, wanted, (2,), "", ("c", "b"))
    (tmp_path / "twice.csv").write_text("b,b,a,label\n" + "".join(f"{i},{i},{i},z\n" for i in range(6)))
    twice = f"csv:{tmp_path}/twice.csv"
    assert load_outlier(twice, wanted, (3,), "", ("b", "b", "a")).columns == ("b", "b", "a")
    with pytest.raises(EowError, match="in another order, and b is the title of several"):
        load_outlier(twice, wanted, (3,), "", ("a", "b", "b"))


# ---- image trees


def write_image(path: Path, mode: str = "RGB", size: tuple[int, int] = (6, 4), shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode in ("L", "1", "P", "I;16") else (shade,) * len(mode)).save(path)


def test_folder_with_splits(tmp_path: Path) -> None:
    write_image(tmp_path / "train/dog/1.png", shade=1)
    write_image(tmp_path / "train/cat/deep/2.png", shade=2)
    write_image(tmp_path / "train/cat/1.png", shade=3)
    write_image(tmp_path / "val/dog/9.png", shade=4)
    (tmp_path / "train/cat/.hidden").write_text("x")
    (tmp_path / "train/.cache").mkdir()
    name = f"folder:{tmp_path}"
    train, test = load(name), load(name, split="test")
    assert train.inputs.shape == (3, 3, 4, 6)
    assert train.classes == test.classes == ("cat", "dog")
    assert train.labels.tolist() == [0, 0, 1]
    assert train.inputs[:, 0, 0, 0].tolist() == [3, 2, 1]
    assert (test.labels.tolist(), test.inputs[0, 0, 0, 0]) == ([1], 4)
    assert train.official is None
    write_image(tmp_path / "val/fox/1.png")
    with pytest.raises(EowError, match="fox is a class that the training images do not have: add it to them or remove"):
        load(name, split="test")


def test_folder_with_links(tmp_path: Path) -> None:
    """To a class and to an image they are followed; one that would leave images out is an error."""
    for index in range(5):
        write_image(tmp_path / f"elsewhere/{index}.png", shade=index)
    (tmp_path / "set/b").mkdir(parents=True)
    (tmp_path / "set/a").symlink_to(tmp_path / "elsewhere")
    for index in range(5):
        (tmp_path / f"set/b/{index}.png").symlink_to(tmp_path / f"elsewhere/{index}.png")
    train = load(f"folder:{tmp_path}/set")
    assert (train.classes, len(train)) == (("a", "b"), 8)
    for target in (tmp_path / "elsewhere", tmp_path / "set/b", tmp_path / "gone.png"):
        (tmp_path / "set/b/more").symlink_to(target)
        what = "a folder, which could lead in a circle" if target.is_dir() else "no file"
        with pytest.raises(EowError, match=f"set/b/more is a link to {what}: put what it stands for in its place, or"):
            load(f"folder:{tmp_path}/set")
        (tmp_path / "set/b/more").unlink()


def test_folder_cut_80_20(tmp_path: Path) -> None:
    for index in range(10):
        write_image(tmp_path / f"b/{index}.png", "L", shade=index)
        write_image(tmp_path / f"train/{index}.png", "L", shade=100 + index)  # a class may be called train
    train, test = (load(f"folder:{tmp_path}", split=split) for split in ("train", "test"))
    assert train.inputs.shape == (16, 1, 4, 6)
    assert np.bincount(test.labels).tolist() == [2, 2]
    shades = [*train.inputs[:, 0, 0, 0], *test.inputs[:, 0, 0, 0]]
    assert sorted(shades) == [*range(10), *range(100, 110)]


def test_classes_without_a_test_sample_are_told_of(tmp_path: Path) -> None:
    wanted = resolve({"data": {"name": f"folder:{tmp_path}"}, "model": {"name": "mlp"}}).data
    for index in range(10):
        write_image(tmp_path / f"cat/{index}.png", "L", shade=index)
        write_image(tmp_path / f"dog/{index}.png", "L", shade=100 + index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_sets(wanted, 0)
    write_image(tmp_path / "emu/0.png", "L", shade=200)
    with pytest.warns(RuntimeWarning, match=r"1 of 3 classes have no test sample \(emu\), so no figure speaks of them"):
        data = load_sets(wanted, 0)
    assert np.bincount(data.train.labels, minlength=3)[2] == 1
    assert np.bincount(data.test.labels, minlength=3)[2] == 0


@pytest.mark.parametrize(
    ("mode", "size", "message"),
    [
        ("RGB", (6, 5), "is 6x5 where the first image is 6x4"),
        ("L", (6, 4), "not both grey"),
        ("I;16", (6, 4), "8 bits"),
    ],
)
def test_folder_with_an_odd_image(tmp_path: Path, mode: str, size: tuple[int, int], message: str) -> None:
    for index in range(4):
        write_image(tmp_path / f"train/a/{index}.png")
    write_image(tmp_path / "test/a/0.png")
    write_image(tmp_path / "train/a/odd.png", mode, size)
    with pytest.raises(EowError, match=rf"odd\.png.*{message}"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize("content", ["text", "cut", "eps"])
def test_folder_with_a_file_that_is_no_image(tmp_path: Path, content: str) -> None:
    for index in range(4):
        write_image(tmp_path / f"train/a/{index}.png")
    write_image(tmp_path / "test/a/0.png")
    bad = tmp_path / "train/a/zzz.png"
    Image.fromarray(images(4, 6, 3)).save(bad)
    whole = bad.read_bytes()
    bad.write_bytes(
        {
            "text": b"hello",
            "cut": whole[: len(whole) // 2],
            "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n",
        }[content]
    )
    with pytest.raises(EowError, match=r"zzz\.png cannot be read as an image"):
        load(f"folder:{tmp_path}")


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(EowError, match="is not a folder: name one that has"):
        load(f"folder:{tmp_path}/none")
    with pytest.raises(EowError, match="no class sub-folders: put the images of each class into"):
        load(f"folder:{tmp_path}")
    (tmp_path / "a").mkdir()
    with pytest.raises(EowError, match="has no images: put some there or remove the folder"):
        load(f"folder:{tmp_path}")
    write_image(tmp_path / "a/1.png")
    with pytest.raises(EowError, match="too few"):
        load(f"folder:{tmp_path}")
    write_image(tmp_path / "only/train/a/1.png")
    with pytest.raises(EowError, match="neither test/ nor val/"):
        load(f"folder:{tmp_path}/only")


def test_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(5):
        write_image(tmp_path / f"a/{index}.png")
        write_image(tmp_path / f"b/{index}.png")
    real_scandir, real_listdir = os.scandir, os.listdir

    def closed(real):  # root may read everything, so that taking the permission away would not do
        def look(path="."):
            if Path(path) == tmp_path / "b":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        return look

    monkeypatch.setattr(os, "scandir", closed(real_scandir))
    monkeypatch.setattr(os, "listdir", closed(real_listdir))
    with pytest.raises(EowError, match=r"/b cannot be read \(Permission denied\)"):
        load(f"folder:{tmp_path}")


def test_places_that_may_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", denied)
    for name in ("mnist", "cifar10", "svhn", f"folder:{tmp_path}"):
        with pytest.raises(EowError, match=r"cannot be read \(Permission denied\): change its permissions"):
            load(name, tmp_path)


def write_tiny(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    for place, wordnet_id in enumerate(("n2", "n1")):
        for index in range(2):
            name = folder / f"train/{wordnet_id}/images/{wordnet_id}_{index}.JPEG"
            write_image(name, "L" if index else "RGB", (64, 64), shade=100 * place + 50)
    write_image(folder / "val/images/val_0.JPEG", "RGB", (64, 64), shade=200)
    (folder / "wnids.txt").write_text("n2\nn1\n")
    (folder / "words.txt").write_text("n1\tgoldfish, Carassius auratus\nn2\tcrane\nn3\tcrane\n")
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn2\t0\t32\t44\t62\n")
    return folder


def test_tiny_imagenet(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    train, test = load("tiny_imagenet", tmp_path), load("tiny_imagenet", tmp_path, "test")
    assert train.classes == ("n1 goldfish", "n2 crane")
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.inputs.shape == (4, 3, 64, 64)
    np.testing.assert_allclose(train.inputs[:, :, 5, 5].mean(1), [150, 150, 50, 50], atol=2)
    assert test.labels.tolist() == [1]
    np.testing.assert_allclose(test.inputs[0, :, 0, 0], 200, atol=2)
    assert train.official is None
    (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn9\n")
    with pytest.raises(EowError, match=r"line 1: .*: fetch it again with `eow data fetch tiny_imagenet`"):
        load("tiny_imagenet", tmp_path, "test")
    (folder / "val/val_annotations.txt").write_text("val_7.JPEG\tn1\n")
    with pytest.raises(EowError, match=r"val_7\.JPEG"):
        load("tiny_imagenet", tmp_path, "test")
    with pytest.raises(EowError, match=r"wnids\.txt is missing.*eow data fetch tiny_imagenet"):
        load("tiny_imagenet", tmp_path / "elsewhere")


# ---- npz and csv


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW"])
def test_npz_images(tmp_path: Path, layout: str) -> None:
    pixels = images(10, 3, 8, 9) if layout != "NHW" else images(10, 1, 8, 9)
    stored = {"NCHW": pixels, "NHWC": pixels.transpose(0, 2, 3, 1), "NHW": pixels[:, 0]}[layout]
    y = np.arange(10)[:, None] % 2
    np.savez(tmp_path / "a.npz", x_train=stored, y_train=y, x_test=stored[:3], y_test=y[:3], classes=["no", "yes"])
    data = load(f"npz:{tmp_path}/a.npz")
    np.testing.assert_array_equal(data.inputs, pixels)
    assert data.classes == ("no", "yes")
    assert data.labels.tolist() == [0, 1] * 5
    assert len(load(f"npz:{tmp_path}/a.npz", split="test")) == 3


def test_npz_features(tmp_path: Path) -> None:
    x, y = RANDOM.normal(size=(20, 3)), np.repeat(["b", "a"], 10)
    np.savez(tmp_path / "a.npz", X=x, y=y)
    train, test = (load(f"npz:{tmp_path}/a.npz", split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert train.classes == ("a", "b")
    rows = {tuple(row): "ab"[label] for data in (train, test) for row, label in zip(data.inputs.tolist(), data.labels)}
    assert rows == {tuple(row): name for row, name in zip(x.astype(np.float32).tolist(), y)}


def test_npz_integer_labels_with_gaps(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 2)), y=np.array([7, 30] * 5))
    data = load(f"npz:{tmp_path}/a.npz")
    assert data.classes == ("7", "30")
    assert set(data.labels) == {0, 1}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((9, 2))}, "not x and y"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(9)}, "labels are float64"),
        ({"x": np.zeros((9, 2)), "y": np.full(9, 4), "classes": ["a", "b"]}, r"label 4 at index 0"),
        ({"x": np.zeros((9, 2)), "y": np.zeros(8, int)}, "9 inputs but 8 labels"),
        ({"x": np.full((9, 2), np.nan), "y": np.zeros(9, int)}, "row 0, column 0"),
        ({"x": np.full((9, 2), 1e300), "y": np.zeros(9, int)}, "not a finite float32"),
        ({"x": np.zeros((9, 3, 4, 4)), "y": np.zeros(9, int)}, "save images as uint8"),
        ({"x": np.zeros((9, 3, 8, 3), np.uint8), "y": np.zeros(9, int)}, "NCHW or NHWC"),
        ({"x": np.zeros((9, 2, 8, 8), np.uint8), "y": np.zeros(9, int)}, "save images as uint8"),
        ({"x": np.array([[None]] * 9), "y": np.zeros(9, int)}, "plain arrays"),
        ({"x": np.zeros((9, 2)), "y": np.arange(9) % 3, "classes": ["a", "b", "a"]}, "has the name 'a' twice"),
        ({"x": np.zeros((9, 2)), "y": ["a", "b", "b"] * 3, "classes": ["a", "b", "b"]}, "has the name 'b' twice"),
    ],
)
def test_malformed_npz(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(EowError, match=message):
        load(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("split", [True, False])
def test_npz_names_of_classes_that_never_occur_are_told_of(tmp_path: Path, split: bool) -> None:
    x, y = RANDOM.normal(size=(20, 2)), np.arange(20) % 2
    arrays = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]} if split else {"x": x, "y": y}
    np.savez(tmp_path / "a.npz", **arrays, classes=["a", "b", "never"])
    with pytest.warns(RuntimeWarning, match=r"1 of 3 classes have no training sample \(never\)"):
        load(f"npz:{tmp_path}/a.npz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(f"npz:{tmp_path}/a.npz", split="test")
        np.savez(tmp_path / "a.npz", **arrays, classes=["a", "b"])
        load(f"npz:{tmp_path}/a.npz")


def unix_times(kind: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    """A column of which float32, whose steps are 128 there, leaves nothing."""
    y = np.arange(200) % 2
    seconds = np.round(1.7e9 + 20 * y + 2 * RANDOM.normal(size=200), 3)
    return np.stack([RANDOM.normal(size=200).round(), seconds], 1).astype(kind), y


@pytest.mark.parametrize("kind", [np.float64, np.int64])
@pytest.mark.parametrize("split", [True, False])
def test_npz_columns_that_float32_would_lose_are_refused(tmp_path: Path, kind: type, split: bool) -> None:
    x, y = unix_times(kind)

    def write(x: np.ndarray) -> str:
        parts = {"x_train": x[:150], "y_train": y[:150], "x_test": x[150:], "y_test": y[150:]}
        np.savez(tmp_path / "a.npz", **(parts if split else {"x": x, "y": y}))
        return f"npz:{tmp_path}/a.npz"

    with pytest.raises(
        EowError, match=r"float32 is too coarse for column 1 \(counted from 0\).*offset.*such as 1\.?[67]"
    ):
        load(write(x))
    data = load(write(x - np.array([0, 1_700_000_000], kind)))
    means = [data.inputs[data.labels == label, 1].mean() for label in (0, 1)]
    assert means[1] - means[0] == pytest.approx(20, abs=1)


def test_csv_columns_that_float32_would_lose_are_refused(tmp_path: Path) -> None:
    x, y = unix_times()
    rows = [f"{a},{label},{seconds}" for (a, seconds), label in zip(x, y)]
    with pytest.raises(EowError, match=r"float32 is too coarse for column 'when', which it rounds by \d"):
        load(write_csv(tmp_path, "a,label,when", *rows))


@pytest.mark.parametrize("size", [1e-60, 1e-170, 1e-300])
def test_columns_too_small_for_float32_are_refused(tmp_path: Path, size: float) -> None:
    """The square of some is 0 in float64 too."""
    np.savez(tmp_path / "a.npz", x=size * np.arange(1.0, 21)[:, None], y=np.arange(20) % 2)
    with pytest.raises(EowError, match="float32 is too coarse for column 0"):
        load(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tiff"])
def test_a_photograph_is_read_as_a_viewer_shows_it(tmp_path: Path, turn: int, kind: str) -> None:
    """Against Pillow's own way of bringing it upright, with sizes that are not alike."""
    exif = Image.Exif()
    exif[0x112] = turn
    picture = Image.fromarray(images(12, 20, 3)).resize((20, 12))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(5):
            told = {"tiffinfo": {0x112: turn}} if kind == "tiff" else {"exif": exif}
            picture.save(tmp_path / name / f"{index}.{kind}", **told)
    with Image.open(tmp_path / "a" / f"0.{kind}") as stored:
        wanted = np.asarray(ImageOps.exif_transpose(stored).convert("RGB")).transpose(2, 0, 1)
    found = load(f"folder:{tmp_path}").inputs
    assert found.shape[1:] == wanted.shape
    assert (found == wanted).all()


def test_a_class_may_have_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        folder = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(folder)
        for index in range(5):
            Image.fromarray(images(4, 6, 3)).save(os.fsdecode(folder) + f"/{index}.png")
    data = load(f"folder:{tmp_path}")
    assert data.classes == ("caf\udce9", "tea")
    assert len(data.hash) == 64


def test_noise_for_rows_of_numbers_says_what_it_is_for() -> None:
    with pytest.raises(EowError, match="noise is made for images, and the data has rows of numbers"):
        load("noise", shape=(4,))


@pytest.mark.parametrize(
    "column",
    [
        np.full(20, 0.1), np.full(20, 1.7e9 + 1e-3), 1 + 2e-16 * np.arange(20), 2000.0 + np.arange(20),
        1e9 * np.arange(20), 2.0**23 + np.arange(20) % 2, 10.0 ** np.arange(-10, 10),
    ],
)  # fmt: skip
def test_columns_that_float32_keeps_are_read(tmp_path: Path, column: np.ndarray) -> None:
    """Constants among them, also where float64 has rounded them: they say nothing in any precision."""
    np.savez(tmp_path / "a.npz", x=column[:, None], y=np.arange(20) % 2)
    assert len(load(f"npz:{tmp_path}/a.npz")) == 16


def test_a_part_is_not_held_against_its_own_spread(tmp_path: Path) -> None:
    """What lies close together beside training data that is wide may be rounded: nothing learnt is as fine."""
    x, y = np.linspace(0, 2e9, 40)[:, None], np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=1.7e9 + y[:, None], y_test=y)
    for split in ("train", "test"):
        assert len(load(f"npz:{tmp_path}/a.npz", split=split)) == 40


def test_npz_test_label_unknown_to_training(tmp_path: Path) -> None:
    x = np.zeros((3, 2))
    np.savez(tmp_path / "a.npz", x_train=x, y_train=["a", "b", "a"], x_test=x, y_test=["a", "c", "b"])
    with pytest.raises(EowError, match="label 'c' at index 1"):
        load(f"npz:{tmp_path}/a.npz", split="test")


def test_npz_that_is_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.zeros(9, int))
    content = (tmp_path / "a.npz").read_bytes()
    for spoilt in (b"", b"hello", content[:-30], pickle.dumps({"x": 1})):
        (tmp_path / "a.npz").write_bytes(spoilt)
        with pytest.raises(EowError, match=r"a\.npz cannot be read"):
            load(f"npz:{tmp_path}/a.npz")
    with pytest.raises(EowError, match=r"none\.npz cannot be read \(there is no such file\): name a \.npz file"):
        load(f"npz:{tmp_path}/none.npz")
    with pytest.raises(EowError, match=r"cannot be read \(it is a folder\): name a \.npz file"):
        load(f"npz:{tmp_path}")


def test_no_error_passes_on_the_advice_to_unpickle(tmp_path: Path) -> None:
    """numpy's own says to set allow_pickle, which runs what is in the file."""
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object), y=np.array([0]))
    np.save(tmp_path / "member.npy", np.zeros(3))
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x.npy", "text and no array")
        archive.write(tmp_path / "member.npy", "y.npy")
    (tmp_path / "plain.npz").write_text("text and no archive")
    for name in ("objects", "text", "plain"):
        with pytest.raises(EowError, match=rf"{name}\.npz cannot be read .*numpy\.savez") as caught:
            load(f"npz:{tmp_path}/{name}.npz")
        assert "pickle" not in str(caught.value)


def write_csv(tmp_path: Path, header: str, *rows: str) -> str:
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return f"csv:{tmp_path}/a.csv"


def test_csv(tmp_path: Path) -> None:
    rows = [f"{index},{'10' if index % 2 else '9'},{index / 2}" for index in range(10)]
    name = write_csv(tmp_path, "a,Label,b", *rows)
    train, test = load(name), load(name, split="test")
    assert train.classes == ("9", "10")
    assert (len(train), len(test)) == (8, 2)
    for data in (train, test):
        np.testing.assert_array_equal(data.inputs[:, 1], data.inputs[:, 0] / 2)
        np.testing.assert_array_equal(data.labels, data.inputs[:, 0] % 2)
    assert sorted([*train.inputs[:, 0], *test.inputs[:, 0]]) == list(range(10))
    with pytest.warns(RuntimeWarning, match="the labels '1' and '1.0' are two classes and one number"):
        assert load(write_csv(tmp_path, "a,label", *["1,1", "2,1.0", "3,7"] * 5)).classes == ("1", "1.0", "7")
    for one, other in (("Cat", "cat"), ("cafe\u0301", "caf\u00e9"), ("New  York", "New York")):
        with pytest.warns(RuntimeWarning, match=f"'{one}' and '{other}' are two classes and written almost alike"):
            load(write_csv(tmp_path, "a,label", *[f"1,{one}", f"2,{other}", "3,dog"] * 5))
    with pytest.raises(EowError, match="has a zero byte, so it is not text"):
        load(write_csv(tmp_path, "a,label", *["1,dog", "2,cat"] * 5, "3,cat\0\0"))
    with pytest.raises(EowError, match="'1_0' is not a number"):
        load(write_csv(tmp_path, "a,label", *["1_0,dog", "2,cat"] * 5))
    last = load(write_csv(tmp_path, "a,kind", *["1,dog", "2,cat"] * 5))
    assert last.classes == ("cat", "dog")
    assert last.inputs[last.labels == 1].tolist() == [[1.0]] * 4


def test_csv_columns_may_be_numbered_beside_a_label(tmp_path: Path) -> None:
    """As pandas does."""
    assert len(load(write_csv(tmp_path, "0,1,label", *["1,2,dog", "2,3,cat"] * 5))) == 8


def test_csv_labels_are_not_searched_for_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes as many steps as there are rows, times as many as there are classes."""

    class Unsearched(list):
        def index(self, *_: object) -> int:
            pytest.fail("searched")

    monkeypatch.setattr(csv_files, "sorted", lambda *a, **k: Unsearched(sorted(*a, **k)), raising=False)
    data = load(write_csv(tmp_path, "a,label", *(f"{index},w{index // 2}" for index in range(2000))))
    assert [data.classes[label] for label in data.labels] == [f"w{int(a) // 2}" for a in data.inputs[:, 0]]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("1,2", ["3,4"] * 5, "no header row"),
        ("5.1,3.5,setosa", ["4.9,3.0,setosa", "7.0,3.2,virginica"] * 5, "no header row, .* numbers and 'setosa'"),
        ("5.1,3.5,setosa", ["7.0,3.2,virginica"] * 5, "no header row.*; write titles above it, and call the label's"),
        ("5.1,3.5,y", ["4.9,3.0,y", "7.0,3.2,n"] * 5, "no header row"),
        ("a,label,class", ["1,2,3"] * 5, "several label columns: label, class"),
        ("a,y", ["1,x", "two,x", "3,x"], "data row 2, column 'a': 'two' is not a number"),
        ("a,y", ["1,x", ",x", "3,x"], "data row 2, column 'a': '' is not a number"),
        ("a,y", ["1,x", "1,x,2"], "data row 2: 3 fields where the header has 2"),
        ("a,y", ["1,x", "1, "], "data row 2: the label .* is empty"),
        ("a,y", ["1,x", "1,NaN", "1,x"], "data row 2: the label .* is NaN"),
        ("a,y", ["1,x", "nan,x", "1,x"], "row 1, column 0"),
        ("a,y", ["1,x", '2,"x', *["3,x"] * 9], "from line 3 on .*is a quote not closed there"),
        (
            "a,y",
            ['1,"x', "2,x", '3,x"', "4,x"],
            "data row 1: the label .* has a line break in it: is a quote not closed",
        ),
        ("a,y", ['"1,x', "2,x"], "from line 2 on .*is a quote not closed there"),
        ("a,y", ['1,"x"y', "2,x"], "from line 2 on"),
        ('a,"b', ['c",y', "2,x", "2,y"], "the title .* has a line break in it"),
        ("a,y", [], "needs a header row"),
        ("y", ["1", "2"], "needs a header row"),
        ("a,y", ["1,x"], "too few"),
        (",a,y", ["0,1,x", "1,2,x"], "column 1 has no title.*index=False, or drop the column"),
        ("a,Unnamed: 0.1,y", ["0,1,x", "1,2,x"], "column 2 has no title"),
    ],
)
def test_malformed_csv(tmp_path: Path, header: str, rows: list[str], message: str) -> None:
    with pytest.raises(EowError, match=message):
        load(write_csv(tmp_path, header, *rows))


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        ("0,1,species", "ab"),
        ("2019,2020,outcome", "01"),
        ("0,1,y", "yn"),
        ("2019,2020,label", "ab"),
        ("0,1,target", "01"),
    ],
)
def test_titles_may_be_years_or_numbers_from_0(tmp_path: Path, header: str, labels: str) -> None:
    rows = [f"{row},{row % 3},{labels[row % 2]}" for row in range(20)]
    data = load(write_csv(tmp_path, header, *rows)), load(write_csv(tmp_path, header, *rows), split="test")
    assert sum(map(len, data)) == 20
    assert data[0].classes == tuple(sorted(labels))


def test_csv_labels_that_are_no_finite_numbers(tmp_path: Path) -> None:
    """They are words, after the numbers; 1e999 reads as inf too, and the order of a set of words is not to decide."""
    words = ["inf", "-inf", "1e999", "apple", "2", "10", "1.5"]
    data = load(write_csv(tmp_path, "a,y", *[f"1,{word}" for word in words * 5]))
    assert data.classes == ("1.5", "2", "10", "-inf", "1e999", "apple", "inf")


@pytest.mark.parametrize("rows", [4, 178])
def test_a_csv_whose_label_is_a_measurement(tmp_path: Path, rows: int) -> None:
    """As in a table without a label, where the last column is the last feature."""
    values = [f"1,{value}" for value in RANDOM.normal(size=rows)]
    with pytest.raises(EowError, match=f"'b'. has {rows} different values in {rows} rows.*call the label's column"):
        load(write_csv(tmp_path, "a,b", *values))
    with pytest.raises(EowError, match="a measurement has: write classes as words or whole numbers"):
        load(write_csv(tmp_path, "a,target", *values))
    with pytest.raises(EowError, match=r"'b'. has .* or y$"):
        load(write_csv(tmp_path, "a,b", *[f"1,{row}" for row in range(rows)]))  # whole numbers are ids, or counts


@pytest.mark.parametrize("titles", ["a,b", "a,label"])
@pytest.mark.parametrize(("words", "times"), [("xyz", 2), (["0", "1", "2"], 2), (["1.0", "2.0"], 2), (["0.5", "2"], 5)])
def test_csv_classes_of_few_samples(tmp_path: Path, titles: str, words: Sequence[str], times: int) -> None:
    assert load(write_csv(tmp_path, titles, *[f"1,{word}" for word in [*words] * times])).classes == tuple(words)


def test_csv_classes_of_one_sample_where_the_label_is_named(tmp_path: Path) -> None:
    assert len(load(write_csv(tmp_path, "a,y", *[f"1,{word}" for word in "vwxyz"])).classes) == 5


def test_csv_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("a.csv", "none.csv"):
        with pytest.raises(EowError, match=f"{name} cannot be read"):
            load(f"csv:{tmp_path}/{name}")
    with pytest.raises(EowError, match=r"\(there is no such file\): name a \.csv file, as csv:PATH"):
        load(f"csv:{tmp_path}/none.csv")


# ---- names, roots, imports


def test_names_and_splits() -> None:
    for wrong in ("mnst", "folder:", "npz", "permuted:", ""):
        with pytest.raises(EowError, match=r"there is no data set named.*mnist.*noise:CxHxW"):
            load(wrong)
    with pytest.raises(EowError, match="no split 'val'"):
        load("digits", split="val")


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EOW_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")
    monkeypatch.delenv("EOW_DATA")
    assert data_root().name == "eow"
    monkeypatch.setitem(sys.modules, "platformdirs", None)  # as if it were not installed
    with pytest.raises(EowError, match="EOW_DATA or --root"):
        data_root()
    assert data_root("elsewhere") == Path("elsewhere")


def test_importing_is_light() -> None:
    code = "import sys, eow.data, eow.data.fetch; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["torch", "sklearn", "scipy", "PIL", "pooch", "requests", "rich"]
    out = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_catalog_is_consistent() -> None:
    for name, entry in CATALOG.items():
        assert len(entry.classes) in (0, entry.class_count), name
        for other in entry.near + entry.far:
            base = other.removeprefix("permuted:")
            assert base == "noise" or CATALOG[base].shape == entry.shape, (name, other)


# ---- the real files

REAL = os.environ.get("EOW_DATA")


def real(name: str, split: str) -> Dataset:
    """The real set, or a skip that says what is missing."""
    if not REAL:
        pytest.skip("EOW_DATA is not set: no real data to test on")
    files = CATALOG[name].train if split == "train" else CATALOG[name].test
    for file in files:
        if not any((Path(REAL) / f"{file.path}{suffix}").is_file() for suffix in ("", ".gz")):
            pytest.skip(f"{file.path} is not below EOW_DATA")
    return load(name, REAL, split, allow_unofficial=True)


# Mean and deviation per channel, as the literature gives them.
PUBLISHED_STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@pytest.mark.parametrize(
    ("name", "split", "counts"),
    [
        ("mnist", "train", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("mnist", "test", [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("fashion_mnist", "train", [6000] * 10),
        ("fashion_mnist", "test", [1000] * 10),
        ("cifar10", "train", [5000] * 10),
        ("cifar10", "test", [1000] * 10),
        ("cifar100", "train", [500] * 100),
        ("cifar100", "test", [100] * 100),
        ("svhn", "train", [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]),
        ("svhn", "test", [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]),
        ("notmnist", "test", None),
    ],
)
def test_real_counts(name: str, split: str, counts: list[int] | None) -> None:
    data = real(name, split)
    assert data.shape == CATALOG[name].shape
    if counts is None:
        assert (len(data), data.official) == (10000, None)
    else:
        assert np.bincount(data.labels).tolist() == counts
    if split == "train" and name in PUBLISHED_STATISTICS:
        np.testing.assert_allclose(statistics(data), PUBLISHED_STATISTICS[name], atol=2e-4)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_real_files_are_official(name: str) -> None:
    assert real(name, "test").official is True


def test_real_mnist_pixels() -> None:
    """Facts found with nothing but `xxd`: the first test image is a 7 whose top stroke starts in row 7."""
    data = real("mnist", "test")
    assert data.labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert not data.inputs[0, 0, :7].any()
    assert data.inputs[0, 0, 7, 6:12].tolist() == [84, 185, 159, 151, 60, 36]


def test_real_cifar10_names() -> None:
    """The first test image is the well-known cat; its red, green, blue corner was read with another program."""
    data = real("cifar10", "test")
    assert data.classes == tuple(CIFAR10_NAMES)
    assert data.classes[data.labels[0]] == "cat"
    assert data.inputs[0, :, 0, 0].tolist() == [158, 112, 49]


def test_real_cifar100_order_of_names() -> None:
    data = real("cifar100", "test")
    assert (data.classes[0], data.classes[-1]) == ("apple", "worm")
    assert list(data.classes) == sorted(data.classes)


def test_a_blank_behind_a_quote_is_no_open_quote(tmp_path: Path) -> None:
    rows = "\n".join(f'{i},{i % 3},"{"ab"[i % 2]}" ' for i in range(20))
    (tmp_path / "t.csv").write_text(f'"x" ,"z" ,"label" \n{rows}\n')
    found = load(f"csv:{tmp_path / 't.csv'}", None, "all")
    assert found.columns == ("x", "z")
    assert (len(found), found.classes) == (20, ("a", "b"))
