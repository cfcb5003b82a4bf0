"""Nothing that is fitted sees what it is judged on: every way in is tried, and every part says which samples it has."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from problems import blobs, small_model
from torch import Tensor

import eow
from eow import runs
from eow.certify import certify, check_unseen, unseen_part
from eow.config import DataConfig, Table, resolve
from eow.data import Dataset, load
from eow.data.loader import Batches
from eow.data.sets import RunData, load_sets
from eow.errors import EowError
from eow.methods import METHODS, fit_temperature

TINY: Table = {"model": {"hidden": [8]}, "train": {"epochs": 1, "batch": 64}}
ALL = DataConfig("digits", holdout=0.1, certify=0.2)


@pytest.fixture(scope="module")
def digits() -> RunData:
    return load_sets(ALL, seed=0)


class Watched(Batches):
    """Batches that know whether anyone has looked at them."""

    looked_at = False

    def in_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.looked_at = True
        return super().in_order()


def batches(part: Dataset, data: RunData) -> Watched:
    return Watched(part, 500, data.transform, torch.device("cpu"))


def made(name: str, data: RunData) -> Any:
    config = resolve(TINY, {"method": {"name": name}, "data": {"holdout": 0.1}})
    return runs.make_method(config, 10, data.train.shape).eval()


@pytest.mark.parametrize("name", METHODS)
def test_no_method_looks_at_test_data_when_it_finishes(digits: RunData, name: str) -> None:
    """Whatever part is the test set's: it is refused unseen, or the method has no use for that part at all."""
    train, test = batches(digits.train, digits), batches(digits.test, digits)
    for given in ((test, test), (test, None), (train, test), (test, batches(digits.holdout, digits))):
        method = made(name, digits)
        before = {key: value.clone() for key, value in method.state_dict().items()}
        with suppress(EowError):
            method.finish(*given)
        assert not test.looked_at
        if train not in given and given[1] in (test, None):  # nothing else was there to learn from
            after = method.state_dict()
            assert before.keys() == after.keys()
            for key, value in before.items():
                torch.testing.assert_close(after[key], value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.needs_holdout])
def test_what_is_fitted_on_held_out_data_refuses_test_data(digits: RunData, name: str) -> None:
    train = batches(digits.train, digits)
    with pytest.raises(EowError, match=r"would be fitted on the test split of digits, where it is to be judged"):
        made(name, digits).finish(train, batches(digits.test, digits))
    with pytest.raises(EowError, match=r"set data\.holdout"):
        made(name, digits).finish(train, None)
    with pytest.raises(EowError, match=f"eow.fit does not fit {name}"):
        eow.fit(small_model(extra=0), blobs(), method=name)
    with pytest.raises(EowError, match=r"set data\.holdout"):
        resolve({"method": {"name": name}, "data": {"holdout": 0}})
    with pytest.raises(EowError, match=r"set train\.holdout_epochs=0"):
        resolve({"method": {"name": name}, "data": {"holdout": 0.1}, "train": {"holdout_epochs": 1}})


@pytest.mark.parametrize("name", ["trust_score", "dble"])
def test_what_remembers_training_features_refuses_the_tests(digits: RunData, name: str) -> None:
    with pytest.raises(EowError, match="test split of digits"):
        made(name, digits).finish(batches(digits.test, digits), batches(digits.holdout, digits))


def test_a_part_of_the_test_set_is_still_the_test_set(digits: RunData) -> None:
    known, unknown = eow.data.known_unknown(digits.test, (8, 9))
    rest, held_out = eow.data.holdout_split(digits.test, 0.5, seed=0)
    for part in (known, unknown, rest, held_out, digits.test.subset([0, 1, 2])):
        with pytest.raises(EowError, match="test split"):
            made("temperature", digits).finish(None, batches(part, digits))


@pytest.mark.parametrize("section", ["data", "train", "method"])
@pytest.mark.parametrize("key", ["split", "holdout_split", "test"])
def test_no_setting_names_a_split(section: str, key: str) -> None:
    with pytest.raises(EowError, match=key):
        resolve({section: {key: "test"}})


def test_a_fitted_function_is_not_handed_a_data_set(digits: RunData) -> None:
    with pytest.raises((EowError, TypeError, ValueError, RuntimeError)):
        fit_temperature(digits.test, digits.test.labels)


