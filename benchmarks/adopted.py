"""Is an upgrade worth it? A network that somebody has, upgraded and trained on, beside the same epochs without an
energy term and beside detectors that need no training.

    EOW_DATA=... OMP_NUM_THREADS=1 python benchmarks/adopted.py --out runs/adopted --data mnist fashion_mnist
    EOW_DATA=... OMP_NUM_THREADS=1 python benchmarks/adopted.py --out runs/search --data mnist --search
    python benchmarks/adopted.py --out runs/adopted --table     # of what is there; nothing is trained

A small convolutional network learns eight of ten classes with `eow.fit(..., method="vanilla")`. From these weights,
each variant has five epochs more, with the same optimiser and schedule:

    longer      cross-entropy alone, and a temperature (the control)
    eow         `eow.upgrade` and `eow.fit` with their defaults and a holdout
    no steps    the same with negatives that no Langevin step has moved

All fit what they fit to the same held-out training images. Unknowns are the test images of the two other classes
(`unseen`), other data sets, the known test images with their pixels permuted, and uniform noise. The detectors score
the features before the head: `mahalanobis`, the distance to the nearest class mean under the classes' common
covariance (Lee et al. 2018), and `knn`, the cosine distance to the 50th nearest training image (Sun et al. 2022).

With --search other settings stand beside the defaults, and nothing of a test set is read: other training images take
the place of the test images, training images of the two other classes and of one other data set those of the unknowns.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import whole
from scipy.linalg import solve_triangular
from torch import Tensor, nn
from upgraded import permuted

import eow
from eow import metrics
from eow.console import in_one_line, print_table
from eow.data import load
from eow.metrics.ood import scores

KNOWN = 8  # classes
HELD = 1000  # training images that nothing learns from
MOST = 5000  # images of another data set
NEIGHBOUR = 50
AFTER = 5  # epochs, of every variant
FORMER = {"lam": 0.02, "distances": "one"}  # eow.fit's defaults for an upgraded model until this was measured
VARIANTS: dict[str, dict[str, Any]] = {
    "eow": {},
    "no steps": {"steps": 0},
    "λ .02, one bound": FORMER,
    "λ .02, no steps": {"lam": 0.02, "steps": 0},
}
SEARCHED: dict[str, dict[str, Any]] = {
    **VARIANTS,
    "λ .01, one bound": {"distances": "one"},
    "λ .02": {"lam": 0.02},
    "λ .005": {"lam": 0.005},
    "late": {"start_epoch": 3},
    "one bound, settled": {"distances": "one", "onset": "settled", "start_epoch": 3},
}
TASKS: dict[str, dict[str, Any]] = {
    "mnist": {"images": 12_000, "width": 16, "epochs": 5, "others": ("fashion_mnist", "notmnist")},
    "fashion_mnist": {"images": 12_000, "width": 16, "epochs": 10, "others": ("mnist", "notmnist")},
    "cifar10": {"images": 20_000, "width": 32, "epochs": 12, "others": ("svhn",)},
}
Ask = Callable[[Tensor], Tensor]


def network(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, KNOWN))


def images_of(name: str, split: str, most: int | None = None) -> tuple[Tensor, Tensor]:
    """The first images of a set, as numbers from 0 to 1, and their labels."""
    found = load(name, split=split, allow_unofficial=True)
    return torch.from_numpy(np.array(found.inputs[:most])).float() / 255, torch.from_numpy(found.labels[:most]).long()


def data_of(name: str, seed: int, search: bool) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """train, held and test as (x, y) of the known classes, and the unknowns by name."""
    task, stream = TASKS[name], np.random.default_rng(seed + 1000 * search)
    x, y = images_of(name, "train")
    order, ends = torch.from_numpy(stream.permutation(np.flatnonzero(y < KNOWN))), HELD + task["images"]
    held, train, rest = order[:HELD], order[HELD:ends], order[ends:][:MOST]
    sets = {"train": (x[train], y[train]), "held": (x[held], y[held]), "test": (x[rest], y[rest])}
    unseen, others = x[y >= KNOWN][:MOST], task["others"]
    if search:
        others = others[:1]
    else:
        x, y = images_of(name, "test")
        sets["test"], unseen = (x[y < KNOWN], y[y < KNOWN]), x[y >= KNOWN]
    return sets, {
        "unseen": unseen,
        **{other: images_of(other, "train" if search else "test", MOST)[0] for other in others},
        "permuted": permuted(sets["test"][0][:MOST], stream),
        "noise": torch.from_numpy(stream.random((2000, *x.shape[1:])).astype(np.float32)),
    }


@torch.no_grad()
def asked(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model.eval()(part) for part in x.split(200)])


def mahalanobis(features: Tensor, labels: Tensor) -> Ask:
    """The larger, the nearer to a class of these."""
    means = torch.stack([features[labels == each].mean(0) for each in range(KNOWN)])
    centred = features - means[labels]
    covariance = centred.T @ centred / len(centred)
    covariance += 1e-6 * covariance.diagonal().mean() * torch.eye(len(covariance))
    factor = torch.linalg.cholesky(covariance).numpy()

    def score(x: Tensor) -> Tensor:
        far = [solve_triangular(factor, (x - mean).numpy().T, lower=True) for mean in means]
        return -torch.from_numpy(np.stack([(each**2).sum(0) for each in far])).min(0).values

    return score


def knn(features: Tensor, labels: Tensor) -> Ask:
    bank = nn.functional.normalize(features)

    def score(x: Tensor) -> Tensor:
        parts = nn.functional.normalize(x).split(1000)
        return torch.cat([(part @ bank.T).topk(NEIGHBOUR).values[:, -1] for part in parts])

    return score


def measured(model: eow.SplitModel, sets: Any, unknowns: Any) -> dict[str, Any]:
    """Figures on the known test images, and AUROC by score and set. A softmax over the known classes alone gets a
    temperature; an upgraded model has been fitted to the same images already."""
    features, labels = asked(model.encoder, sets["train"][0]).double(), sets["train"][1]
    detectors = {each.__name__: each(features, labels) for each in (mahalanobis, knn)}
    is_open = model.head.out_features > KNOWN
    temperature = 1.0 if is_open else eow.fit_temperature(asked(model, sets["held"][0]), sets["held"][1])

    def say(x: Tensor) -> tuple[Tensor, Tensor | None, dict[str, Any]]:
        features = asked(model.encoder, x)
        logits = asked(model.tail, features).double() / temperature
        probs, unknown = logits.softmax(1)[:, :KNOWN], logits.softmax(1)[:, -1] if is_open else None
        own = scores(probs, unknown, logits, probs.max(1).values)
        return probs, unknown, own | {name: each(features.double()).numpy() for name, each in detectors.items()}

    probs, unknown, known = say(sets["test"][0])
    y, sure = sets["test"][1], probs.max(1).values
    rest = {name: say(images)[2] for name, images in unknowns.items()}
    return {
        "accuracy": metrics.accuracy(probs.argmax(1), y),
        "ece": metrics.ece(sure, probs.argmax(1) == y),
        "null": metrics.null_ece(sure).mean,
        "nll": metrics.nll(probs, y),
        "unknown": 0.0 if unknown is None else float(unknown.mean()),
        "auroc": {name: {key: metrics.auroc(known[key], said[key]) for key in known} for name, said in rest.items()},
    }


def one_seed(name: str, seed: int, search: bool) -> dict[str, Any]:
    sets, unknowns = data_of(name, seed, search)
    torch.manual_seed(seed)
    layers = network(sets["train"][0].shape[1], TASKS[name]["width"])

    def vanilla(epochs: int, layers: nn.Sequential) -> eow.SplitModel:
        model = eow.SplitModel(layers[:-1], layers[-1:])
        eow.fit(model, sets["train"], method="vanilla", epochs=epochs, seed=seed, device="cpu")
        return model

    found = {"before": measured(vanilla(TASKS[name]["epochs"], layers), sets, unknowns)}
    started = time.process_time()
    longer = vanilla(AFTER, copy.deepcopy(layers))
    found["longer"] = {"seconds": time.process_time() - started} | measured(longer, sets, unknowns)
    for variant, options in (SEARCHED if search else VARIANTS).items():
        started = time.process_time()
        model = eow.upgrade(layers.eval(), example=sets["train"][0][:2])
        eow.fit(model, sets["train"], epochs=AFTER, seed=seed, device="cpu", holdout=sets["held"], **options)
        found[variant] = {"seconds": time.process_time() - started} | measured(model, sets, unknowns)
    return found


COLUMNS = (  # variant, score
    ("longer", "confidence"), ("longer", "entropy"), ("longer", "energy"), ("longer", "knn"),
    ("longer", "mahalanobis"), ("eow", "confidence"), ("eow", "entropy"), ("eow", "unknown"),
)  # fmt: skip


def spread(values: list[float], scale: float = 100, digits: int = 1) -> str:
    scaled = scale * np.array(values)
    return f"{scaled.mean():.{digits}f}" + (f" ± {scaled.std(ddof=1):.{digits}f}" if len(values) > 1 else "")


def p_value(one: list[float], other: list[float]) -> str:
    return f"{metrics.paired_t(one, other).p_value:.1g}" if len(one) > 1 and one != other else "-"


def known_table(name: str, runs: list[dict[str, Any]]) -> None:
    rows = []
    for variant in runs[0]:
        figures = {key: [run[variant][key] for run in runs] for key in ("accuracy", "ece", "null", "nll", "unknown")}
        row = [variant, *(spread(figures[key], 100, 2) for key in ("accuracy", "ece", "null"))]
        row.append(
            f"{spread(figures['nll'], 1, 4)} ({p_value(figures['nll'], [run['longer']['nll'] for run in runs])})"
        )
        times = [run[variant]["seconds"] / run["longer"]["seconds"] for run in runs if variant != "before"]
        rows.append([*row, spread(figures["unknown"], 1, 4), spread(times, 1, 2) if times else "-"])
    header = ["network", "accuracy %", "ECE %", "null", "NLL", "mean unknown", "time / longer"]
    note = "in brackets p against longer (paired t-test over seeds)"
    print_table(f"{name}: known classes ({len(runs)} seeds)", header, rows, note)


def unknown_table(name: str, runs: list[dict[str, Any]]) -> None:
    def of(variant: str, kind: str, score: str) -> list[float]:
        return [run[variant]["auroc"][kind][score] for run in runs]

    kinds, rows = list(runs[0]["eow"]["auroc"]), []
    for variant, score in [*COLUMNS, *((variant, "unknown") for variant in [*runs[0]][3:])]:
        found = {kind: (of(variant, kind, score), of("eow", kind, "unknown")) for kind in kinds}
        rows.append([f"{variant}: {score}", *(f"{spread(one)} ({p_value(one, best)})" for one, best in found.values())])
    note = "in brackets p against eow: unknown (paired t-test over seeds)"
    print_table(f"{name}: AUROC in %", ["score", *kinds], rows, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=whole, default=5, help="how many")
    parser.add_argument("--out", type=Path, required=True, help="a folder; what is there already is not run again")
    parser.add_argument("--search", action="store_true", help="compare settings on training data alone, not the tests")
    parser.add_argument("--table", action="store_true", help="show the figures that are there, and train nothing")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.data if not arguments.table else ():
        for seed in range(arguments.seeds):
            path = arguments.out / f"{name}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(one_seed(name, seed, arguments.search), indent=1))
    for name in TASKS:
        if runs := [json.loads(path.read_text()) for path in sorted(arguments.out.glob(f"{name}-*.json"))]:
            known_table(name, runs)
            unknown_table(name, runs)


if __name__ == "__main__":
    with in_one_line():
        main()
