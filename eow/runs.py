"""A run: one folder that holds everything about one training.

    config.json  environment.json  log.jsonl  weights.safetensors  predictions/*.safetensors  summary.json

`train` makes one, or goes on with one that was stopped; `load` (opening.py) opens a finished one. While it trains,
checkpoint.safetensors holds the last good state; summary.json is written last and says that the run is complete.
"""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from eow import config as configs
from eow import storage
from eow.config import RunConfig
from eow.console import console, training_bar
from eow.data import Dataset
from eow.data.catalog import CATALOG
from eow.data.loader import Batches
from eow.data.sets import RunData, load_sets
from eow.errors import EowError
from eow.evaluate import CERTIFY, KNOWN, evaluate, stored_figures
from eow.methods import Method
from eow.opening import Run, check_sets, checked_hash, load, make_method
from eow.predictions import file_name, predict_set
from eow.predictions import read as read_predictions
from eow.runfolder import find_vanilla, note_environment, open_folder
from eow.seeds import derive, own_randomness
from eow.switches import float32_default, needs_gradients
from eow.training import checkpoints, stopping
from eow.training.distributed import Place, from_chief, pick_device, process_group
from eow.training.loggers import check_names
from eow.training.loggers import loggers as open_loggers
from eow.training.loop import Diverged, Training

FEW_STEPS = 100  # fewer than these hardly train any network


@float32_default()
def train(
    config: RunConfig, folder: str | Path, *, resume: bool = False, progress: bool = True, loggers: str = ""
) -> dict[str, Any]:
    """Train as `config` says into `folder` and return the summary. With `resume`, go on where its run stopped.
    `loggers` names those of eow/training/loggers.py that are to have the log as well, separated by commas."""
    if not isinstance(config, RunConfig):
        raise EowError(f"a {type(config).__name__} is not the config of a run: pass eow.resolve({{...}})")
    if folder == "":  # which pathlib takes for the folder one is in
        raise EowError("the run's folder is an empty text: name one")
    needs_gradients("eow.train")
    folder, wanted = Path(folder), [name for name in loggers.split(",") if name]
    check_names(wanted)
    with stopping.listening(), process_group(config.train.device) as place:
        # Everything that can be wrong is found out before the folder is touched.
        data, training = prepare(config, place, progress)
        chief = place.rank == 0
        with open_folder(folder, config, resume) if chief else nullcontext(False) as complete:
            complete = from_chief(complete, place)
            if complete:
                return once_more(folder, data, place) if chief else {}
            if chief:
                storage.write_json(folder / "config.json", configs.to_table(config))
                note_environment(folder, place.device)
            # One process looks for weights to take over: runs beside this one may end meanwhile.
            looks = chief and training.method.post_hoc
            source = from_chief(find_vanilla(folder, config, data, place.device) if looks else None, place)
            if source is not None:
                take_over(training.method, source, folder, place)
            else:
                optimise(training, data, config, folder, place, progress and chief, wanted)
            return complete_run(training.method, data, config, folder, place) if chief else {}


def check(config: RunConfig, folder: str | Path, *, resume: bool, world: int) -> None:
    """Raise what `train` in `world` processes would raise before its first epoch: once, before they are started."""
    prepare(config, Place(pick_device(config.train.device), 0, 1), progress=False)
    if config.train.batch % world:
        raise EowError(f"a batch of {config.train.batch} cannot be shared by {world} processes: make it a multiple")
    present = Path(folder).exists()
    with open_folder(Path(folder), config, resume):
        pass
    if not present:
        (Path(folder) / ".lock").unlink()
        Path(folder).rmdir()


def prepare(config: RunConfig, place: Place, progress: bool) -> tuple[RunData, Training]:
    """The data of a run, and its method on its device, ready to be trained."""
    data = load_sets(config.data, config.seed)
    return data, begin(config, data, place, training_bar(progress and place.rank == 0))


def begin(config: RunConfig, data: RunData, place: Place, bar: Progress | None = None) -> Training:
    """The method on its device, ready to be trained on data that is loaded already."""
    wanted = config.data
    method = make_method(config, len(data.train.classes), data.train.shape)
    method.to(place.device)
    method.prepare(place.device, place.rank, place.world)
    usual = CATALOG[wanted.name].augmentation if wanted.name in CATALOG else "none"
    augment = usual if wanted.augment == "auto" else wanted.augment

    def batches_of(dataset: Dataset) -> Batches:
        return Batches(
            dataset, config.train.batch, data.transform, place.device,
            seed=config.seed, augment=augment, resident=wanted.resident, rank=place.rank, world=place.world,
            episode=method.episode(),
        )  # fmt: skip

    holdout = batches_of(data.holdout) if data.holdout is not None and config.train.holdout_epochs else None
    return Training(method, batches_of(data.train), config.train, place, config.seed, holdout=holdout, bar=bar)


def take_over(method: Method, source: Path, folder: Path, place: Place) -> None:
    """A vanilla run's weights instead of training anew; the log says whose, and what they cost."""
    method.model.load_state_dict(load(source).method.model.state_dict())
    if place.rank:
        return
    cost = storage.read_json(source / "summary.json")["train_seconds"]
    log = storage.Log(folder / "log.jsonl")
    log.keep(lambda line: False)
    log.write(epoch=-1, event="taken over", source=source.name, seconds=cost)


