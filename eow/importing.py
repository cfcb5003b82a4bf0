"""Predictions that eow has not made, as a folder that `eow evaluate`, `compare`, `threshold` and `report` take like a
run's: of an upgraded model, of scikit-learn, of another library or language.

    import_predictions("runs/theirs", {"logits": logits}, labels, name="resnet50", unknowns={"svhn": {"logits": far}})

What a model may have said of N samples is told in foreign.py. The folder has predictions/, config.json, summary.json
and environment.json as a run's has, but neither weights nor a log.

There are no inputs here: whether two folders are of the same samples, only labels and their order can tell. `like`
names a run on the same test data, whose labels must agree one by one; the two can then be compared sample by sample.
"""

import hashlib
import os
import platform
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eow.data.tables import npz_arrays
from eow.errors import EowError
from eow.evaluate import CERTIFY, IMPORTED, KNOWN, evaluate, read_all
from eow.foreign import FIELDS, Arrays, answers, checked_odds
from eow.metrics.checks import labels_of
from eow.predictions import Predictions, file_name, write
from eow.storage import make_folder, read_json, write_json
from eow.typed import as_python, convert

NO_LABEL = -1  # of what is unknown to the model


def import_predictions(
    folder: str | Path,
    said: Any,
    labels: Any,
    *,
    name: str = "imported",
    unknowns: Mapping[str, Any] | None = None,
    certify: tuple[Any, Any] | None = None,
    seed: int = 0,
    data: str = "",
    classes: Sequence[str] = (),
    like: str | Path | None = None,
    odds: float | None = None,
) -> dict[str, Any]:
    """Write the predictions into a new folder and return its summary, all figures under "metrics".

    said      what the model said of the test samples: probabilities (N, K), or a mapping or an object with `probs`,
              `logits` or both, and `unknown` where it has one, such as the answer of `eow.predict`
    labels    the true classes, 0 to K-1
    name      of the model, as tables call it; folders that differ in nothing but `seed` are one model, trained so often
    unknowns  by name, what it said of samples of no known class; they have no labels
    certify   (said, labels) of samples that nothing was trained or fitted on, for `eow threshold`. That this is so,
              and that they are drawn as the test set is, eow has to take your word for
    data      the name of the test data; predictions on other data are never compared
    classes   the K names
    like      the folder of a run on the same test samples in the same order, whose `data` and `classes` these are
    odds      the prior odds of "unknown", λ or ρ/(1-ρ); `logits` then have K+1 columns, the last the unknown's
    """
    folder, model = Path(folder), convert(name, str, "name")
    if not model.strip():
        raise EowError("the model has no name: give it the one that tables are to show")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EowError(f"{folder} is there already: import into a new folder")
    seed, odds = convert(as_python(seed), int, "seed"), checked_odds(odds)
    told = answers(said, odds, "the test samples")
    truth = labels_of(told["probs"], labels)
    of = Identity(data, truth, classes)
    if like is not None:
        of = alike(Path(like), truth, told["probs"].shape[1], of)
    parts, sets = {KNOWN: {**told, "labels": truth}}, {KNOWN: of.test_hash}
    for each, theirs in (unknowns or {}).items():
        if each in (KNOWN, CERTIFY) or not str(each).strip():
            raise EowError(f"{each!r} cannot name a set of unknowns: choose another name")
        parts[each] = without_labels(answers(theirs, odds, f"the unknowns {each}"))
        sets[each] = of.unknown_hash(each, len(parts[each]["labels"]))
    if certify is not None:
        parts[CERTIFY] = to_certify(certify, odds)
        sets[CERTIFY] = hash_of(of.data, CERTIFY, parts[CERTIFY]["labels"])
    check_parts(parts, of.classes)
    config = {
        "recipe": IMPORTED, "seed": seed,
        "data": {"name": of.data or IMPORTED, "unknown_classes": list(of.unknown_classes)},
        "model": {"name": "-"}, "method": {"name": model}, "train": {},
    }  # fmt: skip
    return written(folder, parts, sets, list(of.classes), config, odds)


