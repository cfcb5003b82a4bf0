"""An exported model at work: an .onnx file that `eow export` wrote, run by onnxruntime. torch is not imported.

The file holds everything: weights, normalisation, unknown rate and threshold are its graph; class names, the prior odds
of unknown and where it comes from are its metadata, each entry a JSON text. A file from elsewhere may be wrong in any
way: every entry, every tensor's type and every answer is checked, and weights that lie in other files are not followed.
"""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eow.data.files import is_file, readable
from eow.data.inputs import kinds_for
from eow.errors import EowError
from eow.openworld import LEAST_ODDS, MOST_ODDS, checked_policy, prior_shift
from eow.plain import first_line

INPUT = "inputs"
TYPES = {"uint8": "tensor(uint8)", "float32": "tensor(float)", "int64": "tensor(int64)"}  # of inputs
OUTPUTS = {
    "label": "tensor(int64)",
    "confidence": "tensor(float)",
    "unknown": "tensor(float)",
    "probs": "tensor(float)",
}
BATCH = 256  # samples that are predicted at a time
FAINTEST = 1e-30  # below, float32 has lost digits of what the K classes share
WITH_ONNX = "run `pip install -e '.[onnx]' -c constraints.txt` in the folder of eow"


@dataclass(frozen=True)
class Card:
    """What the metadata says. `odds`, the prior odds of unknown, is None for methods without it,
    `certificate` for a threshold that nobody certified."""

    method: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one input: of a run (C, H, W) uint8 images or (D,) float32 features
    dtype: str
    threshold: float | None
    certificate: dict[str, Any] | None
    unknown_rate: float | None
    odds: float | None
    provenance: dict[str, Any]


class Answers(NamedTuple):
    """What the model says about N inputs; label is -1 where it abstains. probs.sum(1) + unknown == 1."""

    label: np.ndarray
    confidence: np.ndarray
    unknown: np.ndarray
    probs: np.ndarray


def read_card(texts: dict[str, str]) -> Card:
    """The card in the metadata; raises ValueError, in a few words, for whatever is not one."""
    absent = [key for key in Card.__dataclass_fields__ if key not in texts]
    if absent:
        raise ValueError(f"no {', '.join(absent)} in the metadata")
    said = {key: json.loads(texts[key]) for key in Card.__dataclass_fields__}
    if not isinstance(said["method"], str) or not isinstance(said["provenance"], dict):
        raise ValueError("no method or provenance")
    if not is_list_of(str, said["classes"]) or len(said["classes"]) < 2:
        raise ValueError("no list of class names")
    whole = is_list_of(int, said["shape"]) and min(said["shape"]) > 0
    if said["dtype"] not in TYPES or not whole or (said["dtype"] == "uint8" and len(said["shape"]) != 3):
        raise ValueError(f"inputs of {said['dtype']!r} and shape {said['shape']!r}")
    if not isinstance(said["certificate"], dict | None):
        raise ValueError("a certificate that is none")
    for key, highest in (("threshold", 1.0), ("unknown_rate", 1.0), ("odds", math.inf)):
        value = said[key]
        if value is not None and not (type(value) in (int, float) and 0 <= value <= highest and value < math.inf):
            raise ValueError(f"{key} is {value!r}")
    if said["odds"] is not None and not LEAST_ODDS <= said["odds"] <= MOST_ODDS:
        raise ValueError(f"odds of {said['odds']!r}")
    if said["unknown_rate"] == 1 or (said["odds"] is None and said["unknown_rate"] is not None):
        raise ValueError(f"an unknown rate of {said['unknown_rate']!r} with odds {said['odds']!r}")
    return Card(**{**said, "classes": tuple(said["classes"]), "shape": tuple(said["shape"])})


def is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is kind for each in value)