# The threshold -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    folder = tmp_path_factory.mktemp("leakage") / "run"
    wanted = {"method": {"name": "vanilla"}, "data": {"holdout": 0.1, "certify": 0.2, "unknown_classes": [9]}}
    runs.train(resolve(TINY, wanted), folder, progress=False)
    return runs.load(folder)


@pytest.fixture(scope="module")
def own(run: runs.Run) -> RunData:
    return load_sets(run.config.data, run.config.seed)


def test_a_threshold_is_not_certified_on_the_test_set(run: runs.Run, own: RunData) -> None:
    assert unseen_part(run, own) is own.certify
    forged = replace(own.test, split="train")
    half = replace(own.test.subset(np.arange(100)), split="train")
    other_order = replace(own.test.subset(np.arange(len(own.test))[::-1]), split="train")
    for part, words in (
        (own.test, "certified on the test data"),
        (forged, "would promise nothing"),
        (own.train, "would promise nothing"),
        (own.outliers["unknown"], "certified on the test data"),
        (half, "is not what the run"),
        (other_order, "is not what the run"),
        (own.holdout, "is not what the run"),
        (own.train.subset(np.arange(100)), "is not what the run"),
    ):
        with pytest.raises(EowError, match=words):
            unseen_part(run, replace(own, certify=part))
        with pytest.raises(EowError, match=words):
            check_unseen(run, part, "certify")
    for part in (own.test, forged, own.train):
        with pytest.raises(EowError, match="would promise nothing"):
            unseen_part(run, replace(own, certify=None, holdout=part))


# Training and test data ----------------------------------------------------------------------------------------------


