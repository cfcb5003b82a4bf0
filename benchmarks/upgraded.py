"""What `eow.upgrade` and `eow.fit` do to networks that somebody has: the defaults beside other choices.

    EOW_DATA=... python benchmarks/upgraded.py --json upgraded.json         # digits need no data, MNIST and letters do
    python benchmarks/upgraded.py --networks digits-mlp digits-norm --seeds 1   # a trial

Each network is trained with cross-entropy first, then upgraded and fitted. Everything is measured on held-out images,
half of them to fit the temperature that `holdout` would fit. The defaults were chosen by this: MNIST's are of its
training set, those of digits of all 1,443 that scikit-learn has, the demo's 433 test images among them. Unknowns are
unseen digits, or letters (notMNIST), the held-out images with their pixels permuted, and uniform noise.
"""

import argparse
import json
from typing import Any

import numpy as np
import torch
from arguments import whole, writable
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import eow
from eow import metrics
from eow.console import in_one_line, print_table
from eow.data import load

HALVES = "noise:0.5,mixed:0.5"
VARIANTS: dict[str, dict[str, Any]] = {  # the first are the defaults
    "quadratic, features, λ .01, spread": {},
    "quadratic, features, λ .01, spread, settled": {"onset": "settled"},
    "quadratic, features, no steps, λ .01": {"steps": 0},
    "quadratic, features, λ .01": {"distances": "one"},
    "quadratic, features, λ .005, spread": {"lam": 0.005},
    "quadratic, features, λ .02, spread": {"lam": 0.02},
    "quadratic, features, λ .02": {"lam": 0.02, "distances": "one"},
    "quadratic, features, no steps, λ .02": {"lam": 0.02, "steps": 0},
    "quadratic, features, λ .1": {"lam": 0.1, "distances": "one"},
    "quadratic, noise and mixed, λ .1": {"lam": 0.1, "start": HALVES, "distances": "one"},
    "linear, features, λ .02": {"unknown_logit": "linear", "lam": 0.02, "distances": "one"},
    "linear, noise and mixed, λ .1": {"unknown_logit": "linear", "lam": 0.1, "start": HALVES, "distances": "one"},
}


def permuted(images: Tensor, stream: np.random.Generator) -> Tensor:
    flat = images.flatten(1)
    order = torch.from_numpy(np.argsort(stream.random(flat.shape), axis=1))
    return flat.gather(1, order).view_as(images)


def digits(scale: float) -> tuple[Tensor, Tensor, dict[str, Tensor], int]:
    found = load_digits()
    x, y = torch.tensor(found.data * scale, dtype=torch.float32), torch.tensor(found.target)
    return x[y < 8], y[y < 8], {"unseen": x[y >= 8]}, 900


def mnist() -> tuple[Tensor, Tensor, dict[str, Tensor], int]:
    def scaled(inputs: np.ndarray) -> Tensor:
        return ((torch.from_numpy(np.array(inputs)).float() / 255 - 0.13) / 0.31).view(-1, 1, 28, 28)

    known, letters = load("mnist", split="train"), load("notmnist", split="test")
    chosen = np.random.default_rng(0).permutation(len(known.labels))[:14_000]
    return (
        scaled(known.inputs[chosen]),
        torch.from_numpy(known.labels[chosen]),
        {"letters": scaled(letters.inputs[:3000])},
        9000,
    )


NETWORKS: dict[str, Any] = {  # data, layers, epochs before and after
    "digits-mlp": (
        lambda: digits(1 / 16),
        lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8)),
        20,
        5,
    ),
    "digits-norm": (
        lambda: digits(1 / 16),
        lambda: nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.LayerNorm(768), nn.Linear(768, 8)),
        20,
        5,
    ),
    "digits-wide": (
        lambda: digits(1.0),
        lambda: nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 8)),
        20,
        5,
    ),
    "mnist-cnn": (
        mnist,
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
        ),
        5,
        3,
    ),
}  # fmt: skip


def train(network: nn.Module, loader: Any, epochs: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    network.eval()


def figures(network: nn.Module, x: Tensor, y: Tensor, unknowns: dict[str, Tensor], opened: bool) -> dict[str, float]:
    with torch.no_grad():
        logits, *others = (network(each).double() for each in (x, *unknowns.values()))
    classes = logits.shape[1] - opened
    probs = logits.softmax(1)
    right = logits[:, :classes].argmax(1) == y
    known = logits[:, :classes].softmax(1)
    found = {
        "accuracy": float(right.float().mean()),
        "ece": metrics.ece(probs[:, :classes].max(1).values, right),
        "null": metrics.null_ece(probs[:, :classes].max(1).values).mean,
        "nll of K": float(-known[range(len(y)), y].log().mean()),
    }
    if opened:
        found["unknown"] = float(probs[:, -1].mean())

    def familiar(z: Tensor) -> Tensor:
        return z[:, :-1].logsumexp(1) - z[:, -1] if opened else z.softmax(1).max(1).values

    for name, other in zip(unknowns, others):
        found[f"auroc: {name}"] = metrics.auroc(familiar(logits), familiar(other))
    return found


def one_seed(name: str, seed: int) -> dict[str, dict[str, float]]:
    make_data, make_network, before, after = NETWORKS[name]
    x, y, unknowns, count = make_data()
    stream = np.random.default_rng(seed)
    order = torch.from_numpy(stream.permutation(len(x)))
    x, y = x[order], y[order].long()
    half = (len(x) - count) // 2
    held, rest = slice(count, count + half), slice(count + half, None)
    unknowns = {**unknowns, "permuted": permuted(x[rest], stream)}
    span = float(x.min()), float(x.max())
    unknowns["noise"] = torch.from_numpy(stream.uniform(*span, x[rest].shape).astype(np.float32))
    torch.manual_seed(seed)
    loader = DataLoader(TensorDataset(x[:count], y[:count]), 64, shuffle=True)
    network = make_network()
    train(network, loader, before)
    found = {"before": figures(network, x[rest], y[rest], unknowns, False)}
    for title, variant in VARIANTS.items():
        options = {key: value for key, value in variant.items() if key != "unknown_logit"}
        for holdout in (None, (x[held], y[held])):
            model = eow.upgrade(network, example=x[:8], unknown=variant.get("unknown_logit", "quadratic"))
            eow.fit(model, loader, epochs=after, seed=seed, device="cpu", holdout=holdout, **options)
            found[title if holdout is None else f"{title}, holdout"] = figures(model, x[rest], y[rest], unknowns, True)
    return found


def show(name: str, seeds: list[dict[str, dict[str, float]]]) -> None:
    titles = [*seeds[0]["before"], "unknown"]
    rows = []
    for variant in seeds[0]:
        cells = [variant]
        for title in titles:
            values = [each[variant].get(title) for each in seeds]
            scale = 1 if title in ("nll of K", "unknown") else 100
            mean = None if None in values else scale * float(np.mean(values))  # type: ignore[arg-type]
            cells.append("-" if mean is None else f"{mean:.3f}" if scale == 1 else f"{mean:.1f}")
        rows.append(cells)
    print_table(
        name, ["variant", *titles], rows, note=f"mean of {len(seeds)} seeds; AUROC by unknown, before by confidence"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seeds", type=whole, default=3, help="how many")
    parser.add_argument("--json", type=writable, help="write the figures there")
    arguments = parser.parse_args()
    found = {}
    for name in arguments.networks:
        found[name] = [one_seed(name, seed) for seed in range(arguments.seeds)]
        show(name, found[name])
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    with in_one_line():
        main()
