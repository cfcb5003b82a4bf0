"""Settings of a method, compared on held-out training data; no test set is opened.

    python benchmarks/settings.py ova_dm "train.lr=0.2" "train.lr=0.2 method.loss=two_sigmoid" --data cifar100
        --model resnet50 --limit 20000 --epochs 15 --out found.json
    python benchmarks/settings.py ova_dm "train.lr=0.02" "train.lr=0.2" --data digits --model resnet18 --epochs 12

Each argument is a trial: settings as `eow train --set` takes them, over the recipe's. All are trained with one seed on
the same samples and measured on the part that is held out: accuracy, ECE, and the NLL of the K classes. For constants
of the energy term, whose trials can share their first epochs, there is recipe.py.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
from arguments import writable

from eow import metrics
from eow.config import from_assignments, merge, resolve
from eow.console import in_one_line, print_table
from eow.data.sets import RunData, load_sets
from eow.errors import EowError
from eow.predictions import compute
from eow.runs import begin, finish
from eow.training.distributed import Place, pick_device
from eow.training.loop import Diverged


def trial(text: str, common: dict[str, Any], data: RunData | None) -> tuple[dict[str, Any], RunData]:
    """One training and its figures, and the data it was on; of one that diverged the reason."""
    own = from_assignments(text.split())
    if misplaced := sorted({"data", "seed"} & set(own)):
        raise EowError(f"{misplaced[0]} is the same in all trials, not a setting of {text!r}: give it as an option")
    config = resolve(merge(common, own))
    place = Place(pick_device(config.train.device))
    data = data or load_sets(config.data, config.seed)
    training, began, row = begin(config, data, place), time.perf_counter(), {"settings": text, "epochs": []}
    try:
        for line in training.epochs():
            row["epochs"].append(line)
    except Diverged as reason:
        return {**row, "trouble": str(reason), "seconds": time.perf_counter() - began}, data
    finish(training.method, data, config, place)
    said = compute(training.method, data.holdout, data.transform, place.device)
    correct, probs = said["label"] == said["labels"], said["probs"].astype(np.float64)
    return {
        **row, "images": len(data.train), "held_out": len(data.holdout), "accuracy": float(correct.mean()),
        "ece": metrics.ece(said["confidence"], correct), "nll": metrics.nll(probs, said["labels"]),
        "nll_of_k": metrics.nll(probs / probs.sum(1, keepdims=True), said["labels"]),
        "seconds": time.perf_counter() - began,
    }, data  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method")
    parser.add_argument("trials", nargs="+", help="settings of one trial, such as 'train.lr=0.1 method.classes=50'")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="")
    parser.add_argument("--epochs", type=int, default=0, help="0: the recipe's")
    parser.add_argument("--limit", type=int, default=0, help="train on as many samples at most; 0: on all")
    parser.add_argument("--holdout", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-unofficial", action="store_true")
    parser.add_argument("--out", type=writable, help="write all figures there")
    a = parser.parse_args()
    if not a.holdout:
        raise EowError("a search measures on held-out training data: give --holdout a share above 0")
    common: dict[str, Any] = {
        "data": {"name": a.data, "holdout": a.holdout, "limit": a.limit, "allow_unofficial": a.allow_unofficial},
        "model": {"name": a.model} if a.model else {}, "method": {"name": a.method},
        "train": {"epochs": a.epochs} if a.epochs else {}, "seed": a.seed,
    }  # fmt: skip
    found: list[dict[str, Any]] = []
    data: RunData | None = None
    for text in a.trials:
        row, data = trial(text, common, data)
        found.append(row)
        if a.out:
            a.out.write_text(json.dumps(found, indent=1))
    shown = [[row["settings"], *cells(row)] for row in found]
    print_table("held-out training data", ["settings", "accuracy %", "ECE %", "NLL of K", "seconds"], shown)


def cells(row: dict[str, Any]) -> list[str]:
    if "trouble" in row:
        return ["diverged", "-", "-", f"{row['seconds']:.0f}"]
    figures = (
        (100 * row["accuracy"], ".1f"),
        (100 * row["ece"], ".1f"),
        (row["nll_of_k"], ".3f"),
        (row["seconds"], ".0f"),
    )
    return [f"{value:{digits}}" for value, digits in figures]


if __name__ == "__main__":
    with in_one_line():
        main()
