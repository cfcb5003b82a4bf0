"""Predictions that eow has not made, as a folder that `eow evaluate`, `compare`, `threshold` and `report` take like a
run's: of an upgraded model, of scikit-learn, of another library or language.

    import_predictions("runs/theirs", {"logits": logits}, labels, name="resnet50", unknowns={"svhn": {"logits": far}})

What a model may have said of N samples is told in foreign.py. The folder has predictions/, config.json, summary.json
and environment.json as a run's has, but neither weights nor a log.

There are no inputs here: whether two folders are of the same samples, only labels and their order can tell. `like`
names a run on the same test data, whose labels must agree one by one; the two can then be compared sample by sample.
"""

import os
import platform
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from eow.data.files import is_file
from eow.data.tables import npz_arrays
from eow.errors import EowError
from eow.evaluate import CERTIFY, KNOWN, evaluate
from eow.foreign import FIELDS, Arrays, answers, checked_odds, class_values, columns_of
from eow.identity import NO_LABEL, Identity, alike, hash_of
from eow.predictions import file_name, write
from eow.storage import IMPORTED, TOKEN, locked, make_folder, write_json
from eow.training import stopping
from eow.typed import as_python, check_range, convert

RESERVED = (KNOWN, CERTIFY, "intervals", "corruptions")  # what else stands among the figures of sets
TESTED, KEPT = "the test samples", "the samples to certify on"
HALF = ".importing-"  # how the name of a folder begins that is not yet whole


def import_predictions(
    folder: str | Path,
    said: Any,
    labels: Any,
    *,
    name: str = "",
    unknowns: Mapping[str, Any] | None = None,
    certify: tuple[Any, Any] | None = None,
    seed: int = 0,
    data: str = "",
    classes: Sequence[Any] = (),
    like: str | Path | None = None,
    odds: float | None = None,
) -> dict[str, Any]:
    """Write the predictions into a new folder and return its summary, all figures under "metrics".

    said      what the model said of the test samples: probabilities (N, K), or a mapping or an object with `probs`,
              `logits` or both, and `unknown` where it has one, such as the answer of `eow.predict`
    labels    the true classes, 0 to K-1, or as `classes` have them
    name      of the model, as tables call it, else the folder's; those that differ in nothing but `seed` are one model,
              trained so often
    unknowns  by name, what it said of samples of no known class; they have no labels
    certify   (said, labels) of samples that nothing was trained or fitted on, for `eow threshold`. That this is so,
              and that they are drawn as the test set is, eow has to take your word for
    data      the name of the test data; predictions on other data are never compared
    classes   the K names, in the order of the columns. Labels of their kind, words or numbers, are looked up among
              them: for scikit-learn, give the model's `classes_`
    like      the folder of a run on the same test samples in the same order, whose `data` and `classes` these are
    odds      the prior odds of "unknown", λ or ρ/(1-ρ); `logits` then have K+1 columns, the last the unknown's
    """
    folder = new_folder(folder)
    model = convert(as_python(name), str, "name") or folder.name
    if not model.strip():
        raise EowError("the model has no name: give it the one that tables are to show")
    seed, odds, values = convert(as_python(seed), int, "seed"), checked_odds(odds), class_values(classes)
    check_range("seed", seed, 0)
    told = answers(said, odds, TESTED, values)
    truth = columns_of(told["probs"], labels, values, TESTED)
    of = Identity(data, truth, values)
    if like is not None:
        of = alike(Path(like), truth, told["probs"].shape[1], of)
    parts, sets = {KNOWN: {**told, "labels": truth}}, {KNOWN: of.test_hash}
    for each, theirs in named(unknowns).items():
        parts[each] = without_labels(answers(theirs, odds, f"the unknowns {each}", values))
        sets[each] = of.unknown_hash(each, len(parts[each]["labels"]))
    if certify is not None:
        parts[CERTIFY] = to_certify(certify, odds, values)
        sets[CERTIFY] = hash_of(of.data, CERTIFY, parts[CERTIFY]["labels"])
    check_parts(parts, of.classes)
    config = {
        "recipe": IMPORTED, "seed": seed,
        "data": {"name": of.data or IMPORTED, "unknown_classes": list(of.unknown_classes)},
        "model": {"name": "-"}, "method": {"name": model}, "train": {},
    }  # fmt: skip
    return written(folder, parts, sets, list(of.classes), config, odds)


def new_folder(folder: str | Path) -> Path:
    """Where a folder is to be made, behind all links: nothing is there yet, or an empty folder."""
    if folder == "":  # which pathlib takes for the folder one is in
        raise EowError("the folder of the import is an empty text: name one")
    try:
        place = Path(os.path.realpath(folder))
        taken, here = os.path.lexists(place), place == Path.cwd()
        free = not taken or (place.is_dir() and not any(place.iterdir()))
    except (OSError, ValueError, TypeError) as error:
        raise cannot(folder, error) from None
    if here:  # it would be replaced, and whoever is in it be left in none
        raise EowError(f"{folder} is the folder you are in: import into a new one")
    if not free:
        raise EowError(f"{folder} is there already: import into a new folder")
    return place


