"""A run on corrupted images: what is stored, used again, refused, and counted."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eow import opening, robustness, runs
from eow.config import resolve
from eow.data import corrupt, load
from eow.data.corruptions import CORRUPTIONS, official
from eow.errors import EowError
from eow.metrics import null_ece
from eow.robustness import FOLDER, corruption_figures, predict_corrupted, write_corruptions

NAMES = ("gaussian_noise", "contrast", "brightness")
TINY: Any = {"model": {"hidden": [16]}, "train": {"epochs": 6, "batch": 32}, "method": {"name": "eow"}}


def images(count: int, channels: int, side: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, told apart by which third of the image is bright."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    x = random.integers(0, 90, (count, channels, side, side))
    for row, label in enumerate(labels):
        x[row, :, :, label * side // 3 : (label + 1) * side // 3] += 120
    return x.astype(np.uint8), labels


def trained(place: Path, channels: int, side: int, **data: Any) -> runs.Run:
    x_train, y_train = images(150, channels, side, 0)
    x_test, y_test = images(48, channels, side, 1)
    np.savez(place / "set.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    wanted = resolve(TINY, {"data": {"name": f"npz:{place / 'set.npz'}", **data}})
    runs.train(wanted, place / "run", progress=False)
    return runs.load(place / "run")


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return trained(tmp_path_factory.mktemp("grey"), 1, 28)


@pytest.fixture
def run(grey: runs.Run, tmp_path: Path) -> runs.Run:
    """The same run in a folder without any corrupted predictions."""
    return replace(grey, folder=tmp_path / "run")


def make(run: runs.Run, names: Iterable[str] = NAMES, *, test: Any, **more: Any) -> list[str]:
    return list(predict_corrupted(run, test, names=names, **more))


def own_test(run: runs.Run) -> Any:
    return load(run.config.data.name, split="test")


def by_hand(run: runs.Run, inputs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    said = run.method.predict(run.transform(torch.from_numpy(inputs)))
    sure, right = said.confidence.double().numpy(), (said.label.numpy() == labels)
    ece = sum(
        abs((right[at] - sure[at]).sum()) for i in range(15) if (at := (sure > i / 15) & (sure <= (i + 1) / 15)).any()
    )
    own = said.probs.double().numpy()[np.arange(len(labels)), labels]
    return {
        "accuracy": right.mean(), "ece": ece / len(labels), "nll": -np.log(own).mean(), "confidence": sure.mean(),
        "unknown": said.unknown.double().numpy().mean(), "null_ece": null_ece(said.confidence.numpy()).mean,
    }  # fmt: skip


def test_the_matrix_is_what_the_network_says_of_each_variant(run: runs.Run) -> None:
    test = own_test(run)
    assert make(run, test=test, seed=3) == list(NAMES)
    figures = corruption_figures(run.folder)
    in_order = [name for name in CORRUPTIONS if name in NAMES]
    assert figures["corruptions"] == in_order
    assert figures["severities"] == [1, 2, 3, 4, 5]
    assert figures["source"] == "made with seed 3"
    for row, name in enumerate(in_order):
        for column in range(5):
            expected = by_hand(run, corrupt(test.inputs, name, column + 1, seed=3), test.labels)
            for figure, value in expected.items():
                assert figures[figure][row][column] == pytest.approx(value, abs=1e-6), (name, column, figure)
    for figure in ("accuracy", "ece", "nll"):
        table = np.array(figures[figure])
        assert table.shape == (3, 5)
        for column in range(5):
            spread = figures["severity"][figure][column]
            assert spread["mean"] == pytest.approx(table[:, column].mean(), rel=1e-12)
            assert spread["std"] == pytest.approx(np.sqrt(((table[:, column] - table[:, column].mean()) ** 2).mean()))
    assert json.loads(json.dumps(figures)) == figures


def test_the_batch_is_no_matter(run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image draws its own random numbers, whichever batch it comes in."""
    make(run, NAMES[:1], test=own_test(run))
    whole = corruption_figures(run.folder)
    monkeypatch.setattr(robustness, "BATCH", 7)
    (run.folder / FOLDER / f"{NAMES[0]}.safetensors").unlink()
    make(run, NAMES[:1], test=own_test(run))
    np.testing.assert_allclose(corruption_figures(run.folder)["nll"], whole["nll"], rtol=1e-5)


