"""The files that eow reads, one valid specimen of each, made in a folder: what fuzzing.py mutates."""

import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import Case

from eow import certify, deployed, evaluate, predictions, robustness, runs, storage
from eow import config as configs
from eow.bench.grid import read_grid
from eow.data import fetch, load
from eow.data.inputs import read_inputs
from eow.report import report
from eow.training import checkpoints
from eow.training.distributed import Place

SHAPE = (1, 6, 6)
HASHES = {"data": "of training", "test": "of the test"}


def make_cases(folder: Path) -> list[Case]:
    folder.mkdir(exist_ok=True)
    return [*of_run(folder), *of_settings(folder), *of_arrays(folder), *of_images(folder), *of_sets(folder),
            *of_archives(folder)]  # fmt: skip


def case(name: str, place: Path, form: str, read: Callable[[], Any], share: float = 1.0) -> Case:
    return Case(name, place.read_bytes(), form, place, read, share)


def of_run(folder: Path) -> list[Case]:
    """Every file of a run's folder, and what reads it."""
    import torch

    run, settings = folder / "run", {"data": {"certify": 0.2, "outliers": ["noise"]}, "model": {"hidden": [8]}}
    config = configs.resolve(settings, {"train": {"epochs": 1}, "method": {"name": "eow", "steps": 2}})
    runs.train(config, run, progress=False)
    certify.certify(run, 0.9)
    random = np.random.default_rng(0)
    arrays = {field: random.integers(0, 10, (5, 30)) if kind == "iu" else random.random((5, 30), np.float32)
              for field, kind in robustness.FIELDS.items()}  # fmt: skip
    storage.make_folder(run / "corrupted")
    about = {"name": "fog", "key": "k, made with seed 0", "images": ""}
    about["weights"] = storage.file_hash(run / "weights.safetensors")
    storage.write_arrays(run / "corrupted" / "fog.safetensors", arrays, about)
    storage.write_json(run / "corruptions.json", robustness.corruption_figures(run))
    deploy_to = folder / "model.onnx"
    from eow.export.run import export

    export(run, deploy_to, threshold=0.3)
    small = np.zeros((2, 1, 8, 8), np.uint8)

    place = Place(torch.device("cpu"), 0, 1)
    _, training = runs.prepare(config, place, progress=False)
    halted = folder / "halted"
    halted.mkdir()
    checkpoints.save(training, halted, place, 0, HASHES)

    bare = folder / "bare"  # without a summary, whose hash would refuse every change before anything else is checked
    bare.mkdir()
    shutil.copy(run / "weights.safetensors", bare)

    bench = folder / "bench"
    (bench / "runs").mkdir(parents=True)
    (bench / "runs" / "a").symlink_to(run)
    storage.write_json(bench / "table.json", {"rows": [{"runs": ["a"]}]})

    def page() -> None:
        report([run], folder / "out" / "page.html")

    test = run / "predictions" / "test.safetensors"
    return [
        case("weights.safetensors", bare / "weights.safetensors", "safetensors", lambda: runs.load(bare), 1.5),
        case("checkpoint.safetensors", halted / "checkpoint.safetensors", "safetensors",
             lambda: checkpoints.restore(training, halted, place, HASHES), 1.5),
        case("predictions (evaluate)", test, "safetensors", lambda: evaluate.evaluate(run), 1.5),
        case("predictions (read)", test, "safetensors", lambda: predictions.read(test), 3),
        case("corrupted/", run / "corrupted" / "fog.safetensors", "safetensors",
             lambda: robustness.corruption_figures(run), 1.5),
        case("config.json (report)", run / "config.json", "json", page, 0.3),
        case("config.json", run / "config.json", "json",
             lambda: configs.from_table(storage.read_json(run / "config.json")), 1.5),
        case("summary.json (report)", run / "summary.json", "json", page, 0.3),
        case("environment.json (report)", run / "environment.json", "json", page, 0.1),
        case("log.jsonl (report)", run / "log.jsonl", "lines", page, 0.3),
        case("corruptions.json (report)", run / "corruptions.json", "json", page, 0.3),
        case("predictions (report)", test, "safetensors", page, 0.3),
        case("threshold.json", run / "threshold.json", "json", lambda: certify.stored(run), 1.5),
        case("table.json (report)", bench / "table.json", "json",
             lambda: report([bench], folder / "out" / "b.md", "md"), 0.1),
        case("model.onnx", deploy_to, "onnx", lambda: deployed.load(deploy_to).predict(small), 2),
    ]  # fmt: skip


