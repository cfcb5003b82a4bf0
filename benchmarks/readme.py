"""The README's tables, made from the records, so that no number stands there that nobody measured.

python benchmarks/readme.py            # writes them between their markers; `make readme`
"""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "records"


def digits() -> str:
    """All methods on digits with 8 and 9 unseen."""
    table = json.loads((RECORDS / "2026-11-15_digits" / "table.json").read_text())
    lines = [
        "Digits, 8 and 9 never seen in training, recipe `modern`, mean ± standard deviation over 3 seeds, two CPU cores "
        "(`make demo-all`, [record](records/2026-11-15_digits/record.md)). Accuracy, ECE and AUROC (confidence, known against unseen) in %:",
        "",
        "| method | accuracy | ECE | NLL | AUROC | unknown: known | unseen | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for method, runs in table.items():
        cells = []
        for key, scale, digits_after in (
            ("accuracy", 100, 1), ("ece", 100, 2), ("nll", 1, 3), ("auroc", 100, 1), ("unknown_known", 1, 3),
            ("unknown_unseen", 1, 3), ("seconds", 1, 1),
        ):  # fmt: skip
            values = [scale * run[key] for run in runs if run[key] is not None]
            mean = f"{statistics.mean(values):.{digits_after}f}" if values else "-"
            cells.append(
                mean if key == "seconds" or not values else f"{mean} ± {statistics.stdev(values):.{digits_after}f}"
            )
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def speed() -> str:
    """What the energy term costs on a GPU, and the trainings that were timed."""
    folder = RECORDS / "2026-11-15_speed-h200"
    figures = json.loads((folder / "speed.json").read_text())
    trainings = {run["run"]: run for run in json.loads((folder / "train.json").read_text())}
    tf32 = json.loads((folder / "tf32.json").read_text())["rows"][0]
    wanted = [
        ("resnet50", "penultimate", 256),
        ("resnet50", "stage4", 256),
        ("resnet50", "stage3", 256),
        ("wrn28_10", "stage2", 64),
    ]
    lines = [
        f"One {figures['device']}, torch {figures['torch']}, bfloat16, 64 chains of {figures['steps']} steps, milliseconds "
        "(`python benchmarks/speed.py`, [record](records/2026-11-15_speed-h200/record.md) with all models and batch sizes):",
        "",
        "| model | cut | batch | plain step | EOW step | ratio | chain | the same chain under autograd | arithmetic alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    references = {
        (row["model"], row["cut"]): row["chain_reference"] for row in figures["rows"] if "chain_reference" in row
    }
    for row in figures["rows"]:
        if (row["model"], row["cut"], row["batch"]) in wanted:
            reference = references[row["model"], row["cut"]]
            lines.append(
                f"| {row['model']} | {row['cut']} | {row['batch']} | {row['plain']:.1f} | {row['eow']:.1f} | {row['ratio']:.2f} "
                f"| {row['chain']:.2f} | {reference:.0f} | {row['floor']:.2f} |"
            )

    def minutes(name: str) -> str:
        run = trainings[name]
        return f"{run['train_seconds']:.1f} s ({100 * run['accuracy']:.1f} %, ECE {100 * run['ece']:.2f})"

    lines += [
        "",
        f"The authors' iteration on WRN-28-10 takes 414 ms in TF32; ours {tf32['eow']:.0f} ms in TF32. CIFAR-100, ResNet-50, "
        f"15 epochs, one seed: vanilla {minutes('vanilla')}, EOW from epoch 10 with 100 steps after stage 4 "
        f"{minutes('eow-features')}, the default EOW {minutes('eow-modern')}.",
    ]  # fmt: skip
    return "\n".join(lines)


def rendered(text: str) -> str:
    """The README with its tables as the records have them now."""
    for name, table in (("digits", digits), ("speed", speed)):
        begin, end = f"<!-- table: {name} -->\n", f"\n<!-- end: {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table() + end + rest.split(end)[1]
    return text


def main() -> None:
    readme: Any = ROOT / "README.md"
    readme.write_text(rendered(readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
