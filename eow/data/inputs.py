"""Files that a user wants predictions for: images and .npy arrays, checked against what the model was trained on."""

from pathlib import Path

import numpy as np

from eow.errors import EowError


def read_inputs(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The samples of one file as uint8 (n, C, H, W) or float32 (n, D), for a model whose inputs are of this shape."""
    if not path.is_file():
        raise EowError(f"there is no file {path}: give images or .npy files")
    if path.suffix.lower() == ".npy":
        return from_array(path, shape)
    if len(shape) != 3:
        raise EowError(f"{path} cannot be used: this model takes rows of {shape[0]} numbers, give a .npy file")
    return from_image(path, shape)


def from_image(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(path) as image:
            if image.size != (width, height):
                raise EowError(
                    f"{path} is {image.width}x{image.height}, but this model takes {width}x{height}: resize it first"
                )
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"), np.uint8)
    except EowError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever a broken file makes them raise
        raise EowError(
            f"{path} cannot be read as an image ({error}): give a PNG or JPEG file, or a .npy array"
        ) from None
    return pixels[None, None] if channels == 1 else pixels.transpose(2, 0, 1)[None]


def from_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises ValueError, EOFError and others for the ways a file can be broken
        raise EowError(f"{path} cannot be read as a .npy array ({error}): save it with numpy.save") from None
    if not isinstance(array, np.ndarray):
        raise EowError(f"{path} holds several arrays: save the one to predict with numpy.save")
    wanted = "uint8" if len(shape) == 3 else "floating-point"
    if (array.dtype != np.uint8) if len(shape) == 3 else not np.issubdtype(array.dtype, np.number):
        raise EowError(f"{path} holds {array.dtype} numbers, but this model takes {wanted} ones")
    if len(shape) == 3 and shape[0] == 1 and array.shape[-2:] == shape[1:] and array.ndim in (2, 3):
        array = array.reshape(-1, *shape)  # grey images without a channel axis
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape or not len(array):
        wanted = f"(N, {', '.join(map(str, shape))})"
        raise EowError(f"{path} is of shape {array.shape}, but this model takes {wanted}: reshape it, one sample a row")
    if array.dtype == np.uint8 and len(shape) == 3:
        return array
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0, 0])
        raise EowError(f"{path} has a NaN or infinite value in row {row}: clean it first")
    return array