GRID = """
[grid]
name = "x"
title = "X"
methods = ["vanilla", "eow"]
seeds = 2
columns = ["accuracy", "ece", { title = "t", path = "train_seconds", digits = 1 }]
paper = { table = "table1_calibration", match = { dataset = "data.name" } }
[settings.data]
name = "digits"
[methods.eow.method]
steps = 3
[[axis]]
title = "rate"
key = "train.lr"
values = [0.1, 0.2]
[[axis]]
title = "cut"
methods = ["eow"]
points = [{ label = "a", model = { cut = "input" } }, { label = "b" }]
[quick]
grid = { seeds = 1 }
[quick.settings.train]
epochs = 1
[full]
"""
CONFIG = """
recipe = "modern"
seed = 3
[data]
name = "digits"
unknown_classes = [1, 2]
outliers = ["noise"]
holdout = 0.1
[model]
hidden = [16, 8]
dropout = 0.1
[method]
name = "eow"
lam = 0.1
[train]
epochs = 3
lr = 0.05
milestones = [1, 2]
schedule = "step"
device = "cpu"
"""


def of_settings(folder: Path) -> list[Case]:
    grid, config = folder / "grid.toml", folder / "config.toml"
    grid.write_text(GRID)
    config.write_text(CONFIG)
    return [
        case("config.toml", config, "text", lambda: configs.resolve(configs.from_toml(config)), 3),
        case("grid.toml", grid, "text", lambda: read_grid(grid, "quick"), 2),
    ]


def of_arrays(folder: Path) -> list[Case]:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (24, *SHAPE), dtype=np.uint8)
    labels = np.arange(24) % 3
    paths = {name: folder / name for name in ("x.npz", "parts.npz", "x.npy", "rows.npy", "x.csv")}
    np.savez_compressed(paths["x.npz"], x=images, y=labels, classes=np.array(["a", "b", "c"]))
    rows = random.normal(size=(12, 3))
    np.savez(paths["parts.npz"], x_train=rows, y_train=labels[:12], x_test=rows, y_test=labels[:12])
    np.save(paths["x.npy"], images)
    np.save(paths["rows.npy"], rows)
    lines = ["a,b,label", *(f"{a:.3f},{b:.3f},{'xyz'[label]}" for (a, b, _), label in zip(rows, labels))]
    paths["x.csv"].write_text("\n".join(lines))
    return [
        case("images.npz", paths["x.npz"], "zip", lambda: load(f"npz:{paths['x.npz']}", split="test"), 3),
        case("features.npz", paths["parts.npz"], "zip", lambda: load(f"npz:{paths['parts.npz']}"), 3),
        case("images.npy", paths["x.npy"], "npy", lambda: read_inputs(paths["x.npy"], SHAPE), 3),
        case("features.npy", paths["rows.npy"], "npy", lambda: read_inputs(paths["rows.npy"], (3,)), 3),
        case("table.csv", paths["x.csv"], "text", lambda: load(f"csv:{paths['x.csv']}"), 3),
    ]