def cannot(folder: Any, error: Exception) -> EowError:
    return EowError(f"{folder} cannot be made: {getattr(error, 'strerror', None) or error}; import into a new folder")


def named(unknowns: Any) -> dict[str, Any]:
    """What was said of each set of unknowns, by its name."""
    if unknowns is None:
        return {}
    if not isinstance(unknowns, Mapping):
        raise EowError("unknowns have no names: give {name: what the model said of these samples}")
    found = {convert(as_python(name), str, "the name of a set of unknowns"): said for name, said in unknowns.items()}
    if bad := [name for name in found if name in RESERVED or not name.strip()]:
        raise EowError(f"{bad[0]!r} cannot name a set of unknowns: choose another name")
    return found


def read_file(path: str | Path) -> tuple[Arrays, np.ndarray | None, list[Any]]:
    """What an .npz file says: the model's answers, the labels, and the classes, each where it is there."""
    path = Path(path)
    if not is_file(path):
        what = "it is no file" if os.path.lexists(path) else "there is no such file"
        raise EowError(f"{path} cannot be read ({what}): name an .npz file with probs or logits")
    arrays = npz_arrays(path)
    if unread := sorted({*arrays} - {*FIELDS, "labels", "classes"}):
        raise EowError(
            f"{path} holds {', '.join(unread)}, which nothing here reads: name its arrays {', '.join(FIELDS)}, labels "
            "and classes, and leave others out"
        )
    if raw := [name for name, array in arrays.items() if array.dtype.type is np.void]:
        raise EowError(
            f"{path} holds {raw[0]} as raw bytes, which is how numpy writes bfloat16 and other types it does not know: "
            "save it as float32"
        )
    labels, classes = (arrays.pop(name, None) for name in ("labels", "classes"))
    return arrays, labels, [] if classes is None else classes.reshape(-1).tolist()


def without_labels(told: Arrays) -> Arrays:
    return {**told, "labels": np.full(len(told["probs"]), NO_LABEL, np.int64)}


def to_certify(given: Any, odds: float | None, classes: Sequence[Any]) -> Arrays:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise EowError("certify is a pair: what the model said of the samples, and their labels")
    told = answers(given[0], odds, KEPT, classes)
    return {**told, "labels": columns_of(told["probs"], given[1], classes, KEPT)}


def check_parts(parts: dict[str, Arrays], classes: Sequence[str]) -> None:
    """All are one model's: as many classes everywhere, an unknown everywhere or nowhere; and a threshold is certified
    on other samples than it is judged on."""
    known, width = parts[KNOWN], parts[KNOWN]["probs"].shape[1]
    for name, each in parts.items():
        if each["probs"].shape[1] != width or ("logits" in each) != ("logits" in known):
            raise EowError(f"{name} has other columns than {KNOWN}: give the same of the same model for all samples")
    if len(classes) not in (0, width):
        raise EowError(f"{len(classes)} names for {width} classes: name each, or none")
    kept = parts.get(CERTIFY, {})  # a model may say the same of everything, but the labels then differ
    if kept and all(np.array_equal(kept[key], known[key]) for key in ("probs", "labels")):
        raise EowError("a threshold certified on the data it is judged on promises nothing: give other samples")


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
    make_folder(folder.parent)
    remove_halves(folder.parent)
    with being_made(folder.with_name(HALF + secrets.token_hex(4))) as place:
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
        try:
            os.rename(place, folder)
        except OSError as error:
            raise cannot(folder, error) from None
    return summary


def described(part: Arrays, found: str) -> dict[str, Any]:
    """What a summary says of a set, as that of a run does."""
    samples, classes = part["probs"].shape
    return {"split": IMPORTED, "samples": samples, "classes": classes, "hash": found, "official": None}


@contextmanager
def being_made(place: Path) -> Iterator[Path]:
    """A folder, locked, of which nothing is left unless it is renamed: not by an error, and not by a signal."""
    with stopping.listening():
        try:
            make_folder(place)
            with locked(place):
                yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)


def remove_halves(beside: Path) -> None:
    """What a kill has left of imports: folders that nobody holds a lock of any more."""
    for lock in beside.glob(f"{HALF}*/.lock"):
        if TOKEN.fullmatch(lock.parent.name.removeprefix(HALF)):
            with suppress(EowError), locked(lock.parent):  # else it is being made
                shutil.rmtree(lock.parent, ignore_errors=True)