def test_what_is_there_is_not_made_again(run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def watched(x: Any, name: str, *arguments: Any) -> Any:
        made.append(name)
        return corrupt(x, name, *arguments)

    monkeypatch.setattr(robustness, "corrupt", watched)
    test = own_test(run)
    steps = predict_corrupted(run, test, names=NAMES)
    assert [next(steps), next(steps)] == list(NAMES[:2])
    steps.close()  # stopped after two of three
    assert {path.stem for path in (run.folder / FOLDER).iterdir()} == {*NAMES[:2]}
    made.clear()
    make(run, test=test)
    assert {*made} == {NAMES[2]}
    before = {path.name: path.stat().st_mtime_ns for path in (run.folder / FOLDER).iterdir()}
    made.clear()
    make(run, test=test)
    assert made == []
    assert before == {path.name: path.stat().st_mtime_ns for path in (run.folder / FOLDER).iterdir()}
    for other in (
        {"seed": 1, "test": test},
        {"seed": 1, "test": test.subset(np.arange(30))},
    ):
        made.clear()
        make(run, **other)
        assert {*made} == {*NAMES}
    made.clear()
    make(replace(run, weights_hash="other weights"), seed=1, test=test.subset(np.arange(30)))
    make(replace(run, transform=replace(run.transform, mean=(0.0,))), seed=1, test=test.subset(np.arange(30)))
    assert len(made) == 2 * 5 * len(NAMES)


def test_the_whole_matrix_of_a_folder_is_written_while_somebody_watches(grey: runs.Run, tmp_path: Path) -> None:
    folder, seen = tmp_path / "run", []
    shutil.copytree(grey.folder, folder)

    def watch(steps: Iterable[str]) -> Iterable[str]:
        for name in steps:
            seen.append(name)
            yield name

    figures = write_corruptions(folder, "", "cpu", seed=4, watch=watch)
    assert seen == list(CORRUPTIONS) == figures["corruptions"]
    assert figures["source"] == "made with seed 4"
    assert json.loads((folder / "corruptions.json").read_text()) == figures == corruption_figures(folder)
    # Of the seed 0, and of the test set that the run had, where nothing else is said.
    assert write_corruptions(folder, "", "cpu")["source"] == "made with seed 0"
    row, test = figures["corruptions"].index("fog"), own_test(grey)
    expected = by_hand(grey, corrupt(test.inputs, "fog", 5, seed=4), test.labels)
    assert figures["nll"][row][4] == pytest.approx(expected["nll"], abs=1e-6)


def test_parts_of_different_making_are_not_mixed(run: runs.Run) -> None:
    make(run, test=own_test(run))
    make(run, NAMES[:1], test=own_test(run), seed=1)
    with pytest.raises(EowError, match="are of different runs or data"):
        corruption_figures(run.folder)
    make(run, test=own_test(run), seed=1)
    assert corruption_figures(run.folder)["source"] == "made with seed 1"


def test_damaged_files_and_none_are_said(run: runs.Run) -> None:
    with pytest.raises(EowError, match="no predictions on corrupted images"):
        corruption_figures(run.folder)
    make(run, NAMES[:1], test=own_test(run))
    path = run.folder / FOLDER / f"{NAMES[0]}.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.raises(EowError, match="damaged"):
        corruption_figures(run.folder)
    from eow.storage import write_arrays

    write_arrays(path, {"label": np.zeros((5, 3), np.int64)}, {"key": "k", "images": ""})
    with pytest.raises(EowError, match="does not hold predictions on corrupted images"):
        corruption_figures(run.folder)
    path.write_bytes(whole)
    arrays = robustness.read(path)[0]
    write_arrays(path, arrays, {})
    with pytest.raises(EowError, match="does not say what it is of"):
        corruption_figures(run.folder)


def test_data_that_cannot_be_corrupted_is_refused_and_nothing_is_left(run: runs.Run) -> None:
    features = replace(own_test(run), inputs=np.zeros((48, 5), np.float32))
    with pytest.raises(EowError, match="only images can be corrupted"):
        make(run, test=features)
    with pytest.raises(EowError, match="too small to corrupt"):
        make(run, test=load("digits", split="test"))
    with pytest.raises(EowError, match="no corruption 'rain'"):
        make(run, ("rain",), test=own_test(run))
    assert not run.folder.exists()


def test_figures_need_no_network(run: runs.Run) -> None:
    make(run, test=own_test(run))
    code = (
        "import sys; from eow.robustness import corruption_figures; corruption_figures(sys.argv[1])\n"
        "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.folder)], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_test_set_is_the_one_that_the_run_was_tested_on(grey: runs.Run) -> None:
    path = Path(grey.config.data.name.removeprefix("npz:"))
    assert opening.own_test_set(grey).hash == own_test(grey).hash
    whole = path.read_bytes()
    try:
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, **{**arrays, "x_test": arrays["x_test"] + 1})
        with pytest.raises(EowError, match="test data is not what the run"):
            opening.own_test_set(grey)
    finally:
        path.write_bytes(whole)


# The released files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def colour(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return trained(tmp_path_factory.mktemp("colour"), 3, 32)


@pytest.fixture
def released(colour: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-C as its authors lay it out, of 48 images instead of 10,000; every severity is darker than the last."""
    test = own_test(colour)
    monkeypatch.setattr(official, "COUNT", len(test))
    folder = tmp_path / "CIFAR-C"
    folder.mkdir()
    for dark, name in ((1, "fog"), (2, "snow")):
        parts = [(test.inputs // (1 + dark * severity)).transpose(0, 2, 3, 1) for severity in range(5)]
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "labels.npy", np.tile(test.labels, 5).astype(np.uint8))
    return folder


def test_released_files_are_read_severity_by_severity(colour: runs.Run, released: Path, tmp_path: Path) -> None:
    run, test = replace(colour, folder=tmp_path / "run"), own_test(colour)
    assert make(run, ("snow", "fog"), test=test, official=released) == ["snow", "fog"]
    figures = corruption_figures(run.folder)
    assert figures["corruptions"] == [name for name in CORRUPTIONS if name in ("fog", "snow")]
    assert figures["source"] == "CIFAR-C as released"
    for severity in range(5):
        expected = by_hand(run, test.inputs // (1 + severity), test.labels)
        row = figures["corruptions"].index("fog")
        for figure in ("accuracy", "ece", "nll"):
            assert figures[figure][row][severity] == pytest.approx(expected[figure], abs=1e-6)


def test_released_files_are_used_again_by_their_content(colour: runs.Run, released: Path, tmp_path: Path) -> None:
    run, test = replace(colour, folder=tmp_path / "run"), own_test(colour)
    make(run, ("fog",), test=test, official=released)
    path = run.folder / FOLDER / "fog.safetensors"
    before = path.stat().st_mtime_ns
    make(run, ("fog",), test=test, official=str(released))
    assert path.stat().st_mtime_ns == before
    old = corruption_figures(run.folder)
    (released / "fog.npy").write_bytes((released / "snow.npy").read_bytes())  # the same name, other images
    make(run, ("fog",), test=test, official=released)
    assert corruption_figures(run.folder)["nll"] != old["nll"]
    make(run, ("fog",), test=test)
    assert corruption_figures(run.folder)["source"] == "made with seed 0"


def test_released_files_of_something_else_are_refused(colour: runs.Run, released: Path, tmp_path: Path) -> None:
    run, test = replace(colour, folder=tmp_path / "run"), own_test(colour)
    with pytest.raises(EowError, match=r"no file .*frost\.npy"):
        make(run, ("frost",), test=test, official=released)
    np.save(released / "labels.npy", np.tile(np.roll(test.labels, 1), 5).astype(np.uint8))
    with pytest.raises(EowError, match=r"images or labels in .*CIFAR-C are not those of npz"):
        make(run, ("fog",), test=test, official=released)
    left_out = replace(run, config=replace(run.config, data=replace(run.config.data, unknown_classes=(2,))))
    with pytest.raises(EowError, match="hold all classes, but this run has left some out"):
        make(left_out, ("fog",), test=test, official=released)
    assert not run.folder.exists()


def test_released_files_of_another_shape_are_refused(grey: runs.Run, released: Path, tmp_path: Path) -> None:
    with pytest.raises(EowError, match=r"the images or labels in .* are not those of npz"):
        make(replace(grey, folder=tmp_path / "run"), ("fog",), test=own_test(grey), official=released)
