"""The search for EOW's constants: many settings on held-out training data, never on a test set.

    python benchmarks/recipe.py VARIANTS.json --data cifar100 --model resnet50 --out found.json
    python benchmarks/recipe.py VARIANTS.json --data digits --model mlp --epochs 20 --holdout 0.3    # a trial, on a CPU

Energy terms that begin late share everything before they begin. So one network is trained up to `--branch` (a share of
the epochs) without any, and every variant goes on from there: a variant costs the last third of a run. VARIANTS is a
list of {"name": ..., "method": {...}, "model": {...}}; `"method": null` goes on without an energy term: vanilla.

Everything is measured on a part of the training set that no variant was trained on: accuracy, and of the K+1 softmax
as trained, at some unknown rates and renormalised (K) ECE, its null and NLL; of the K classes also with a temperature,
fitted as the recipe fits it on as many samples as it would hold out, drawn twenty times, and measured on the others.
Outliers are that part with its pixels permuted, uniform noise and, with `--outliers FILE.npz`, whatever uint8 images
the file holds (no test set either).
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import writable
from torch import Tensor

from eow import metrics
from eow.config import resolve
from eow.console import in_one_line, print_table
from eow.data import Dataset
from eow.data.dataset import few
from eow.data.loader import Batches
from eow.data.sets import RunData, load_sets
from eow.errors import EowError
from eow.methods.eow import PRIOR_WIDTH
from eow.methods.fence import Fence
from eow.methods.temperature import fit_temperature
from eow.models import frozen_statistics
from eow.openworld import prior_shift, shifted_probabilities, softmax
from eow.predictions import compute
from eow.runs import begin
from eow.training.branching import Trunk, branch, never, trunk
from eow.training.distributed import Place, pick_device
from eow.training.loop import Training

RATES = (0.02, 0.01, 0.005, 0.002)
RANKS = (32, 128, 512)  # of the fences that are tried
DRAWS = 20  # of the samples that a temperature is fitted on
Arrays = dict[str, np.ndarray]


def variants_of(file: Path) -> list[dict[str, Any]]:
    try:
        variants = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EowError(f"there is no file {file}: give a JSON file of variants") from None
    except ValueError as error:
        raise EowError(f"{file} cannot be read as JSON: {error}; mend it") from None
    if not isinstance(variants, list) or not variants:
        raise EowError(f"{file} has no variants: give a list of at least one")
    for each in variants:
        if not isinstance(each, dict) or not {"name", "method"} <= each.keys():
            raise EowError(f"{file} has a variant without name or method: {json.dumps(each)}; give it both")
    return variants


def sets_of(data: RunData, outliers: Path | None, seed: int) -> tuple[Dataset, dict[str, Dataset]]:
    """The held-out part, and outliers of its shape."""
    known, stream = data.holdout, np.random.default_rng(seed)
    images = known.inputs
    flat = images.reshape(len(images), -1) if images.ndim == 2 else images.reshape(*images.shape[:2], -1)
    order = np.argsort(stream.random((len(images), flat.shape[-1])), axis=1)
    permuted = np.take_along_axis(flat, order if images.ndim == 2 else order[:, None], axis=-1).reshape(images.shape)
    noise = stream.uniform(images.min(), images.max(), images.shape).astype(images.dtype)
    found = {"permuted": permuted, "noise": noise}
    if outliers is not None:
        with np.load(outliers, allow_pickle=False) as file:
            found.update({name: file[name] for name in file.files})
    labels = np.zeros(max(map(len, found.values())), known.labels.dtype)
    return known, {
        name: replace(known, name=name, inputs=each, labels=labels[: len(each)]) for name, each in found.items()
    }


def measured(known: Arrays, outliers: dict[str, Arrays], odds: float | None, count: int) -> dict[str, Any]:
    """All figures of one variant from its logits; `odds` is the λ of training, None without an energy term; a
    temperature is fitted on `count` samples."""
    logits, labels = known["logits"].astype(np.float64), known["labels"]
    classes = logits.shape[1] - 1
    shifts = {"K": -np.inf}
    if odds is not None:
        shifts.update({"raw": 0.0, **{f"{rate:g}": prior_shift(rate, odds) for rate in RATES}})
    found: dict[str, Any] = {
        name: calibrated(*shifted_probabilities(logits, each), labels) for name, each in shifts.items()
    }
    found["K, temperature"] = tempered(logits[:, :classes], labels, count)
    found["auroc"] = {}
    for name, each in outliers.items():
        pair = [scores(logits, odds is not None), scores(each["logits"].astype(np.float64), odds is not None)]
        found["auroc"][name] = {score: metrics.auroc(pair[0][score], pair[1][score]) for score in pair[0]}
    return found


def calibrated(probs: np.ndarray, unknown: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    return {
        "accuracy": float(correct.mean()), "ece": metrics.ece(confidence, correct),
        "null": metrics.null_ece(confidence).mean, "gap": float(confidence.mean() - correct.mean()),
        "nll": metrics.nll(probs, labels), "unknown": float(unknown.mean()),
    }  # fmt: skip


def tempered(logits: np.ndarray, labels: np.ndarray, count: int) -> dict[str, float]:
    """The mean figures of the samples that a temperature was not fitted on."""
    rows = []
    for draw in range(DRAWS):
        order = np.random.default_rng(draw).permutation(len(labels))
        fit, rest = order[:count], order[count:]
        temperature = fit_temperature(logits[fit], labels[fit], PRIOR_WIDTH)
        figures = calibrated(softmax(logits[rest] / temperature), np.zeros(len(rest)), labels[rest])
        rows.append({"T": temperature, **figures})
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def scores(logits: np.ndarray, opened: bool) -> dict[str, np.ndarray]:
    """Higher is more familiar."""
    known = logits[:, :-1]
    top = known.max(1)
    total = top + np.log(np.exp(known - top[:, None]).sum(1))
    found = {"confidence": top - total, "energy": total, "max_logit": top}
    return {**found, "unknown": total - logits[:, -1]} if opened else found


def features_of(training: Training, dataset: Dataset, transform: Any) -> tuple[Tensor, Tensor]:
    """What the head reads, and the unknown's log-odds."""
    split, found = training.method.before_head(), []
    with frozen_statistics(split), torch.no_grad():
        for x, _ in Batches(dataset, 1000, transform, training.place.device, resident=False).in_order():
            z = split.encoder(x)
            logits = split.tail(z).float()
            found.append((z.float(), logits[:, -1] - logits[:, :-1].logsumexp(1)))
    features, odds = zip(*found)
    return torch.cat(features), torch.cat(odds)


