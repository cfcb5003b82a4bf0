"""Settings: layers, checks, and sentences that name the key."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eow.config import TrainConfig, from_assignments, from_table, from_toml, resolve, to_table
from eow.errors import EowError
from eow.methods import METHODS
from eow.recipes import RECIPES
from eow.typed import as_python, build, convert


def test_later_layers_win() -> None:
    assert resolve().train.epochs == 40  # the recipe's for an MLP
    file = {"train": {"epochs": 7, "lr": 0.5}}
    config = resolve(file, from_assignments(["train.epochs=9"]))
    assert (config.train.epochs, config.train.lr) == (9, 0.5)


def test_values_are_read_as_toml_or_plain_text() -> None:
    table = from_assignments(
        ["train.lr=1e-3", "model.hidden=32,16", "method.start=noise:0.5,mixed:0.5", "seed=3", "data.resident=false"]
    )
    config = resolve(table)
    assert config.train.lr == 1e-3
    assert config.model.hidden == (32, 16)
    assert config.method.start == "noise:0.5,mixed:0.5"
    assert config.seed == 3
    assert config.data.resident is False


@pytest.mark.parametrize(
    "sizes", [np.array([8, 4]), tuple(np.array([8, 4])), [np.int64(8), 4], (torch.tensor(8), np.uint8(4)), (8, 4)]
)
def test_numbers_of_arrays_are_numbers_wherever_they_stand(sizes: Any) -> None:
    assert convert(as_python(sizes), tuple[int, ...], "hidden_layer_sizes") == (8, 4)
    assert {type(size) for size in as_python(sizes)} == {int}
    assert as_python((1, [np.float32(0.5)], "auto", None)) == (1, [0.5], "auto", None)
    with pytest.raises(EowError, match=r"hidden_layer_sizes is 0\.5: give a whole number"):
        convert(as_python((np.float64(0.5),)), tuple[int, ...], "hidden_layer_sizes")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("data", ["digits", "cifar10", "cifar100", "tiny_imagenet", "folder:somewhere"])
def test_every_recipe_is_complete_and_survives_json(recipe: str, method: str, data: str) -> None:
    config = resolve({"recipe": recipe, "method": {"name": method}, "data": {"name": data}})
    assert from_table(json.loads(json.dumps(to_table(config)))) == config


def test_paper_recipe_is_section_4_1() -> None:
    config = resolve({"recipe": "paper", "data": {"name": "cifar100"}, "method": {"name": "eow"}})
    train, method = config.train, config.method
    assert (train.optimizer, train.lr, train.momentum, train.weight_decay, train.nesterov) == (
        "sgd",
        1e-4,
        0.9,
        5e-4,
        False,
    )
    assert (train.batch, train.epochs, train.schedule, train.milestones, train.gamma) == (
        64,
        200,
        "step",
        (100, 150),
        0.1,
    )
    assert (method.steps, method.step, method.noise, method.lam, method.trust) == (100, 2.0, 1e-3, 0.1, 0.0)
    assert (config.model.name, config.model.cut, method.start, method.start_epoch) == (
        "resnet50",
        "stage3",
        "buffer",
        0,
    )


def test_release_recipe_is_the_authors_code() -> None:
    config = resolve({"recipe": "release", "data": {"name": "cifar100"}, "method": {"name": "eow"}})
    train, method, model = config.train, config.method, config.model
    assert (train.optimizer, train.lr, train.weight_decay, train.batch, train.epochs) == ("adam", 1e-4, 0.0, 64, 15)
    assert (train.milestones, train.gamma, train.warmup_steps, train.holdout_epochs) == ((7, 10), 0.5, 1000, 1)
    assert (model.name, model.cut, model.norm, model.activation) == ("wrn28_10", "stage2", "none", "leaky_relu")
    assert (model.input_noise, model.stage_noise, config.data.holdout) == (0.01, 0.01, 0.1)
    assert (method.start, method.restart, method.buffer_size, method.negatives, method.start_epoch) == (
        "buffer",
        0.05,
        10_000,
        "train",
        8,
    )


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("train.epoch=3", r"no setting train\.epoch: did you mean train\.epochs"),
        ("method.lambda=3", r"no setting method\.lambda"),
        ("trian.epochs=3", "trian"),
        ("train.epochs=3.5", r"train\.epochs is 3\.5: give a whole number"),
        ("data.holdout=nan", r"data\.holdout is nan: give a finite number"),
        ("data.holdout=true", r"data\.holdout is True: give a whole number or a number or a word"),
        ("train.epochs=many", r"train\.epochs is 'many'"),
        ("train.epochs=true", r"train\.epochs is True"),
        ("train.epochs=0", r"train\.epochs is 0: it must be at least 1"),
        ("train.lr=nan", "finite"),
        ("train.gamma=-inf", r"train\.gamma is -inf: give a finite number"),
        ("train.lr=inf", "finite"),
        ("train.lr=-1", "above 0"),
        ("train.optimizer=sdg", "choose one of sgd, adam"),
        ("train.holdout_epochs=1", r"eow must not train on what it is fitted on: set train\.holdout_epochs=0"),
        ("data.holdout=0", r"eow is fitted on held-out .*: set data\.holdout, .* or method\.calibrate=none"),
        ("seed=-1", "seed is -1"),
        ("seed=x", "seed is 'x'"),
        ("method.name=eov", r"no method 'eov': did you mean eow\? choose one of vanilla, .*eow"),
        ("data.name=digit", "no data set named 'digit'"),
        ("recipe=old", "no recipe 'old'"),
        ("train=3", r"train is 3: it is a section with keys, for example train\.epochs="),
        ("data=3", r"data is 3: it is a section with keys, for example data\.name="),
        ("nonsense", "write section.key=value"),
        ("=3", "write section.key=value"),
        ("recipe=[1]", r"recipe is \[1\]"),
        ("seed=99999999999999999999", r"seed is a whole number of 67 bits: give one below 2\*\*63"),
        (f"train.lr=1{400 * '0'}", r"train\.lr is a whole number of 1329 bits"),
        (f"train.epochs={5000 * '9'}", r"train\.epochs is '999"),  # more digits than Python reads
        (f"data.holdout={'0x' + 5000 * 'f'}", r"data\.holdout is a whole number of 20000 bits"),
        (f"model.hidden={3000 * '['}", r"\[\[\[|model\.hidden"),
        ("train.momentum=-1", r"train\.momentum is -1\.0: it must be at least 0"),
        ("train.momentum=1", r"train\.momentum is 1\.0: it must be below 1"),
        ("train.gamma=0", r"train\.gamma is 0\.0: it must be above 0"),
        ("train.device=meta", r"train\.device is 'meta': choose one of auto, cpu, cuda"),
        ("model.hidden=[4611686018427387904]", r"model\.hidden is 4611686018427387904: it must be at most 1,000,000"),
        ("model.stem=48", "choose one of auto, 32, 64"),
        ("train.batch=1000000000000", r"train\.batch .* at most 10,000,000"),
        ("method.chains=1000000000000", r"method\.chains .* at most 10,000,000"),
        ("method.buffer_size=10000001", r"method\.buffer_size .* at most 10,000,000"),
        ("method.steps=10000001", r"method\.steps .* at most 10,000,000"),
    ],
)
def test_errors_name_the_key(setting: str, sentence: str) -> None:
    with pytest.raises(EowError, match=sentence):
        resolve(from_assignments([setting]))


@pytest.mark.parametrize("settings", [["method.name=vanilla"], ["data.holdout=0", "method.calibrate=none"]])
def test_epochs_on_held_out_data_need_some(settings: list[str]) -> None:
    with pytest.raises(EowError, match=r"train\.holdout_epochs needs held-out data: set data\.holdout"):
        resolve(from_assignments([*settings, "train.holdout_epochs=1"]))
    assert resolve(from_assignments(settings)).data.holdout == 0


@pytest.mark.parametrize(
    "settings", [["seed=1", "seed.x=2"], ["data=3", "data.name=digits"], ["data.name=x", "data=3"]]
)
def test_a_section_is_no_value_and_a_value_no_section(settings: list[str]) -> None:
    with pytest.raises(EowError, match=r"leave one of them out|it is a section"):
        resolve(from_assignments(settings))


@pytest.mark.parametrize("table", [[1], {"method": 3}, {"train": [1]}, {"recipe": {}}])
def test_a_damaged_config_is_refused(table: object) -> None:
    with pytest.raises(EowError):
        from_table(table)  # type: ignore[arg-type]


def test_numbers_may_name_a_choice_and_large_ones_are_allowed_up_to_the_bound() -> None:
    settings = ["model.stem=32", "train.batch=10000000", f"seed={2**63 - 1}", "train.device=cuda:1"]
    config = resolve({"data": {"name": "cifar10"}}, from_assignments(settings))
    assert (config.model.stem, config.train.batch, config.seed) == ("32", 10_000_000, 2**63 - 1)


def test_toml_files(tmp_path: Path) -> None:
    good = tmp_path / "run.toml"
    good.write_text('seed = 4\n[train]\nepochs = 3\n[method]\nname = "vanilla"\n')
    config = resolve(from_toml(good))
    assert (config.seed, config.train.epochs, config.method.name) == (4, 3, "vanilla")
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"seed = \xff")
    with pytest.raises(EowError, match="cannot be read as TOML"):
        from_toml(bad)
    for text in (f"x = {3000 * '['}", f"x = {5000 * '9'}"):
        bad.write_text(text)
        with pytest.raises(EowError, match="cannot be read as TOML"):
            from_toml(bad)
    with pytest.raises(EowError, match="there is no file"):
        from_toml(tmp_path / "none.toml")
    with pytest.raises(EowError, match=r"recipe is \{\}"):
        resolve({"recipe": {}})

    for encoding in ("utf-8", "utf-8-sig"):  # with the mark that some editors begin a file with
        good.write_text("seed = 5\n", encoding=encoding)
        assert from_toml(good) == {"seed": 5}
    with pytest.raises(EowError, match=r"/dev/zero cannot be read as TOML: it has more than 16,777,216 bytes"):
        from_toml("/dev/zero")


@pytest.mark.parametrize("text", ["1_0", "true", "2.0", "2.5", "2021-01-01", "0x10", "007", "inf", "8,1_0", 30 * "9"])
def test_names_on_the_command_line_are_not_read_as_toml(text: str) -> None:
    """As --unknown-classes and --set take them: a whole number in plain digits is one, all else is a name."""
    wanted = tuple(8 if part == "8" else part for part in text.split(","))
    for layer in ({"data": {"unknown_classes": text}}, from_assignments([f"data.unknown_classes={text}"])):
        assert resolve(layer).data.unknown_classes == wanted
    assert resolve(from_assignments(['data.unknown_classes=[3, "1_0"]'])).data.unknown_classes == (3, "1_0")
    assert resolve(from_assignments(["model.hidden=016,+8"])).model.hidden == (16, 8)


@pytest.mark.parametrize("value", ["2.5", "true", "2021-01-01", "12:30:00", "2021-01-01 12:30:00"])
def test_a_name_that_toml_takes_for_something_else_is_to_be_quoted(tmp_path: Path, value: str) -> None:
    (tmp_path / "run.toml").write_text(f"[data]\nunknown_classes = [8, {value}]\n")
    with pytest.raises(
        EowError, match=f'data.unknown_classes is {value}, which .*: if it is one, .* quotes, "{value}"'
    ):
        resolve(from_toml(tmp_path / "run.toml"))
    (tmp_path / "run.toml").write_text(f"[data]\nunknown_classes = [8, '{value}']\n")
    assert resolve(from_toml(tmp_path / "run.toml")).data.unknown_classes == (8, value)


def test_ints_are_floats_but_not_the_other_way_round() -> None:
    assert build(TrainConfig, {"lr": 1}, "train").lr == 1.0
    with pytest.raises(EowError):
        build(TrainConfig, {"batch": 64.0}, "train")
