"""The third setting: a run on its test images under the 19 corruptions of CIFAR-C at five severities.

    predict_corrupted(run, test)        what the run says about every variant, one file a corruption in its folder
    corruption_figures(folder)          accuracy, ECE and NLL of each from those files, and their means per severity
    write_corruptions(folder)           both, for a run by its folder, into corruptions.json there

A file keeps what the figures need: label, confidence, the probability of the true class and unknown. For 10,000 images
that is 15 MB in all, where whole predictions of 100 classes would be 760. It is used again only if weights, data,
transform and seed are the same.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eow import storage
from eow.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from eow.data.corruptions.official import read_official
from eow.data.files import at_home
from eow.errors import EowError
from eow.metrics import accuracy, ece, null_ece
from eow.metrics.scores import FLOOR
from eow.predictions import BATCH, check_finite, content_key

if TYPE_CHECKING:
    from eow.data import Dataset
    from eow.runs import Run

FOLDER = "corrupted"
FIELDS = {"label": "iu", "labels": "iu", "confidence": "f", "likelihood": "f", "unknown": "f"}  # each (5, N)
FIGURES = ("accuracy", "ece", "null_ece", "nll", "confidence", "unknown")


def write_corruptions(
    folder: Path,
    root: str,
    device: str,
    *,
    seed: int = 0,
    official: str | Path | None = None,
    watch: Callable[[Iterable[str]], Iterable[str]] = iter,
) -> dict[str, Any]:
    """corruptions.json: the run's figures on its test images under every corruption, which are returned. What was
    predicted before a kill is not predicted again. `watch` is handed the steps and hands them on: a progress bar."""
    from eow.opening import load, own_test_set
    from eow.training.distributed import pick_device

    run = load(folder, str(pick_device(device)))
    for _ in watch(predict_corrupted(run, own_test_set(run, root), seed=seed, official=official)):
        pass
    figures = corruption_figures(folder)
    storage.write_json(folder / "corruptions.json", figures)
    return figures


def predict_corrupted(
    run: "Run",
    test: "Dataset",
    *,
    seed: int = 0,
    official: str | Path | None = None,
    names: Iterable[str] = CORRUPTIONS,
) -> Iterator[str]:
    """The run's predictions on its corrupted test set, or on the released CIFAR-C files in the folder `official`, into
    the run's folder, which is locked until the last. Yields each corruption's name when its file is there."""
    if test.inputs.ndim != 4:
        raise EowError(f"only images can be corrupted, and {test.name} has features")
    if official is not None and run.config.data.unknown_classes:
        raise EowError(
            "the released CIFAR-C files hold all classes, but this run has left some out: corrupt its own test set"
        )
    with storage.locked(run.folder) if run.folder.is_dir() else nullcontext():  # none is made before it is needed
        # Not what is left of other files: predictions are written without the lock.
        storage.remove_temporary(run.folder, "corruptions.json", "corruptions.png")
        storage.remove_temporary(run.folder / FOLDER, "*.safetensors")
        yield from each_corruption(run, test, seed, official, names)


def each_corruption(
    run: "Run", test: "Dataset", seed: int, official: str | Path | None, names: Iterable[str]
) -> Iterator[str]:
    source = f"made with seed {seed}" if official is None else "CIFAR-C as released"
    key = f"{content_key(run.weights_hash, test, run.transform)}, {source}"
    for name in names:
        path = run.folder / FOLDER / f"{name}.safetensors"
        images = file_of(official, name)
        if not path.exists() or read(path)[1:3] != (key, images):
            parts = [
                say(run, released(official, name, severity, test), test.labels)
                if official is not None
                else say(run, test.inputs, test.labels, lambda x, first: corrupt(x, name, severity, seed, first))  # noqa: B023
                for severity in SEVERITIES
            ]
            arrays = {field: np.stack([part[field] for part in parts]) for field in FIELDS}
            storage.make_folder(path.parent)
            header = {"name": name, "key": key, "images": images, "weights": run.weights_hash}
            storage.write_arrays(path, arrays, header)
        yield name


def released(official: str | Path, name: str, severity: int, test: "Dataset") -> np.ndarray:
    """The released images, whose labels must be the test set's, in its order: CIFAR-10-C is not CIFAR-100's."""
    images, labels = read_official(official, name, severity)
    if images.shape[1:] != test.shape or not np.array_equal(labels, test.labels):
        raise EowError(
            f"the images or labels in {official} are not those of {test.name}: give the folder of the CIFAR-C that was "
            "made of it"
        )
    return images


def file_of(official: str | Path | None, name: str) -> str:
    """The content hash of a released file; "" for images that are made, or where it is missing: its reader says so."""
    path = at_home(official or "") / f"{name}.npy"
    return storage.file_hash(path) if official is not None and path.is_file() else ""


def say(
    run: "Run", images: np.ndarray, labels: np.ndarray, change: Callable[..., Any] | None = None
) -> dict[str, np.ndarray]:
    """What the figures need of the run's predictions on images that are changed, where they are, on its device."""
    import torch

    from eow.seeds import derive, own_randomness
    from eow.switches import float32_default

    device = next(run.method.parameters()).device
    parts: list[tuple[Any, ...]] = []
    with float32_default(), own_randomness(device, derive("prediction", run.config.seed)):
        for first in range(0, len(images), BATCH):
            x = torch.from_numpy(images[first : first + BATCH]).to(device)
            y = torch.from_numpy(labels[first : first + BATCH]).to(device)
            said = run.method.predict(run.transform(x if change is None else change(x, first)))
            likelihood = said.probs.gather(1, y[:, None]).squeeze(1)
            parts.append((said.label, y, said.confidence, likelihood, said.unknown))
    arrays = {field: torch.cat(column).cpu().numpy() for field, column in zip(FIELDS, zip(*parts))}
    check_finite(arrays.values(), "corrupted images")
    return arrays