def fenced(training: Training, data: RunData, known: Dataset, outliers: dict[str, Dataset]) -> dict[str, Any]:
    """What a fence (eow/methods/fence.py) would do, for each rank: the share of each set beyond it, and the AUROC by
    unknown."""
    train, _ = features_of(training, data.train, data.transform)
    parts = {name: features_of(training, each, data.transform) for name, each in {"known": known, **outliers}.items()}
    found: dict[str, Any] = {}
    for rank in sorted({min(rank, train.shape[1] - 1) for rank in RANKS}):
        fence = Fence(train.shape[1], rank).to(train.device)
        fence.fit(train)
        rises = {name: fence.rise(z) for name, (z, _) in parts.items()}
        raised = {name: odds + rises[name] for name, (_, odds) in parts.items()}
        beyond = {name: float((rise > 0).double().mean()) for name, rise in rises.items()}
        aurocs = {name: metrics.auroc(-raised["known"].cpu(), -raised[name].cpu()) for name in outliers}
        found[str(rank)] = {"beyond": beyond, "auroc": aurocs}
    return found


def search(arguments: argparse.Namespace) -> dict[str, Any]:
    if not arguments.holdout:
        raise EowError("a search measures on held-out training data: give --holdout a share above 0")
    variants = variants_of(arguments.variants)
    train = {"epochs": arguments.epochs} if arguments.epochs else {}
    common = {
        "data": {"name": arguments.data, "holdout": arguments.holdout, "limit": arguments.limit,
                 "allow_unofficial": arguments.allow_unofficial},
        "model": {"name": arguments.model}, "train": train, "seed": arguments.seed,
    }  # fmt: skip
    config = resolve({**common, "method": {"name": "eow"}})
    first = round(arguments.branch * config.train.epochs)
    late = {"name": "eow", "start_epoch": config.train.epochs - 1}  # a prefix ends before
    data, place = load_sets(config.data, arguments.seed), Place(pick_device(config.train.device))
    known, outliers = sets_of(data, arguments.outliers, arguments.seed)
    found: dict[str, Any] = {"config": arguments.__dict__ | {"variants": str(arguments.variants)}, "first": first}
    found |= {"prefix_seconds": [], "variants": []}
    trunks: dict[str, Trunk] = {}
    for variant in variants:
        wanted = variant["method"]
        method = {"name": "eow", "start_epoch": first, **(wanted or {})}
        model = {"name": arguments.model, **variant.get("model", {})}
        # The cut decides nothing before there are chains, and a quadratic unknown is linear until then.
        network = json.dumps({key: value for key, value in model.items() if key not in ("cut", "unknown")})
        if network not in trunks:
            began = time.perf_counter()
            plain = {"name": arguments.model, **json.loads(network)}
            before = begin(resolve({**common, "model": plain, "method": late}), data, place)
            trunks[network] = trunk(before, first)
            found["prefix_seconds"].append(time.perf_counter() - began)
        training = begin(resolve({**common, "model": model, "method": method}), data, place)
        training = never(training) if wanted is None else training
        seconds = sum(line["seconds"] for line in branch(training, trunks[network]))
        said = [compute(training.method, each, data.transform, place.device) for each in (known, *outliers.values())]
        if arguments.keep:
            kept = {name: one["logits"].astype(np.float16) for name, one in zip(("known", *outliers), said)}
            arguments.keep.mkdir(parents=True, exist_ok=True)
            path = arguments.keep / f"{len(found['variants']):02d}.npz"
            np.savez_compressed(path, labels=said[0]["labels"], **kept)
        odds = None if wanted is None else training.method.options.lam
        count = min(few(len(data.train)), len(known) // 2)
        figures = measured(said[0], dict(zip(outliers, said[1:])), odds, count)
        figures["fence"] = fenced(training, data, known, outliers)
        found["variants"].append({**variant, "seconds": seconds, **figures})
        row = found["variants"][-1]
        print(json.dumps({key: row[key] for key in ("name", "seconds", "K", "auroc")}), flush=True)
        arguments.out.write_text(json.dumps(found, indent=1, default=str))
    return found


def show(found: dict[str, Any]) -> None:
    sets = list(found["variants"][0]["auroc"])
    kinds = ["raw", *(f"{rate:g}" for rate in RATES), "K", "K, temperature"]
    rows = []
    for each in found["variants"]:
        cells = [each["name"], f"{100 * each['K']['accuracy']:.2f}"]
        for kind in kinds:
            one = each.get(kind)
            cells.append("-" if one is None else f"{100 * (one['ece'] - one['null']):.2f} {one['nll']:.4f}")
        cells.append(f"{100 * each['K']['gap']:+.1f}")
        for name in sets:
            cells.append(" ".join(f"{100 * value:.0f}" for value in each["auroc"][name].values()))
            cells[-1] += " |" + "".join(f" {100 * fence['auroc'][name]:.0f}" for fence in each["fence"].values())
        beyond = "".join(f" {100 * fence['beyond']['known']:.1f}" for fence in each["fence"].values())
        rows.append([*cells, beyond, f"{each['seconds']:.0f}"])
    titles = [
        "variant",
        "accuracy",
        *(f"ECE - null, NLL: {kind}" for kind in kinds),
        "gap of K",
        *sets,
        "known beyond",
        "seconds",
    ]
    print_table("held-out training data", titles, rows, note="AUROC: confidence, energy, max logit, unknown | fenced")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", type=Path, help="a JSON file")
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=0, help="0: the recipe's")
    parser.add_argument("--branch", type=float, default=2 / 3)
    parser.add_argument("--holdout", type=float, default=0.1)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-unofficial", action="store_true", help="files that are not the published ones")
    parser.add_argument("--outliers", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for every variant's logits, in half precision")
    parser.add_argument("--out", type=writable, default="found.json", help="write all figures there")
    show(search(parser.parse_args()))


if __name__ == "__main__":
    with in_one_line():
        main()
