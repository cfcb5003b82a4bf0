"""Predictions without a network: arrays of a known making, written as the folder of a finished run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from eow.predictions import file_name, write

CLASSES = 4
LAM = 0.1


def spoken(
    seed: int, count: int = 400, *, open_world: bool = True, skill: float = 2.0, unknown: float = 0.0
) -> dict[str, np.ndarray]:
    """K or K+1 logits of noise, with `skill` added to the true class's and `unknown` to the last, and their softmax."""
    random = np.random.default_rng(seed)
    labels = random.integers(CLASSES, size=count)
    logits = random.normal(size=(count, CLASSES + open_world))
    logits[np.arange(count), labels] += skill
    if open_world:
        logits[:, -1] += unknown
    return answers(logits.astype(np.float32), labels)


def answers(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    h = softmax(logits.astype(np.float64), axis=1).astype(np.float32)
    probs, unknown = h[:, :CLASSES].copy(), h[:, CLASSES:].sum(1)
    return {
        "label": probs.argmax(1), "labels": labels, "confidence": probs.max(1), "probs": probs, "unknown": unknown,
        "logits": logits,
    }  # fmt: skip


def write_run(folder: Path, sets: dict[str, dict[str, np.ndarray]], **manifest: Any) -> Path:
    """The folder of a finished run that has said this, by the sets' names."""
    for name, arrays in sets.items():
        known = {
            "name": name, "key": "k", "method": "eow", "odds": LAM, "seed": 0, "data_hash": name,
            "config": {"data": {"name": "cifar10"}}, **manifest,
        }  # fmt: skip
        if arrays["logits"].shape[1] == CLASSES:
            known["method"], known["odds"] = manifest.get("method", "vanilla"), None
        write(folder / "predictions" / file_name(name), arrays, known)
    (folder / "summary.json").write_text(json.dumps({}))
    return folder
