"""Your own model as one file: whatever the network, the file says what `eow.predict` says, or is not written."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from networks import network
from problems import blobs, small_model
from torch import Tensor, nn

import eow
from eow import deployed
from eow.answering import predict_files
from eow.errors import EowError
from eow.export.model import Answering
from eow.models.surgery import UpgradedModel

OUTPUTS = ["label", "confidence", "unknown", "probs"]


def raised(model: UpgradedModel, lam: float = 0.1) -> UpgradedModel:
    """As after a training: the unknown is a logit among the others."""
    with torch.no_grad():
        model.head.bias[-1] += 16
        model.head.weight[-1] += 0.3 * torch.randn_like(model.head.weight[-1])
    model.odds.fill_(lam)
    return model


@pytest.fixture
def features() -> UpgradedModel:
    torch.manual_seed(0)
    return raised(eow.upgrade(nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(90, 4, generator=torch.Generator().manual_seed(1)) * 3


def agree(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found.label, wanted.label.numpy())
    for name in OUTPUTS[1:]:
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet", "densenet", "convnext", "vit", "lenet"])
def test_whatever_the_network_the_file_says_what_predict_says(name: str, tmp_path: Path) -> None:
    model, shape = network(name)
    upgraded = raised(eow.upgrade(model))
    images = torch.randn(80, *shape)
    told = eow.export_model(upgraded, tmp_path / "m.onnx", images)
    assert (told["samples"], told["compared_on"]) == (80, "the example")
    assert told["largest_difference"] <= 1e-5
    loaded = deployed.load(tmp_path / "m.onnx")
    agree(loaded.predict(images.numpy()), eow.predict(upgraded, images))
    assert (loaded.card.shape, loaded.card.dtype, loaded.card.classes) == (shape, "float32", ("0", "1", "2"))
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_threshold_and_unknown_rate_are_in_the_file_and_can_be_set_anew(
    features: UpgradedModel, x: Tensor, tmp_path: Path
) -> None:
    plain = eow.predict(features, x)
    assert 0 < (plain.label < 0).float().mean() < 1  # without a threshold, -1 where unknown is the most probable
    wishes: list[dict[str, Any]] = [{"threshold": 0.6}, {"unknown_rate": 0.6}]
    for wish in wishes:
        eow.export_model(features, tmp_path / "m.onnx", x, classes=["a", "b", "c"], **wish)
        loaded = deployed.load(tmp_path / "m.onnx")
        agree(loaded.predict(x.numpy()), eow.predict(features, x, **wish))
        anew = {"unknown_rate": 0.3, "threshold": 0.2}
        agree(loaded.predict(x.numpy(), **anew), eow.predict(features, x, **anew))
        card = loaded.card
        assert (card.threshold, card.unknown_rate) == (wish.get("threshold"), wish.get("unknown_rate"))
        assert (card.classes, card.odds) == (("a", "b", "c"), pytest.approx(0.1))
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_outputs()] == OUTPUTS
    assert len(session.run(None, {"inputs": x[:1].numpy()})[0]) == 1


def test_what_fit_returned_and_the_torch_format(tmp_path: Path) -> None:
    inputs, labels = blobs(300)
    model = eow.upgrade(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)))
    method = eow.fit(model, (inputs, labels), epochs=2, lam=0.5)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    for source in (model, method):
        eow.export_model(source, tmp_path / "m.pt2", inputs, format="torch", unknown_rate=0.3)
        extra = {"eow.json": ""}
        program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
        said = {name: value.numpy() for name, value in program(torch.from_numpy(inputs)).items()}
        agree(deployed.Answers(**said), eow.predict(model, torch.from_numpy(inputs), unknown_rate=0.3))
        assert json.loads(extra["eow.json"])["odds"] == 0.5
    assert model.training  # nothing of the caller's model is touched
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    split = eow.fit(small_model(extra=1), (inputs, labels), epochs=1)  # no upgrade: λ is the method's
    eow.export_model(split, tmp_path / "m.onnx", inputs, unknown_rate=0.3)
    wanted = eow.predict(split, torch.from_numpy(inputs), unknown_rate=0.3)
    agree(deployed.load(tmp_path / "m.onnx").predict(inputs), wanted)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(1))


def test_whole_numbers_where_the_model_takes_them(tmp_path: Path) -> None:
    tokens = torch.randint(0, 50, (75, 7), generator=torch.Generator().manual_seed(0))
    model = raised(eow.upgrade(Words(), example=tokens))
    eow.export_model(model, tmp_path / "m.onnx", tokens)
    loaded = deployed.load(tmp_path / "m.onnx")
    assert loaded.card.dtype == "int64"
    agree(loaded.predict(tokens.numpy()), eow.predict(model, tokens))
    np.save(tmp_path / "x.npy", tokens[:2].numpy().astype(np.int32))
    rows = predict_files(loaded, [tmp_path / "x.npy"])
    assert [row["label"] for row in rows] == eow.predict(model, tokens[:2]).label.tolist()
    np.save(tmp_path / "x.npy", tokens[:2].numpy().astype(np.float32))
    with pytest.raises(EowError, match="holds float32 numbers, but this model takes whole ones"):
        predict_files(loaded, [tmp_path / "x.npy"])


def test_prepared_images_are_not_taken_for_bytes(tmp_path: Path) -> None:
    """A file of a run scales bytes itself; this one does not, so bytes would be wrong by a factor of hundreds."""
    from PIL import Image

    model, shape = network("lenet")
    images = torch.randn(72, *shape)
    eow.export_model(raised(eow.upgrade(model)), tmp_path / "m.onnx", images)
    loaded = deployed.load(tmp_path / "m.onnx")
    with pytest.raises(EowError, match="inputs of uint8: this model takes float32"):
        loaded.predict(np.zeros((2, *shape), np.uint8))
    np.save(tmp_path / "x.npy", np.zeros((2, *shape), np.uint8))
    Image.new("L", (28, 28)).save(tmp_path / "x.png")
    with pytest.raises(EowError, match="holds uint8 numbers, but this model takes floating-point ones"):
        predict_files(loaded, [tmp_path / "x.npy"])
    with pytest.raises(
        EowError, match=r"x\.png cannot be used: this model takes float32 arrays of shape \(1, 28, 28\)"
    ):
        predict_files(loaded, [tmp_path / "x.png"])
    np.save(tmp_path / "x.npy", images[:2].numpy())
    assert len(predict_files(loaded, [tmp_path / "x.npy"])) == 2


def test_half_precision_is_written_in_float32(features: UpgradedModel, x: Tensor, tmp_path: Path) -> None:
    features.bfloat16()
    eow.export_model(features, tmp_path / "m.onnx", x)
    assert features.head.weight.dtype == torch.bfloat16
    found = deployed.load(tmp_path / "m.onnx").predict(x.numpy())
    np.testing.assert_allclose(found.probs, eow.predict(features, x).probs.float().numpy(), atol=0.03)


class Casts(nn.Module):
    """A body in one precision and a head in another, as somebody wants it who fears for large logits."""

    def __init__(self, body: torch.dtype, head: torch.dtype) -> None:
        super().__init__()
        self.body, self.head, self.dtype = nn.Linear(4, 8).to(body), nn.Linear(8, 3).to(head), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.body(x)).to(self.dtype))


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_model_that_casts_in_its_forward_is_written_as_it_is(x: Tensor, tmp_path: Path, format: str) -> None:
    torch.manual_seed(0)
    model = raised(eow.upgrade(Casts(torch.float32, torch.float64)))
    path = tmp_path / ("m.onnx" if format == "onnx" else "m.pt2")
    assert eow.export_model(model, path, x, format=format)["largest_difference"] <= 1e-5
    assert model.head.weight.dtype == torch.float64
    if format == "onnx":
        agree(deployed.load(path).predict(x.numpy()), eow.predict(model, x))


def test_a_model_that_cannot_be_written_in_float32_is_told_so(x: Tensor, tmp_path: Path) -> None:
    model = raised(eow.upgrade(Casts(torch.float64, torch.float64)))
    with pytest.raises(EowError, match=r"computes in torch\.float64 and cannot be written in float32 .*no other"):
        eow.export_model(model, tmp_path / "m.onnx", x)
    with pytest.raises(EowError, match=r"cannot take inputs of shape \(1, 3\)"):  # which is the batch's fault
        eow.export_model(model, tmp_path / "m.onnx", x[:, :3])


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_a_file_that_disagrees_is_not_kept(
    features: UpgradedModel, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    right = Answering.forward

    def wrong(self: Answering, inputs: Tensor) -> dict[str, Tensor]:
        said = right(self, inputs)
        return {**said, "unknown": said["unknown"] * (1 - 1e-3)}

    monkeypatch.setattr(Answering, "forward", wrong)
    with pytest.raises(EowError, match="is not written: its answers differ"):
        eow.export_model(features, tmp_path / f"m.{'onnx' if format == 'onnx' else 'pt2'}", x, format=format)
    assert not list(tmp_path.iterdir())


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2"])
def test_a_forward_that_decides_on_values_is_refused(
    x: Tensor, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = raised(eow.upgrade((nn.Sequential(nn.Linear(4, 8), Deciding()), nn.Linear(8, 3)), example=x))
    with pytest.raises(EowError, match=r"torch cannot trace this"):  # no format would do
        eow.export_model(model, tmp_path / name, x, format="onnx" if name == "m.onnx" else "torch")
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"path": "m.pt2"}, "end it in .onnx"),
        ({"format": "tflite"}, "no format 'tflite'"),
        ({"threshold": 1.5}, "threshold of 1.5"),
        ({"unknown_rate": 1.0}, "unknown rate of 1.0"),
        ({"classes": ["a"]}, "1 class names for the model's 3 classes"),
        ({"model": nn.Linear(4, 3)}, "the model is a Linear: pass what eow.upgrade"),
        ({"model": eow.upgrade(nn.Linear(4, 3))}, "has not been trained"),
        ({"model": eow.fit(small_model(extra=0), blobs(60), method="vanilla", epochs=1)}, "has no unknown logit"),
        ({"example": torch.zeros(0, 4)}, "shape"),
        ({"example": torch.zeros(4)}, r"x\[None\]"),
        ({"example": torch.zeros(2, 5)}, "cannot take inputs of shape"),
        ({"example": torch.full((2, 4), torch.nan)}, "NaN"),
        ({"example": torch.zeros(2, 4, dtype=torch.uint8)}, "floating-point"),
        ({"example": "random"}, "cannot be made a tensor"),
    ],
)  # fmt: skip
def test_wishes_that_cannot_be_met_are_refused(
    features: UpgradedModel, x: Tensor, tmp_path: Path, wishes: dict[str, Any], words: str
) -> None:
    given = {"model": features, "path": "m.onnx", "example": x, **wishes}
    with pytest.raises(EowError, match=words):
        eow.export_model(given.pop("model"), tmp_path / given.pop("path"), given.pop("example"), **given)
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_sentence_says_how_to_get_it_and_what_does_without(
    features: UpgradedModel, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    with pytest.raises(EowError, match=r"needs onnx, which is not installed: .*'\.\[onnx\]'.* use the format torch"):
        eow.export_model(features, tmp_path / "m.onnx", x)
    assert not (tmp_path / "m.onnx").exists()


def test_a_fence_is_no_part_of_the_model() -> None:
    from eow.methods.eow import EOW, EOWOptions
    from eow.typed import build

    method = EOW(small_model(), build(EOWOptions, {"fence": 2}, "method"), 3, (4,))
    with pytest.raises(EowError, match="the method has a fence"):
        eow.export_model(method, "model.onnx", torch.zeros(2, 4))


def test_numbers_of_arrays_are_numbers(tmp_path: Path) -> None:
    model = raised(eow.upgrade(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))))
    rate, threshold = np.float32(0.25), torch.tensor(0.5)
    eow.export_model(model, tmp_path / "m.onnx", torch.randn(5, 4), unknown_rate=rate, threshold=threshold)
    card = deployed.load(tmp_path / "m.onnx").card
    assert (card.unknown_rate, card.threshold) == (0.25, 0.5)
    with pytest.raises(EowError, match="threshold is 'high'"):
        eow.export_model(model, tmp_path / "n.onnx", torch.randn(5, 4), threshold="high")


@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("threshold", [None, 0.8])
def test_a_classifiers_file_takes_raw_rows(tmp_path: Path, rate: float | None, threshold: float | None) -> None:
    """Run by onnxruntime itself: the scaler, the end at five deviations and the fence are in the file."""
    rows, labels = blobs(300)
    rows = rows * np.array([1.0, 100.0, 0.01, 1.0], np.float32) + np.array([0.0, 5000.0, 3.0, -7.0], np.float32)
    classifier = eow.EOWClassifier((16,), max_iter=8, unknown_rate=rate, random_state=0)
    classifier.fit(rows, np.array(["ant", "bee", "cow"])[labels])
    far = np.concatenate([rows, rows * 1e6, -rows, rows * 1e30, rows.mean(0) + 2 * (rows - rows.mean(0))])
    at_the_fence = (classifier.predict_unknown(far) > 1e-3) & (classifier.predict_unknown(far) < 1 - 1e-3)
    assert at_the_fence[1200:].sum() > 10
    eow.export_model(classifier, tmp_path / "c.onnx", far, threshold=threshold)
    session = onnxruntime.InferenceSession(tmp_path / "c.onnx", providers=["CPUExecutionProvider"])
    label, _, unknown, probs = session.run(None, {"inputs": far})
    known = 1 - classifier.predict_unknown(far)
    np.testing.assert_allclose(probs, classifier.predict_proba(far) * known[:, None], atol=1e-5)
    assert (unknown[300:600] > 0.999).all()
    assert (unknown[900:1200] > 0.999).all()
    np.testing.assert_allclose(unknown, classifier.predict_unknown(far), atol=1e-5)
    names = [classifier.classes_[each] if each >= 0 else None for each in label]
    assert names == classifier.predict_open(far, 0.5 if threshold is None else threshold).tolist()
    assert None in names
    card = deployed.load(tmp_path / "c.onnx").card
    assert (card.classes, card.odds) == (("ant", "bee", "cow"), 0.3)
    assert card.unknown_rate == pytest.approx(0.3 / 1.3 if rate is None else rate)


@pytest.mark.parametrize("columns", [1, 300])
def test_a_classifiers_file_has_the_fence_of_any_width_and_the_prior_that_a_rare_class_asks_for(
    tmp_path: Path, columns: int
) -> None:
    random = np.random.default_rng(0)
    labels = (np.arange(120) % 20 == 0).astype(int)
    rows = (random.normal(size=(120, columns)) + 6 * labels[:, None]).astype(np.float32)
    classifier = eow.EOWClassifier((16,), max_iter=8, random_state=0).fit(rows, labels)
    both = np.concatenate([rows, 30 * rows - 100])
    for name, format in (("c.onnx", "onnx"), ("c.pt2", "torch")):
        told = eow.export_model(classifier, tmp_path / name, both, format=format)
        assert told["unknown_rate"] == pytest.approx(0.03 / 1.03)
    said = deployed.load(tmp_path / "c.onnx").predict(both)
    np.testing.assert_array_equal(said.label, classifier.predict_open(both))
    assert (said.unknown[120:] > 0.999).all()


def test_what_a_file_cannot_say_of_a_classifier(tmp_path: Path) -> None:
    rows, labels = blobs(200)
    with pytest.raises(EowError, match="the classifier is not fitted"):
        eow.export_model(eow.EOWClassifier(), tmp_path / "c.onnx", rows)
    fine = rows.astype(np.float64) + np.array([0.0, 0.0, 1e9, 0.0])
    classifier = eow.EOWClassifier((8,), max_iter=3, random_state=0).fit(fine, labels)
    with pytest.raises(EowError, match="float32, which is too coarse for column 2 of X"):
        eow.export_model(classifier, tmp_path / "c.onnx", fine)
    assert not list(tmp_path.iterdir())
