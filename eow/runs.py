"""A run: one folder that holds everything about one training.

    config.json  environment.json  log.jsonl  weights.safetensors  predictions/*.safetensors  summary.json

`train` makes one, or goes on with one that was stopped; `load` opens a finished one. While it trains,
checkpoint.safetensors holds the last good state; summary.json is written last and says that the run is complete.
"""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eow
from eow import config as configs
from eow import storage
from eow.config import RunConfig
from eow.console import console, training_bar
from eow.data import Dataset
from eow.data.catalog import CATALOG
from eow.data.loader import Batches, Transform
from eow.data.sets import RunData, load_sets
from eow.distributed import Place, process_group
from eow.errors import EowError
from eow.evaluate import KNOWN, evaluate
from eow.methods import Method, method_named
from eow.models import SplitModel
from eow.models import build as build_model
from eow.predictions import predict_set
from eow.seeds import derive, own_randomness
from eow.training import Diverged, Training

# Settings that say where a run happens, not what comes out of it: a run may be resumed with others.
ELSEWHERE = (("data", "root"), ("data", "resident"), ("train", "device"), ("train", "checkpoint_every"))


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


def make_method(config: RunConfig, classes: int, in_shape: tuple[int, ...]) -> Method:
    """The method around a freshly initialised model; the same seed gives the same weights."""
    kind, wanted = method_named(config.method.name), config.model
    options = {key: value for key, value in asdict(wanted).items() if key != "name"}
    if wanted.name != "mlp":
        options["hidden"] = wanted.hidden or None

    def make_model(seed: int) -> SplitModel:
        with own_randomness(torch.device("cpu"), seed):
            return build_model(wanted.name, classes + kind.extra_outputs, in_shape, **options)

    with own_randomness(torch.device("cpu"), config.seed):  # for what a method initialises beside the model
        return kind.create(make_model, config.method, classes, in_shape, config.seed)


def environment(device: torch.device) -> dict[str, Any]:
    """What the run was made with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    try:
        source = Path(__file__).parent
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=source, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "eow": eow.__version__, "commit": commit, "python": platform.python_version(), "torch": torch.__version__,
        "numpy": np.__version__, "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type} ({name})", "cores": os.cpu_count(), "threads": torch.get_num_threads(),
    }  # fmt: skip


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str | None:
    """The first setting in which two configs differ, as a sentence's part."""
    for key in sorted({*old, *new}):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            if found := difference(old[key], new[key], f"{path}{key}."):
                return found
        elif old.get(key) != new.get(key) and tuple(f"{path}{key}".split(".")) not in ELSEWHERE:
            return f"{path}{key} is {old.get(key)!r} there and {new.get(key)!r} now"
    return None


@contextmanager
def open_folder(folder: Path, config: RunConfig, resume: bool) -> Iterator[bool]:
    """The run's folder, made or found again, and locked. Yields whether the run in it is already complete."""
    present = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    if present and not (folder / "config.json").exists():
        raise EowError(f"{folder} is not empty and holds no run: choose another folder for --out")
    if present and not resume:
        with storage.locked(folder):  # a run that is under way is the better thing to say
            raise EowError(
                f"{folder} already holds a run: pass --resume to go on with it, or choose another folder for --out"
            )
    storage.make_folder(folder)
    with storage.locked(folder):
        if present and (found := difference(storage.read_json(folder / "config.json"), configs.to_table(config))):
            raise EowError(
                f"{folder} holds a run with other settings ({found}): resume it with its own, or choose another --out"
            )
        yield (folder / "summary.json").exists()


def train(config: RunConfig, folder: str | Path, *, resume: bool = False, progress: bool = True) -> dict[str, Any]:
    """Train as `config` says into `folder` and return the summary. With `resume`, go on where the folder's run
    stopped."""
    folder = Path(folder)
    with process_group(config.train.device) as place:
        data = load_sets(
            config.data, config.seed
        )  # everything that can be wrong is found out before the folder is touched
        method = make_method(config, len(data.train.classes), data.train.shape)
        method.to(place.device)
        method.prepare(place.device)
        chief = place.rank == 0
        with open_folder(folder, config, resume) if chief else nullcontext(False) as complete:
            if place.world > 1:
                word = [complete]
                torch.distributed.broadcast_object_list(word)
                complete = word[0]
            if complete:
                return storage.read_json(folder / "summary.json")
            if chief:
                storage.write_json(folder / "config.json", configs.to_table(config))
                storage.write_json(folder / "environment.json", environment(place.device))
            source = find_vanilla(folder, config) if method.post_hoc else None
            if source is not None:
                take_over(method, source, folder)
            else:
                optimise(method, data, config, folder, place, progress and chief)
            return complete_run(method, data, config, folder, place) if chief else {}


