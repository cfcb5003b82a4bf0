"""The demo: digits with 8 and 9 never seen in training, vanilla beside EOW-Softmax, in one table and a report; or all
methods over several seeds."""

import shutil
from pathlib import Path
from typing import Any

from eow.config import RunConfig, resolve
from eow.console import console, print_table
from eow.report import report
from eow.runs import train
from eow.storage import write_json
from eow.threads import one_thread

UNKNOWN_CLASSES = (8, 9)
PATTERNS = {
    "accuracy": "{:.1%}", "ece": "{:.2%}", "null_ece": "{:.2%}", "nll": "{:.3f}", "auroc": "{:.1%}",
    "unknown_known": "{:.3f}", "unknown_unseen": "{:.3f}", "seconds": "{:.1f}",
}  # fmt: skip
NOTE = """accuracy, ECE and AUROC in %. null: the ECE of a perfectly calibrated model with these confidences.
AUROC: confidence on known digits against 8s and 9s. unknown: its mean on each."""


def demo_config(method: str, seed: int) -> RunConfig:
    wishes = {"data": {"name": "digits", "unknown_classes": UNKNOWN_CLASSES}, "method": {"name": method}, "seed": seed}
    return resolve(wishes)


def run_demo(folder: Path, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Train both methods into `folder`, print the table, and return its figures by method."""
    console.print("digits 0-7 are known; 8 and 9 are never seen in training and should be less sure and more unknown")
    figures = {}
    for method in ("vanilla", "eow"):
        if (folder / method / "config.json").exists():
            shutil.rmtree(folder / method)  # an old demo, which this one replaces
        with one_thread():
            summary = train(demo_config(method, seed), folder / method)
        figures[method] = row(summary)
    write_json(folder / "table.json", figures)
    print_table(
        f"digits, seed {seed}",
        ["method", "accuracy", "ECE", "null", "NLL", "AUROC", "unknown: known", "unseen", "seconds"],
        [[method, *cells(each)] for method, each in figures.items()],
        note=NOTE,
    )
    [page] = report([folder / method for method in figures], folder / "report.html")
    console.print(f"everything is in {folder}/; to look at: {page}")
    return figures


def run_all(folder: Path, seeds: int = 3) -> dict[str, Any]:
    """Every method with every seed: the bench of bench/demo.toml, which goes on where it was stopped."""
    from importlib.resources import files

    from eow.bench import bench

    usual = seeds == 3  # the grid's own
    return bench(Path(str(files("eow.bench") / "demo.toml")), folder, size="full", seeds=0 if usual else seeds)


def row(summary: dict[str, Any]) -> dict[str, Any]:
    known, unseen = summary["metrics"]["test"], summary["metrics"]["unknown"]
    has_unknown = max(known["unknown"], unseen["unknown"]) > 0
    return {
        "accuracy": known["accuracy"], "ece": known["ece"], "nll": known["nll"], "auroc": unseen["auroc_confidence"],
        "null_ece": known["null_ece"],
        "unknown_known": known["unknown"] if has_unknown else None,
        "unknown_unseen": unseen["unknown"] if has_unknown else None,
        "seconds": summary["train_seconds"],
    }  # fmt: skip


def cells(figures: dict[str, Any]) -> list[str]:
    """What a method does not have is a dash."""
    values = [(figures[key], pattern) for key, pattern in PATTERNS.items()]
    return ["-" if value is None else pattern.format(value).rstrip("%") for value, pattern in values]
