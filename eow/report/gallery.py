"""The test images that a run was most wrong and most unsure about, small enough to stand in a page."""

import base64
import io
from dataclasses import dataclass

import numpy as np

from eow.errors import EowError
from eow.report.gather import Bunch, Group

SHOWN = 6
CAPTION = (
    "Of each method's first seed, on the known classes' test set. Most wrong: wrong answers, the surest first. Most "
    "unsure: the highest unknown, or the lowest confidence where a method has no unknown. Below an image: what it is "
    "(as what it was called), the confidence and, after u, the unknown."
)


@dataclass(frozen=True)
class Picture:
    image: str  # a data: address
    truth: str
    said: str
    confidence: float
    unknown: float | None


@dataclass(frozen=True)
class Strip:
    label: str
    colour: int
    wrong: list[Picture]
    unsure: list[Picture]


@dataclass(frozen=True)
class Gallery:
    """`missing` says why there are no pictures."""

    strips: list[Strip]
    caption: str = CAPTION
    missing: str = ""


def gallery(bunch: Bunch, root: str = "") -> Gallery:
    """The pictures of every group; where the data is not at hand, the reason instead."""
    from eow.runs import load, own_test_set

    first = bunch.groups[0].first
    try:
        test = own_test_set(load(first.folder), root or first.config["data"].get("root", ""))
    except EowError as error:
        return Gallery([], missing=f"The pictures are not shown, because the test data could not be read: {error}")
    if test.inputs.ndim != 4 or test.inputs.shape[1] not in (1, 3):
        return Gallery([], missing=f"There are no pictures to show: {test.name} has inputs of shape {test.shape}.")
    if any(len(group.first.known.labels) != len(test) for group in bunch.groups):
        return Gallery([], missing="The pictures are not shown: there are not as many as there are predictions.")
    return Gallery([strip_of(group, test.inputs) for group in bunch.groups])


def strip_of(group: Group, images: np.ndarray) -> Strip:
    said, shown = group.first.known, group.first.open_world
    by_confidence = np.argsort(-said.confidence, kind="stable")
    wrong = [place for place in by_confidence if not said.correct[place]][:SHOWN]
    unsure = np.argsort(-said.unknown, kind="stable")[:SHOWN] if shown else by_confidence[::-1][:SHOWN]
    names = [str(name) for name in said.manifest.get("classes", [])]

    def name(label: int) -> str:
        return names[label] if label < len(names) else str(label)

    def picture(place: int) -> Picture:
        return Picture(
            data_address(images[place]), name(int(said.labels[place])), name(int(said.label[place])),
            float(said.confidence[place]), float(said.unknown[place]) if shown else None,
        )  # fmt: skip

    return Strip(group.label, group.colour, [picture(place) for place in wrong], [picture(place) for place in unsure])


def data_address(image: np.ndarray) -> str:
    """A (C, H, W) image as a PNG in a data: address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