def stored(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return f"npz:{path}"


X, Y = blobs(200)
IMAGES = np.random.default_rng(0).integers(0, 256, (200, 1, 6, 6), dtype=np.uint8)
ORDER = np.random.default_rng(1).permutation(200)


@pytest.mark.parametrize("inputs", [X, IMAGES], ids=["features", "images"])
@pytest.mark.parametrize("test", [np.arange(200), ORDER, ORDER[:50], np.r_[ORDER[:50], ORDER[:50]]])
@pytest.mark.parametrize("parts", [{}, {"holdout": 0.2}, {"certify": 50, "holdout": 20}, {"limit": 60}])
def test_training_samples_are_no_test_set(tmp_path: Path, inputs: np.ndarray, test: np.ndarray, parts: Any) -> None:
    name = stored(tmp_path / "x.npz", x_train=inputs, y_train=Y, x_test=inputs[test], y_test=Y[test])
    with pytest.raises(EowError, match=r"same samples for training and for the test \(100% of the test's\)"):
        load_sets(DataConfig(name, **parts), seed=0)


def test_other_labels_or_classes_left_out_hide_no_training_samples(tmp_path: Path) -> None:
    name = stored(tmp_path / "x.npz", x_train=X, y_train=Y, x_test=X, y_test=(Y + 1) % 3)
    with pytest.raises(EowError, match="same samples"):
        load_sets(DataConfig(name), seed=0)
    name = stored(tmp_path / "x.npz", x_train=IMAGES, y_train=Y, x_test=IMAGES[ORDER], y_test=Y[ORDER])
    with pytest.raises(EowError, match="same samples"):
        load_sets(DataConfig(name, unknown_classes=(0,)), seed=0)


def test_repeated_training_samples_hide_no_test_set(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    y = np.arange(60) % 4
    x[:, 0] = 0
    negative_zero = np.where(x == 0, np.float32(-0.0), x)
    for test in (x, negative_zero):
        name = stored(tmp_path / "set.npz", x_train=np.repeat(x, 3, 0), y_train=np.repeat(y, 3), x_test=test, y_test=y)
        with pytest.raises(EowError, match="same samples"):
            load_sets(DataConfig(name=name), 0)


def test_new_samples_of_unknown_classes_hide_no_leak_of_the_known(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 5)).astype(np.float32), np.arange(40) % 4
    test = np.where((y < 2)[:, None], x, random.normal(size=(40, 5)).astype(np.float32))
    more = np.concatenate([test, random.normal(size=(20, 5)).astype(np.float32)])
    labels = np.concatenate([y, np.full(20, 3)])
    name = stored(tmp_path / "set.npz", x_train=x, y_train=y, x_test=more, y_test=labels)
    load_sets(DataConfig(name=name), 0)  # a third of all: not refused
    with pytest.raises(EowError, match="same samples"):
        load_sets(DataConfig(name=name, unknown_classes=(2, 3)), 0)


def test_copies_of_training_samples_certify_nothing(tmp_path: Path) -> None:
    """Coin flips as labels, every sample three times: learned by heart, and no threshold may be promised."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 40)).astype(np.float32), random.integers(0, 2, 120)
    new, coin = random.normal(size=(50, 40)).astype(np.float32), random.integers(0, 2, 50)
    arrays = {"x_train": np.repeat(x, 3, 0), "y_train": np.repeat(y, 3), "x_test": new, "y_test": coin}
    name = stored(tmp_path / "set.npz", **arrays)
    wishes = {
        "data": {"name": name, "certify": 0.3}, "method": {"name": "vanilla"},
        "train": {"epochs": 15, "batch": 32}, "model": {"hidden": [64]},
    }  # fmt: skip
    runs.train(resolve(wishes), tmp_path / "run", progress=False)
    assert certify(tmp_path / "run", 0.2) is None


def test_a_folder_with_the_same_images_twice_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for i, image in enumerate(IMAGES[:12, 0]):
            place = tmp_path / split / f"class{i % 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(place / f"{split}{i}.png")
    with pytest.raises(EowError, match="same samples"):
        load_sets(DataConfig(f"folder:{tmp_path}"), seed=0)


def test_some_doubles_and_tables_that_repeat_themselves_are_no_leak(tmp_path: Path) -> None:
    other, labels = blobs(100, seed=5)
    other[:20] = X[:20]
    name = stored(tmp_path / "x.npz", x_train=X, y_train=Y, x_test=other, y_test=labels)
    assert len(load_sets(DataConfig(name), seed=0).test) == 100
    coins = np.random.default_rng(0).integers(0, 2, (300, 3)).astype(np.float32)  # eight different rows in all
    name = stored(tmp_path / "y.npz", x=coins, y=np.arange(300) % 2)
    assert len(load_sets(DataConfig(name, holdout=0.1), seed=0).test) == 60


def test_the_run_is_refused_before_its_folder_is_made(tmp_path: Path) -> None:
    name = stored(tmp_path / "x.npz", x_train=X, y_train=Y, x_test=X[ORDER], y_test=Y[ORDER])
    wanted = resolve(TINY, {"method": {"name": "temperature"}, "data": {"name": name, "holdout": 0.1}})
    with pytest.raises(EowError, match="same samples"):
        runs.train(wanted, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def places(part: Dataset | None) -> np.ndarray:
    assert part is not None
    assert part.indices is not None
    return part.indices


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("unknown", [(), (8, 9)])
def test_no_sample_is_in_two_parts(seed: int, unknown: tuple[int, ...]) -> None:
    whole = load("digits", split="train")
    data = load_sets(replace(ALL, unknown_classes=unknown), seed)
    parts = [data.train, data.holdout, data.certify]
    together = np.concatenate([places(part) for part in parts])
    assert (np.sort(together) == np.flatnonzero(~np.isin(whole.labels, unknown))).all()
    for part in parts:
        assert part is not None
        assert part.split == "train"
        assert (whole.inputs[places(part)] == part.inputs).all()
    assert {part.split for part in (data.test, *data.outliers.values())} == {"test"}
    drawn = {sample.tobytes() for part in parts if part is not None for sample in part.inputs}
    assert not any(sample.tobytes() in drawn for sample in data.test.inputs)


def test_a_file_that_is_cut_in_two_gives_no_sample_to_both(tmp_path: Path) -> None:
    name = stored(tmp_path / "x.npz", x=X, y=Y)
    data = load_sets(DataConfig(name, holdout=0.1, certify=0.2), seed=0)
    together = np.concatenate([places(part) for part in (data.train, data.holdout, data.certify, data.test)])
    assert (np.sort(together) == np.arange(200)).all()


def test_parts_depend_on_the_seed_and_not_on_one_another() -> None:
    base = load_sets(ALL, seed=0)
    for wanted in (replace(ALL, holdout=0), replace(ALL, holdout=300), replace(ALL, limit=200)):
        assert (places(load_sets(wanted, seed=0).certify) == places(base.certify)).all()
    limited = load_sets(replace(ALL, limit=200), seed=0)
    assert (places(limited.holdout) == places(base.holdout)).all()
    assert np.isin(places(limited.train), places(base.train)).all()
    again, other = load_sets(ALL, seed=0), load_sets(ALL, seed=1)
    for name in ("train", "holdout", "certify"):
        assert (places(getattr(again, name)) == places(getattr(base, name))).all()
        assert not np.array_equal(places(getattr(other, name)), places(getattr(base, name)))
    assert other.test.hash == base.test.hash


def test_a_limit_keeps_the_classes_proportions(tmp_path: Path) -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    inputs = np.random.default_rng(0).normal(size=(1000, 2)).astype(np.float32)
    name = stored(tmp_path / "x.npz", x_train=inputs, y_train=labels, x_test=-inputs[:9] - 50, y_test=np.arange(9) % 3)
    for limit in (10, 100, 500):
        part = load_sets(DataConfig(name, limit=limit), seed=3).train
        assert np.bincount(part.labels).tolist() == [6 * limit // 10, 3 * limit // 10, limit // 10]
        assert (inputs[places(part)] == part.inputs).all()
    for limit in (0, 1000, 5000):
        assert len(load_sets(DataConfig(name, limit=limit), seed=3).train) == 1000


def test_the_normalisation_is_the_training_parts_alone(tmp_path: Path) -> None:
    far = X.copy()
    far[:, 0] += 1000
    name = stored(tmp_path / "x.npz", x_train=X, y_train=Y, x_test=far, y_test=Y)
    data = load_sets(DataConfig(name, holdout=0.3, certify=0.3), seed=0)
    np.testing.assert_allclose(data.transform.mean, data.train.inputs.mean(0, dtype=float), rtol=1e-5)
    assert abs(data.transform.mean[0] - X.mean(0)[0]) > 1e-3


def test_the_run_records_which_samples_each_part_holds(run: runs.Run, own: RunData) -> None:
    sets = json.loads((run.folder / "summary.json").read_text())["sets"]
    assert sets.keys() == {"train", "holdout", "certify", "test", "unknown"}
    for name, part in {**vars(own), "unknown": own.outliers["unknown"]}.items():
        if name not in sets:
            continue
        indices = hashlib.sha256(places(part).astype("<i8").tobytes()).hexdigest()
        assert sets[name]["indices"] == indices == part.index_hash
        assert sets[name]["hash"] == part.hash
        assert (sets[name]["samples"], sets[name]["classes"]) == (len(part), len(part.classes))
        assert sets[name]["split"] == ("train" if name in ("train", "holdout", "certify") else "test")
    assert len({entry["indices"] for entry in sets.values()}) == 5


def test_a_whole_split_is_all_indices_in_order(tmp_path: Path) -> None:
    part = Dataset("x", "train", X, Y, ("a", "b", "c"))
    assert part.indices is None
    assert part.index_hash == hashlib.sha256(np.arange(200, dtype="<i8").tobytes()).hexdigest()
    assert part.subset(np.arange(200)).index_hash == part.index_hash
    twice = part.subset([5, 3, 9, 1]).subset([2, 0])
    assert places(twice).tolist() == [9, 5]
    assert twice.index_hash == hashlib.sha256(np.array([9, 5], "<i8").tobytes()).hexdigest()


def test_a_vanilla_run_that_has_seen_the_held_out_part_is_not_taken_over(tmp_path: Path) -> None:
    late = {"method": {"name": "vanilla"}, "data": {"holdout": 0.1}, "train": {"holdout_epochs": 1}}
    runs.train(resolve(TINY, late), tmp_path / "vanilla", progress=False)
    wanted = resolve(TINY, {"method": {"name": "temperature"}, "data": {"holdout": 0.1}})
    data = load_sets(wanted.data, wanted.seed)
    from eow.runfolder import find_vanilla

    cpu = torch.device("cpu")
    assert find_vanilla(tmp_path / "new", wanted, data, cpu) is None
    runs.train(resolve(TINY, {**late, "train": {}}), tmp_path / "clean", progress=False)
    assert find_vanilla(tmp_path / "new", wanted, data, cpu) == tmp_path / "clean"
    assert find_vanilla(tmp_path / "new", replace(wanted, seed=1), load_sets(wanted.data, 1), cpu) is None
    assert find_vanilla(tmp_path / "new", wanted, data, torch.device("cuda")) is None  # that would be bfloat16's
    moved = replace(data, holdout=SimpleNamespace(hash="other samples"))
    assert find_vanilla(tmp_path / "new", wanted, moved, cpu) is None
