"""The official files of CIFAR-C, and the contact sheet."""

import numpy as np
import pytest
import torch
from photographs import photographs
from PIL import Image

from eow.data.corruptions import CORRUPTIONS, corrupt
from eow.data.corruptions.official import read_official
from eow.data.corruptions.sheet import CELL, GAP, contact_sheet
from eow.errors import EowError


def write_official(folder, name="fog", dtype=np.uint8):
    """Files of the official shape, empty but for two marks (the disk keeps no zeros)."""
    images = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (50_000, 32, 32, 3))
    images[20_000, 1, 2] = (10, 20, 30)
    images[29_999] = 7
    np.save(folder / "labels.npy", np.tile(np.arange(10_000) % 10, 5).astype(np.uint8))


def test_a_severity_of_the_official_files_is_read(tmp_path) -> None:
    write_official(tmp_path)
    images, labels = read_official(tmp_path, "fog", 3)
    assert images.shape == (10_000, 3, 32, 32)
    assert images.dtype == np.uint8
    assert images[0, :, 1, 2].tolist() == [10, 20, 30]
    assert (images[-1] == 7).all()
    assert images[1:-1].max() == 0
    assert labels.dtype == np.int64
    assert (labels == np.arange(10_000) % 10).all()
    assert read_official(str(tmp_path), "fog", 2)[0].max() == 0


def test_what_is_wrong_with_official_files_is_said(tmp_path) -> None:
    with pytest.raises(EowError, match=r"no file .*fog\.npy: .*2535967 .*3555552"):
        read_official(tmp_path, "fog", 1)
    with pytest.raises(EowError, match="no corruption 'rain'"):
        read_official(tmp_path, "rain", 1)
    with pytest.raises(EowError, match="no severity 0"):
        read_official(tmp_path, "fog", 0)
    write_official(tmp_path)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(EowError, match=r"no file .*labels\.npy"):
        read_official(tmp_path, "fog", 1)
    write_official(tmp_path, "snow", np.int16)
    with pytest.raises(EowError, match="int16 instead of bytes"):
        read_official(tmp_path, "snow", 1)
    np.save(tmp_path / "frost.npy", np.zeros((50, 32, 32, 3), np.uint8))
    with pytest.raises(EowError, match=r"shape \(50, 32, 32, 3\)"):
        read_official(tmp_path, "frost", 1)
    for content in (b"", b"no array at all", (tmp_path / "fog.npy").read_bytes()[:5000]):
        (tmp_path / "contrast.npy").write_bytes(content)
        with pytest.raises(EowError, match="cannot be read"):
            read_official(tmp_path, "contrast", 1)
    np.save(tmp_path / "pixelate.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(EowError, match="cannot be read"):
        read_official(tmp_path, "pixelate", 1)
    np.savez(tmp_path / "arrays.npz", a=np.zeros(3))
    (tmp_path / "arrays.npz").rename(tmp_path / "saturate.npy")
    with pytest.raises(EowError, match="several arrays"):
        read_official(tmp_path, "saturate", 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_sheet_shows_every_variant_in_its_place(tmp_path, channels) -> None:
    image = photographs(1, channels)[0]
    contact_sheet(image, tmp_path / "sheet.png", seed=4)
    page = np.asarray(Image.open(tmp_path / "sheet.png").convert("RGB")).astype(int)
    side = CELL // 32 * 32 + GAP
    top, left = page.shape[0] - (19 * side - GAP), page.shape[1] - (6 * side - GAP)
    assert top > 10
    assert left > 50
    for row, name in enumerate(CORRUPTIONS):
        for column in range(6):
            shown = image if column == 0 else corrupt(image[None], name, column, seed=4)[0]
            middle = CELL // 32 // 2  # of an enlarged pixel
            rows = top + row * side + middle + np.arange(32) * (CELL // 32)
            columns = left + column * side + middle + np.arange(32) * (CELL // 32)
            assert (page[np.ix_(rows, columns)] == np.broadcast_to(shown, (3, 32, 32)).transpose(1, 2, 0)).all()


def test_a_sheet_that_cannot_be_made_leaves_nothing_behind(tmp_path) -> None:
    image = photographs(1)[0]
    with pytest.raises(EowError, match=r"end its name in \.png"):
        contact_sheet(image, tmp_path / "sheet.jpg")
    with pytest.raises(EowError, match="one image"):
        contact_sheet(image[None], tmp_path / "sheet.png")
    with pytest.raises(EowError, match="uint8"):
        contact_sheet(image / 255, tmp_path / "sheet.png")
    with pytest.raises(EowError, match="cannot be written"):
        contact_sheet(image, tmp_path / "nowhere" / "sheet.png")
    assert list(tmp_path.iterdir()) == []
    contact_sheet(torch.from_numpy(image), tmp_path / "sheet.png")
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
