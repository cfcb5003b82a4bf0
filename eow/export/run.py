"""A finished run as one file that answers: .onnx for onnxruntime, .pt2 for torch.export.

    inputs (batch, C, H, W) uint8 or (batch, D) float32  ->  label, confidence, unknown, probs

The file takes inputs as they are before normalisation, any number at a time, and says what `Method.predict` says at the
unknown rate given; label is -1 where confidence is below the threshold or, if none is set, where unknown is the most
probable answer. Before a file is kept, its bytes are loaded and compared with the run itself on the run's test data, in
batches of 1, 7 and 64: a difference above 1e-5 is an error, and nothing is written. A model without a run:
model.py.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from eow import __version__, storage
from eow.certify import policy, stored
from eow.data import CATALOG, load
from eow.data.inputs import read_inputs
from eow.deployed import INPUT, OUTPUTS, WITH_ONNX, Answers, Card, from_bytes, onnx_runtime
from eow.errors import EowError
from eow.export.traceable import DECOMPOSITIONS, Graph
from eow.methods.base import label_or_unknown
from eow.plain import first_line
from eow.runs import Run
from eow.runs import load as load_run
from eow.switches import float32_default

SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
OPSET = 18  # the one torch's exporter is written in: any other is a conversion of it
LARGEST = 2**31 - 2**20  # bytes of one protobuf message, with room for the graph beside the weights
CHECKED = 512  # samples that a file is compared on, at most
BATCHES = (1, 7, 64)
TOLERANCE = 1e-5


@float32_default()
def export(
    run: Run | str | Path,
    path: str | Path,
    format: str = "onnx",
    unknown_rate: float | None = None,
    threshold: float | None = None,
    on: np.ndarray | str | Path | None = None,
    root: str | None = None,
) -> dict[str, Any]:
    """Write the run to `path` and return what it was compared on and how far it was off.

    threshold   label is -1 below this confidence; None: the run's certified one, if it has any, at its unknown rate,
                else label is -1 where unknown is the most probable answer
    on          inputs to compare on: an array, a file, or "random"; None: the test split of the run's data set
    root        where that data set lies, if not in the usual places
    """
    path, folder = named(path, format), run.folder if isinstance(run, Run) else Path(run)
    opened = load_run(folder)  # a fresh one, on the CPU
    for name, child in list(opened.method.named_children()):
        if not child.state_dict():  # slots of chains and such: training's own, no part of the weights
            delattr(opened.method, name)
    if unknown_rate is not None and not opened.method.extra_outputs:
        raise EowError(
            f"{opened.config.method.name} has no unknown logit: leave the unknown rate out, or export a run of eow"
        )
    unknown_rate, threshold, certificate = chosen_policy(opened, unknown_rate, threshold)
    graph = Graph(opened, unknown_rate, threshold).eval().requires_grad_(False)
    inputs, source = comparison_inputs(opened, on, root)
    expected = [reference(opened, part, unknown_rate, threshold) for part in inputs]
    card = make_card(opened, threshold, certificate, unknown_rate)
    return {**kept(graph, card, path, format, inputs, expected), "compared_on": source}


def named(path: str | Path, format: str) -> Path:
    path = Path(path)
    if format not in SUFFIXES:
        raise EowError(f"there is no format {format!r}: choose one of {', '.join(SUFFIXES)}")
    if path.suffix != SUFFIXES[format]:
        raise EowError(
            f"{path} does not fit the format {format}: end it in {SUFFIXES[format]}, or choose another format"
        )
    return path


def kept(
    graph: nn.Module, card: Card, path: Path, format: str, inputs: list[np.ndarray], expected: list[Answers]
) -> dict[str, Any]:
    """Write the graph if its bytes, loaded again, give the expected answers, and say how far they were off."""
    data, answer = (write_onnx if format == "onnx" else write_torch)(graph, card, path)
    worst = max(difference(answer(part), wanted, card.threshold, path) for part, wanted in zip(inputs, expected))
    different = len({row.tobytes() for part in inputs for row in part})  # few are used again and again
    storage.make_folder(path.parent)
    storage.atomic(path, lambda file: file.write(data))
    return {
        "path": str(path), "format": format, "bytes": len(data), "threshold": card.threshold,
        "unknown_rate": card.unknown_rate, "samples": different, "largest_difference": worst,
    }  # fmt: skip


def chosen_policy(
    run: Run, unknown_rate: float | None, threshold: float | None
) -> tuple[float | None, float | None, dict[str, Any] | None]:
    """Unknown rate and threshold, as `eow predict` would use them, and what was certified of the threshold."""
    rate, lowest = policy(run, unknown_rate, threshold)
    if lowest is None:
        return rate, None, None
    if not 0 <= lowest <= 1:
        raise EowError(f"the threshold of {run.folder} is {lowest}: certify it again, or give one from 0 to 1")
    promise = stored(run.folder, run.weights_hash) if threshold is None else None
    return rate, float(lowest), promise and promise._asdict()


def make_card(run: Run, threshold: float | None, certificate: dict[str, Any] | None, rate: float | None) -> Card:
    summary = storage.read_json(run.folder / "summary.json", "versions", "sets")
    name = run.config.data.name
    try:
        provenance = {
            "eow": summary["versions"]["eow"], "commit": summary["versions"]["commit"],
            "torch": summary["versions"]["torch"], "exported_with": {"eow": __version__, "torch": torch.__version__},
            # A path on this machine is nobody's business where the file goes.
            "data": name if name in CATALOG else name.partition(":")[0],
            "data_hash": summary["sets"]["train"]["hash"], "weights": run.weights_hash, "seed": run.config.seed,
            "model": run.config.model.name, "recipe": run.config.recipe,
        }  # fmt: skip
    except (KeyError, TypeError):
        raise EowError(f"{run.folder / 'summary.json'} is damaged: train the run again") from None
    odds = float(run.config.method.odds) if run.method.extra_outputs else None
    dtype = "uint8" if len(run.in_shape) == 3 else "float32"
    return Card(
        run.config.method.name, run.classes, run.in_shape, dtype, threshold, certificate, rate, odds, provenance
    )


def comparison_inputs(run: Run, on: np.ndarray | str | Path | None, root: str | None) -> tuple[list[np.ndarray], str]:
    """Raw inputs in batches, and where they come from."""
    shape, images = run.in_shape, len(run.in_shape) == 3
    if on is None:
        wanted = run.config.data
        try:
            raw = load(wanted.name, root, "test", allow_unofficial=wanted.allow_unofficial).inputs
        except EowError as error:
            raise EowError(
                f"an export is compared with its run on the run's test data, which is not available ({error}): say "
                "where it lies (root), or give other inputs or 'random' to compare on"
            ) from None
        source = f"the test split of {wanted.name}"
    elif isinstance(on, np.ndarray):
        raw, source = on, "the inputs given"
    elif on == "random":
        random, size = np.random.default_rng(0), (CHECKED, *shape)
        if images:
            raw = random.integers(0, 256, size, np.uint8)
        else:  # features as wide as training has seen them
            raw = random.normal(run.transform.mean, run.transform.std, size).astype(np.float32)
        source = "random inputs"
    else:
        raw, source = read_inputs(Path(on), shape), str(on)
    dtype = np.uint8 if images else np.float32
    if raw.shape[1:] != shape or raw.dtype != dtype or not len(raw) or not np.isfinite(raw).all():
        raise EowError(
            f"{source}, {raw.dtype} of shape {raw.shape}, cannot be compared on: give finite inputs of "
            f"{np.dtype(dtype)} and shape (N, {', '.join(map(str, shape))})"
        )
    return in_batches(raw), source


def in_batches(raw: np.ndarray) -> list[np.ndarray]:
    """At most 512 of the inputs in batches of 1, 7 and then 64. Few samples are used again and again."""
    count = min(max(len(raw), sum(BATCHES)), CHECKED)
    chosen = raw[np.linspace(0, len(raw), count, endpoint=False).astype(int)]
    return np.split(chosen, [*np.cumsum(BATCHES[:-1]), *range(sum(BATCHES), count, BATCHES[-1])])


def reference(run: Run, raw: np.ndarray, unknown_rate: float | None, threshold: float | None) -> Answers:
    """What the run itself says, by the way every prediction takes."""
    said = run.method.predict(run.transform(torch.from_numpy(raw)), unknown_rate)
    label = label_or_unknown(said, threshold)
    return Answers(*(each.numpy() for each in (label, said.confidence, said.unknown, said.probs)))


def difference(found: Answers, wanted: Answers, threshold: float | None, path: Path) -> float:
    """The largest difference of two answers to the same inputs, an error if it is above the tolerance."""
    worst = float(np.max([np.abs(a - b).max() for a, b in zip(found[1:], wanted[1:])]))
    # Two labels are the same answer where the classes are equally likely, and where confidence is at the threshold, or
    # at the unknown.
    rows = np.arange(len(wanted.label))
    gap = np.abs(wanted.probs[rows, found.label] - wanted.probs[rows, wanted.label])
    split = (found.label < 0) != (wanted.label < 0)
    gap = np.where(split, np.abs(wanted.confidence - (wanted.unknown if threshold is None else threshold)), gap)
    off = float(np.max([worst, *gap[found.label != wanted.label]]))
    if not off <= TOLERANCE:  # NaN is above, too
        raise EowError(
            f"{path} is not written: its answers differ from the run's by {off:.2g}, more than {TOLERANCE:g}; try the "
            "other format, or report this with what it was made from"
        )
    return worst


@contextmanager
def quiet() -> Iterator[None]:
    """torch's exporter logs and warns of what no user can change, and prints the graph that it could not finish."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def traced(graph: nn.Module, card: Card) -> torch.export.ExportedProgram:
    example = torch.zeros(3, *card.shape, dtype=getattr(torch, card.dtype))
    program = torch.export.export(graph, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def write_torch(graph: nn.Module, card: Card, path: Path) -> tuple[bytes, Callable[[np.ndarray], Answers]]:
    """The bytes of a .pt2 file with the card as eow.json in it, and what they answer when loaded again."""
    buffer = io.BytesIO()
    with quiet():
        torch.export.save(traced(graph, card), buffer, extra_files={"eow.json": json.dumps(asdict(card))})
        buffer.seek(0)
        module: Any = torch.export.load(buffer).module()

    def answer(raw: np.ndarray) -> Answers:
        with torch.no_grad():
            said = module(torch.from_numpy(raw))
        return Answers(*(said[name].numpy() for name in OUTPUTS))

    return buffer.getvalue(), answer


def write_onnx(graph: nn.Module, card: Card, path: Path) -> tuple[bytes, Callable[[np.ndarray], Answers]]:
    """The bytes of an .onnx file with the card in its metadata, and what they answer when loaded again."""
    try:
        import onnx
        import onnxscript  # noqa: F401 (torch's exporter needs it)

        onnx_runtime()  # the comparison needs it
    except ImportError as error:
        raise EowError(
            f"an .onnx file needs {error.name}, which is not installed: {WITH_ONNX}, or use the format torch"
        ) from None
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.state_dict().values())
    if size > LARGEST:
        raise EowError(f"{size / 2**30:.1f} GiB of weights are more than an .onnx file can hold: use the format torch")
    with quiet():
        program = traced(graph, card)  # what fails here fails in the other format too
    try:
        with quiet():
            exported: Any = torch.onnx.export(
                program.run_decompositions(DECOMPOSITIONS),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=list(OUTPUTS),
            )
        model = exported.model_proto
    except Exception as error:
        raise EowError(
            f"torch cannot write this {card.method} model as ONNX ({first_line(error.__cause__ or error)}): use the "
            "format torch"
        ) from error
    strip(model)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in asdict(card).items()})
    data = model.SerializeToString(deterministic=True)
    return data, from_bytes(data, path).run


def strip(message: Any) -> None:
    """Take the notes out that the exporter leaves at every node: source lines, and paths of this machine."""
    for field, value in message.ListFields():
        if field.name in ("metadata_props", "doc_string", "value_info"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                strip(each)
