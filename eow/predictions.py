"""What a model said about a data set, on disk: the border between networks and numbers. Right of here everything is
numpy.

A file holds logits (where the method has any), probs, unknown, label, confidence and the true labels; floats are
float32. Its header says where they come from. It is used again only if weights, data and transform are the same by
content, never by its name alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eow.errors import EowError
from eow.mapping import let_go
from eow.metrics.checks import extremes, labels_of, over_rows, over_slices
from eow.metrics.scores import FLOOR
from eow.openworld import LEAST_ODDS, MOST_ODDS, prior_shift, shifted_probabilities
from eow.storage import make_folder, map_arrays, write_arrays

if TYPE_CHECKING:
    from eow.data import Dataset
    from eow.runs import Run

DIMENSIONS = {"label": 1, "confidence": 1, "probs": 2, "unknown": 1, "labels": 1, "logits": 2}  # logits may be absent
BATCH = 1000  # samples that are predicted at a time
CHUNK = 10_000  # and whose stored logits are shifted at a time
LOOKED_AT = 100  # rows of a file that are looked at closely when it is opened
CLOSE = 1e-3  # rounding does not bring two figures this far apart
SURER = ("ova_dm",)  # the confidence may exceed the label's entry in probs, which are scaled down to a sum of 1


@dataclass(frozen=True, eq=False)
class Predictions:
    """N predictions over K classes and the truth. probs.sum(1) + unknown == 1."""

    label: np.ndarray
    confidence: np.ndarray
    probs: np.ndarray
    unknown: np.ndarray
    labels: np.ndarray
    logits: np.ndarray | None
    manifest: dict[str, Any]

    @cached_property
    def correct(self) -> np.ndarray:
        return self.label == self.labels

    @cached_property
    def renormalised(self) -> np.ndarray:
        """The label's probability among the K classes alone, floored as in metrics.nll. Not the confidence's share: a
        one-vs-all confidence is not part of a sum."""
        if self.open_world and self.logits is not None:
            return among_known(self, self.label)

        def share(block: np.ndarray, rows: slice) -> np.ndarray:
            own = np.take_along_axis(block, self.label[rows, None], 1)[:, 0]
            return np.asarray(np.maximum(own, FLOOR) / (block.sum(1) + block.shape[1] * FLOOR))

        return np.minimum(np.concatenate(list(over_rows(share, self.probs))), 1.0)

    @property
    def open_world(self) -> bool:
        """Whether the method has an unknown of its own, so that an unknown rate can be set: as a rule a logit of it.
        What was imported may have the probability alone."""
        if self.logits is None:
            return self.manifest.get("unknown") is True
        return self.logits.shape[1] == self.probs.shape[1] + 1

    def open_logits(self, rate: float) -> tuple[np.ndarray, float]:
        """The K+1 logits, and what `rate` adds to the last of them; an error where a method has no unknown."""
        method, odds = self.manifest["method"], odds_in(self.manifest)
        if not self.open_world:
            raise EowError(f"{method} has no unknown logit: leave the unknown rate out, or train with eow")
        if odds is None and rate:  # a rate of 0 leaves nothing of the unknown, whatever it was
            raise EowError(
                f"the predictions of {method} do not say which prior odds of unknown are in them, which an unknown "
                "rate replaces: import them with odds, or leave the rate out"
            )
        logits = self.logits
        if logits is None:
            logits = np.log(np.maximum(np.column_stack([self.probs, self.unknown]), FLOOR))
        return logits, prior_shift(rate, odds or 1.0)

    def at_unknown_rate(self, rate: float) -> "Predictions":
        """The same predictions for an expected share `rate` of unknowns: the unknown logit is shifted, nothing is run
        again."""
        logits, shift, count = *self.open_logits(rate), len(self.labels)
        probs, unknown = np.empty(self.probs.shape, np.float32), np.empty(count, np.float32)
        label = np.empty(count, self.label.dtype)
        for rows in chunks(count):
            probs[rows], unknown[rows] = shifted_probabilities(logits[rows], shift)
            label[rows] = logits[rows, :-1].argmax(1)  # not of probs, which may be 0 for all classes
            let_go(logits)
        return Predictions(label, probs.max(1), probs, unknown, self.labels, self.logits, self.manifest)


def chunks(count: int) -> Iterator[slice]:
    """The rows of a table a chunk at a time: whole, a million rows in float64 would fill the memory."""
    return (slice(first, first + CHUNK) for first in range(0, count, CHUNK))


def among_known(said: Predictions, label: np.ndarray) -> np.ndarray:
    """The labels' probabilities among the K classes, floored as in metrics.nll. They are taken from the logits, since
    float32 rounds those in `probs` to 0 where the unknown is nearly certain."""
    assert said.logits is not None

    def share(block: np.ndarray, rows: slice) -> np.ndarray:
        known = block[:, :-1] - block[:, :-1].max(1, keepdims=True)
        wanted = np.take_along_axis(known, label[rows, None], 1)[:, 0]
        return np.asarray(np.exp(wanted) / np.exp(known).sum(1))

    return np.maximum(np.concatenate(list(over_rows(share, said.logits))), FLOOR)


def losses(said: Predictions, renormalised: bool = False) -> np.ndarray:
    """-log of the true class's probability, one a sample, raw or with the K classes renormalised; floored as in
    metrics.nll."""
    true = labels_of(said.probs, said.labels)
    if renormalised and said.open_world and said.logits is not None:
        return -np.log(among_known(said, true))

    def of_rows(rows: slice) -> np.ndarray:
        block = said.probs[rows]
        floored = np.maximum(block[np.arange(len(block)), true[rows]].astype(np.float64), FLOOR)
        total = block.sum(1, dtype=np.float64) + block.shape[1] * FLOOR if renormalised else 1.0
        return np.log(total) - np.log(floored)

    return np.concatenate(list(over_slices(of_rows, said.probs)))


def content_key(weights: str, dataset: Any, transform: Any) -> str:
    """One hash of all that decides a prediction: the weights file's, the data's, and what is done to the inputs."""
    text = json.dumps([weights, dataset.hash, asdict(transform)])
    return hashlib.sha256(text.encode()).hexdigest()


def compute(
    method: Any, dataset: Any, transform: Any, device: Any, seed: int = 0, batch: int = BATCH
) -> dict[str, np.ndarray]:
    """Run the method over the whole data set, in order."""
    from eow.data.loader import Batches
    from eow.seeds import derive, own_randomness
    from eow.switches import float32_default

    parts: dict[str, list[np.ndarray]] = {}
    # Some networks draw noise at prediction too.
    with float32_default(), own_randomness(device, derive("prediction", seed)):
        for x, y in Batches(dataset, batch, transform, device, resident=False).in_order():
            fields = {**method.predict(x)._asdict(), "labels": y}
            for name, value in fields.items():
                if value is not None:
                    parts.setdefault(name, []).append(value.cpu().numpy())
    arrays = {name: np.concatenate(values) for name, values in parts.items()}
    check_finite(arrays.values(), dataset.name)
    return arrays


def check_finite(arrays: Iterable[Any], name: str) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise EowError(
            f"the model predicts NaN on {name}: its weights or the inputs are not finite; where training has run away, "
            "lower its learning rate and train again"
        )


def write(path: Path, arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_arrays(path, arrays, manifest)


def read(path: str | Path) -> Predictions:
    """The predictions in a file. Their arrays stay there, to be looked at and not written to: metrics read them block
    by block."""
    arrays, manifest = map_arrays(Path(path))
    if fault := fault_of(arrays, manifest):
        raise EowError(f"{path} does not hold predictions ({fault}): delete it and make it again")
    return Predictions(**{"logits": None, **arrays}, manifest=manifest)


def fault_of(arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> str | None:
    """What keeps a file's content from being predictions, as a sentence's part."""
    if fault := header_fault(manifest):
        return fault
    if {*arrays} | {"logits"} != {*DIMENSIONS}:
        return f"it holds {', '.join(sorted(arrays)) or 'nothing'}"
    for name, array in arrays.items():
        if array.dtype.kind not in ("iu" if name in ("label", "labels") else "f") or array.ndim != DIMENSIONS[name]:
            return f"{name} is {array.dtype} of shape {array.shape}"
    if len({len(array) for array in arrays.values()}) > 1 or not arrays["probs"].size:
        return "its arrays are empty or of different lengths"
    classes, logits = arrays["probs"].shape[1], arrays.get("logits")
    if logits is not None and logits.shape[1] not in (classes, classes + 1):
        return f"{logits.shape[1]} logits for {classes} classes"
    odds = odds_in(manifest)
    absent = odds is None and (logits is None or logits.shape[1] == classes)  # only an unknown logit needs it
    if not absent and not (type(odds) in (int, float) and LEAST_ODDS <= odds <= MOST_ODDS):
        return f"its header says that the odds of unknown are {odds!r:.40}"
    if len(manifest.get("classes", [])) not in (0, classes):
        return f"its header names {len(manifest['classes'])} classes, and it has {classes}"
    return fault_of_answers(arrays, manifest["method"] in SURER)


def header_fault(manifest: dict[str, Any]) -> str | None:
    """The same of the header alone."""
    if not all(isinstance(manifest.get(key), str) for key in ("name", "key", "method")):
        return "its header does not say what they are of"
    config, names = manifest.get("config") or {}, manifest.get("classes", [])
    data = config.get("data", {}) if isinstance(config, dict) else None
    if not isinstance(data, dict) or not isinstance(data.get("name", ""), str):
        return "its header's config names no data"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return "its header's classes are not names"
    return None


def fault_of_answers(arrays: dict[str, np.ndarray], surer: bool) -> str | None:
    """What is wrong with the answers. All labels are checked, but only in LOOKED_AT rows, since there may be millions,
    whether the confidence is the label's probability; with `surer` it may be higher."""
    label, probs = arrays["label"], arrays["probs"]
    low, high = extremes(label, "label")
    if low < 0 or high >= probs.shape[1]:
        return f"labels from {low:.0f} to {high:.0f} for {probs.shape[1]} classes"
    rows = np.unique(np.linspace(0, len(label) - 1, LOOKED_AT).astype(np.int64))
    said, meant = np.empty((2, len(rows)))
    for place, row in enumerate(rows):
        said[place], meant[place] = arrays["confidence"][row], probs[row, label[row]]
        let_go(probs)  # at once: the system fetches a megabyte around each
    wrong = ~((said >= meant - CLOSE) & (said <= (1 if surer else meant) + CLOSE))  # True for NaN
    if wrong.any():
        row = int(wrong.argmax())
        return f"in row {rows[row]} the confidence is {said[row]:.4g} and the label's probability {meant[row]:.4g}"
    return None