def take_over(method: Method, source: Path, folder: Path) -> None:
    """A vanilla run's weights instead of a training of one's own; the log says whose, and what they cost."""
    method.model.load_state_dict(load(source).method.model.state_dict())
    cost = storage.read_json(source / "summary.json")["train_seconds"]
    log = storage.Log(folder / "log.jsonl")
    log.keep(lambda line: False)
    log.write(epoch=-1, event="taken over", source=source.name, seconds=cost)


def find_vanilla(folder: Path, config: RunConfig) -> Path | None:
    """A finished vanilla run beside `folder` with the same data, model, training and seed, whose weights will do."""
    wanted = {**configs.to_table(config), "method": {"name": "vanilla"}}
    for beside in sorted(folder.absolute().parent.iterdir()):
        complete = (beside / "summary.json").exists() and (beside / "weights.safetensors").exists()
        if complete and difference(storage.read_json(beside / "config.json"), wanted) is None:
            return beside
    return None


def optimise(method: Method, data: RunData, config: RunConfig, folder: Path, place: Place, progress: bool) -> None:
    """All epochs, from the last checkpoint on, with log and checkpoints."""
    wanted = config.data
    usual = CATALOG[wanted.name].augmentation if wanted.name in CATALOG else "none"
    augment = usual if wanted.augment == "auto" else wanted.augment

    def batches_of(dataset: Dataset) -> Batches:
        return Batches(
            dataset, config.train.batch, data.transform, place.device,
            seed=config.seed, augment=augment, resident=wanted.resident, rank=place.rank, world=place.world,
            episode=method.episode(),
        )  # fmt: skip

    batches = batches_of(data.train)
    holdout = batches_of(data.holdout) if data.holdout is not None and config.train.holdout_epochs else None
    training = Training(method, batches, config.train, place, config.seed, holdout=holdout, bar=training_bar(progress))
    log, last = storage.Log(folder / "log.jsonl"), -1
    if (folder / "checkpoint.safetensors").exists():
        last = restore(training, folder, place)
    if place.rank == 0:
        log.keep(lambda line: line["epoch"] <= last)
    total = config.train.epochs + (config.train.holdout_epochs if holdout is not None else 0)
    for line in lines_of(training, folder, place, last + 1):
        if place.rank == 0:
            log.write(**line)
        if progress:
            tell(line, config.method.name, total)
        done = "event" not in line and line["epoch"] + 1
        if done and (done % config.train.checkpoint_every == 0 or done == total):
            save(training, folder, place, line["epoch"])


