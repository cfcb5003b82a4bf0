"""Which samples imported predictions are of. There are no inputs: only the name of their data, their labels and the
order of these can tell, or a run whose samples they are."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eow.errors import EowError
from eow.evaluate import KNOWN, read_all
from eow.predictions import Predictions
from eow.storage import read_json
from eow.typed import as_python, convert

NO_LABEL = -1  # of what is unknown to the model


class Identity:
    """Which samples these are: the name of their data and, since there are no inputs, their labels."""

    unknown_classes: Sequence[Any] = ()

    def __init__(self, data: Any, labels: np.ndarray, classes: Sequence[Any]) -> None:
        self.data, self.classes = convert(as_python(data), str, "data"), [str(each) for each in classes]
        self.test_hash = hash_of(self.data, KNOWN, labels)

    def unknown_hash(self, name: str, samples: int) -> str:
        return hash_of(self.data, name, np.full(samples, NO_LABEL, np.int64))


class Alike(Identity):
    """The samples of another run, whose predictions are of the same ones."""

    def __init__(self, run: Path, known: Predictions, others: dict[str, Predictions]) -> None:
        settings = read_json(run / "config.json", "data")["data"]
        if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
            raise EowError(f"{run / 'config.json'} does not name its data: name another run")
        super().__init__(settings["name"], known.labels, known.manifest.get("classes") or ())
        self.run, self.others, self.unknown_classes = run, others, settings.get("unknown_classes") or ()
        self.test_hash = known.manifest.get("data_hash", "")
        if not self.test_hash or not isinstance(self.test_hash, str):
            raise EowError(f"the predictions in {run} do not say of which data they are: make them again")

    def unknown_hash(self, name: str, samples: int) -> str:
        if name not in self.others:
            return super().unknown_hash(name, samples)
        theirs = len(self.others[name].label)
        if theirs != samples:
            raise EowError(f"{name} has {samples:,} samples here and {theirs:,} in {self.run}: predict the same ones")
        return str(self.others[name].manifest.get("data_hash"))


def alike(run: Path, labels: np.ndarray, width: int, said: Identity) -> Alike:
    """The samples of that run, if these can be the same."""
    known, others = read_all(run)
    if known.probs.shape[1] != width:
        raise EowError(f"{run} has {known.probs.shape[1]} classes and these predictions {width}: name another run")
    if len(known.labels) != len(labels):
        raise EowError(f"{run} was tested on {len(known.labels):,} samples, these are {len(labels):,}: predict those")
    if (wrong := np.flatnonzero(known.labels != labels)).size:
        row = int(wrong[0])
        raise EowError(
            f"sample {row} is of class {labels[row]} here and of {known.labels[row]} in {run}, and {wrong.size:,} "
            "differ in all: predict the same samples in the same order"
        )
    found = Alike(run, known, others)
    for word, mine, theirs in (("data", said.data, found.data), ("classes", said.classes, found.classes)):
        if mine and mine != theirs:
            raise EowError(f"the {word} of {run} are {theirs!r:.80} and not {mine!r:.80}: leave {word} out, or like")
    return found


def hash_of(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(np.ascontiguousarray(part).reshape(-1).data)  # its own memory, not a copy
        else:
            found.update(f"{part}\0".encode(errors="surrogateescape"))
    return found.hexdigest()
