"""The demo: digits with 8 and 9 never seen in training, vanilla beside EOW-Softmax, in one table and a report; or all
methods over several seeds."""

from pathlib import Path
from typing import Any

from eow import storage
from eow.config import RunConfig, resolve, to_table
from eow.console import console, print_table
from eow.errors import EowError
from eow.report import report
from eow.runfolder import difference, foreign_files, remove_run
from eow.runs import train
from eow.threads import one_thread

METHODS = ("vanilla", "eow")
WRITTEN = ("table.json", "report.html")  # beside the runs
UNKNOWN_CLASSES = (8, 9)
PATTERNS = {
    "accuracy": "{:.1%}", "ece": "{:.2%}", "null_ece": "{:.2%}", "nll": "{:.3f}", "auroc": "{:.1%}",
    "unknown_known": "{:.3f}", "unknown_unseen": "{:.3f}", "seconds": "{:.1f}",
}  # fmt: skip
NOTE = """accuracy, ECE and AUROC in %. null: the ECE of a perfectly calibrated model with these confidences.
AUROC: how well confidence tells known digits from 8s and 9s.
known, unseen: the mean unknown on each."""


def demo_config(method: str, seed: int) -> RunConfig:
    wishes = {"data": {"name": "digits", "unknown_classes": UNKNOWN_CLASSES}, "method": {"name": method}, "seed": seed}
    return resolve(wishes)


def check_old(folder: Path) -> list[Path]:
    """The runs of an old demo in the folder, which a new one replaces. What is anybody else's is an error."""
    old = [folder / method for method in METHODS if (folder / method / "config.json").exists()]
    for place in old:
        found = storage.read_json(place / "config.json")
        wanted = {**to_table(demo_config(place.name, 0)), "seed": found.get("seed")}
        changed, foreign = difference(found, wanted), foreign_files(place)
        if changed or foreign:
            what = f"no demo's run ({changed})" if changed else f"{foreign[0].name}, which no demo makes"
            raise EowError(f"{place} holds {what}: move it away, or choose another folder for --out")
    for file in (folder / name for name in WRITTEN):
        if file.exists() and not old:
            raise EowError(f"{file} is of no demo that is there: move it away, or choose another folder for --out")
    return old


def run_demo(folder: Path, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Train both methods into `folder`, print the table, and return its figures by method."""
    old, figures = check_old(folder), {}
    console.print(
        "digits 0-7 are known; 8 and 9 are never seen in training, so they should get less confidence and more unknown"
    )
    for method in METHODS:
        if folder / method in old:
            with storage.locked(folder / method):
                remove_run(folder / method)
        with one_thread():
            summary = train(demo_config(method, seed), folder / method)
        figures[method] = row(summary)
    storage.write_json(folder / WRITTEN[0], figures)
    print_table(
        f"digits, seed {seed}",
        ["method", "accuracy", "ECE", "null", "NLL", "AUROC", "known", "unseen", "seconds"],
        [[method, *cells(each)] for method, each in figures.items()],
        note=NOTE,
    )
    [page] = report([folder / method for method in figures], folder / WRITTEN[1])
    console.print(f"everything is in {folder}/; as a page: {page}")
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
