"""Every setting of a run: frozen dataclasses, TOML and `section.key=value` in, JSON out.

A run's settings are layered, the later winning: the dataclasses' defaults, the recipe (recipes.py), a TOML file,
`--set`. An unknown key, a wrong type or a value that is not among the choices is an error that names the key.
"""

import dataclasses
import json
import re
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from eow.assignments import Table
from eow.assignments import from_assignments as from_assignments  # with these one reads what is resolved here
from eow.assignments import from_toml as from_toml
from eow.errors import EowError
from eow.typed import build, check_range, convert

SECTIONS = ("data", "model", "method", "train")
LARGEST = 10_000_000  # of a batch and of whatever a method counts: beyond, a slip of the hand and no memory
WIDEST = 1_000_000  # a hidden layer
STEEPEST = 1e30  # a rate, or a decay: float32 ends at 3e38
# Settings that say where a run happens, not what comes out of it: a run may be resumed with others.
ELSEWHERE = (("data", "root"), ("data", "resident"), ("train", "device"), ("train", "checkpoint_every"))


@dataclass(frozen=True)
class DataConfig:
    name: str = "digits"
    root: str = ""  # where data sets lie; "" means EOW_DATA, else the user's cache folder
    unknown_classes: tuple[int | str, ...] = ()  # numbers or names; held out of training, used as unknowns
    outliers: tuple[str, ...] = ()  # data sets that are predicted after training, as unknowns
    # Cut from the training set: a count, a share below 1, or "auto" (data/dataset.py).
    holdout: int | float | str = 0
    certify: int | float = 0  # the same, for `eow threshold` alone: nothing is trained or fitted on it
    limit: int = 0  # train on so many samples only, each class in proportion; 0: on all there are
    augment: Literal["auto", "none", "crop", "crop_flip"] = "auto"
    resident: bool = True  # the data lies on the device; false streams it from memory, a folder of images from a file
    allow_unofficial: bool = False


@dataclass(frozen=True)
class ModelConfig:
    name: str = "mlp"
    cut: str = "penultimate"  # where encoder ends and tail begins
    hidden: tuple[int, ...] = ()  # the MLP's hidden widths
    norm: Literal["auto", "batch", "none"] = "auto"
    activation: Literal["relu", "leaky_relu"] = "relu"
    dropout: float = 0.0
    stem: Literal["auto", "32", "64"] = "auto"
    input_noise: float = 0.0  # Gaussian noise on the input, at training and at prediction
    stage_noise: float = 0.0  # the same after stage 1
    # The unknown logit as a function of the last features; convex: quadratic, and never falling far out.
    unknown: Literal["linear", "quadratic", "convex"] = "linear"


@dataclass(frozen=True)
class TrainConfig:
    epochs: int = 15
    batch: int = 256
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.2
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    schedule: Literal["onecycle", "step", "constant"] = "onecycle"
    milestones: tuple[int, ...] = ()  # epochs at which `step` multiplies the rate by gamma
    gamma: float = 0.1
    warmup_steps: int = 0  # linear, before `step` or `constant`
    holdout_epochs: int = 0  # at the end, on the held-out part of the training set
    clip: float = 0.0  # largest norm of the gradient; 0: as large as it is
    rollbacks: int = 3  # how often a diverged run may go back to its last good epoch, each time at half the rate
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on a GPU, fp32 elsewhere
    device: str = "auto"
    graph: Literal["auto", "on", "off"] = "auto"  # the whole step as one CUDA graph, where method and device allow it
    compile: bool = False  # torch.compile for the model's encoder: faster steps after a minute of compiling
    checkpoint_every: int = 5


@dataclass(frozen=True)
class RunConfig:
    recipe: str = "modern"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: Any = None  # the method's own options; its class says which method
    train: TrainConfig = field(default_factory=TrainConfig)


def merge(*layers: Table) -> Table:
    """Tables laid over one another, the later winning, section by section."""
    merged: Table = {}
    for layer in layers:
        check_table(layer)
        for section, value in layer.items():
            if isinstance(value, dict) and isinstance(merged.get(section, {}), dict):
                merged[section] = {**merged.get(section, {}), **value}
            else:
                merged[section] = value
    return merged


def resolve(*layers: Table) -> RunConfig:
    """The settings of a run: defaults, then the recipe for this data, model and method, then the layers."""
    from eow.recipes import recipe  # here, because it imports the methods and with them torch

    wishes = merge({"recipe": "modern", "data": {}, "model": {}, "method": {}}, *layers)
    check_sections(wishes)
    convert(wishes["recipe"], str, "recipe")
    return from_table(merge(recipe(wishes), wishes))


def check_table(table: Any) -> None:
    if not isinstance(table, dict):
        raise EowError(f"the settings are {table!r}: they are a table with the sections {', '.join(SECTIONS)}")


def check_sections(table: Any) -> None:
    check_table(table)
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), dict):
            example = "epochs" if section == "train" else "name"
            raise EowError(
                f"{section} is {table[section]!r}: it is a section with keys, for example {section}.{example}=..."
            )


