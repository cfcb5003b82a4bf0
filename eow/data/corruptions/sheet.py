"""One image under all 95 variants on one page, for a person to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eow.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from eow.errors import EowError
from eow.storage import atomic

CELL, GAP, DPI = 96, 4, 100


def contact_sheet(image: Any, path: str | Path, seed: int = 0) -> None:
    """Writes a PNG: a row a corruption, a column a severity, the clean image before them. `image`: uint8 (C, H, W), a
    numpy array or a tensor."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise EowError(f"a contact sheet is a PNG file, and {path.name} has another ending: end its name in .png")
    if getattr(image, "ndim", None) != 3:
        raise EowError("a contact sheet shows one image of shape (C, H, W): give one image, not a batch")
    clean = image[None]
    rows = [[clean, *(corrupt(clean, name, severity, seed=seed) for severity in SEVERITIES)] for name in CORRUPTIONS]
    page = np.concatenate([np.concatenate([_cell(each) for each in row], 1) for row in rows])
    _draw(page[:-GAP, :-GAP], path)


def _cell(images: Any) -> np.ndarray:
    """(H, W, 3), enlarged by a whole factor, so that pixels stay square and sharp, with a white gap below and right."""
    pixels = np.asarray(images.cpu() if hasattr(images, "cpu") else images)[0].transpose(1, 2, 0)
    factor = max(1, CELL // min(pixels.shape[:2]))
    pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).repeat(factor, 0).repeat(factor, 1)
    return np.pad(pixels, ((0, GAP), (0, GAP), (0, 0)), constant_values=255)


def _draw(page: np.ndarray, path: Path) -> None:
    from matplotlib.figure import Figure

    height, width = page.shape[:2]
    left, top = 150, 30
    figure = Figure(figsize=((width + left) / DPI, (height + top) / DPI), dpi=DPI)
    axes = figure.add_axes((left / (width + left), 0, width / (width + left), height / (height + top)))
    axes.imshow(page, interpolation="nearest", aspect="auto")
    row, column = (height + GAP) / len(CORRUPTIONS), (width + GAP) / (1 + len(SEVERITIES))
    axes.set_yticks([row * (i + 0.5) for i in range(len(CORRUPTIONS))], CORRUPTIONS)
    axes.set_xticks([column * (i + 0.5) for i in range(1 + len(SEVERITIES))], ["clean", *map(str, SEVERITIES)])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    atomic(path, lambda file: figure.savefig(file, format="png"))
