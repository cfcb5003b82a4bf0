"""Files that a user wants predictions for: images, .npy arrays, tables; checked against what a model was trained on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from eow.data.csv_files import read_rows
from eow.data.files import is_file, reason
from eow.data.folders import decoded, size_and_channels
from eow.errors import EowError

KINDS = {1: "grey", 3: "colour"}  # of images, by their channels


def read_inputs(
    path: Path, shape: tuple[int, ...], dtype: str | None = None, columns: Sequence[str] = ()
) -> np.ndarray:
    """The samples of one file as uint8 (n, C, H, W) or float32 (n, D), for a model whose inputs are of this shape; or
    as the type it takes, where it is no run's. Of a .csv these `columns`, which a run on a table knows."""
    dtype = dtype or ("uint8" if len(shape) == 3 else "float32")
    if not is_file(path):
        folder = f"{path} is a folder: give the files in it, such as {path}/*.png"
        raise EowError(folder if path.is_dir() else f"there is no file {path}: give images or .npy files")
    if path.suffix.lower() == ".npy":
        return from_array(path, shape, dtype)
    if path.suffix.lower() == ".csv" and len(columns) == shape[0] and len(shape) == 1:
        return read_rows(path, columns)
    if dtype != "uint8" or len(shape) != 3 or shape[0] not in KINDS:
        taken = f"rows of {shape[0]} numbers" if len(shape) == 1 else f"{dtype} arrays of shape {shape}"
        raise EowError(f"{path} cannot be used: this model takes {taken}, give a .npy file")
    if path.suffix.lower() == ".csv":
        raise EowError(f"{path} is a table, but this model takes images: give image files or .npy files")
    return from_image(path, shape)


def kinds_for(dtype: str, shape: tuple[int, ...]) -> str:
    """The kinds of numbers that may become a model's inputs: whole ones may be features, but no prepared images."""
    return {"uint8": "u", "int64": "iu"}.get(dtype, "fiu" if len(shape) == 1 else "f")


def from_image(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """One image, with the formats and modes a folder of training images may have."""
    channels, height, width = shape
    size, found = size_and_channels(path)
    if size != (width, height):
        raise EowError(f"{path} is {size[0]}x{size[1]}, but this model takes {width}x{height}: resize it first")
    if found != channels:
        raise EowError(
            f"{path} is a {KINDS[found]} image, but this model takes {KINDS[channels]} ones: convert it first"
        )
    return decoded(path, size, channels)[None]


def from_array(path: Path, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises ValueError, EOFError and others for the ways a file can be broken
        raise EowError(f"{path} cannot be read as a .npy array ({reason(error)}): save it with numpy.save") from None
    if not isinstance(array, np.ndarray):
        raise EowError(f"{path} holds several arrays: save the one to predict with numpy.save")
    if array.dtype.kind not in kinds_for(dtype, shape) or (dtype == "uint8" and array.dtype != np.uint8):
        wanted = {"float32": "floating-point", "int64": "whole"}.get(dtype, dtype)
        raise EowError(f"{path} holds {array.dtype} numbers, but this model takes {wanted} ones: save it with those")
    found = array.shape
    if len(shape) == 3 and shape[0] == 1 and array.shape[-2:] == shape[1:] and array.ndim in (2, 3):
        array = array.reshape(-1, *shape)  # grey images without a channel axis
    array = array[None] if array.ndim == len(shape) else array
    if len(shape) == 3 and array.shape[1:] == (*shape[1:], shape[0]) != shape:
        array = np.ascontiguousarray(array.transpose(0, 3, 1, 2))  # images with their channels last
    if array.shape[1:] != shape or not len(array):
        kinds = f"(N, {', '.join(map(str, shape))})"
        kinds += f" or, channels last, (N, {shape[1]}, {shape[2]}, {shape[0]})" if len(shape) == 3 else ""
        raise EowError(
            f"{path} is of shape {found}, but this model takes {kinds}, N at least 1: save it so, one sample a row"
        )
    with np.errstate(over="ignore"):
        array = array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0, 0])
        raise EowError(f"{path} has a NaN or infinite value in row {row}, or one too large for {dtype}: clean it first")
    return array
