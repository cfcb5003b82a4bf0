"""The demo: digits with 8 and 9 never seen in training, vanilla beside EOW-Softmax, in one table; or all methods over
several seeds."""

import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eow.config import RunConfig, resolve
from eow.console import console, print_table
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.methods import METHODS
from eow.methods.vanilla import VanillaOptions
from eow.runs import train
from eow.storage import write_json

UNKNOWN_CLASSES = (8, 9)
RATE = 0.01  # the unknown rate of the table's last ECE
PATTERNS = {
    "accuracy": "{:.1%}", "ece": "{:.2%}", "ece_at_rate": "{:.2%}", "nll": "{:.3f}", "auroc": "{:.1%}",
    "unknown_known": "{:.3f}", "unknown_unseen": "{:.3f}", "seconds": "{:.1f}",
}  # fmt: skip
NOTE = "accuracy, ECE and AUROC in %. AUROC: confidence on known digits against 8s and 9s.\nunknown: its mean on each."


def demo_config(method: str, seed: int) -> RunConfig:
    wishes = {"data": {"name": "digits", "unknown_classes": UNKNOWN_CLASSES}, "method": {"name": method}, "seed": seed}
    return resolve(wishes)


def run_demo(folder: Path, seed: int = 0, resume: bool = False) -> dict[str, dict[str, Any]]:
    """Train both methods into `folder`, print the table, and return its figures by method."""
    console.print("digits 0-7 are known; 8 and 9 are never seen in training and should come out as unknown")
    figures = {}
    for method in ("vanilla", "eow"):
        if not resume and (folder / method / "config.json").exists():
            shutil.rmtree(folder / method)  # an old demo, which this one replaces
        with one_thread():
            summary = train(demo_config(method, seed), folder / method, resume=resume)
        figures[method] = row(folder / method, summary)
    write_json(folder / "table.json", figures)
    print_table(
        f"digits, seed {seed}",
        ["method", "accuracy", "ECE", f"ECE, ρ={RATE}", "NLL", "AUROC", "unknown: known", "unseen", "seconds"],
        [[method, *cells(each)] for method, each in figures.items()],
        note=f"{NOTE} ρ: the share of unknowns to expect, {RATE} instead of λ/(1+λ).",
    )
    console.print(f"everything is in {folder}/")
    return figures


def run_all(folder: Path, seeds: int = 3) -> dict[str, list[dict[str, Any]]]:
    """Train every method with every seed into `folder`, print the table of means, and return the figures by method.

    Runs that are already complete are not made again. Post-hoc methods share one vanilla run without the held-out part.
    """
    if seeds < 1:
        raise EowError(f"{seeds} seeds are none: give at least 1")
    figures: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        for method, kind in METHODS.items():
            config, beside = demo_config(method, seed), folder / f"seed{seed}"
            with one_thread():
                if kind.post_hoc and config.data.holdout:
                    vanilla = replace(config, method=VanillaOptions())
                    train(vanilla, beside / "vanilla-holdout", resume=True, progress=False)
                summary = train(config, beside / method, resume=True, progress=False)
            figures[method].append(row(beside / method, summary))
            console.print(f"seed {seed}: {method}, {summary['train_seconds']:.1f} s of training")
    write_json(folder / "table.json", figures)
    shown = {key: pattern for key, pattern in PATTERNS.items() if key != "ece_at_rate"}
    print_table(
        f"digits, {seeds} seeds",
        ["method", "accuracy", "ECE", "NLL", "AUROC", "unknown: known", "unseen", "seconds"],
        [[m, *(spread([one[key] for one in runs], shown[key]) for key in shown)] for m, runs in figures.items()],
        note=f"{NOTE} Mean ± standard deviation over the seeds.",
    )
    console.print(f"everything is in {folder}/")
    return figures


@contextmanager
def one_thread() -> Iterator[None]:
    """For networks this small: several threads gain nothing, and on a busy machine wait for one another most of the
    time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def row(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    known, unseen = summary["metrics"]["test"], summary["metrics"]["unknown"]
    has_unknown = max(known["unknown"], unseen["unknown"]) > 0
    return {
        "accuracy": known["accuracy"], "ece": known["ece"], "nll": known["nll"], "auroc": unseen["auroc_confidence"],
        "ece_at_rate": evaluate(folder, RATE)["test"]["ece"] if "auroc_unknown" in unseen else None,
        "unknown_known": known["unknown"] if has_unknown else None,
        "unknown_unseen": unseen["unknown"] if has_unknown else None,
        "seconds": summary["train_seconds"],
    }  # fmt: skip


def cells(figures: dict[str, Any]) -> list[str]:
    return [spread([figures[key]], pattern) for key, pattern in PATTERNS.items()]


def spread(values: list[float | None], pattern: str) -> str:
    """ "98.4 ± 0.2"; one value stands alone, and what a method does not have is a dash."""
    if all(value is None for value in values):
        return "-"
    numbers = [value or 0.0 for value in values]  # `shrink` may have an unknown with one seed and none with another
    parts = [statistics.mean(numbers), *([statistics.stdev(numbers)] if len(numbers) > 1 else [])]
    return " ± ".join(pattern.format(part).rstrip("%") for part in parts)
