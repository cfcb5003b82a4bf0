"""Large things in little memory, and nothing from outside: predictions and image folders larger than what may be held,
every installed package pinned, and no word to the network."""

import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eow import mapping
from eow.data import Dataset, holdout_split, known_unknown, load
from eow.data.catalog import statistics
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.storage import NUMBERS

ROOT = Path(__file__).parent.parent
STRESS = bool(os.environ.get("EOW_STRESS"))  # `make stress` sets it: the sizes of the promise, and a gigabyte of disk


def python(code: str, *words: object, **environment: str) -> str:
    """What a process of its own prints; its memory is its own too."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=600, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def write_predictions(folder: Path, count: int, classes: int, open_world: bool = True) -> Path:
    """A run's predictions, written piece by piece: the header, then every array through its own window."""
    about = {"name": "test", "key": "k", "method": "eow" if open_world else "vanilla", "odds": 0.1}
    table: dict[str, object] = {"__metadata__": {"eow": json.dumps(about)}}
    shapes = {"confidence": ("F32", [count]), "label": ("I64", [count]), "labels": ("I64", [count]),
              "logits": ("F32", [count, classes + open_world]), "probs": ("F32", [count, classes]),
              "unknown": ("F32", [count])}  # fmt: skip
    end, places = 0, {}
    for name, (kind, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape)) * int(NUMBERS[kind][-1])
        table[name], places[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}, start
    text = json.dumps(table).encode()
    path = folder / "predictions" / "test.safetensors"
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    windows = {name: np.memmap(path, NUMBERS[kind], "r+", 8 + len(text) + places[name], tuple(shape))
               for name, (kind, shape) in shapes.items()}  # fmt: skip
    random = np.random.default_rng(0)
    for first in range(0, count, 100_000):
        rows = slice(first, min(first + 100_000, count))
        size = rows.stop - rows.start
        labels, logits = (
            random.integers(classes, size=size),
            random.standard_normal((size, classes + open_world), np.float32),
        )
        logits[np.arange(size), labels] += 2
        h = np.exp(logits)
        h /= h.sum(1, keepdims=True)
        probs, unknown = h[:, :classes], h[:, classes:].sum(1)
        for name, values in (("logits", logits), ("probs", probs), ("unknown", unknown), ("labels", labels),
                             ("label", probs.argmax(1)), ("confidence", probs.max(1))):  # fmt: skip
            windows[name][rows] = values
    (folder / "summary.json").write_text("{}")
    return folder


# Not getrusage's peak: a process that is started inherits that of the one that starts it, which wrote the files here.
PEAK = """
import re
def memory():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
"""
EVALUATE = (
    PEAK
    + """
import json, resource, sys
from eow.evaluate import evaluate
before = memory()
figures = evaluate(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else None)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"mb": memory(), "before": before, "cpu": used.ru_utime + used.ru_stime,
                  "accuracy": figures["test"]["accuracy"], "nll": figures["test"]["nll"]}))
"""
)


@pytest.mark.parametrize("open_world", [True, False])
def test_evaluation_holds_a_block_of_the_tables_and_not_the_tables(tmp_path: Path, open_world: bool) -> None:
    """150,000 x 200 are 240 MB of probabilities and logits; what is held are vectors of 1.2 MB, and blocks."""
    folder = write_predictions(tmp_path, 150_000, 200, open_world)
    size = (folder / "predictions" / "test.safetensors").stat().st_size / 2**20
    found = json.loads(python(EVALUATE, folder))
    assert size > 230
    assert found["mb"] - found["before"] < size / 3
    known = np.memmap(folder / "predictions" / "test.safetensors", np.uint8, "r")
    assert found["accuracy"] == pytest.approx(float(np.mean(read_field(known, "label") == read_field(known, "labels"))))


def read_field(data: np.ndarray, name: str) -> np.ndarray:
    size = int.from_bytes(data[:8].tobytes(), "little")
    entry = json.loads(data[8 : 8 + size].tobytes())[name]
    start, end = (8 + size + offset for offset in entry["data_offsets"])
    return np.frombuffer(data[start:end].tobytes(), NUMBERS[entry["dtype"]])


@pytest.mark.skipif(not STRESS, reason="writes a gigabyte: `make stress` runs it")
@pytest.mark.parametrize(("count", "classes", "limit"), [(10_000_000, 10, 1500), (1_000_000, 100, 2000)])
@pytest.mark.parametrize("rate", [None, 0.2])
def test_ten_million_predictions(tmp_path: Path, count: int, classes: int, limit: int, rate: float | None) -> None:
    folder = write_predictions(tmp_path, count, classes)
    found = json.loads(python(EVALUATE, folder, *([] if rate is None else [rate])))
    print(count, classes, rate, found)
    assert found["mb"] < limit
    (folder / "predictions" / "test.safetensors").unlink()


