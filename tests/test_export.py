"""Exported files say what the run said when it was trained (its stored predictions), whatever the method; what cannot
be exported or does not agree leaves no file."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from eow import deployed, predictions, runs
from eow.config import resolve
from eow.data import known_unknown, load
from eow.errors import EowError
from eow.export.run import export
from eow.export.traceable import REFUSED, Graph
from eow.methods import METHODS

EXPORTABLE = [name for name in METHODS if name not in REFUSED]
# The others are one of these at prediction: label_smoothing, mixup and jem vanilla, the controls eow.
GRAPHS = ["vanilla", "ensemble", "temperature", "ova_dm", "dble", "eow", "shrink"]
OUTPUTS = ["label", "confidence", "unknown", "probs"]


def train(folder: Path, **settings: Any) -> Path:
    wanted: dict[str, Any] = {
        "data": {"name": "digits", "unknown_classes": [8, 9]}, "model": {"hidden": [16]}, "train": {"epochs": 2},
    }  # fmt: skip
    runs.train(resolve({**wanted, **settings}), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every method, side by side."""
    place = tmp_path_factory.mktemp("runs")
    few = {"dble": {"name": "dble", "draws": 2}}  # each draw is a part of the graph, and takes its time to be written
    return {name: train(place / name, method=few.get(name, {"name": name})) for name in METHODS}