def from_table(table: Table) -> RunConfig:
    """A RunConfig from a complete table, such as a run's config.json."""
    from eow.methods import method_named

    check_sections(table)
    table = dict(table)
    options = dict(table.pop("method", {}))
    method = method_named(str(options.pop("name", "vanilla")))
    sections = {"data": DataConfig, "model": ModelConfig, "train": TrainConfig}
    built = {name: build(cls, table.pop(name, {}), name) for name, cls in sections.items()}
    built["method"] = build(method.Options, options, "method")
    for key in table:
        if key not in ("recipe", "seed"):
            raise EowError(
                f"there is no setting or section {key!r}: a run has recipe, seed, data, model, method and train"
            )
    config = RunConfig(
        recipe=convert(table.get("recipe", "modern"), str, "recipe"),
        seed=convert(table.get("seed", 0), int, "seed"),
        **built,
    )
    check(config)
    return config


def check_training(train: TrainConfig, seed: int, section: str = "train") -> None:
    """What types alone cannot say of a training, whether a run's or `eow.fit`'s."""
    check_range("seed", seed, 0)
    for key in ("epochs", "checkpoint_every"):
        check_range(f"{section}.{key}", getattr(train, key), 1)
    for key in ("warmup_steps", "holdout_epochs", "clip", "rollbacks", "weight_decay", "momentum"):
        check_range(f"{section}.{key}", getattr(train, key), 0)
    check_range(f"{section}.batch", train.batch, 1, LARGEST)
    for key in ("lr", "gamma"):
        if getattr(train, key) <= 0:
            raise EowError(f"{section}.{key} is {getattr(train, key)}: it must be above 0")
    check_range(f"{section}.gamma", train.gamma, 0, 1)
    for key in ("lr", "weight_decay"):
        check_range(f"{section}.{key}", getattr(train, key), 0, STEEPEST)
    if train.momentum >= 1:
        raise EowError(f"{section}.momentum is {train.momentum}: it must be below 1")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", train.device):
        raise EowError(f"{section}.device is {train.device!r}: choose one of auto, cpu, cuda, cuda:0 (1, ...), mps")


def unread(train: TrainConfig) -> list[str]:
    """A sentence for every setting that was changed and that nothing reads. They are not errors: the rows of a grid may
    share settings that only some of them read."""
    usual = TrainConfig()
    idle = {
        "warmup_steps": ("train.schedule=step or constant", train.schedule == "onecycle"),
        "milestones": ("train.schedule=step", train.schedule != "step"),
        "gamma": ("train.schedule=step", train.schedule != "step"),
        "momentum": ("train.optimizer=sgd", train.optimizer == "adam"),
    }
    return [
        f"train.{key} is {getattr(train, key)!r} and changes nothing: it goes with {reader}"
        for key, (reader, idly) in idle.items()
        if idly and getattr(train, key) != getattr(usual, key)
    ]


def check(config: RunConfig) -> None:
    """What types alone cannot say."""
    from eow.data import refuse_twice_permuted
    from eow.methods import method_named

    train, data, method = config.train, config.data, method_named(config.method.name)
    check_training(train, config.seed)
    for name in (data.name, *data.outliers):
        refuse_twice_permuted(name)
    for key in ("holdout", "certify", "limit"):
        if isinstance(value := getattr(data, key), str):
            if value != "auto":
                raise EowError(f"data.{key} is {value!r}: give a count, a share below 1, or 'auto'")
        else:
            check_range(f"data.{key}", value, 0)
    for width in config.model.hidden:
        check_range("model.hidden", width, 1, WIDEST)
    for key, value in dataclasses.asdict(config.method).items():
        if type(value) is int:  # what is too small for a method, it says itself
            check_range(f"method.{key}", value, -LARGEST, LARGEST)
    fitted = method.uses_holdout(config.method)
    if fitted and not data.holdout:
        otherwise = "" if method.needs_holdout else ", or method.calibrate=none"
        raise EowError(
            f"{config.method.name} is fitted on held-out training data: set data.holdout, for example 0.1{otherwise}"
        )
    if fitted and train.holdout_epochs:
        raise EowError(f"{config.method.name} must not train on what it is fitted on: set train.holdout_epochs=0")
    if train.holdout_epochs and not data.holdout:
        raise EowError("train.holdout_epochs needs held-out data: set data.holdout, for example data.holdout=5000")


def to_table(config: RunConfig) -> Table:
    """The settings as plain JSON values; `from_table` of it is the same config."""
    table = dataclasses.asdict(config)
    table["method"] = {"name": config.method.name, **table["method"]}
    return typing.cast(Table, json.loads(json.dumps(table)))


def settings_of(config: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide what comes out of a run, flat, without its seed: runs that differ in nothing else are
    equal here. Where a run happens and what it predicts afterwards are left out."""
    flat = {"recipe": config.get("recipe")}
    for section in SECTIONS:
        values = config.get(section)
        flat.update({f"{section}.{key}": each for key, each in values.items()} if isinstance(values, dict) else {})
    apart = {".".join(path) for path in ELSEWHERE} | {"data.outliers"}
    return {key: value for key, value in flat.items() if key not in apart}