def tell(line: dict[str, Any], name: str, total: int) -> None:
    """What is worth a line of its own: an epoch that was undone and, where there is no bar, five epochs of a run."""
    done = line["epoch"] + 1
    if "event" in line:
        console.print(f"epoch {done} is undone and tried again at {line['rate_factor']} of the rate: {line['reason']}")
    elif not console.is_terminal and done % -(-total // 5) == 0:
        terms = "  ".join(f"{key} {line[key]:.4g}" for key in line if key in ("ce", "energy"))
        console.print(f"{name}: epoch {done}/{total}  {terms}  {line['images_per_second']:,.0f} images/s")


def lines_of(training: Training, folder: Path, place: Place, first: int) -> Iterator[dict[str, Any]]:
    """The epochs' lines; when the training gives up, the last good state is kept as a checkpoint first."""
    epoch = first - 1
    try:
        for line in training.epochs(first):
            yield line
            epoch = line["epoch"] if "event" not in line else epoch
    except Diverged as diverged:
        if epoch >= 0:
            save(training, folder, place, epoch)
        tries = training.settings.rollbacks
        raise EowError(f"{diverged}. Given up after {tries} rollbacks; the last good state is in {folder}") from None


def save(training: Training, folder: Path, place: Place, epoch: int) -> None:
    """A checkpoint. Other ranks write what is theirs alone first; rank 0's file makes the epoch count."""
    state, header = training.state(), {"epoch": epoch, "rollbacks": training.rollbacks}
    if place.rank:
        storage.write_tensors(rank_file(folder, place.rank, epoch), state, header)
    if place.world > 1:
        torch.distributed.barrier()
    if place.rank == 0:
        storage.write_tensors(folder / "checkpoint.safetensors", state, header)
        for file in folder.glob("checkpoint-rank*"):
            if not file.name.endswith(f"-{epoch}.safetensors"):
                file.unlink()


def restore(training: Training, folder: Path, place: Place) -> int:
    """The epoch of the last checkpoint, whose state the training now has."""
    state, header = storage.read_tensors(folder / "checkpoint.safetensors")
    epoch, training.rollbacks = int(header["epoch"]), int(header["rollbacks"])
    if place.rank:
        state, _ = storage.read_tensors(rank_file(folder, place.rank, epoch))
    try:
        training.restore(state)
    except (KeyError, RuntimeError, ValueError) as error:
        raise EowError(
            f"the checkpoint in {folder} does not fit this model ({error}): start again in another folder"
        ) from None
    return epoch


def rank_file(folder: Path, rank: int, epoch: int) -> Path:
    return folder / f"checkpoint-rank{rank}-{epoch}.safetensors"


def complete_run(method: Method, data: RunData, config: RunConfig, folder: Path, place: Place) -> dict[str, Any]:
    """After the last epoch: the post-hoc part, weights, predictions, figures, and the summary that ends the run."""
    method.eval()
    train, holdout = (each and Batches(each, 1000, data.transform, place.device) for each in (data.train, data.holdout))
    with own_randomness(place.device, derive(config.seed, 3)):
        method.finish(train, holdout)
    card = {
        "config": configs.to_table(replace(config, data=replace(config.data, root=""))),  # no path of this machine
        "classes": list(data.train.classes), "in_shape": list(data.train.shape), "transform": asdict(data.transform),
    }  # fmt: skip
    storage.write_tensors(folder / "weights.safetensors", method.state_dict(), card)
    run = Run(
        folder,
        config,
        method,
        data.train.classes,
        data.train.shape,
        data.transform,
        storage.file_hash(folder / "weights.safetensors"),
    )
    for name, dataset in {KNOWN: data.test, **data.outliers}.items():
        predict_set(run, name, dataset)
    log = storage.Log(folder / "log.jsonl").read()
    sets = {"train": data.train, "holdout": data.holdout, KNOWN: data.test, **data.outliers}
    made_with = storage.read_json(folder / "environment.json")
    summary = {
        "method": config.method.name, "data": config.data.name, "model": config.model.name, "recipe": config.recipe,
        "seed": config.seed,
        "metrics": evaluate(folder), "train_seconds": sum(line["seconds"] for line in log), "weights": run.weights_hash,
        "versions": {key: made_with[key] for key in ("eow", "commit", "python", "torch", "numpy")},
        "sets": {
            name: {"samples": len(each), "classes": len(each.classes), "hash": each.hash, "official": each.official}
            for name, each in sets.items() if each is not None
        },
    }  # fmt: skip
    storage.write_json(folder / "summary.json", summary)
    for file in folder.glob("checkpoint*"):
        file.unlink()
    return summary


def load(folder: str | Path, device: str = "cpu") -> Run:
    """Open a finished run. Everything needed stands in its weights file; no code is run from it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise EowError(f"there is no run folder {folder}: give the --out of an `eow train`")
    state, card = storage.read_tensors(folder / "weights.safetensors")
    try:
        config = configs.from_table(card["config"])
        classes, in_shape = tuple(card["classes"]), tuple(card["in_shape"])
        transform = Transform(tuple(card["transform"]["mean"]), tuple(card["transform"]["std"]))
        method = make_method(config, len(classes), in_shape)
        method.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError) as error:
        raise EowError(
            f"the weights in {folder} do not fit what they say they are ({str(error).splitlines()[0]}): train it again"
        ) from None
    method.to(device).eval()
    return Run(folder, config, method, classes, in_shape, transform, storage.file_hash(folder / "weights.safetensors"))
