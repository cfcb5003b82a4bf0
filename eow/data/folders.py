"""Data sets that are trees of image files: a folder with a sub-folder for each class, and Tiny-ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from eow.data.catalog import Entry, how_to_get, how_to_repair
from eow.data.dataset import Dataset, split_80_20
from eow.data.files import at_home, entries, files_below, is_folder
from eow.errors import EowError
from eow.mapping import in_file, pieces

# Named one by one, because Pillow also knows formats whose decoding starts other programs (EPS runs Ghostscript).
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
GREY_MODES = ("1", "L", "LA")
MOST_PIXELS = 1 << 26  # 8192x8192; a few kB can say that they are more, and decoding would believe them
COLOUR_MODES = ("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
# What brings a picture upright, by EXIF's number for how the camera was held.
TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE"}
TURNS[8] = "ROTATE_90"
TOLD_BEFORE = {"exif", "Raw profile type exif", "XML:com.adobe.xmp"}  # how a PNG says it before its pixels


def unreadable(path: Path, error: Exception) -> EowError:
    """The sentence for what Pillow could not read; its own, for a format it does not know, only repeats the path."""
    from PIL import UnidentifiedImageError

    why = getattr(error, "strerror", None) or error
    if isinstance(error, UnidentifiedImageError):
        why = f"it is none of {', '.join(IMAGE_FORMATS)}"
    return EowError(f"{path} cannot be read as an image ({why}): save it again, as a PNG for example, or leave it out")


def decoded(path: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    """One image as (C, H, W), turned as its camera says, or an error that names the file."""
    from PIL import Image

    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            held = orientation(image)
            width, height = upright(image, held)
            if (width, height) != size:
                raise EowError(
                    f"{path} is {width}x{height} where the first image is {size[0]}x{size[1]}: scale all images to one "
                    "size first"
                )
            turn, plain = TURNS.get(held), image.convert("L" if channels == 1 else "RGB")
            pixels = np.array(plain if turn is None else plain.transpose(Image.Transpose[turn]))
    except EowError:
        raise
    except Exception as error:
        raise unreadable(path, error) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _image_array(paths: Sequence[Path], size: tuple[int, int], channels: int, resident: bool) -> np.ndarray:
    """All images, in memory or in a file, decoded in a few threads: Pillow lets go of the interpreter while it
    decodes."""
    shape = (len(paths), channels, size[1], size[0])
    inputs = np.empty(shape, np.uint8) if resident else in_file(shape, np.uint8)
    with ThreadPoolExecutor() as pool:
        for rows in pieces(inputs):  # no more are decoded ahead than are about to be stored
            for index, image in enumerate(
                pool.map(lambda path: decoded(path, size, channels), paths[rows]), rows.start
            ):
                inputs[index] = image
    return inputs


def orientation(image: Any) -> int:
    """How a camera was held, as EXIF counts it: 1 is upright, 5 to 8 lie on their side. From the header alone."""
    from PIL import ExifTags

    if image.format == "TIFF":  # which Pillow turns by itself
        return 1
    if image.format == "PNG" and not TOLD_BEFORE & image.info.keys():  # to look behind the pixels is to decode them
        return 1
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # whatever else is written there, the picture can be read
        return 1


def upright(image: Any, held: int) -> tuple[int, int]:
    """Width and height as a viewer shows it, of a camera that was held so."""
    return (image.height, image.width) if held in (5, 6, 7, 8) else (image.width, image.height)


def size_and_channels(path: Path) -> tuple[tuple[int, int], int]:
    """From the header alone: (width, height), as it is to be looked at, and 1 or 3."""
    from PIL import Image

    try:
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            size, mode = upright(image, orientation(image)), image.mode
    except Exception as error:
        raise unreadable(path, error) from error
    if size[0] * size[1] > MOST_PIXELS:
        raise EowError(f"{path} says that it is {size[0]}x{size[1]}, more than any network takes: scale it down first")
    if mode not in GREY_MODES + COLOUR_MODES:
        raise EowError(f"{path} has the mode {mode}, not 8 bits a channel: save it as 8-bit grey or RGB first")
    return size, 1 if mode in GREY_MODES else 3


def read_folder(name: str, split: str, resident: bool = True) -> Dataset:
    """Class sub-folders of images; train/ and test/ (else val/) are the splits where both are there. Where they are not
    to be resident in memory, they are decoded into a file."""
    folder = at_home(name.removeprefix("folder:"))
    if not is_folder(folder):
        raise EowError(f"{folder} is not a folder: name one that has a sub-folder of images for each class")
    held_out = next((folder / other for other in ("test", "val") if is_folder(folder / other)), None)
    if is_folder(folder / "train") and held_out is not None:
        train, classes = _listed_images(folder / "train", None)
        split = "train" if split == "train" else "test"
        paths = train if split == "train" else _listed_images(held_out, classes)[0]
    else:
        paths, classes = _listed_images(folder, None)
        train = paths
        if classes == ["train"]:
            raise EowError(
                f"{folder} has train/ but neither test/ nor val/: add one, or name the folder of classes itself"
            )
        if split != "all":
            chosen = split_80_20(name, np.array([label for _, label in paths]), split)
            paths = [paths[index] for index in chosen]
    # The first training image sets the size and mode for both splits.
    first = train[0][0]
    size, channels = size_and_channels(first)
    for path, _ in paths:
        if size_and_channels(path)[1] != channels:
            raise EowError(f"{path} and {first} are not both grey or both colour: convert all images to one mode first")
    inputs = _image_array([path for path, _ in paths], size, channels, resident)
    return Dataset(name, split, inputs, np.array([label for _, label in paths], np.int64), tuple(classes))


def _listed_images(folder: Path, classes: list[str] | None) -> tuple[list[tuple[Path, int]], list[str]]:
    """((path, label) of each file below the class folders, class names); hidden files and folders do not count.

    With `classes` given (those of train/), a class folder not among them is an error and a missing one is not.
    """
    found = [path.name for path in entries(folder) if is_folder(path)]
    if not found:
        raise EowError(f"{folder} has no class sub-folders: put the images of each class into a folder of its own")
    if classes is None:
        classes = found
    images = []
    for class_name in found:
        if class_name not in classes:
            raise EowError(
                f"{folder / class_name} is a class that the training images do not have: add it to them or remove it"
            )
        paths = files_below(folder / class_name)
        if not paths:
            raise EowError(f"{folder / class_name} has no images: put some there or remove the folder")
        images += [(path, classes.index(class_name)) for path in paths]
    return images, classes


def read_tiny_imagenet(name: str, root: Path, split: str, entry: Entry, allow_unofficial: bool) -> Dataset:
    """Tiny-ImageNet as its zip unpacks; its grey JPEGs become colour. Its tree has no published per-file hashes."""
    folder = root / "tiny-imagenet-200"
    wordnet_ids = sorted(_lines(name, folder / "wnids.txt"))
    words = dict(line.split("\t", 1) for line in _lines(name, folder / "words.txt") if "\t" in line)
    label_of = {wordnet_id: label for label, wordnet_id in enumerate(wordnet_ids)}
    if split == "train":
        pairs = []
        for wordnet_id, label in label_of.items():
            inside = folder / "train" / wordnet_id / "images"
            paths = [path for path in entries(inside) if path.suffix == ".JPEG"] if is_folder(inside) else []
            if not paths:
                raise EowError(f"{inside} has no images: {how_to_get(name)}")
            pairs += [(path, label) for path in paths]
    else:
        annotations = folder / "val" / "val_annotations.txt"
        pairs = []
        for number, line in enumerate(_lines(name, annotations), 1):
            fields = line.split("\t")
            if len(fields) < 2 or fields[1] not in label_of:
                raise EowError(
                    f"{annotations}, line {number}: no class of wnids.txt in the second column: {how_to_repair(name)}"
                )
            pairs.append((folder / "val" / "images" / Path(fields[0]).name, label_of[fields[1]]))
    channels, height, width = entry.shape
    inputs = _image_array([path for path, _ in pairs], (width, height), channels, resident=True)
    # WordNet's words repeat ("crane" is a bird and a machine), so the id stays in the name.
    classes = tuple(f"{i} {words.get(i, '').split(',')[0]}".strip() for i in wordnet_ids)
    return Dataset(name, split, inputs, np.array([label for _, label in pairs], np.int64), classes)


def _lines(name: str, path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise EowError(f"{name}: {path} is missing or unreadable: {how_to_get(name)}") from error
