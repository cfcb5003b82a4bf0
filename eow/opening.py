"""A finished run, opened: the method that its settings and its weights make, what is needed to feed it, and the data it
was made with, read again."""

import math
from collections.abc import Sequence
from ctypes import c_float
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eow import config as configs
from eow import storage
from eow.config import RunConfig
from eow.data import Dataset
from eow.data.loader import Transform
from eow.data.sets import load_sets
from eow.errors import EowError
from eow.evaluate import KNOWN, is_imported
from eow.methods import Method, method_named
from eow.models import SplitModel
from eow.models import build as build_model
from eow.models.split import only_counted
from eow.plain import first_line
from eow.seeds import own_randomness
from eow.switches import float32_default


@dataclass(frozen=True)
class Run:
    """A finished run, opened: the method with its weights, and what is needed to feed it."""

    folder: Path
    config: RunConfig
    method: Method
    classes: tuple[str, ...]
    in_shape: tuple[int, ...]
    transform: Transform
    weights_hash: str


@float32_default()
def make_method(config: RunConfig, classes: int, in_shape: tuple[int, ...]) -> Method:
    """The method around a freshly initialised model; the same seed gives the same weights."""
    kind, wanted = method_named(config.method.name), config.model
    if wanted.unknown != "linear" and not kind.extra_outputs:
        raise EowError(f"{config.method.name} has no unknown logit: leave model.unknown out, or train with eow")
    options = {key: value for key, value in asdict(wanted).items() if key != "name"}
    if wanted.name != "mlp":
        options["hidden"] = wanted.hidden or None

    def make_model(seed: int) -> SplitModel:
        with own_randomness(torch.device("cpu"), seed):
            return build_model(wanted.name, classes + kind.extra_outputs, in_shape, **options)

    with own_randomness(torch.device("cpu"), config.seed):  # for what a method initialises beside the model
        return kind.create(make_model, config.method, classes, in_shape, config.seed)


def described_in(card: dict[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...], Transform]:
    """Class names, the shape of an input and what is done to one, from a card that may say anything."""
    classes, in_shape = tuple(card["classes"]), tuple(card["in_shape"])
    if not all(type(name) is str for name in classes):
        raise ValueError("its classes are not names")
    if len(in_shape) not in (1, 3) or not all(type(size) is int and size > 0 for size in in_shape):
        raise ValueError(f"inputs of shape {in_shape!r:.40}")
    transform = Transform(tuple(card["transform"]["mean"]), tuple(card["transform"]["std"]))
    for values, least in ((transform.mean, -math.inf), (transform.std, 0.0)):
        # In float32, as they are used: there the smallest numbers are 0 and the largest infinite.
        if not all(type(value) in (int, float) and least < c_float(value).value < math.inf for value in values):
            raise ValueError("a mean or deviation of its inputs that is none")
        if len(values) != in_shape[0]:
            raise ValueError(f"{len(values)} means or deviations for inputs of shape {in_shape}")
    return classes, in_shape, transform


def checked_hash(folder: Path) -> str:
    """The hash of the weights, which must be the one that the summary names. Without a summary training has not ended,
    or has diverged."""
    weights, summary = folder / "weights.safetensors", folder / "summary.json"
    found = storage.file_hash(weights)
    if summary.exists() and storage.read_json(summary, "weights")["weights"] != found:
        raise EowError(
            f"{weights} is not the file that {summary} was written for: it was damaged or replaced since, copy the run "
            "again or train it again"
        )
    return found


def load(folder: str | Path, device: str = "cpu") -> Run:
    """Open a finished run. Everything needed stands in its weights file; no code is run from it."""
    folder = Path(folder)
    if folder.is_file():
        raise EowError(f"{folder} is a file: give a run's folder, or an .onnx file to `eow predict`")
    if not folder.is_dir():
        raise EowError(f"there is no run folder {folder}: give the --out of an `eow train`")
    if is_imported(folder):
        raise EowError(f"{folder} holds imported predictions and no network: ask the model that made them for others")
    state, card = storage.read_tensors(folder / "weights.safetensors")
    weights_hash = checked_hash(folder)
    try:
        config = configs.from_table(card["config"])
        classes, in_shape, transform = described_in(card)
        with only_counted():  # no file may ask for a larger network than it brings
            wanted = make_method(config, len(classes), in_shape)
        if any(key not in state or state[key].shape != each.shape for key, each in wanted.named_parameters()):
            raise ValueError("other parameters than its settings want")
        if any(key in state and state[key].dtype != each.dtype for key, each in wanted.state_dict().items()):
            raise ValueError("numbers of another type than its settings want")
        method = make_method(config, len(classes), in_shape)
        method.load_state_dict(state)
    except (KeyError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        raise EowError(
            f"the weights in {folder} do not fit what they say they are ({first_line(error)}): train it again"
        ) from None
    method.to(device).eval()
    if torch.device(device).type == "cuda":
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the layout of training
    return Run(folder, config, method, classes, in_shape, transform, weights_hash)


def set_hashes(folder: Path) -> dict[str, str]:
    """The content hashes of the sets that a finished run has used, by their part in it."""
    sets = storage.read_json(folder / "summary.json", "sets")["sets"]
    try:
        return {name: sets[name]["hash"] for name in {**sets, "train": None, KNOWN: None}}
    except (KeyError, TypeError):
        raise EowError(f"the summary in {folder} does not say what data was used: train the run again") from None


def own_test_set(run: Run, root: str = "") -> Dataset:
    """The run's own test data, read again, and checked to be what it was."""
    return own_sets(run, (), root)[KNOWN]


def own_sets(run: Run, outliers: Sequence[str], root: str = "") -> dict[str, Dataset]:
    """The test data and these outliers of a run, read again, and checked to be what they were."""
    named = tuple(name for name in run.config.data.outliers if name in outliers)
    data = load_sets(replace(run.config.data, root=root, outliers=named), run.config.seed)
    found = {KNOWN: data.test, **{name: data.outliers[name] for name in outliers if name in data.outliers}}
    check_sets(run.folder, found)
    return found


def check_sets(folder: Path, sets: dict[str, Dataset]) -> None:
    """Data that is read again must be what a finished run was made with, each by its part in it."""
    used = set_hashes(folder)
    for name, each in sets.items():
        if used.get(name) != each.hash:
            what = "trained" if name == "train" else "tested"
            raise EowError(f"the {name} data is not what the run in {folder} was {what} on: bring it back")
