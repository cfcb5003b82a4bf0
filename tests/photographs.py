"""Real images without a data set: windows of scikit-learn's two sample photographs, a fifth of their size."""

from functools import lru_cache

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image


@lru_cache(maxsize=1)
def _photographs() -> list[np.ndarray]:
    images = [Image.fromarray(load_sample_image(name)) for name in ("china.jpg", "flower.jpg")]
    return [np.asarray(image.resize((128, 86), Image.Resampling.BOX)) for image in images]


def photographs(count: int, channels: int = 3, height: int = 32, width: int = 32) -> np.ndarray:
    """uint8 (count, channels, height, width)."""
    random = np.random.RandomState(0)
    windows = []
    for i in range(count):
        photograph = _photographs()[i % 2]
        top, left = random.randint(87 - height), random.randint(129 - width)
        windows.append(photograph[top : top + height, left : left + width, :channels])
    return np.ascontiguousarray(np.stack(windows).transpose(0, 3, 1, 2))
