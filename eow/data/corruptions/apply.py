"""Which function makes which corruption, and the way through a set in chunks, so that memory stays modest."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eow.data.corruptions import CONSTANTS
from eow.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from eow.data.corruptions.digital import brightness, contrast, elastic_transform, pixelate, saturate
from eow.data.corruptions.jpeg import jpeg_compression
from eow.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from eow.data.corruptions.randomness import Draws
from eow.data.corruptions.spatter import spatter
from eow.data.corruptions.weather import fog, frost, snow

# A function takes uint8 images, what draws their random numbers, and the constants of a severity.
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "glass_blur": glass_blur,
    "defocus_blur": defocus_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "fog": fog,
    "frost": frost,
    "snow": snow,
    "spatter": spatter,
    "contrast": contrast,
    "brightness": brightness,
    "saturate": saturate,
    "jpeg_compression": jpeg_compression,
    "pixelate": pixelate,
    "elastic_transform": elastic_transform,
}
# Values in a chunk: a CPU is fastest while a chunk stays in its cache, a GPU while its launches are few.
CPU_CHUNK = 1 << 19
GPU_CHUNK = 1 << 24
MOST_THREADS = 16


def in_chunks(images: Any, name: str, severity: int, seed: int, first: int) -> Any:
    """The images corrupted, in what they came in: a numpy array or a tensor on its device."""
    array = isinstance(images, np.ndarray)
    device = torch.device("cpu") if array else images.device
    out = torch.empty(images.shape, dtype=torch.uint8, device=device)
    values = CPU_CHUNK if device.type == "cpu" else GPU_CHUNK
    size = max(1, values // math.prod(images.shape[1:]))
    operation, constants = OPERATIONS[name], CONSTANTS[name][severity - 1]

    def chunk(start: int) -> None:
        part = images[start : start + size]
        # A copy, because torch cannot take a read-only array or one with backward strides.
        part = torch.from_numpy(np.array(part)) if array else part.contiguous()
        draws = Draws(name, severity, seed, first + start, len(part), device)
        out[start : start + size] = operation(part, draws, *constants)

    starts = range(0, len(images), size)
    if device.type == "cpu":
        # A thread a chunk, each with torch to itself: threads that share every small operation spend their time waiting
        # for one another, twenty times as long on a busy machine.
        workers = min(torch.get_num_threads(), MOST_THREADS)
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(chunk, starts))
        torch.set_num_threads(torch.get_num_threads())  # a thread born later would have the pool's one
    else:
        for start in starts:
            chunk(start)
    return out.numpy() if array else out
