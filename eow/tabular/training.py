"""How `EOWClassifier` trains its network on standardised rows: by the loop of eow/training/, stopped early or not."""

import copy
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from eow.config import TrainConfig
from eow.console import training_bar
from eow.data.dataset import Dataset
from eow.data.loader import Batches, Transform
from eow.errors import EowError
from eow.methods.eow import EOW, EOWOptions
from eow.models import SplitModel
from eow.models import build as build_model
from eow.seeds import own_randomness
from eow.switches import float32_default
from eow.threads import in_forked_child, one_thread
from eow.training.distributed import Place, pick_device
from eow.training.loop import Training

# Where chains start and how they move, at the cut "input". The noise is three deviations wide: it covers the data.
CHAINS: dict[str, Any] = {"start": "noise:0.5,mixed:0.5", "start_width": 3.0, "steps": 5, "step": 0.5}
AS_IT_IS = Transform((0.0,), (1.0,))  # the columns are standardised before, in double precision

FITTING = threading.Lock()  # torch's global generator and its number of threads are one for all threads


@in_forked_child
def nobody_fits() -> None:
    """In a forked process: the thread that held the lock was left behind and cannot open it any more."""
    global FITTING
    FITTING = threading.Lock()


def trained(
    model: SplitModel | None, data: Dataset, held_out: Dataset | None, chosen: dict[str, Any], seed: int, verbose: bool
) -> tuple[SplitModel, list[float], list[float]]:
    """The network after its training, the loss of every epoch, and the score of every epoch on `held_out`."""
    place = Place(pick_device(chosen["device"], "device"))
    # A network that knows "unknown" would forget it before late chains come; and early stopping may be earlier.
    late = model is None and held_out is None
    options = EOWOptions(lam=chosen["lam"], unknown_rate="trained", start_epoch=0.3 if late else 0, **CHAINS)
    with own_randomness(place.device, seed):
        if model is None:
            hidden = chosen["hidden_layer_sizes"]
            model = build_model("mlp", len(data.classes) + 1, data.shape, hidden=hidden, cut="input")
        method = EOW(model, options, len(data.classes), data.shape, seed).to(place.device)
        method.prepare(place.device)
    settings = TrainConfig(
        epochs=chosen["max_iter"], optimizer="adam", lr=chosen["learning_rate_init"], precision="fp32",
        weight_decay=chosen["weight_decay"], schedule="constant" if held_out else "onecycle",
    )  # fmt: skip
    size = min(max(len(data) // 8, 16), 256) if chosen["batch_size"] == "auto" else chosen["batch_size"]
    batches = Batches(data, size, AS_IT_IS, place.device, seed=seed)
    held = None if held_out is None else (torch.from_numpy(held_out.inputs), torch.from_numpy(held_out.labels))
    losses: list[float] = []
    scores: list[float] = []
    best: dict[str, Tensor] = {}
    training = Training(method, batches, settings, place, seed, bar=training_bar(verbose))
    training.advice = "or lower learning_rate_init"
    with closing(cast(Generator[dict[str, Any], None, None], training.epochs())) as lines:
        for line in lines:
            if "event" in line:  # an epoch that was undone
                continue
            losses.append(line["ce"] + line.get("energy", 0.0))
            if held is None:
                continue
            scores.append(mean_log_likelihood(model, *(part.to(place.device) for part in held)))
            if int(np.argmax(scores)) == len(scores) - 1:
                best = copy.deepcopy(model.state_dict())
            elif len(scores) - 1 - int(np.argmax(scores)) >= chosen["n_iter_no_change"]:
                break
    if best:
        model.load_state_dict(best)
    return model, losses, scores


@contextmanager
def training_alone() -> Iterator[None]:
    """One training at a time on one thread, in float32 and with gradients, whatever the caller has told torch."""
    with FITTING, one_thread(), float32_default(), torch.inference_mode(False), torch.enable_grad():
        yield


def validation_split(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to stop by, each class in proportion."""
    state = np.random.RandomState(seed % 2**32)
    try:
        return tuple(train_test_split(np.arange(len(labels)), test_size=share, stratify=labels, random_state=state))
    except ValueError as error:
        raise EowError(
            f"early_stopping cannot hold {share:g} of the rows out with every class in both parts ({error}): "
            "set early_stopping=False or another validation_fraction"
        ) from None


def mean_log_likelihood(model: SplitModel, x: Tensor, y: Tensor) -> float:
    """Of the labels among the K classes."""
    with torch.no_grad():
        return -float(nn.functional.cross_entropy(model(x)[:, :-1], y))
