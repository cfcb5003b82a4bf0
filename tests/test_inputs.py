"""Files to predict: images as the folder reader takes them and no others, and arrays of any length."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eow.answering import predict_files
from eow.config import resolve
from eow.data.inputs import read_inputs
from eow.errors import EowError
from eow.recipes import default_model
from eow.runs import load, train

GREY, COLOUR = (1, 4, 6), (3, 4, 6)
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "ppm"])
def test_images_are_their_pixels(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(PIXELS).save(path, lossless=True)
    np.testing.assert_array_equal(read_inputs(path, COLOUR), PIXELS.transpose(2, 0, 1)[None])
    if suffix != "webp":  # which is always colour
        Image.fromarray(PIXELS[..., 0]).save(path)
        np.testing.assert_array_equal(read_inputs(path, GREY), PIXELS[None, None, ..., 0])


@pytest.mark.parametrize(
    ("mode", "shape", "message"),
    [
        ("RGB", GREY, "is a colour image, but this model takes grey ones: convert it first"),
        ("RGBA", GREY, "is a colour image"),
        ("P", GREY, "is a colour image"),
        ("L", COLOUR, "is a grey image, but this model takes colour ones: convert it first"),
        ("LA", COLOUR, "is a grey image"),
        ("I;16", GREY, "8 bits a channel"),
        ("I;16", COLOUR, "8 bits a channel"),
    ],
)
def test_images_of_another_mode_are_refused(tmp_path: Path, mode: str, shape: tuple[int, ...], message: str) -> None:
    Image.new(mode, (6, 4)).save(tmp_path / "x.png")
    with pytest.raises(EowError, match=rf"x\.png.*{message}"):
        read_inputs(tmp_path / "x.png", shape)


@pytest.mark.parametrize("channels", [2, 4])
def test_a_model_of_other_channels_takes_no_image(tmp_path: Path, channels: int) -> None:
    for mode in ("L", "RGB", "RGBA"):
        Image.new(mode, (6, 4)).save(tmp_path / "x.png")
        with pytest.raises(EowError, match=rf"takes uint8 arrays of shape \({channels}, 4, 6\), give a \.npy file"):
            read_inputs(tmp_path / "x.png", (channels, 4, 6))
    array = np.random.default_rng(0).integers(0, 256, (5, channels, 4, 6), dtype=np.uint8)
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(read_inputs(tmp_path / "x.npy", (channels, 4, 6)), array)


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.new("F", (6, 4)).save(tmp_path / "x.tiff")
    with pytest.raises(EowError, match="8 bits a channel"):
        read_inputs(tmp_path / "x.tiff", GREY)


def test_formats_that_start_programs_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import EpsImagePlugin

    def ghostscript(*arguments: object, **options: object) -> None:
        pytest.fail("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    Image.fromarray(PIXELS).save(tmp_path / "x.eps")
    with Image.open(tmp_path / "x.eps") as image:
        assert image.size == (6, 4)  # Pillow itself would take it
    with pytest.raises(EowError, match="cannot be read as an image"):
        read_inputs(tmp_path / "x.eps", COLOUR)


def test_a_file_that_may_not_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", denied)
    with pytest.raises(EowError, match=r"x\.png cannot be read \(Permission denied\)"):
        read_inputs(tmp_path / "x.png", GREY)


def test_what_is_no_array_is_said_without_the_advice_to_unpickle(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text and no array")
    for name in ("objects", "text"):
        with pytest.raises(EowError, match=rf"{name}\.npy cannot be read as a \.npy array .*numpy\.save") as caught:
            read_inputs(tmp_path / f"{name}.npy", GREY)
        assert "pickle" not in str(caught.value)


@pytest.mark.parametrize(("size", "channels"), [((4, 6), 3), ((12, 12), 3), ((4, 6), 1), ((3, 5), 3), ((8, 3), 3)])
def test_channels_may_come_last(tmp_path: Path, size: tuple[int, int], channels: int) -> None:
    """As Pillow and the npz reader have them; the pixels are those of the array with its channels first."""
    images = np.random.default_rng(1).integers(0, 256, (5, *size, channels), dtype=np.uint8)
    expected = np.stack([np.stack([image[..., channel] for channel in range(channels)]) for image in images])
    for array, wanted in ((images, expected), (expected, expected), (images[0], expected[:1])):
        np.save(tmp_path / "x.npy", array)
        np.testing.assert_array_equal(read_inputs(tmp_path / "x.npy", (channels, *size)), wanted)


def test_a_cube_has_its_channels_first(tmp_path: Path) -> None:
    """Where both orders fit, an array is what the model takes already."""
    cubes = np.random.default_rng(2).integers(0, 256, (5, 3, 3, 3), dtype=np.uint8)
    np.save(tmp_path / "x.npy", cubes)
    np.testing.assert_array_equal(read_inputs(tmp_path / "x.npy", (3, 3, 3)), cubes)


def test_an_array_of_other_numbers_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1, 4, 6)))
    with pytest.raises(EowError, match="holds float64 numbers, but this model takes uint8 ones: save it with those"):
        read_inputs(tmp_path / "x.npy", GREY)


@pytest.mark.filterwarnings("error")
def test_a_number_that_is_none_or_too_large_is_refused(tmp_path: Path) -> None:
    for value in (np.nan, -np.inf, 1e300):
        np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [value, 3.0]]))
        with pytest.raises(EowError, match="a NaN or infinite value in row 1, or one too large for float32: clean it"):
            read_inputs(tmp_path / "x.npy", (2,))


def test_an_array_of_another_shape_is_refused(tmp_path: Path) -> None:
    for shape in ((5, 6, 4, 3), (5, 4, 3, 6), (5, 72), (4, 6), (0, 3, 4, 6), (0, 4, 6, 3)):
        np.save(tmp_path / "x.npy", np.zeros(shape, np.uint8))
        with pytest.raises(EowError, match=r"takes \(N, 3, 4, 6\) or, channels last, \(N, 4, 6, 3\)") as caught:
            read_inputs(tmp_path / "x.npy", COLOUR)
        assert f"of shape {shape}" in str(caught.value)
        assert "N at least 1" in str(caught.value)
        assert "reshape" not in str(caught.value)  # which would mix pixels up


def test_a_long_array_is_predicted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(resolve({"train": {"epochs": 1}, "model": {"hidden": [8]}}), tmp_path / "run", progress=False)
    run = load(tmp_path / "run")
    inputs = np.random.default_rng(0).integers(0, 256, (2345, 1, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "x.npy", inputs)
    whole = run.method.predict(run.transform(torch.from_numpy(inputs)))
    real, sizes = type(run.method).predict, []

    def counted(method, x, rate=None):
        sizes.append(len(x))
        return real(method, x, rate)

    monkeypatch.setattr(type(run.method), "predict", counted)
    rows = predict_files(run, [str(tmp_path / "x.npy")])
    assert sizes == [1000, 1000, 345]
    assert [(row["index"], row["of"]) for row in rows] == [(index, 2345) for index in range(2345)]
    assert [row["label"] for row in rows] == whole.label.tolist()
    np.testing.assert_allclose([row["confidence"] for row in rows], whole.confidence.numpy(), atol=1e-6)
    np.testing.assert_allclose([row["unknown"] for row in rows], whole.unknown.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ("permuted:npz:x.npz", "mlp"),
        ("permuted:folder:x", "resnet18"),
        ("permuted:permuted:cifar10", "vgg11"),
        ("permuted:noise:1x8x8", "mlp"),
        ("permuted:svhn", "resnet18"),
    ],
)
def test_the_default_model_of_nested_names(data: str, model: str) -> None:
    assert default_model(data) == model


def test_the_default_model_of_a_wrong_name() -> None:
    for wrong in ("permuted:", "permuted:mnst", "mnst"):
        with pytest.raises(EowError, match="no data set named"):
            default_model(wrong)


def test_a_table_is_read_by_its_titles(tmp_path: Path) -> None:
    """pandas picks the same columns of it; a label, or whatever one column is called, is not looked at."""
    pandas = pytest.importorskip("pandas")
    file = tmp_path / "x.csv"
    for header in ("a,b,c", "c,a,b", "label,c,b,a", "c,what,b,a"):
        titles = header.split(",")
        file.write_text(
            header
            + "\n"
            + "".join(
                ",".join("word" if title in ("label", "what") else f"{ord(title) + row / 7}" for title in titles) + "\n"
                for row in range(3)
            )
        )
        wanted = pandas.read_csv(file)[["a", "b", "c"]].to_numpy(np.float32)
        np.testing.assert_array_equal(read_inputs(file, (3,), columns=("a", "b", "c")), wanted)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,c,label\n1,2,x\n", "has no column b: this model takes 3 of them, a, b, c"),
        ("a,b,c,d,e\n1,2,3,4,5\n", r"not trained on, or one twice \(d, e\): leave out all but a, b, c and a label"),
        ("a,b,c,a\n1,2,3,4\n", r"or one twice \(a\)"),
        ("a,b,c\n1,2,x\n", "data row 1, column 'c': 'x' is not a number"),
        ("a,b,c\n1,2,nan\n", "data row 1, column 'c': no finite float32"),
        ("a,b,c\n1,1e300,2\n", "data row 1, column 'b': no finite float32"),
        ("a,b,c\n", "no row under them"),
        ('a,b,c\n1,2,"3\n', "from line 2 on"),
        ("", "has no column a, b, c"),
    ],
)
def test_a_table_that_is_none_of_the_models(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(EowError, match=words):
        read_inputs(tmp_path / "x.csv", (3,), columns=("a", "b", "c"))