def read(path: Path) -> tuple[dict[str, np.ndarray], str, str, str]:
    """The arrays of one corruption, the key that says of what they are, the hash of a released file, the weights'."""
    arrays, header = storage.read_tensors(path, "numpy")
    fits = {*arrays} == {*FIELDS} and len({array.shape for array in arrays.values()}) == 1
    kinds = fits and all(array.dtype.kind in FIELDS[name] for name, array in arrays.items())
    if not kinds or arrays["label"].shape[:1] != (len(SEVERITIES),) or not arrays["label"].size:
        raise EowError(f"{path} does not hold predictions on corrupted images: delete it and make it again")
    said = [header.get(word) for word in ("key", "images", "weights")]
    if not all(isinstance(word, str) for word in said):
        raise EowError(f"{path} does not say what it is of: delete it and make it again")
    return arrays, header["key"], header["images"], header["weights"]


def corruption_figures(folder: str | Path) -> dict[str, Any]:
    """{"corruptions": names, "source": ..., "accuracy": one row a corruption, one column a severity, "ece": ...,
    "severity": {figure: [{"mean", "std"} for each severity]}}: mean and standard deviation over the corruptions, as in
    the paper's figure 3."""
    files = {path.stem: path for path in (Path(folder) / FOLDER).glob("*.safetensors")}
    found = {name: read(files[name]) for name in CORRUPTIONS if name in files}
    if not found:
        raise EowError(f"there are no predictions on corrupted images in {folder}: make them with --corruptions")
    own = Path(folder) / "weights.safetensors"
    if own.exists() and {each[3] for each in found.values()} != {storage.file_hash(own)}:
        raise EowError(
            f"the corrupted predictions in {folder} are of other weights: make them again with --corruptions"
        )
    if len({each[1] for each in found.values()}) > 1:
        raise EowError(f"the corrupted predictions in {folder} are of different runs or data: make them again")
    rows = {
        name: [figures_of(arrays, column) for column in range(len(SEVERITIES))] for name, (arrays, *_) in found.items()
    }
    matrix = {figure: [[cell[figure] for cell in row] for row in rows.values()] for figure in FIGURES}
    spread = {figure: [spread_of(column) for column in zip(*matrix[figure])] for figure in FIGURES}
    source = next(iter(found.values()))[1].partition(", ")[2]
    return {"corruptions": list(rows), "severities": list(SEVERITIES), "source": source, **matrix, "severity": spread}


def figures_of(arrays: dict[str, np.ndarray], column: int) -> dict[str, float]:
    label, labels, confidence, likelihood, unknown = (arrays[field][column] for field in FIELDS)
    return {
        "accuracy": accuracy(label, labels), "ece": ece(confidence, label == labels),
        "null_ece": null_ece(confidence).mean,
        "nll": float(-np.log(np.maximum(likelihood.astype(np.float64), FLOOR)).mean()),
        "confidence": float(confidence.mean(dtype=np.float64)), "unknown": float(unknown.mean(dtype=np.float64)),
    }  # fmt: skip


def spread_of(values: Iterable[float]) -> dict[str, float]:
    numbers = list(values)
    return {"mean": float(np.mean(numbers)), "std": float(np.std(numbers))}