def of_images(folder: Path) -> list[Case]:
    from PIL import Image

    pixels = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    found = []
    for suffix in ("png", "jpg", "bmp", "gif", "tiff", "webp", "ppm"):
        path = folder / f"image.{suffix}"
        Image.fromarray(pixels).save(path)
        form = "png" if suffix == "png" else "bytes"
        found.append(case(f"image.{suffix}", path, form, lambda path=path: read_inputs(path, (3, 16, 16)), 2))  # type: ignore[misc]
    tree = folder / "tree"
    for name in ("cat", "dog"):
        (tree / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(pixels).save(tree / name / f"{i}.png")
    found.append(case("folder of images", tree / "cat" / "0.png", "png", lambda: load(f"folder:{tree}"), 1))
    return found


def of_sets(folder: Path) -> list[Case]:
    """The named sets' own formats, a few samples each, read as a copy that is not the official one."""
    import scipy.io

    random, root = np.random.default_rng(3), folder / "sets"
    for name in ("MNIST/raw", "notMNIST/raw", "cifar-10-batches-py", "svhn"):
        (root / name).mkdir(parents=True)
    from eow.data.catalog import CATALOG

    def files(name: str) -> list[Path]:
        return [root / file.path for file in CATALOG[name].test]

    def reader(name: str) -> Callable[[], Any]:
        return lambda: load(name, root, "test", allow_unofficial=True)

    images = random.integers(0, 256, (4, 28, 28), dtype=np.uint8)
    idx = struct.pack(">4I", 0x803, *images.shape) + images.tobytes(), struct.pack(">2I", 0x801, 4) + bytes(range(4))
    for path, data in zip(files("mnist"), idx):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    zipped = [path.with_name(f"{path.name}.gz") for path in files("notmnist")]
    for path, data in zip(zipped, idx):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data))
    batch, meta = files("cifar10")
    data = {b"data": random.integers(0, 256, (3, 3072), dtype=np.uint8), b"labels": [1, 2, 3], b"filenames": [b"x"] * 3}
    batch.write_bytes(pickle.dumps(data, protocol=2))
    meta.write_bytes(pickle.dumps({b"label_names": [f"c{i}".encode() for i in range(10)]}, protocol=2))
    (mat,) = files("svhn")
    mat.parent.mkdir(parents=True, exist_ok=True)
    fields = {"X": random.integers(0, 256, (32, 32, 3, 2), dtype=np.uint8), "y": np.array([[1], [10]], np.uint8)}
    plain, packed = io.BytesIO(), io.BytesIO()
    scipy.io.savemat(plain, fields)
    scipy.io.savemat(packed, fields, do_compression=True)
    mat.write_bytes(packed.getvalue())
    return [
        case("mnist images", files("mnist")[0], "bytes", reader("mnist"), 2),
        case("mnist labels", files("mnist")[1], "bytes", reader("mnist"), 1),
        case("notmnist images.gz", zipped[0], "gzip", reader("notmnist"), 2),
        case("cifar10 batch", batch, "bytes", reader("cifar10"), 3),
        case("cifar10 meta", meta, "bytes", reader("cifar10"), 2),
        Case("svhn.mat", plain.getvalue(), "bytes", mat, reader("svhn"), 3),
        Case("svhn.mat, compressed", packed.getvalue(), "bytes", mat, reader("svhn"), 2),
    ]


def of_archives(folder: Path) -> list[Case]:
    """What `data fetch` unpacks (after its hash was found right, which is not relied on here)."""
    place = folder / "fetched"
    place.mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("top/a", "top/b/c"):
            member = tarfile.TarInfo(name)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"hello"))
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("top/a", json.dumps(list(range(50))))
        archive.writestr("top/b/c", "hello")
    found = []
    for name, data, form in (("x.tar.gz", buffer.getvalue(), "gzip"), ("x.zip", zipped.getvalue(), "zip")):
        path = place / name
        read = lambda path=path: fetch._unpack_folder(path, "top", place)  # noqa: E731
        found.append(Case(f"archive {name}", data, form, path, read, 2))
    return found
