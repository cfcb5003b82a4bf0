"""May a model be upgraded before it is trained? Three small networks and three optimisers in a plain loop on MNIST.

    EOW_DATA=... OMP_NUM_THREADS=1 python benchmarks/untrained.py --json untrained.json

Each network is trained for five epochs from its random start, in three ways:

    none     cross-entropy alone, no upgrade
    first    upgraded, `eow.OpenWorldLoss` from the first step
    late     upgraded, cross-entropy on its K logits for four epochs, `eow.OpenWorldLoss` in the last

Unknowns are uniform noise, the test images with their pixels permuted, Fashion-MNIST and notMNIST: AUROC by `unknown`,
and by entropy where there is none. A run whose loss is not finite has failed, and has no figures.
"""

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch
from adopted import asked, images_of
from arguments import several, writable
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from upgraded import permuted

import eow
from eow import metrics
from eow.console import in_one_line, print_table
from eow.metrics.ood import scores

CLASSES = 10
EPOCHS, LATE = 5, 4
BATCH = 64
TRAINED, TESTED, STRANGE = 10_000, 3_000, 2_000  # images
WAYS = ("none", "first", "late")
OPTIMIZERS: dict[str, Any] = {
    "Adam .001": lambda parameters: torch.optim.Adam(parameters, 1e-3),
    "SGD .05, momentum .9": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "SGD .1": lambda parameters: torch.optim.SGD(parameters, 0.1),
}


def mlp() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, CLASSES)]


def cnn() -> list[nn.Module]:
    convolutions = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return [*convolutions, nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, CLASSES)]


def normed_cnn() -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return [*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES)]


NETWORKS = {"MLP": mlp, "CNN": cnn, "CNN with batch norm": normed_cnn}


def trained(layers: nn.Sequential, optimizer: str, way: str, x: Tensor, y: Tensor, seed: int) -> nn.Module | None:
    """The model after its epochs, or None where the loss was no longer a finite number."""
    model = layers if way == "none" else eow.upgrade(layers)
    loss_of = None if way == "none" else eow.OpenWorldLoss(model.train(), seed=seed)
    steps = OPTIMIZERS[optimizer]((loss_of or model).parameters())
    stream = torch.Generator().manual_seed(seed)
    for epoch in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(x), generator=stream).split(BATCH):
            steps.zero_grad()
            if loss_of is None or (way == "late" and epoch < LATE):
                loss = cross_entropy(model(x[rows])[:, :CLASSES], y[rows])
            else:
                loss = loss_of(x[rows], y[rows])
            if not loss.isfinite():
                return None
            loss.backward()
            steps.step()
    return model


def measured(model: nn.Module, x: Tensor, y: Tensor, unknowns: dict[str, Tensor]) -> dict[str, Any]:
    def say(images: Tensor) -> tuple[Tensor, np.ndarray]:
        full = asked(model, images).double().softmax(1)
        probs = full[:, :CLASSES]
        unknown = full[:, -1] if full.shape[1] > CLASSES else None
        found = scores(probs, unknown, None, probs.max(1).values)
        return probs, found["entropy" if unknown is None else "unknown"]

    probs, known = say(x)
    sure = probs.max(1).values
    return {
        "accuracy": metrics.accuracy(probs.argmax(1), y),
        "ece": metrics.ece(sure, probs.argmax(1) == y),
        "auroc": {name: metrics.auroc(known, say(images)[1]) for name, images in unknowns.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: several(text, least=0), default=[0, 1, 2], help="as 0,1,2")
    parser.add_argument("--images", type=int, default=TRAINED, help="to train on")
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()
    x, y = images_of("mnist", "train", arguments.images)
    test, labels = images_of("mnist", "test", TESTED)
    stream = np.random.default_rng(5)
    unknowns = {
        "noise": torch.from_numpy(stream.random((STRANGE, 1, 28, 28)).astype(np.float32)),
        "permuted": permuted(test[:STRANGE], stream),
        **{name: images_of(name, "test", STRANGE)[0] for name in ("fashion_mnist", "notmnist")},
    }
    rows, cells = [], []
    for network, layers in NETWORKS.items():
        for optimizer in OPTIMIZERS:
            for way in WAYS:
                found = []
                for seed in arguments.seeds:
                    torch.manual_seed(seed)
                    model = trained(nn.Sequential(*layers()), optimizer, way, x, y, seed)
                    found.append(None if model is None else measured(model, test, labels, unknowns))
                rows.append({"network": network, "optimizer": optimizer, "way": way, "seeds": found})
                cells.append([network, optimizer, way, *told([each for each in found if each], len(found))])
                print(" | ".join(cells[-1]), flush=True)
    columns = ["network", "optimiser", "energy term", "accuracy %", "ECE %", *unknowns, "failed"]
    print_table("AUROC in % by unknown, by entropy without an energy term", columns, cells, keys=3)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def told(found: list[dict[str, Any]], seeds: int) -> list[str]:
    failed = str(seeds - len(found))
    if not found:
        return ["-"] * 6 + [failed]
    figures = [[each["accuracy"], each["ece"], *each["auroc"].values()] for each in found]
    return [*(f"{100 * statistics.fmean(values):.1f}" for values in zip(*figures)), failed]


if __name__ == "__main__":
    with in_one_line():
        main()