@dataclass(frozen=True, eq=False)
class Deployed:
    """A loaded model; `predict` takes raw inputs, as the training data was before normalisation."""

    path: Path
    card: Card
    session: Any

    def predict(self, inputs: np.ndarray, unknown_rate: float | None = None, threshold: float | None = None) -> Answers:
        """Answers to uint8 images (N, C, H, W), float32 features (N, D) or whatever else the card says, at the file's
        unknown rate and threshold or at these. Where a threshold holds, label is -1 for every confidence below it;
        without one, where unknown is more probable than every class."""
        unknown_rate, threshold = checked_policy(unknown_rate, threshold)
        if unknown_rate == self.card.unknown_rate:
            unknown_rate = None  # as it is
        if unknown_rate is not None and threshold is None and self.card.certificate is not None:
            raise EowError(
                f"the threshold in {self.path} was certified at another unknown rate than {unknown_rate}: leave the "
                "rate out, or give a --threshold for it"
            )
        inputs = self.checked(inputs)
        parts = [self.run(inputs[first : first + BATCH]) for first in range(0, len(inputs), BATCH)]
        said = Answers(*(np.concatenate(each) for each in zip(*parts)))
        if unknown_rate is None and threshold is None:
            return said
        # Every method's confidence is the probability of its label, or in OvA DM nearest to it: so the class that an
        # abstention has hidden is found again.
        hidden = np.abs(said.probs - said.confidence[:, None]).argmin(1)
        label = np.where(said.label < 0, hidden, said.label)
        confidence, unknown, probs = said.confidence, said.unknown, said.probs
        if unknown_rate is not None:
            unknown, probs = self.shifted(unknown, probs, unknown_rate)
            confidence = probs.max(1)
        lowest = self.card.threshold if threshold is None else threshold
        answers = confidence >= unknown if lowest is None else confidence.astype(np.float64) >= lowest
        lost = answers & (said.label < 0) & (said.probs.sum(1) < FAINTEST)
        if lost.any():
            raise EowError(
                f"sample {int(lost.argmax())} is so surely unknown that float32 has lost its classes, and a threshold "
                f"of {lowest} asks for one: export the model again with that threshold"
            )
        return Answers(np.where(answers, label, -1), confidence, unknown, probs)

    def shifted(self, unknown: np.ndarray, probs: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
        """For another unknown rate: adding to the unknown logit multiplies the odds of unknown, all classes keep
        theirs."""
        card = self.card
        if card.odds is None:
            raise EowError(
                f"an unknown rate needs an unknown logit, and {self.path} ({card.method}) knows of none: "
                "leave the rate out, or export a model of eow"
            )
        if card.unknown_rate == 0:
            raise EowError(f"{self.path} was exported for an unknown rate of 0, which leaves no unknown: export again")
        before = 0.0 if card.unknown_rate is None else prior_shift(card.unknown_rate, card.odds)
        u, p = unknown.astype(np.float64) * math.exp(prior_shift(rate, card.odds) - before), probs.astype(np.float64)
        known = p.sum(1)
        lost = (known < FAINTEST) & ~(known < 1e-6 * (known + u))
        if lost.any():
            raise EowError(
                f"sample {int(lost.argmax())} is so surely unknown that float32 has lost its classes: export the run "
                f"again with --unknown-rate {rate}"
            )
        return (u / (known + u)).astype(np.float32), (p / (known + u)[:, None]).astype(np.float32)

    def checked(self, inputs: Any) -> np.ndarray:
        shape, wanted = self.card.shape, np.dtype(self.card.dtype)
        inputs = np.asarray(inputs)
        if inputs.shape[1:] != shape or not len(inputs):
            kind = f"(N, {', '.join(map(str, shape))})"
            raise EowError(f"inputs of shape {inputs.shape}: this model takes {kind}, N at least 1")
        if inputs.dtype.kind not in kinds_for(self.card.dtype, shape) or (
            wanted == np.uint8 and inputs.dtype != wanted
        ):
            raise EowError(f"inputs of {inputs.dtype}: this model takes {wanted}, as it was exported to")
        inputs = np.ascontiguousarray(inputs, wanted)
        if wanted == np.float32 and not np.isfinite(inputs).all():
            row = int(np.argwhere(~np.isfinite(inputs))[0, 0])
            raise EowError(f"a NaN or infinite value in row {row} of the inputs: clean it first")
        return inputs

    def run(self, inputs: np.ndarray) -> Answers:
        """One batch, as the graph answers it."""
        try:
            said = Answers(*self.session.run(list(OUTPUTS), {INPUT: inputs}))
        except Exception as error:  # onnxruntime has a class of its own for every way to fail
            raise EowError(f"{self.path} cannot be run ({first_line(error)}): export it again") from None
        rows, classes = len(inputs), len(self.card.classes)
        if [each.shape for each in said] != [(rows,), (rows,), (rows,), (rows, classes)]:
            raise EowError(f"{self.path} does not answer {rows} inputs with {classes} classes each: export it again")
        whole = np.abs(said.probs.sum(1) + said.unknown - 1) < 1e-3  # False for NaN
        if not (whole & (said.label >= -1) & (said.label < classes) & np.isfinite(said.confidence)).all():
            raise EowError(f"{self.path} gives labels or probabilities that are not valid: export it again")
        return said


def load(path: str | Path) -> Deployed:
    """Open an .onnx file that `eow export` wrote."""
    path = Path(path)
    if not is_file(path):
        raise EowError(f"there is no file {path}: give one that `eow export` wrote")
    with readable(path):
        data = path.read_bytes()
    return from_bytes(data, path)


def onnx_runtime() -> Any:
    """The package, which would else write to its makers of every process that loads it (its Privacy.md)."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


def from_bytes(data: bytes, path: Path) -> Deployed:
    """The model in these bytes; `path` is for the errors."""
    try:
        import onnx

        onnxruntime = onnx_runtime()
    except ImportError as error:
        raise EowError(f"{path} needs {error.name}, which is not installed: {WITH_ONNX}") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is said in our error, not on the terminal
    # Its threads would else spin while they wait, and take the core that reads the next files.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors_of(onnx.load_from_string(data))):
            raise ValueError("its weights lie in other files")
        # Without the fallback, which prints a broken model's error and tries the same once more.
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        card = read_card(session.get_modelmeta().custom_metadata_map)
        check_signature(session, card)
    except Exception as error:  # protobuf and onnxruntime have a class of their own for every way to fail
        raise EowError(
            f"{path} is damaged or was not made by `eow export` ({first_line(error)}): export it again"
        ) from None
    return Deployed(path, card, session)


def tensors_of(message: Any) -> Iterator[Any]:
    """Every tensor at any depth of a model: in graphs, subgraphs, functions and attributes."""
    if message.DESCRIPTOR.name == "TensorProto":
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from tensors_of(each)


def check_signature(session: Any, card: Card) -> None:
    """The graph must take and give what the card says."""
    found = {each.name: each.type for each in session.get_outputs()}
    if found != OUTPUTS:
        raise ValueError(f"its outputs are {found}")
    taken = [(each.name, each.type, tuple(each.shape[1:])) for each in session.get_inputs()]
    if taken != [(INPUT, TYPES[card.dtype], card.shape)]:
        raise ValueError(f"its inputs are {taken}")
