"""The demo: digits with 8 and 9 never seen in training, vanilla beside EOW-Softmax, in one table."""

import shutil
from pathlib import Path
from typing import Any

from eow.config import resolve
from eow.console import console, print_table
from eow.evaluate import evaluate
from eow.runs import train

UNKNOWN_CLASSES = (8, 9)
RATE = 0.01  # the unknown rate of the table's last ECE


def run_demo(folder: Path, seed: int = 0, resume: bool = False) -> dict[str, dict[str, Any]]:
    """Train both methods into `folder`, print the table, and return its figures by method."""
    console.print(
        "digits 0-7 are known; 8 and 9 are never seen in training and should come out as unknown", highlight=False
    )
    figures = {}
    for method in ("vanilla", "eow"):
        if not resume and (folder / method / "config.json").exists():
            shutil.rmtree(folder / method)  # an old demo, which this one replaces
        wishes = {
            "data": {"name": "digits", "unknown_classes": UNKNOWN_CLASSES},
            "method": {"name": method},
            "seed": seed,
        }
        summary = train(resolve(wishes), folder / method, resume=resume)
        figures[method] = row(folder / method, summary)
    print_table(
        f"digits, seed {seed}",
        ["method", "accuracy", "ECE", f"ECE, ρ={RATE}", "NLL", "AUROC", "unknown: known", "unseen", "seconds"],
        [[method, *cells(each)] for method, each in figures.items()],
        note="accuracy, ECE and AUROC in %. AUROC: confidence on known test digits against 8s and 9s.\n"
        f"unknown: its mean on each. ρ: the share of unknowns to expect, {RATE} instead of λ/(1+λ).",
    )
    console.print(f"everything is in {folder}/")
    return figures


def row(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    known, unseen = summary["metrics"]["test"], summary["metrics"]["unknown"]
    open_world = "auroc_unknown" in unseen
    return {
        "accuracy": known["accuracy"], "ece": known["ece"], "nll": known["nll"], "auroc": unseen["auroc_confidence"],
        "ece_at_rate": evaluate(folder, RATE)["test"]["ece"] if open_world else None,
        "unknown_known": known["unknown"] if open_world else None,
        "unknown_unseen": unseen["unknown"] if open_world else None,
        "seconds": summary["train_seconds"],
    }  # fmt: skip


def cells(figures: dict[str, Any]) -> list[str]:
    patterns = {
        "accuracy": "{:.1%}", "ece": "{:.2%}", "ece_at_rate": "{:.2%}", "nll": "{:.3f}", "auroc": "{:.1%}",
        "unknown_known": "{:.3f}", "unknown_unseen": "{:.3f}", "seconds": "{:.1f}",
    }  # fmt: skip
    shown = {key: "-" if figures[key] is None else pattern.format(figures[key]) for key, pattern in patterns.items()}
    return [text.rstrip("%") for text in shown.values()]
