"""A threshold with a promise: of the known-class samples whose confidence reaches it, at most a share `max_risk` is
wrong, except with probability `delta` over the draw of the samples it was found on (metrics/selective.py).

    certify(folder, max_risk=0.01)      finds it and writes threshold.json into the run; None when no threshold can
    stored(folder)                      what was found, for `eow predict` and `eow export`

The promise needs samples that nothing was trained or fitted on: data.certify keeps some of the training set for this
alone; without it, the held-out part serves, unless the method was fitted on it or trained on it last. Test data is
never used.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eow import storage
from eow.errors import EowError
from eow.evaluate import CERTIFY, is_imported
from eow.metrics import certified_threshold
from eow.openworld import checked_policy
from eow.predictions import Predictions, file_name, predict_set, read

if TYPE_CHECKING:
    from eow.data import Dataset
    from eow.data.sets import RunData
    from eow.runs import Run

FILE = "threshold.json"


class Threshold(NamedTuple):
    """threshold.json. Coverage and risk are those of the samples it was found on; `bound` is the risk's upper limit."""

    threshold: float
    max_risk: float
    delta: float
    coverage: float
    risk: float
    bound: float
    samples: int
    unknown_rate: float | None
    weights: str


def certify(
    folder: str | Path, max_risk: float, delta: float = 0.05, unknown_rate: float | None = None, root: str = ""
) -> Threshold | None:
    """The lowest threshold found whose risk is certified, written into the run; None, and none is left in the run,
    where no threshold qualifies."""
    if not 0 < max_risk < 1 or not 0 < delta < 1:
        raise EowError(f"a risk of {max_risk} at δ = {delta} cannot be certified: give two numbers between 0 and 1")
    folder = Path(folder)
    said = imported_part(folder) if is_imported(folder) else predicted_part(folder, root)
    found = certified_threshold(*as_predicted(said, unknown_rate), max_risk, delta)
    path = folder / FILE
    if found is None:
        storage.remove(path)
        return None
    promise = Threshold(
        found.threshold, max_risk, delta, found.coverage, found.risk, found.bound, len(said.label), unknown_rate,
        said.manifest["weights"],
    )  # fmt: skip
    storage.write_json(path, promise._asdict())
    return promise


def predicted_part(folder: Path, root: str) -> Predictions:
    """What a run says of the samples that it has kept for this."""
    from dataclasses import replace

    from eow import runs
    from eow.data.sets import load_sets

    run = runs.load(folder)
    part = unseen_part(run, load_sets(replace(run.config.data, root=root, outliers=()), run.config.seed))
    return predict_set(run, CERTIFY, part)


def imported_part(folder: Path) -> Predictions:
    """The predictions that were imported for this."""
    path = folder / "predictions" / file_name(CERTIFY)
    if not path.exists():
        raise EowError(
            f"{folder} was imported without samples for a threshold: import it again with certify, on which nothing "
            "was trained or fitted"
        )
    return read(path)


def as_predicted(said: Predictions, unknown_rate: float | None) -> tuple[Any, Any]:
    """Confidence and correctness by the very arithmetic of `Method.predict`, in float32: what it cannot tell apart must
    not be told apart here."""
    if unknown_rate is None:
        return said.confidence, said.correct
    import torch

    from eow.methods.base import shifted_prediction

    logits, shift = said.open_logits(unknown_rate)
    answer = shifted_prediction(torch.tensor(logits), shift)
    return answer.confidence.numpy(), answer.label.numpy() == said.labels


def unseen_part(run: "Run", data: "RunData") -> "Dataset":
    """The samples of the training set that the run has kept from everything it learned."""
    if data.certify is not None:
        part, name = data.certify, CERTIFY
    elif data.holdout is None:
        raise EowError(
            f"the run in {run.folder} has seen all its training data, so none is left to certify a threshold: train "
            "again with --set data.certify=0.1, which sets a tenth of it aside for that"
        )
    elif run.method.uses_holdout(run.config.method) or run.config.train.holdout_epochs:
        raise EowError(
            f"the held-out data of the run in {run.folder} was already used by {run.config.method.name}, so it cannot "
            "certify a threshold: train again with --set data.certify=0.1, which sets a tenth of the training data "
            "aside for that"
        )
    else:
        part, name = data.holdout, "holdout"
    check_unseen(run, part, name)
    from eow.data.sets import without_copies

    fresh = without_copies(part, data.train, data.holdout if part is data.certify else None)
    if fresh is None:
        raise EowError(
            f"every sample kept for the threshold of {run.folder} also stands in its training data: take the copies "
            "out, and train again with data.certify=0.1"
        )
    return fresh


def check_unseen(run: "Run", part: "Dataset", name: str) -> None:
    """The run's own record must agree: the very samples that were set aside, and none of the test's."""
    from eow.opening import set_hashes

    known = set_hashes(run.folder)
    if part.split != "train" or part.hash in (known["test"], known["train"]):
        raise EowError(f"a threshold certified on the {part.split} data it is judged on would promise nothing")
    if known.get(name) != part.hash:
        raise EowError(f"the data is not what the run in {run.folder} was trained with: bring it back, or train again")


def stored(folder: str | Path, weights: str | None = None) -> Threshold | None:
    """The run's threshold, if it has one that was found for these weights."""
    path = Path(folder) / FILE
    if not path.exists():
        return None
    table: dict[str, Any] = storage.read_json(path, *Threshold._fields)
    promise = Threshold(**{key: table[key] for key in Threshold._fields})
    shares = [promise.threshold, promise.max_risk, promise.delta, promise.coverage, promise.risk, promise.bound]
    shares += [] if promise.unknown_rate is None else [promise.unknown_rate]
    # A confidence may lie above 1 by rounding; NaN compares false.
    if not all(type(share) in (int, float) and 0 <= share <= 1 + 1e-6 for share in shares):
        raise EowError(f"{path} does not hold a threshold: run `eow threshold` again")
    if weights is not None and promise.weights != weights:
        raise EowError(f"the threshold in {path} is of other weights than the run's: run `eow threshold` again")
    return promise


def policy(run: "Run", unknown_rate: float | None, threshold: float | None) -> tuple[float | None, float | None]:
    """The unknown rate and the threshold below which to abstain, each None where there is none: what the caller gives,
    else what the run was certified with. A certified threshold holds at its own rate alone."""
    unknown_rate, threshold = checked_policy(unknown_rate, threshold)
    promise = stored(run.folder, run.weights_hash)
    if promise is None:
        return unknown_rate, threshold
    if threshold is not None:
        return promise.unknown_rate if unknown_rate is None else unknown_rate, threshold
    if unknown_rate not in (None, promise.unknown_rate):
        rate = promise.unknown_rate
        certified = "the run's own unknown rate" if rate is None else f"an unknown rate of {rate}"
        raise EowError(
            f"the threshold of {run.folder} was certified at {certified}, not at an unknown rate of {unknown_rate}: "
            "certify it anew with `eow threshold --unknown-rate`, or give a --threshold"
        )
    return promise.unknown_rate, promise.threshold