def optimise(
    training: Training,
    data: RunData,
    config: RunConfig,
    folder: Path,
    place: Place,
    progress: bool,
    others: Sequence[str] = (),
) -> None:
    """All epochs, from the last checkpoint on, with log and checkpoints. A stop keeps the last whole epoch."""
    log, last = storage.Log(folder / "log.jsonl"), -1
    hashes = {"data": data.train.hash, "test": data.test.hash}
    if checkpoints.exists(folder):
        last = checkpoints.restore(training, folder, place, hashes)
    if place.rank == 0:
        log.keep(lambda line: line.get("epoch", -1) <= last)
    total = config.train.epochs + (config.train.holdout_epochs if training.holdout is not None else 0)
    steps = config.train.epochs * len(training.batches)
    if place.rank == 0 and steps < FEW_STEPS:
        advice = "a smaller train.batch or more train.epochs would teach more"
        warnings.warn(f"only {steps} step{'s' * (steps > 1)} in all: {advice}", RuntimeWarning, stacklevel=2)
    for sentence in configs.unread(config.train) if place.rank == 0 else ():
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    kept = last
    try:
        with stopping.held(), open_loggers(others if place.rank == 0 else (), folder) as pass_on:
            for line in training.epochs(last + 1):
                if place.rank == 0:
                    log.write(**line)
                    pass_on(line)
                if progress:
                    tell(line, config.method.name, total)
                if "event" in line:
                    continue
                last = line["epoch"]
                if (last + 1) % config.train.checkpoint_every == 0 or last + 1 == total:
                    checkpoints.save(training, folder, place, last, hashes)
                    kept = last
    except stopping.STOPS:
        if stopping.asked() and last > kept:
            checkpoints.save(training, folder, place, last, hashes)
        raise
    except Diverged as diverged:
        what = "no epoch was completed"
        if last >= 0:  # the loop has gone back to the last good state: keep it
            checkpoints.save(training, folder, place, last, hashes)
            if place.rank == 0:
                finish(training.method, data, config, place)
                write_weights(training.method, data, config, folder)
            what = f"the last good weights, of epoch {last + 1}, are in {folder}"
        raise EowError(f"{diverged}. Given up after {config.train.rollbacks} rollbacks; {what}") from None


def tell(line: dict[str, Any], name: str, total: int) -> None:
    """What is worth a line of its own: an epoch that was undone and, where there is no bar, five epochs of a run."""
    done = line["epoch"] + 1
    if "event" in line:
        console.print(f"epoch {done} is undone and tried again at {line['rate_factor']} of the rate: {line['reason']}")
    elif not console.is_terminal and done % -(-total // 5) == 0:
        terms = "  ".join(f"{key} {line[key]:.4g}" for key in line if key in ("ce", "energy"))
        console.print(f"{name}: epoch {done}/{total}  {terms}  {line['images_per_second']:,.0f} images/s")


def finish(method: Method, data: RunData, config: RunConfig, place: Place) -> Batches:
    """What the method fits after training; the training set's batches, in evaluation."""
    method.eval()

    def batches_of(part: Dataset) -> Batches:
        return Batches(part, 1000, data.transform, place.device, resident=config.data.resident)

    train, holdout = batches_of(data.train), None if data.holdout is None else batches_of(data.holdout)
    with own_randomness(place.device, derive("finish", config.seed)):
        method.finish(train, holdout)
    return train


def complete_run(method: Method, data: RunData, config: RunConfig, folder: Path, place: Place) -> dict[str, Any]:
    """After the last epoch: the post-hoc part, weights, predictions, figures, and the summary that ends the run."""
    chain = method.diagnose(finish(method, data, config, place))
    write_weights(method, data, config, folder)
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
    sets = {"train": data.train, "holdout": data.holdout, CERTIFY: data.certify, KNOWN: data.test, **data.outliers}
    made_with = storage.read_json(folder / "environment.json", "eow", "commit", "python", "torch", "numpy")
    summary = {
        "method": config.method.name, "data": config.data.name, "model": config.model.name, "recipe": config.recipe,
        "seed": config.seed,
        "metrics": evaluate(folder, finished=False),
        "train_seconds": sum(line.get("seconds", 0.0) for line in log), "weights": run.weights_hash,
        "versions": {key: made_with[key] for key in ("eow", "commit", "python", "torch", "numpy")},
        "sets": {name: describe(each) for name, each in sets.items() if each is not None},
        **({} if chain is None else {"chain": chain}),
    }  # fmt: skip
    storage.write_json(folder / "summary.json", summary)
    checkpoints.remove(folder)
    return summary


def once_more(folder: Path, data: RunData, place: Place) -> dict[str, Any]:
    """The summary of a finished run. Predictions that are gone or damaged are made again from its weights."""
    summary = stored_figures(folder, "method", "data")
    if (folder / "weights.safetensors").exists():  # a bench on other machines may have left them there
        checked_hash(folder)
    tested = {KNOWN: data.test, **data.outliers}
    check_sets(folder, {"train": data.train, **tested})
    files = {name: folder / "predictions" / file_name(name) for name in tested}
    if lost := [name for name, file in files.items() if not readable(file)]:
        run = load(folder, str(place.device))
        for name in lost:
            storage.remove(files[name])
            predict_set(run, name, tested[name])
    return summary


def readable(file: Path) -> bool:
    try:
        read_predictions(file)
    except EowError:
        return False
    return True


def write_weights(method: Method, data: RunData, config: RunConfig, folder: Path) -> None:
    """weights.safetensors, with all that `load` needs to make the method again."""
    card = {
        "config": configs.to_table(replace(config, data=replace(config.data, root=""))),  # no path of this machine
        "classes": list(data.train.classes), "in_shape": list(data.train.shape), "transform": asdict(data.transform),
    }  # fmt: skip
    storage.write_tensors(folder / "weights.safetensors", method.state_dict(), card)


def describe(part: Dataset) -> dict[str, Any]:
    """What a manifest says of a data set: enough to tell whether two runs saw the same samples."""
    return {
        "split": part.split, "samples": len(part), "classes": len(part.classes), "hash": part.hash,
        "indices": part.index_hash, "official": part.official,
    }  # fmt: skip
