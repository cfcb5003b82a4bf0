"""The tables of README.md and docs/results.md, made from the records, so that no number stands there that nobody
measured.

python benchmarks/readme.py            # writes them between their markers; `make readme`
python benchmarks/readme.py --check    # writes nothing, and exits with 1 where a page has others
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eow.bench.table import text_cells

ROOT = Path(__file__).parent.parent
DIGITS = "records/2026-11-18_demo-full"
CIFAR = "records/2026-11-16_settled"
REST = "records/2026-11-16_methods-30"
SEEDS = "records/2026-11-16_methods-seeds"
JEM = "records/2026-11-16_jem-ensemble"
SPEED = "records/2026-11-15_speed-h200"
MODERN = "records/2026-11-20_speed-modern"
MNIST = "records/2026-11-18_mnist-methods"
TABULAR = "records/2026-11-19_tabular"
OF_THREE = ("eow", "feature_negatives", "noise_negatives", "vos", "trust_score")  # with as many seeds

# Every text is formatted with `root`, the way from its page to the repository.
ABOUT_SHORT = f"""CIFAR-100, ResNet-50, 30 epochs on one H200 ([five seeds]({{root}}{CIFAR}/record.md),
[three seeds]({{root}}{REST}/record.md)). Mean ± standard deviation; 894 of the 50,000 training images are held out for
what is fitted after training (mixup holds none out). In brackets the ECE that a perfectly calibrated model would
measure. AUROC in %, known against strange: CIFAR-10 and SVHN by entropy, noise and shuffled pixels by unknown or, where
a method has none, by confidence.
"""
ABOUT_CIFAR = f"""ResNet-50, 30 epochs, one H200, mean ± standard deviation. Rows without a mark: five seeds
([record]({{root}}{CIFAR}/record.md) with plan, commands and paired differences). *: seeds 0, 1 and 2
([record]({{root}}{REST}/record.md); ova_dm and dble: [record]({{root}}{SEEDS}/record.md), jem:
[record]({{root}}{JEM}/record.md)). °: trained on all 50,000 images; the others hold the same 894 out. ECE in %, in
brackets what a perfectly calibrated model would measure. AUROC in %: CIFAR-10 and SVHN (re-cropped) by entropy (by
vanilla's confidence {{near}}), noise and permuted pixels by unknown where one was trained, else by confidence.
An ensemble has been run over [15 epochs]({{root}}docs/reproduction.md#table-1-calibration) only.
"""
ABOUT_MNIST = f"""MLP 784-512-512, 10 epochs, three seeds, two CPU cores ([record]({{root}}{MNIST}/record.md) with plan,
command and paired differences). vanilla, label_smoothing, mixup, mc_dropout, ensemble, jem, ova_dm and dble train on
all 60,000 images, the others hold 980 out. Columns as above.
"""
ABOUT_DIGITS = f"""Digits 0 to 7, with 8 and 9 never seen in training; recipe `modern`, mean ± standard deviation over
three seeds, one CPU thread (`make demo-all`, [record]({{root}}{DIGITS}/record.md)). Accuracy, ECE and AUROC
(confidence, known against unseen) in %.
"""
ABOUT_TABULAR = f"""`EOWClassifier` beside scikit-learn's classifiers with their defaults, five splits
(`python benchmarks/tabular.py`, [record]({{root}}{TABULAR}/record.md) with its caveats). AUROC in % by unknown (the
others: by their largest probability) between test rows and three kinds of strange rows: columns shuffled, ten times as
far from the mean, of a class left out of training.
"""
ABOUT_SPEED = """One {device}, torch {torch}, bfloat16, milliseconds; 64 chains of {steps} steps, as the paper has
them, before a linear unknown. A plain step is a training step of vanilla, an EOW step runs the chains as well. Chain:
the chains alone; under autograd: the same in plain PyTorch, with autograd; its arithmetic: how long their arithmetic
alone would take at the speed of this GPU in matrix products. Measured by `python benchmarks/speed.py`; all models and
batch sizes are in the [record]({root}{folder}/record.md).
"""
ABOUT_MODERN = """
The recipe has 20 steps before a quadratic unknown, at the penultimate cut. While its energy term is on, in the last
sixth of 30 epochs, a step takes {ratios} times a plain one of resnet50 in batches of {batches}
([record]({root}{folder}/record.md)).
"""
ABOUT_TRAINING = """
On such a machine the authors' own code takes 414 ms per iteration on WRN-28-10 in TF32, ours {tf32:.0f} ms.
The epochs of one training on CIFAR-100 (ResNet-50, 15 epochs, one seed) take {vanilla} for vanilla and {features} for
EOW, with the energy term from epoch 10 and 100 steps after stage 4."""

SHOWN = (("resnet50", "penultimate", 256), ("resnet50", "stage4", 256), ("resnet50", "stage3", 256))
SHOWN += (("wrn28_10", "stage2", 64),)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures_of(folder: str) -> dict[str, Any]:
    """A record's figures by method."""
    table = json.loads((ROOT / folder / "table.json").read_text())
    return {row["method"]: row["figures"] for row in table["rows"]}


def short_table(root: str) -> str:
    """What decides, on CIFAR-100: vanilla and its temperature, the best of the other baselines, EOW and what it is
    without its steps."""
    settled, controls = figures_of(f"{CIFAR}/cifar100-30"), figures_of(f"{REST}/controls")
    chosen = [
        ("vanilla", settled["vanilla"]),
        ("temperature", settled["temperature"]),
        ("mixup", figures_of(f"{REST}/methods")["mixup"]),
        ("EOW", settled["eow"]),
        ("EOW, seeds 0 to 2", controls["eow"]),
        ("the same without Langevin steps", controls["feature_negatives"]),
    ]
    header = ["method", "seeds", "accuracy %", "ECE % (null)", "NLL", "CIFAR-10", "SVHN", "noise", "shuffled"]
    rows = []
    for title, figures in chosen:
        cells = cifar_cells(figures)
        rows.append([title, str(len(figures["NLL"]["by_seed"])), *cells[:3], *cells[4:]])
    return f"{ABOUT_SHORT.format(root=root)}\n{markdown(header, rows)}"


def digits_table(root: str) -> str:
    """All methods on digits with 8 and 9 unseen."""
    table = json.loads((ROOT / DIGITS / "table.json").read_text())
    header, rows = text_cells(table)
    return f"{ABOUT_DIGITS.format(root=root)}\n{markdown(header, rows)}\n\n{table['note']}"


def cifar_table(root: str) -> str:
    """The recipe on CIFAR-100 beside vanilla, the other methods and the controls."""
    settled, controls = figures_of(f"{CIFAR}/cifar100-30"), figures_of(f"{REST}/controls")
    fewer = {f"{method} *": controls[method] for method in OF_THREE}
    folders = (f"{REST}/methods", f"{SEEDS}/epochs-30", f"{JEM}/jem-30")
    others = {f"{method} *°": figures for folder in folders for method, figures in figures_of(folder).items()}
    header = ["method", "accuracy %", "ECE % (null)", "NLL", "NLL of K", "CIFAR-10", "SVHN", "noise", "permuted"]
    rows = [[title, *cifar_cells(figures)] for title, figures in {**settled, **fewer, **others}.items()]
    near = [f"{100 * settled['vanilla'][f'AUROC confidence %: {name}']['mean']:.1f}" for name in ("cifar10", "svhn")]
    return f"{ABOUT_CIFAR.format(root=root, near=' and '.join(near))}\n{markdown(header, rows)}"


def mnist_table(root: str) -> str:
    """Every method on MNIST."""
    found = figures_of(MNIST)
    header = [
        "method",
        "accuracy %",
        "ECE % (null)",
        "NLL",
        "NLL of K",
        "Fashion-MNIST",
        "notMNIST",
        "noise",
        "permuted",
    ]
    rows = [[method, *cells_of(figures, ("fashion_mnist", "notmnist"), "mnist")] for method, figures in found.items()]
    return f"{ABOUT_MNIST.format(root=root)}\n{markdown(header, rows)}"


def cifar_cells(figures: dict[str, Any]) -> list[str]:
    return cells_of(figures, ("cifar10", "svhn"), "cifar100")


def cells_of(figures: dict[str, Any], outliers: tuple[str, ...], data: str) -> list[str]:
    """Accuracy, ECE, NLL; outliers by entropy; noise and permuted data by unknown, or by confidence without one."""

    def spread(name: str, factor: int, digits: int) -> str:
        known = [figures[name][key] for key in ("mean", "std") if figures[name][key] is not None]
        return " ± ".join(f"{factor * each:.{digits}f}" for each in known)

    cells = [spread("accuracy %", 100, 2), spread("ECE %", 100, 2), spread("NLL", 1, 3), spread("NLL of K", 1, 3)]
    cells[1] += f" ({100 * figures['null ECE %']['mean']:.2f})"
    aurocs = [f"AUROC entropy %: {name}" for name in outliers]
    for name in ("noise", f"permuted:{data}"):
        by_unknown = f"AUROC unknown %: {name}"
        has = figures[by_unknown]["mean"] is not None
        aurocs.append(by_unknown if has else f"AUROC confidence %: {name}")
    return cells + [f"{100 * figures[name]['mean']:.1f}" for name in aurocs]


def tabular_table(root: str) -> str:
    """The estimator beside scikit-learn's classifiers."""
    rows = []
    for name, table in json.loads((ROOT / TABULAR / "tabular.json").read_text())["tables"].items():
        for row in table:
            cells = [f"{100 * row['accuracy']:.1f}", f"{row['log_loss']:.3f} ± {row['log_loss_error']:.3f}"]
            cells += [f"{100 * row['ece']:.2f} ({100 * row['null_ece']:.2f})"]
            cells += [
                "-" if row[key] is None else f"{100 * row[key]:.1f}"
                for key in ("auroc_permuted", "auroc_far", "auroc_unseen")
            ]
            rows.append([name, row["classifier"], *cells, f"{row['seconds']:.2f}"])
    header = [
        "set",
        "classifier",
        "accuracy %",
        "log-loss",
        "ECE % (null)",
        "AUROC permuted",
        "far",
        "unseen",
        "seconds",
    ]
    return f"{ABOUT_TABULAR.format(root=root)}\n{markdown(header, rows)}"


def speed_table(root: str) -> str:
    """What the energy term costs on a GPU, and the trainings that were timed."""
    figures = json.loads((ROOT / SPEED / "speed.json").read_text())
    tf32 = json.loads((ROOT / SPEED / "tf32.json").read_text())["rows"][0]["eow"]
    slow = {(row["model"], row["cut"]): row["chain_reference"] for row in figures["rows"] if "chain_reference" in row}
    rows = []
    for row in figures["rows"]:
        if (row["model"], row["cut"], row["batch"]) in SHOWN:
            times = [f"{row['plain']:.1f}", f"{row['eow']:.1f}", f"{row['ratio']:.2f}", f"{row['chain']:.1f}"]
            times += [f"{slow[row['model'], row['cut']]:.0f}", f"{row['floor']:.2f}"]
            rows.append([row["model"], row["cut"], str(row["batch"]), *times])
    header = ["model", "cut", "batch", "plain step", "EOW step", "ratio", "chain", "under autograd", "its arithmetic"]
    runs = {}
    for run in json.loads((ROOT / SPEED / "train.json").read_text()):
        told = f"{100 * run['accuracy']:.1f} %, ECE {100 * run['ece']:.2f}"
        runs[run["run"].removeprefix("eow-")] = f"{run['train_seconds']:.1f} s ({told})"
    about = ABOUT_SPEED.format(root=root, folder=SPEED, **{key: figures[key] for key in ("device", "torch", "steps")})
    trained = ABOUT_TRAINING.format(tf32=tf32, **{key: runs[key] for key in ("vanilla", "features")})
    return f"{about}\n{markdown(header, rows)}\n{modern_steps(root)}{trained}"


def modern_steps(root: str) -> str:
    """What a step of the recipe costs."""
    rows = json.loads((ROOT / MODERN / "speed.json").read_text())["rows"]
    found = {row["batch"]: row["ratio"] for row in rows if (row["model"], row["cut"]) == ("resnet50", "penultimate")}
    ratios, batches = ("{}, {} and {}".format(*each) for each in ([f"{r:.2f}" for r in found.values()], found))
    return ABOUT_MODERN.format(root=root, folder=MODERN, ratios=ratios, batches=batches)


PAGES: dict[str, dict[str, Callable[[str], str]]] = {
    "README.md": {"short": short_table, "speed": speed_table},
    "docs/results.md": {"cifar": cifar_table, "mnist": mnist_table, "digits": digits_table, "tabular": tabular_table},
}


def rendered(page: str, text: str) -> str:
    """The page with its tables as the records have them now."""
    root = "../" * page.count("/")
    for name, table in PAGES[page].items():
        begin, end = f"<!-- table: {name} -->\n", f"\n<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{page} must have {begin.strip()} and {end.strip()} once each: mend it by hand")
        before, rest = text.split(begin)
        text = before + begin + table(root) + end + rest.split(end)[1]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, say whether the pages are as they should")
    arguments = parser.parse_args()
    for page in PAGES:
        old = (ROOT / page).read_text(encoding="utf-8")
        new = rendered(page, old)
        if not arguments.check:
            (ROOT / page).write_text(new, encoding="utf-8")
        elif new != old:
            sys.exit(f"{page} has other tables than the records: run `make readme`")


if __name__ == "__main__":
    main()