# Images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for name in ("cat", "dog", "eel"):
        (tmp_path / "tree" / name).mkdir(parents=True)
        for i in range(20):
            pixels = random.integers(0, 256, (10, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "tree" / name / f"{i:02}.png")
    return tmp_path / "tree"


def test_images_in_a_file_are_the_images_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "PIECE", 7 * 360)
    held, streamed = (load(f"folder:{folder}", split="train", resident=resident) for resident in (True, False))
    assert mapping.file_of(held.inputs) is None
    assert mapping.file_of(streamed.inputs) is not None
    assert held.hash == streamed.hash
    assert statistics(held) == statistics(streamed)
    np.testing.assert_array_equal(held.inputs, streamed.inputs)
    for cut in (lambda data: holdout_split(data, 0.3, 1), lambda data: known_unknown(data, [1])):
        for one, other in zip(cut(held), cut(streamed), strict=True):
            assert one.hash == other.hash
            assert mapping.file_of(other.inputs) is not None
    plain = Transform((0.5,) * 3, (0.2,) * 3)
    batches = [
        Batches(data, 5, plain, torch.device("cpu"), resident=data is held, augment="crop_flip")
        for data in (held, streamed)
    ]
    for (x, y), (u, v) in zip(batches[0].epoch(1), batches[1].epoch(1), strict=True):
        assert torch.equal(x, u)
        assert torch.equal(y, v)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches[0].in_order(), batches[1].in_order(), strict=True))


WALK = (
    PEAK
    + """
import sys, torch
from eow.data import holdout_split, load
from eow.data.catalog import statistics
from eow.data.loader import Batches, Transform
before = memory()
whole = load(f"folder:{sys.argv[1]}", resident=False)
train, _ = holdout_split(whole, 0.1, 0)
train.hash
batches = Batches(train, 4, Transform(*statistics(train)), torch.device("cpu"), resident=False)
seen = sum(len(y) for _, y in batches.epoch(0)) + sum(len(y) for _, y in batches.in_order())
assert seen == 2 * len(train) == 2304
print(memory() - before, whole.inputs.nbytes / 2**20)
"""
)


def test_a_folder_of_images_is_streamed_in_less_memory_than_it_takes(tmp_path: Path) -> None:
    """Read, cut, hashed, measured, shuffled and gone through in order: 540 MB of images, less than half in memory.
    What is in memory varies (80 to 140 MB) and does not grow with the images."""
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "b").mkdir()
    for name in "ab":
        first = tmp_path / "tree" / name / "0.png"
        Image.fromarray(np.full((384, 384, 3), ord(name), np.uint8)).save(first)
        for i in range(1, 800):
            os.link(first, first.with_name(f"{i}.png"))
    took, size = map(float, python(WALK, tmp_path / "tree").split())
    assert size > 500
    assert took < size / 2


def test_a_full_disk_is_said_before_anything_is_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(EowError, match=r"do not fit into .*\(No space left on device\): set TMPDIR"):
        load(f"folder:{folder}", resident=False)


def test_a_part_of_an_array_in_memory_stays_there() -> None:
    data = Dataset("x", "train", np.zeros((4, 1, 2, 2), np.uint8), np.arange(4) % 2, ("a", "b"))
    assert mapping.file_of(data.subset([1, 3]).inputs) is None
    mapping.let_go(data.inputs)


def test_what_was_written_to_a_copy_on_write_array_is_not_let_go(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 1 << 20), np.float32))
    array = np.load(tmp_path / "x.npy", mmap_mode="c")
    array[:] = 1
    assert mapping.file_of(array[1:]) is None
    assert [float(block.min()) for block in mapping.blocks(array)] == [1.0] * 4
    assert mapping.file_of(np.load(tmp_path / "x.npy", mmap_mode="r")) is not None


# Nothing from outside


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.skipif(
    not (Path(sys.prefix) / ".installed-test").exists(), reason="not an environment that make installed"
)
def test_every_installed_package_is_pinned_to_its_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line.strip() and not line.startswith("#"))
    pins = {plain_name(name.strip()): version.strip() for name, version in pins.items()}
    installed = {plain_name(each.metadata["Name"]): each.version for each in importlib.metadata.distributions()}
    found = {name: version.partition("+")[0] for name, version in installed.items()}
    ours = {name: pins.get(name) for name in found}
    assert {name: found[name] for name in found if ours[name] != found[name]}.keys() <= {"eow", "pip", "setuptools"}


ALONE = """
import sys
asked = []

def hook(event, values):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        asked.append(event)
        raise OSError("there is no network here")

sys.addaudithook(hook)
import importlib, pkgutil, eow
from eow.cli import main
for found in pkgutil.walk_packages(eow.__path__, "eow."):
    if found.name.rpartition(".")[2] not in ("__main__", "kernels"):
        importlib.import_module(found.name)
out = sys.argv[1]
for words in (
    ["train", "--data", "digits", "--out", f"{out}/run", "--set", "train.epochs=1", "--set", "model.hidden=[4]",
     "--set", "data.outliers=noise", "--set", "data.certify=0.2"],
    ["evaluate", f"{out}/run"], ["threshold", f"{out}/run", "--max-risk", "0.5"],
    ["report", f"{out}/run", "-o", f"{out}/page.html"], ["data", "list"],
):
    sys.argv = ["eow", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (words, ended.code)
print("asked", asked)
"""


def test_nothing_asks_the_network(tmp_path: Path) -> None:
    """Every module imported, a run trained, measured, certified and reported where each attempt would be seen."""
    assert python(ALONE, tmp_path).splitlines()[-1] == "asked []"
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