def odds_in(manifest: dict[str, Any]) -> Any:
    """The prior odds of unknown; files of eow before 0.1.0 called them by the λ that they were."""
    return manifest.get("odds", manifest.get("lam"))


def file_name(name: str) -> str:
    """The file for a data set's name: a plain name as it is; any other is made plain and gets a hash, behind a sign
    that no plain name has, so that no two names share a file."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
        return f"{name}.safetensors"
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[-100:]
    return f"{plain}~{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:16]}.safetensors"


def predict_set(run: "Run", name: str, dataset: "Dataset") -> Predictions:
    """The run's predictions on a data set: from its folder when nothing has changed, else made and stored there."""
    import torch

    from eow import __version__
    from eow.config import to_table

    path = run.folder / "predictions" / file_name(name)
    key = content_key(run.weights_hash, dataset, run.transform)
    if path.exists():
        stored = read(path)
        if stored.manifest["key"] == key:
            return stored
    device = next(run.method.parameters()).device
    arrays = compute(run.method, dataset, run.transform, device, run.config.seed)
    manifest = {
        "name": name, "key": key, "method": run.config.method.name, "odds": getattr(run.config.method, "odds", None),
        "seed": run.config.seed,
        "data": dataset.name, "split": dataset.split, "data_hash": dataset.hash, "official": dataset.official,
        "weights": run.weights_hash, "classes": list(run.classes), "columns": list(dataset.columns),
        "config": to_table(run.config),
        "versions": {"eow": __version__, "torch": torch.__version__},
    }  # fmt: skip
    write(path, arrays, manifest)
    return read(path)
