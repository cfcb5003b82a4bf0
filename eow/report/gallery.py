"""The test images that a run was most wrong and most unsure about, and the strange ones that it took for known, small
enough to stand in a page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eow.data import Dataset
from eow.errors import EowError
from eow.evaluate import KNOWN
from eow.predictions import Predictions
from eow.report.gather import Bunch, Group
from eow.report.tables import set_name

SHOWN = 6
CAPTION = (
    "Of each method's first seed, on the known classes' test set. Most wrong: wrong answers, the surest first. Most "
    "unsure: the highest unknown, or the lowest confidence where a method has no unknown. Below an image: what it is "
    "(as what it was called), the confidence and, after u, the unknown."
)
STRANGE = (
    " Strange are those of {name}, for which no class here is right: taken for known with the highest confidence, and "
    "found out with the highest unknown, or the lowest confidence where there is none."
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
    fooled: list[Picture]  # strange, taken for known
    found: list[Picture]  # strange, and told so


@dataclass(frozen=True)
class Gallery:
    """`missing` says why there are no pictures, `strange` what the strange ones are of, "" where there are none."""

    strips: list[Strip]
    caption: str = CAPTION
    missing: str = ""
    strange: str = ""


def gallery(bunch: Bunch, root: str = "") -> Gallery:
    """The pictures of every group; where the data is not available, the reason instead."""
    from eow.opening import load, own_sets

    first = next((group.first for group in bunch.groups if not group.first.imported), None)
    if first is None:
        return Gallery([], missing="There are no pictures to show: imported predictions come without their images.")
    names = [name for name in bunch.sets if all(name in group.first.others for group in bunch.groups)]
    place, missing = root or first.config["data"].get("root", ""), ""
    try:
        run = load(first.folder)
        try:
            sets = own_sets(run, names[:1], place)  # the nearest
        except EowError as error:
            sets = own_sets(run, (), place)
            missing = f"Strange pictures are not shown, because {names[0]} could not be read: {error}"
    except EowError as error:
        return Gallery([], missing=f"The pictures are not shown, because the test data could not be read: {error}")
    test, strange = sets.pop(KNOWN), next(iter(sets), "")
    if test.inputs.ndim != 4 or test.inputs.shape[1] not in (1, 3):
        return Gallery([], missing=f"There are no pictures to show: {test.name} has inputs of shape {test.shape}.")
    if any(len(group.first.known.labels) != len(test) for group in bunch.groups):
        return Gallery([], missing="The pictures are not shown: there are not as many as there are predictions.")
    if strange and any(len(group.first.others[strange].labels) != len(sets[strange]) for group in bunch.groups):
        missing = f"Strange pictures are not shown: there are not as many of {strange} as there are predictions."
        strange = ""
    title = set_name(bunch, strange) if strange else ""
    caption = CAPTION + (STRANGE.format(name=title) if strange else "")
    strips = [strip_of(group, test, strange, sets.get(strange)) for group in bunch.groups]
    return Gallery(strips, caption, missing, title)


def strip_of(group: Group, test: Dataset, name: str, strange: Dataset | None) -> Strip:
    """Of one method; `strange` are the samples of the set that is called so."""
    said = group.first.known
    wrong = [place for place in surest(said) if not said.correct[place]]
    known = pictures(group, said, test, wrong), pictures(group, said, test, strangest(group, said))
    if strange is None:
        return Strip(group.label, group.colour, *known, [], [])
    others = group.first.others[name]
    fooled, found = (pictures(group, others, strange, each) for each in (surest(others), strangest(group, others)))
    return Strip(group.label, group.colour, *known, fooled, found)


def surest(said: Predictions) -> np.ndarray:
    return np.argsort(-said.confidence, kind="stable")


def strangest(group: Group, said: Predictions) -> np.ndarray:
    """By unknown where the method has one, else by confidence."""
    return np.argsort(-said.unknown, kind="stable") if group.first.open_world else surest(said)[::-1]


def pictures(group: Group, said: Predictions, data: Dataset, places: Sequence[int] | np.ndarray) -> list[Picture]:
    """Of the first of these places."""
    answers = [str(name) for name in group.first.known.manifest.get("classes", [])]

    def name(names: Sequence[str], label: int) -> str:
        return names[label] if label < len(names) else str(label)

    return [
        Picture(
            data_address(data.inputs[place]), name(data.classes, int(said.labels[place])),
            name(answers, int(said.label[place])), float(said.confidence[place]),
            float(said.unknown[place]) if group.first.open_world else None,
        )
        for place in places[:SHOWN]
    ]  # fmt: skip


def data_address(image: np.ndarray) -> str:
    """A (C, H, W) image as a PNG in a data: address."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