def read_file(path: str | Path) -> tuple[Arrays, np.ndarray | None, list[str]]:
    """What an .npz file says: the model's answers, the labels, and the names of the classes, each where it is there."""
    arrays = npz_arrays(Path(path))
    if unread := sorted({*arrays} - {*FIELDS, "labels", "classes"}):
        raise EowError(
            f"{path} holds {', '.join(unread)}, which nothing here reads: name its arrays {', '.join(FIELDS)}, labels "
            "and classes, and leave others out"
        )
    names = [str(each) for each in arrays.pop("classes", np.array([])).reshape(-1).tolist()]
    labels = arrays.pop("labels", None)
    return arrays, labels, names


def without_labels(told: Arrays) -> Arrays:
    return {**told, "labels": np.full(len(told["probs"]), NO_LABEL, np.int64)}


def to_certify(given: tuple[Any, Any], odds: float | None) -> Arrays:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise EowError("certify is a pair: what the model said of the samples, and their labels")
    told = answers(given[0], odds, "the samples to certify on")
    return {**told, "labels": labels_of(told["probs"], given[1])}


def check_parts(parts: dict[str, Arrays], classes: Sequence[str]) -> None:
    """All are one model's: as many classes everywhere, an unknown everywhere or nowhere; and a threshold is certified
    on other samples than it is judged on."""
    known, width = parts[KNOWN], parts[KNOWN]["probs"].shape[1]
    if width < 2:
        raise EowError("there is one class: of two, give the probabilities of both, (N, 2)")
    for name, each in parts.items():
        if each["probs"].shape[1] != width or ("logits" in each) != ("logits" in known):
            raise EowError(f"{name} has other columns than {KNOWN}: give the same of the same model for all samples")
    if len(classes) not in (0, width):
        raise EowError(f"{len(classes)} names for {width} classes: name each, or none")
    if CERTIFY in parts and np.array_equal(parts[CERTIFY]["probs"], known["probs"]):
        raise EowError("a threshold certified on the data it is judged on promises nothing: give other samples")


class Identity:
    """Which samples these are: the name of their data and, since there are no inputs, their labels."""

    unknown_classes: Sequence[Any] = ()

    def __init__(self, data: str, labels: np.ndarray, classes: Sequence[str]) -> None:
        self.data, self.classes = convert(data, str, "data"), [str(each) for each in classes]
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
        self.test_hash = str(known.manifest.get("data_hash"))

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
        found.update(part.tobytes() if isinstance(part, np.ndarray) else f"{part}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def written(
    folder: Path,
    parts: dict[str, Arrays],
    sets: dict[str, str],
    classes: list[str],
    config: dict[str, Any],
    odds: float | None,
) -> dict[str, Any]:
    """All files, made beside the folder and renamed into its place: it is whole, or it is not there."""
    from eow import __version__

    contents = hash_of(*(array for part in parts.values() for array in part.values()))
    opens = any(part["unknown"].any() for part in parts.values()) or odds is not None
    make_folder(folder.absolute().parent)
    place = folder.absolute().with_name(f".{folder.absolute().name}.{secrets.token_hex(4)}")
    try:
        for name, arrays in parts.items():
            manifest = {
                "name": name, "key": contents, "method": config["method"]["name"], "odds": odds, "unknown": opens,
                "seed": config["seed"], "data": config["data"]["name"], "split": IMPORTED, "data_hash": sets[name],
                "official": None, "weights": contents, "classes": classes, "columns": [], "config": config,
                "versions": {"eow": __version__},
            }  # fmt: skip
            write(place / "predictions" / file_name(name), arrays, manifest)
        write_json(place / "config.json", config)
        made_with = {"eow": __version__, "python": platform.python_version(), "numpy": np.__version__}
        write_json(place / "environment.json", made_with)
        summary = {
            "method": config["method"]["name"], "data": config["data"]["name"], "model": "-", "recipe": IMPORTED,
            "seed": config["seed"], "metrics": evaluate(place, finished=False), "train_seconds": None,
            "weights": contents, "versions": made_with,
            "sets": {name: described(parts[name], found) for name, found in sets.items()},
        }  # fmt: skip
        write_json(place / "summary.json", summary)
        rename(place, folder)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return summary


def described(part: Arrays, found: str) -> dict[str, Any]:
    """What a summary says of a set, as that of a run does."""
    samples, classes = part["probs"].shape
    return {"split": IMPORTED, "samples": samples, "classes": classes, "hash": found, "official": None}


def rename(place: Path, folder: Path) -> None:
    try:
        os.rename(place, folder)
    except OSError as error:
        raise EowError(f"{folder} cannot be made: {error.strerror or error}; import into a new folder") from None
