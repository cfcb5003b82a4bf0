"""`eow predict`: files in, rows out, from a finished run or from the .onnx file that was exported of one.

A row is one sample: file, index in it, of how many, label, class name, confidence, unknown. Where the model abstains,
the label is -1 and the class None: below the threshold given or, where none is, below the model's own; without any,
where unknown is the most probable answer. An .onnx file is asked without torch.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eow.certify import policy
from eow.data.inputs import read_inputs
from eow.deployed import Answers, Deployed, load
from eow.errors import EowError
from eow.predictions import BATCH, check_finite, file_name, read

if TYPE_CHECKING:
    from eow.opening import Run

STACK = 32  # samples of several files that an .onnx file is asked about together: few, since images may be large

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]  # label, confidence, unknown


def opened(path: Path) -> "Run | Deployed":
    """What answers: an .onnx file, or the run in a folder."""
    if path.suffix.lower() == ".onnx" and not path.is_dir():
        return load(path)
    from eow.opening import load as load_run  # here, because it imports torch

    return load_run(path)


def predict_files(
    model: "Run | Deployed",
    files: Sequence[str | Path],
    unknown_rate: float | None = None,
    threshold: float | None = None,
) -> list[dict[str, Any]]:
    """The rows of all files, in their order."""
    if isinstance(model, Deployed):
        classes, answers = model.card.classes, of_deployed(model, files, unknown_rate, threshold)
    else:
        classes, answers = model.classes, of_run(model, files, unknown_rate, threshold)
    rows = []
    for file, columns in answers:
        for index, (label, confidence, unknown) in enumerate(zip(*(column.tolist() for column in columns))):
            rows.append({
                "file": str(file), "index": index, "of": len(columns[0]), "label": label,
                "class": classes[label] if label >= 0 else None, "confidence": confidence, "unknown": unknown,
            })  # fmt: skip
    return rows


def of_run(
    run: "Run", files: Sequence[str | Path], unknown_rate: float | None, threshold: float | None
) -> Iterator[tuple[str | Path, Columns]]:
    """Each file's answers by a finished run, at the rate and threshold that it was certified with or at others."""
    import torch

    from eow.methods.base import label_or_unknown
    from eow.seeds import own_randomness
    from eow.switches import float32_default

    unknown_rate, threshold = policy(run, unknown_rate, threshold)
    for file in files:
        table = Path(file).suffix.lower() == ".csv" and len(run.in_shape) == 1
        inputs = read_inputs(Path(file), run.in_shape, columns=trained_columns(run.folder) if table else ())
        parts: list[Columns] = []
        with float32_default(), own_randomness(torch.device("cpu"), run.config.seed):
            for first in range(0, len(inputs), BATCH):
                said = run.method.predict(run.transform(torch.from_numpy(inputs[first : first + BATCH])), unknown_rate)
                check_finite((each.numpy() for each in (said.probs, said.confidence, said.unknown)), str(file))
                label = label_or_unknown(said, threshold)
                parts.append((label.numpy(), said.confidence.numpy(), said.unknown.numpy()))
        labels, confidences, unknowns = (np.concatenate(each) for each in zip(*parts))
        yield file, (labels, confidences, unknowns)


def trained_columns(folder: Path) -> list[str]:
    """The titles of the features that a run was trained on, in their order; none where they had none."""
    return [str(title) for title in read(folder / "predictions" / file_name("test")).manifest.get("columns", [])]


def of_deployed(
    model: Deployed, files: Sequence[str | Path], unknown_rate: float | None, threshold: float | None
) -> Iterator[tuple[str | Path, Columns]]:
    """Each file's answers by an exported model, several small files at a time."""
    for stack in stacks(model, files):
        answers = answers_by_file(model, [inputs for _, inputs in stack], unknown_rate, threshold)
        for (file, _), said in zip(stack, answers):
            yield file, (said.label, said.confidence, said.unknown)


def stacks(model: Deployed, files: Sequence[str | Path]) -> Iterator[list[tuple[str | Path, np.ndarray]]]:
    """The files with their inputs, in order, as many together as STACK samples; a larger one comes alone."""
    held: list[tuple[str | Path, np.ndarray]] = []
    for file in files:
        try:
            inputs = read_inputs(Path(file), model.card.shape, model.card.dtype)
        except EowError:
            if held:
                yield held  # what is wrong with these is said first
            raise
        if held and sum(len(each) for _, each in held) + len(inputs) > STACK:
            yield held
            held = []
        held.append((file, inputs))
    if held:
        yield held


def answers_by_file(
    model: Deployed, inputs: list[np.ndarray], unknown_rate: float | None, threshold: float | None
) -> list[Answers]:
    """What the model says about several files' inputs: in one go, but an error is that of the first file that has
    one, with its own number of the sample."""
    if len(inputs) > 1:
        try:
            said = model.predict(np.concatenate(inputs), unknown_rate, threshold)
        except EowError:
            pass
        else:
            ends = np.cumsum([len(each) for each in inputs])[:-1]
            return [Answers(*parts) for parts in zip(*(np.split(each, ends) for each in said))]
    return [model.predict(each, unknown_rate, threshold) for each in inputs]
