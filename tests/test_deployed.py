"""An .onnx file at work: without torch, and with nothing but one sentence for a file that is wrong in any way."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from eow import answering, deployed, runs
from eow.answering import predict_files
from eow.config import resolve
from eow.errors import EowError
from eow.export.run import export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "run"
    config = resolve({"data": {"name": "digits"}, "model": {"hidden": [8]}, "train": {"epochs": 1}})
    runs.train(config, folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Path:
    path = run.parent / "model.onnx"
    export(run, path, threshold=0.3)
    return path


def edited(model: Path, path: Path, edit: Callable[[Any], None]) -> Path:
    """The model as somebody else might have written it."""
    changed = onnx.load(model)
    edit(changed)
    path.write_bytes(changed.SerializeToString())
    return path


def with_metadata(**texts: str | None) -> Callable[[Any], None]:
    def edit(changed: Any) -> None:
        kept = {each.key: each.value for each in changed.metadata_props} | texts
        del changed.metadata_props[:]
        helper.set_model_props(changed, {key: value for key, value in kept.items() if value is not None})

    return edit


def test_files_are_predicted_without_torch(run: Path, model: Path, tmp_path: Path) -> None:
    """The rows are those of the run itself, and torch is never imported on the way."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "three.npy", pixels)
    Image.fromarray(pixels[1, 0]).save(tmp_path / "one.png")
    files = [str(tmp_path / "three.npy"), str(tmp_path / "one.png")]
    code = (
        "import json, sys; from eow import answering, deployed; model = deployed.load(sys.argv[1])\n"
        "rows = answering.predict_files(model, sys.argv[2:], threshold=0)\n"
        "print(json.dumps({'rows': rows, 'torch': 'torch' in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(model), *files], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["torch"] is False
    assert done.stderr == ""
    wanted = predict_files(runs.load(run), files, threshold=0)
    for row, other in zip(said["rows"], wanted, strict=True):
        assert {key: row[key] for key in ("file", "index", "of", "label", "class")} == {
            key: other[key] for key in ("file", "index", "of", "label", "class")
        }
        assert row["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
        assert row["unknown"] == pytest.approx(other["unknown"], abs=1e-5)


def test_onnxruntime_sends_and_keeps_nothing(run: Path, model: Path, tmp_path: Path) -> None:
    """Its own default is to write an identifier below the home folder and to send events in the background."""
    home = tmp_path / "home"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    code = (
        "import sys, numpy as np; from eow import deployed; from eow.export.run import export\n"
        "deployed.load(sys.argv[1]).predict(np.zeros((2, 1, 8, 8), 'uint8')); export(sys.argv[2], sys.argv[3])"
    )
    arguments = [str(model), str(run), str(tmp_path / "again.onnx")]
    subprocess.run([sys.executable, "-c", code, *arguments], env={**env, "HOME": str(home)}, check=True)
    assert not [path for path in home.rglob("*") if "microsoft" in str(path).lower() or "onnx" in path.name.lower()]


def test_where_it_abstains_a_row_has_no_class(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    rows = predict_files(deployed.load(model), [tmp_path / "x.npy"], threshold=1)
    assert [(row["label"], row["class"]) for row in rows] == [(-1, None)] * 2


def test_many_inputs_are_answered_as_few_are(model: Path) -> None:
    loaded = deployed.load(model)
    many = np.random.default_rng(1).integers(0, 256, (2 * deployed.BATCH + 3, 1, 8, 8), dtype=np.uint8)
    whole = loaded.predict(many)
    assert len(whole.label) == len(many)
    np.testing.assert_allclose(whole.probs[-5:], loaded.predict(many[-5:]).probs, atol=1e-6)


def counting(model: deployed.Deployed) -> tuple[deployed.Deployed, list[int]]:
    """The same model, and the sizes of the batches that it was asked."""
    sizes: list[int] = []

    class Session:
        def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> Any:
            sizes.append(len(inputs[deployed.INPUT]))
            return model.session.run(names, inputs)

    return deployed.Deployed(model.path, model.card, Session()), sizes


def test_files_are_predicted_together_and_answered_one_by_one(model: Path, tmp_path: Path) -> None:
    """40 images, an array that is larger than a stack, one that is not, an image: in that order."""
    random, files = np.random.default_rng(2), []
    for number in range(40):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(random.integers(0, 256, (8, 8), dtype=np.uint8)).save(files[-1])
    for count in (answering.STACK + 1, 3):
        files.append(tmp_path / f"{count}.npy")
        np.save(files[-1], random.integers(0, 256, (count, 1, 8, 8), dtype=np.uint8))
    files.append(files[0])
    loaded, sizes = counting(deployed.load(model))
    rows = predict_files(loaded, files, unknown_rate=0.2, threshold=0.4)
    assert sizes == [32, 8, 33, 4]
    wanted = [row for file in files for row in predict_files(loaded, [file], unknown_rate=0.2, threshold=0.4)]
    for row, other in zip(rows, wanted, strict=True):
        same = ("file", "index", "of", "label", "class")
        assert {key: row[key] for key in same} == {key: other[key] for key in same}
        assert (row["confidence"], row["unknown"]) == pytest.approx((other["confidence"], other["unknown"]), abs=1e-6)
    assert predict_files(loaded, []) == []


def test_an_error_in_a_stack_is_that_of_its_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample's number is that in its own file, and of two errors the first file's is told."""
    loaded = deployed.load(model)
    for name, values in (("fine", [0, 0]), ("lost", [0, 7, 0])):
        np.save(
            tmp_path / f"{name}.npy", np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 8, 8), np.uint8)
        )
    predict = deployed.Deployed.predict

    def loses_sevens(self: Any, inputs: np.ndarray, *policy: Any) -> deployed.Answers:
        if (lost := (inputs == 7).any((1, 2, 3))).any():
            raise EowError(f"sample {int(lost.argmax())} is so surely unknown that float32 has lost its classes")
        return predict(self, inputs, *policy)

    monkeypatch.setattr(deployed.Deployed, "predict", loses_sevens)
    fine, lost, absent = (tmp_path / name for name in ("fine.npy", "lost.npy", "absent.npy"))
    assert len(predict_files(loaded, [fine, fine])) == 4
    with pytest.raises(EowError, match="sample 1 is so surely unknown"):
        predict_files(loaded, [fine, lost])
    with pytest.raises(EowError, match="sample 1 is so surely unknown"):
        predict_files(loaded, [fine, lost, absent])
    with pytest.raises(EowError, match=r"there is no file .*absent\.npy"):
        predict_files(loaded, [fine, absent, lost])


def test_class_names_are_text_whatever_they_hold(model: Path, tmp_path: Path) -> None:
    odd = ["[red]a", "\x1b[31mb", "ü\ud800", "", "nul\x00", "'; DROP", "{f}", "\u202e", "a\nb", "unknown"]
    path = edited(model, tmp_path / "odd.onnx", with_metadata(classes=json.dumps(odd)))
    loaded = deployed.load(path)
    assert list(loaded.card.classes) == odd
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    (row,) = predict_files(loaded, [tmp_path / "x.npy"], threshold=0)
    assert row["class"] == odd[row["label"]]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((2, 8, 8), np.uint8), r"shape \(2, 8, 8\).*\(N, 1, 8, 8\)"),
        (np.zeros((0, 1, 8, 8), np.uint8), "N at least 1"),
        (np.zeros((2, 1, 8, 8), np.float32), "inputs of float32: this model takes uint8"),
        ("text", "shape"),
    ],
)
def test_inputs_of_another_kind_are_refused(model: Path, inputs: Any, words: str) -> None:
    with pytest.raises(EowError, match=words):
        deployed.load(model).predict(inputs)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_is_a_confidence(model: Path, threshold: float) -> None:
    with pytest.raises(EowError, match=r"is not a confidence|give a finite number"):
        deployed.load(model).predict(np.zeros((1, 1, 8, 8), np.uint8), threshold=threshold)


@pytest.mark.parametrize("name", ["unknown_rate", "threshold"])
def test_a_policy_is_numbers(model: Path, run: Path, tmp_path: Path, name: str) -> None:
    x = np.zeros((1, 1, 8, 8), np.uint8)
    np.save(tmp_path / "x.npy", x)
    for wrong in ("a", [0.5], True):
        with pytest.raises(EowError, match=f"{name} is .*: give a number"):
            deployed.load(model).predict(x, **{name: wrong})
        with pytest.raises(EowError, match=f"{name} is .*: give a number"):
            predict_files(runs.load(run), [tmp_path / "x.npy"], **{name: wrong})
    assert len(deployed.load(model).predict(x, **{name: np.float32(0.5)}).label) == 1


def test_features_with_nan_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{i % 2 + i / 50},{i},{i % 2}\n" for i in range(40)))
    config = resolve({"data": {"name": f"csv:{table}"}, "model": {"hidden": [4]}, "train": {"epochs": 1, "batch": 8}})
    runs.train(config, tmp_path / "run", progress=False)
    export(tmp_path / "run", tmp_path / "m.onnx")
    loaded = deployed.load(tmp_path / "m.onnx")
    features = np.array([[0.5, 3.0], [1.5, np.nan]])
    with pytest.raises(EowError, match="in row 1"):
        loaded.predict(features)
    assert loaded.predict(features[:1]).probs.shape == (1, 2)  # float64 is made float32


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.9, 0.9999])
def test_truncated_files_are_refused(model: Path, tmp_path: Path, share: float) -> None:
    data = model.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[: int(share * len(data))])
    with pytest.raises(EowError, match=r"cut\.onnx is damaged"):
        deployed.load(tmp_path / "cut.onnx")


def test_flipped_bytes_never_get_past_an_eow_error(model: Path, tmp_path: Path) -> None:
    """Some flips only change a weight; whatever else they do is one sentence."""
    data, random = model.read_bytes(), np.random.default_rng(0)
    zeros, sentences = np.zeros((2, 1, 8, 8), np.uint8), []
    for place in random.integers(0, len(data), 150):
        hurt = bytearray(data)
        hurt[place] ^= 1 << int(random.integers(8))
        (tmp_path / "hurt.onnx").write_bytes(hurt)
        try:
            deployed.load(tmp_path / "hurt.onnx").predict(zeros)
        except EowError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert all(sentence.isprintable() for sentence in sentences)


def test_other_things_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.onnx").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "text.onnx").write_text("weights")
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")
    for name, words in (("noise", "damaged"), ("text", "damaged"), ("folder", "no file"), ("pipe", "no file")):
        with pytest.raises(EowError, match=words):
            deployed.load(tmp_path / f"{name}.onnx")
    with pytest.raises(EowError, match="there is no file"):
        deployed.load(tmp_path / "nowhere.onnx")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("classes", None), ("classes", "[]"), ("classes", '["a"]'), ("classes", '[1, 2]'), ("classes", '{"a": 1}'),
        ("classes", "[" * 100_000), ("classes", "no json"), ("threshold", '"high"'), ("threshold", "NaN"),
        ("threshold", "-1"), ("threshold", "true"), ("threshold", None), ("unknown_rate", "1"), ("unknown_rate", "[]"),
        ("odds", "0"), ("odds", "Infinity"), ("odds", "-1"), ("odds", "5e-324"), ("shape", "[]"), ("shape", "[1, 8]"),
        ("shape", "[1, 8, 9]"), ("shape", "[64]"), ("shape", '"x"'), ("shape", "[1.0, 8.0, 8.0]"),
        ("shape", "[true, 8, 8]"), ("method", "3"), ("provenance", "3"), ("certificate", "3"),
    ],
)  # fmt: skip
def test_broken_metadata_is_refused(model: Path, tmp_path: Path, key: str, text: str | None) -> None:
    path = edited(model, tmp_path / "m.onnx", with_metadata(**{key: text}))
    with pytest.raises(EowError, match=r"m\.onnx is damaged"):
        deployed.load(path)


def rename_output(changed: Any) -> None:
    (node,) = [node for node in changed.graph.node if "unknown" in node.output]
    node.output[list(node.output).index("unknown")] = changed.graph.output[2].name = "other"


def drop_output(changed: Any) -> None:
    del changed.graph.output[3]


def external_weights(changed: Any) -> None:
    tensor = changed.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "../secret.bin"), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)


def external_attribute(changed: Any) -> None:
    """Not among the graph's weights but in a node's attribute, where a careless look does not find it."""
    tensor = TensorProto(name="x", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret.bin")
    changed.graph.node.append(helper.make_node("Constant", [], ["x"], value=tensor))


def foreign_operator(changed: Any) -> None:
    changed.graph.node[0].domain = "evil"
    changed.opset_import.append(helper.make_opsetid("evil", 1))


def no_graph(changed: Any) -> None:
    changed.ClearField("graph")


@pytest.mark.parametrize(
    "edit", [rename_output, drop_output, external_weights, external_attribute, foreign_operator, no_graph]
)
def test_graphs_that_eow_did_not_write_are_refused(model: Path, tmp_path: Path, edit: Callable[[Any], None]) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(4096))
    path = edited(model, tmp_path / "below" / "m.onnx", edit)
    with pytest.raises(EowError, match=r"m\.onnx is damaged or was not made by `eow export`"):
        deployed.load(path)


def liar(tmp_path: Path, model: Path, label: Any, probs: Any) -> Path:
    """A graph with the right names and types whose answers are constants."""
    values = {
        "label": np.array(label, np.int64), "confidence": np.array([0.5], np.float32),
        "unknown": np.array([0.5], np.float32), "probs": np.array(probs, np.float32),
    }  # fmt: skip

    def edit(changed: Any) -> None:
        del changed.graph.node[:], changed.graph.initializer[:]
        for name, value in values.items():
            tensor = onnx.numpy_helper.from_array(value)
            changed.graph.node.append(helper.make_node("Constant", [], [name], value=tensor))
        for output in changed.graph.output:
            output.type.tensor_type.ClearField("shape")

    return edited(model, tmp_path / "liar.onnx", edit)


@pytest.mark.parametrize(
    ("label", "probs"),
    [
        ([10], [[0.05] * 10]),
        ([-2], [[0.05] * 10]),
        ([3], [[0.1] * 10]),
        ([3], [[float("nan")] * 10]),
        ([3], [[0.1] * 5]),
        ([3, 3], [[0.05] * 10]),
    ],
)
def test_answers_that_are_none_are_refused(model: Path, tmp_path: Path, label: Any, probs: Any) -> None:
    loaded = deployed.load(liar(tmp_path, model, label, probs))
    with pytest.raises(EowError, match=r"liar\.onnx"):
        loaded.predict(np.zeros((1, 1, 8, 8), np.uint8))


def test_what_float32_has_lost_is_not_made_up(model: Path) -> None:
    """At an unknown rate of 0 the classes of a sample that is surely unknown would be 0/0."""
    loaded = deployed.load(model)
    surely = np.array([1.0], np.float32), np.zeros((1, 10), np.float32)
    with pytest.raises(EowError, match="sample 0 is so surely unknown"):
        loaded.shifted(*surely, 0.0)
    answer = deployed.Answers(np.array([-1]), np.zeros(1, np.float32), *surely)
    object.__setattr__(loaded, "run", lambda inputs: answer)
    nothing = np.zeros((1, 1, 8, 8), np.uint8)
    assert loaded.predict(nothing, threshold=0.1).label == -1
    with pytest.raises(EowError, match=r"sample 0 is so surely unknown.* a threshold of 0\.0 asks for one: export the"):
        loaded.predict(nothing, threshold=0)
    unknown, probs = loaded.shifted(*surely, 0.01)
    assert unknown == 1
    assert (probs == 0).all()