@pytest.fixture(scope="module")
def model(digits: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EOW run as ONNX, without a threshold."""
    path = tmp_path_factory.mktemp("model") / "eow.onnx"
    export(digits["eow"], path)
    return path


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """What the stored predictions of the runs are of."""
    return known_unknown(load("digits", split="test"), (8, 9))[0].inputs


def stored(run: Path) -> predictions.Predictions:
    return predictions.read(run / "predictions" / "test.safetensors")


def agree(found: Any, wanted: predictions.Predictions, always: bool = False) -> None:
    """Where "unknown" is the most probable answer the label is -1, unless the model is told to answer always."""
    strange = (wanted.unknown > wanted.confidence) & (not always)
    np.testing.assert_array_equal(found.label, np.where(strange, -1, wanted.label))
    for name in ("confidence", "unknown", "probs"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", GRAPHS)
def test_onnx_says_what_the_run_said(digits: dict[str, Path], images: np.ndarray, tmp_path: Path, method: str) -> None:
    told = export(digits[method], tmp_path / "m.onnx")
    agree(deployed.load(tmp_path / "m.onnx").predict(images), stored(digits[method]))
    assert told["compared_on"] == "the test split of digits"
    assert told["largest_difference"] <= 1e-5
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_an_export_is_float32_whatever_torch_makes_by_default(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        export(digits["eow"], tmp_path / "m.onnx")
    finally:
        torch.set_default_dtype(torch.float32)
    agree(deployed.load(tmp_path / "m.onnx").predict(images), stored(digits["eow"]))


@pytest.mark.parametrize("method", EXPORTABLE)
def test_a_torch_program_says_what_the_run_said(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path, method: str
) -> None:
    export(digits[method], tmp_path / "m.pt2", "torch")
    extra = {"eow.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
    said = {name: value.numpy() for name, value in program(torch.from_numpy(images)).items()}
    assert list(said) == OUTPUTS
    agree(deployed.Answers(**said), stored(digits[method]))
    assert len(program(torch.from_numpy(images[:1]))["label"]) == 1
    card = json.loads(extra["eow.json"])
    assert (card["method"], card["classes"]) == (method, list("01234567"))
    assert (tmp_path / "m.pt2").stat().st_size < 1_000_000  # no chains, whose slots are JEM's megabytes


def own_data(place: Path, x: np.ndarray, y: np.ndarray, **settings: Any) -> Path:
    """A run on the user's own data set, tested on its training samples from back to front, each changed a little: on
    the very same samples a run is refused."""
    other = x.copy()
    other[..., 0] += 1
    np.savez(place / "set.npz", x_train=other, y_train=y, x_test=x[::-1], y_test=y[::-1])
    data = {"name": f"npz:{place / 'set.npz'}"}
    return train(place / "run", data=data, train={"epochs": 1, "batch": len(x)}, **settings)


def test_a_resnet_on_colour_images(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 9, 8), dtype=np.uint8)
    run = own_data(tmp_path, x, np.arange(20) % 3, model={"name": "resnet18"})
    assert export(run, tmp_path / "m.onnx")["samples"] == 20  # of which 1 + 7 + 64 rows are made
    agree(deployed.load(tmp_path / "m.onnx").predict(x[::-1]), stored(run))


def test_features_and_what_to_compare_on(tmp_path: Path) -> None:
    """An MLP on features whose columns differ in scale by six orders."""
    y = np.arange(60) % 3
    x = (np.random.default_rng(0).normal(size=(60, 3)) * [1e-3, 1, 1e3] + y[:, None]).astype(np.float32)
    run = own_data(tmp_path, x, y, model={"hidden": [8], "norm": "batch"})
    assert "test split of npz" in export(run, tmp_path / "m.onnx")["compared_on"]
    model = deployed.load(tmp_path / "m.onnx")
    agree(model.predict(x[::-1]), stored(run))
    assert model.card.provenance["data"] == "npz"
    assert str(tmp_path).encode() not in (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "set.npz").unlink()
    with pytest.raises(EowError, match=r"not available .*'random'"):
        export(run, tmp_path / "m.pt2", "torch")
    for wrong in (x[:, :2], x.astype(np.float64), x[:0], x * np.float32(np.nan)):
        with pytest.raises(EowError, match="cannot be compared on"):
            export(run, tmp_path / "m.pt2", "torch", on=wrong)
    assert not (tmp_path / "m.pt2").exists()
    np.save(tmp_path / "x.npy", x)
    for on, source in (
        (x, "the inputs given"),
        (tmp_path / "x.npy", str(tmp_path / "x.npy")),
        ("random", "random inputs"),
    ):
        assert export(run, tmp_path / "m.pt2", "torch", on=on)["compared_on"] == source


def test_plain_onnxruntime_takes_any_number_of_bytes_as_they_are(model: Path, images: np.ndarray) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    assert (taken.name, taken.type, taken.shape) == ("inputs", "tensor(uint8)", ["batch", 1, 8, 8])
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("label", ["batch"]), ("confidence", ["batch"]), ("unknown", ["batch"]), ("probs", ["batch", 8]),
    ]  # fmt: skip
    whole = session.run(None, {"inputs": images[:100]})
    assert whole[0].dtype == np.int64
    for count in (1, 2, 7, 64):
        for part, all_of_it in zip(session.run(None, {"inputs": images[:count]}), whole):
            np.testing.assert_allclose(part, all_of_it[:count], atol=1e-6)


def test_the_file_says_what_it_is_and_nothing_of_this_machine(digits: dict[str, Path], model: Path) -> None:
    written = onnx.load(model)
    assert [(each.domain, each.version) for each in written.opset_import] == [("", 18)]
    texts = {each.key: json.loads(each.value) for each in written.metadata_props}
    summary = json.loads((digits["eow"] / "summary.json").read_text())
    assert texts["classes"] == list("01234567")
    assert (texts["threshold"], texts["unknown_rate"], texts["odds"]) == (None, None, 0.002 / (1 - 0.002))
    assert (texts["shape"], texts["dtype"], texts["method"]) == ([1, 8, 8], "uint8", "eow")
    told = texts["provenance"]
    assert (told["weights"], told["data_hash"]) == (summary["weights"], summary["sets"]["train"]["hash"])
    assert (told["eow"], told["commit"], told["seed"]) == (summary["versions"]["eow"], summary["versions"]["commit"], 0)
    assert deployed.load(model).card.provenance == told
    for place in (str(digits["eow"].parent), str(Path(__file__).parent.parent)):
        assert place.encode() not in model.read_bytes()


def test_the_same_run_gives_the_same_bytes_and_not_a_word(
    digits: dict[str, Path],
    model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    export(runs.load(digits["eow"]), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == model.read_bytes()
    export(digits["eow"], tmp_path / "m.pt2", "torch")
    assert capfd.readouterr() == ("", "")
    assert not len(recwarn)


def test_below_the_threshold_the_label_is_minus_one(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path
) -> None:
    wanted = stored(digits["eow"])
    threshold = float(np.median(wanted.confidence))
    export(digits["eow"], tmp_path / "m.onnx", threshold=threshold)
    model = deployed.load(tmp_path / "m.onnx")
    said = model.predict(images)
    clear = np.abs(wanted.confidence - threshold) > 1e-5
    answered = wanted.confidence >= threshold
    assert 0.4 < answered.mean() < 0.6
    np.testing.assert_array_equal(said.label[clear], np.where(answered, wanted.label, -1)[clear])
    assert (model.card.threshold, model.card.certificate) == (threshold, None)
    agree(model.predict(images, threshold=0), wanted, always=True)  # what the file hides is found again
    assert (model.predict(images, threshold=1).label == -1).all()


def test_without_a_threshold_the_label_is_minus_one_where_unknown_is_most_probable(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path
) -> None:
    wanted = stored(digits["eow"]).at_unknown_rate(0.3)
    strange = wanted.unknown > wanted.confidence
    assert 0.1 < strange.mean() < 0.9
    export(digits["eow"], tmp_path / "m.onnx", unknown_rate=0.3)
    model = deployed.load(tmp_path / "m.onnx")
    assert model.card.threshold is None
    said = model.predict(images)
    np.testing.assert_array_equal(said.label == -1, strange)
    np.testing.assert_array_equal(said.label[~strange], wanted.label[~strange])
    agree(model.predict(images, threshold=0), wanted, always=True)
    agree(model.predict(images, unknown_rate=0.01), stored(digits["eow"]).at_unknown_rate(0.01))


@pytest.mark.parametrize("method", ["ova_dm", "dble"])
def test_a_hidden_label_is_found_again_where_it_is_not_the_likeliest(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path, method: str
) -> None:
    export(digits[method], tmp_path / "m.onnx", threshold=1)
    model = deployed.load(tmp_path / "m.onnx")
    assert (model.predict(images).label == -1).all()
    agree(model.predict(images, threshold=0), stored(digits[method]), always=True)


def certified(run: Path, place: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """A copy of the run with a threshold in it, as `eow threshold` writes it."""
    copy = shutil.copytree(run, place / "run")
    weights = json.loads((run / "summary.json").read_text())["weights"]
    promise = {
        "threshold": 0.7, "max_risk": 0.01, "delta": 0.05, "coverage": 0.8, "risk": 0.0, "bound": 0.009,
        "samples": 500, "unknown_rate": None, "weights": weights,
    }  # fmt: skip
    promise.update(changes)
    (copy / "threshold.json").write_text(json.dumps(promise))
    return copy, promise


def test_a_certified_threshold_goes_along_with_its_certificate(digits: dict[str, Path], tmp_path: Path) -> None:
    run, promise = certified(digits["eow"], tmp_path)
    export(run, tmp_path / "m.onnx")
    model = deployed.load(tmp_path / "m.onnx")
    assert (model.card.threshold, model.card.certificate, model.card.unknown_rate) == (0.7, promise, None)
    zeros = np.zeros((1, 1, 8, 8), np.uint8)
    with pytest.raises(EowError, match=r"was certified at .*0\.3"):
        model.predict(zeros, unknown_rate=0.3)
    assert model.predict(zeros, unknown_rate=0.3, threshold=0).label >= 0
    with pytest.raises(EowError, match=r"was certified at .*0\.3"):
        export(run, tmp_path / "n.onnx", unknown_rate=0.3)
    export(run, tmp_path / "m.onnx", threshold=0.2)
    card = deployed.load(tmp_path / "m.onnx").card
    assert (card.threshold, card.certificate) == (0.2, None)


def test_a_certified_threshold_brings_its_unknown_rate(
    digits: dict[str, Path], images: np.ndarray, tmp_path: Path
) -> None:
    run, _ = certified(digits["eow"], tmp_path, threshold=0.0, unknown_rate=0.3)
    export(run, tmp_path / "m.onnx")
    model = deployed.load(tmp_path / "m.onnx")
    assert model.card.unknown_rate == 0.3
    agree(model.predict(images), stored(digits["eow"]).at_unknown_rate(0.3), always=True)
    agree(model.predict(images, unknown_rate=0.3), stored(digits["eow"]).at_unknown_rate(0.3), always=True)


@pytest.mark.parametrize(
    "changes", [{"threshold": None}, {"threshold": float("nan")}, {"threshold": 2}, {"weights": "others"}]
)
def test_a_certified_threshold_that_is_none_is_refused(
    digits: dict[str, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    run, _ = certified(digits["eow"], tmp_path, **changes)
    with pytest.raises(EowError, match=r"threshold"):
        export(run, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


def test_an_unknown_rate_set_at_export_or_at_prediction_is_the_shift_of_the_logit(
    digits: dict[str, Path], model: Path, images: np.ndarray, tmp_path: Path
) -> None:
    wanted = stored(digits["eow"])
    plain = deployed.load(model)
    for rate in (0.0, 1e-3, 0.3, 0.95):
        agree(plain.predict(images, unknown_rate=rate), wanted.at_unknown_rate(rate))
    export(digits["eow"], tmp_path / "m.onnx", unknown_rate=0.3)
    shifted = deployed.load(tmp_path / "m.onnx")
    assert shifted.card.unknown_rate == 0.3
    agree(shifted.predict(images), wanted.at_unknown_rate(0.3))
    agree(shifted.predict(images, unknown_rate=0.01), wanted.at_unknown_rate(0.01))
    export(digits["eow"], tmp_path / "closed.onnx", unknown_rate=0)
    closed = deployed.load(tmp_path / "closed.onnx")
    agree(closed.predict(images), wanted.at_unknown_rate(0))
    with pytest.raises(EowError, match="export again"):
        closed.predict(images, unknown_rate=0.3)


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_methods_that_draw_or_search_are_refused(digits: dict[str, Path], tmp_path: Path, method: str) -> None:
    with pytest.raises(EowError, match=f"{method} cannot be exported"):
        export(digits[method], tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_network_with_noise_at_prediction_is_refused(tmp_path: Path) -> None:
    run = train(tmp_path / "run", model={"hidden": [8], "input_noise": 0.1})
    with pytest.raises(EowError, match="adds noise at prediction"):
        export(run, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"path": "m.pt2"}, "end it in .onnx"),
        ({"path": "m"}, "end it in .onnx"),
        ({"format": "tflite"}, "no format 'tflite'"),
        ({"threshold": 1.5}, "threshold of 1.5"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"unknown_rate": 1.0}, "unknown rate of 1.0"),
        ({"run": "nowhere"}, "no run folder"),
        ({"method": "vanilla", "unknown_rate": 0.1}, "no unknown logit"),
        ({"on": "nowhere.npy"}, "no file nowhere.npy"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(
    digits: dict[str, Path], tmp_path: Path, wishes: dict[str, Any], words: str
) -> None:
    run = wishes.pop("run", digits[wishes.pop("method", "eow")])
    with pytest.raises(EowError, match=words):
        export(run, tmp_path / wishes.pop("path", "m.onnx"), **wishes)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "name", "fault"),
    [
        ("onnx", "m.onnx", "confidence"), ("torch", "m.pt2", "probs"), ("torch", "m.pt2", "label"),
        ("torch", "m.pt2", "nan"),
    ],
)  # fmt: skip
def test_a_file_that_disagrees_is_not_kept(
    digits: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, name: str, fault: str
) -> None:
    right = Graph.forward

    def wrong(self: Graph, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        said = right(self, inputs)
        if fault == "label":
            return {**said, "label": (said["label"] + 1) % 8}
        if fault == "nan":
            return {**said, "confidence": said["confidence"] * float("nan")}
        return {**said, fault: said[fault] * (1 - 1e-4)}

    (tmp_path / name).write_text("an older one")
    monkeypatch.setattr(Graph, "forward", wrong)
    with pytest.raises(EowError, match="is not written: its answers differ"):
        export(digits["eow"], tmp_path / name, format)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "an older one"


def test_equally_likely_classes_may_trade_places(tmp_path: Path) -> None:
    """Two labels are one answer where their probabilities are equal, and only there."""
    from eow.export.run import difference

    one, other = np.array([0]), np.array([1])
    sure = np.array([0.45], np.float32)
    tie, no_tie = np.array([[0.45, 0.45]], np.float32), np.array([[0.45, 0.44]], np.float32)
    unknown = np.array([0.1], np.float32)
    both = [deployed.Answers(label, sure, unknown, tie) for label in (one, other)]
    assert difference(*both, None, tmp_path) == 0
    with pytest.raises(EowError, match=r"differ from the run's by 0\.01"):
        difference(*(deployed.Answers(label, sure, unknown, no_tie) for label in (one, other)), None, tmp_path)
    apart = [deployed.Answers(label, sure, unknown, tie) for label in (one, np.array([-1]))]
    assert difference(*apart, 0.450001, tmp_path) == 0
    with pytest.raises(EowError, match=r"differ from the run's by 0\.05"):
        difference(*apart, 0.5, tmp_path)
    with pytest.raises(EowError, match=r"differ from the run's by 0\.35"):  # no threshold: confidence and unknown
        difference(*apart, None, tmp_path)
    near = [deployed.Answers(each.label, sure, np.array([0.450001], np.float32), tie) for each in apart]
    assert difference(*near, None, tmp_path) == 0


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_onnx_packages_the_error_says_how_to_get_them(
    digits: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EowError, match=rf"needs {missing}, .*pip install -e '\.\[onnx\]'"):
        export(digits["eow"], tmp_path / "m.onnx")
    export(digits["eow"], tmp_path / "m.pt2", "torch")  # needs none of them


def test_weights_beyond_two_gigabytes_are_refused(
    digits: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eow.export.run.LARGEST", 5000)  # the network has 1049 float32 weights and more
    with pytest.raises(EowError, match="use the format torch"):
        export(digits["ensemble"], tmp_path / "m.onnx")
