"""The report's tables: the headline with the paper beside it, the unknowns, and the paper's table 2."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from eow import paper
from eow.evaluate import KNOWN
from eow.metrics.ood import THRESHOLDS
from eow.report.gather import Bunch, Group
from eow.report.parts import DASH, Cell, Table

# figure, title, factor, digits, the paper's name for it
KNOWN_COLUMNS = (
    ("accuracy", "accuracy %", 100, 2, "acc_pct"), ("ece", "ECE %", 100, 2, "ece_pct"),
    ("null_ece", "null ECE %", 100, 2, ""), ("smooth_ece", "smooth ECE %", 100, 2, ""), ("nll", "NLL", 1, 3, "nll"),
    ("nll_renormalised", "NLL of K", 1, 3, ""), ("brier", "Brier", 1, 3, ""), ("aurc", "AURC %", 100, 3, ""),
    ("unknown", "unknown", 1, 3, ""),
)  # fmt: skip
UNKNOWN_COLUMNS = (
    ("auroc_confidence", "AUROC % confidence", 100, 1), ("auroc_entropy", "AUROC % entropy", 100, 1),
    ("auroc_unknown", "AUROC % unknown", 100, 1), ("fpr95_confidence", "FPR95 % confidence", 100, 1),
    ("fpr95_entropy", "FPR95 % entropy", 100, 1), ("fpr95_unknown", "FPR95 % unknown", 100, 1),
    ("oscr_confidence", "OSCR % confidence", 100, 1), ("confidence", "mean confidence", 1, 3),
    ("unknown", "mean unknown", 1, 3),
)  # fmt: skip
SPREAD = "Several seeds: mean ± standard deviation. One seed: some figures with a 95 % interval."


def name_of(group: Group) -> Cell:
    return Cell(group.label, colour=group.colour)


def figure_cell(
    values: Sequence[float | None], factor: float, digits: int, interval: Sequence[float] | None = None
) -> Cell:
    """One value of every seed as a cell; a dash where a run has none."""
    numbers = [factor * value for value in values if value is not None and math.isfinite(value)]
    if not numbers or len(numbers) < len(values):
        return DASH
    mean = statistics.fmean(numbers)
    text = f"{mean:.{digits}f}"
    if len(numbers) > 1:
        spread = statistics.stdev(numbers)
        return Cell(text, mean, spread=spread, beside=f"± {spread:.{digits}f}")
    if interval is None:
        return Cell(text, mean)
    low, high = (factor * end for end in interval)
    return Cell(text, mean, low=low, high=high, beside=f"[{low:.{digits}f}, {high:.{digits}f}]")


def of_group(group: Group, where: str, figure: str, factor: float, digits: int) -> Cell:
    if figure == "unknown" and not has_unknown(group):
        return DASH
    values = [run.figures.get(where, {}).get(figure) for run in group.runs]
    cell = figure_cell(values, factor, digits, group.first.intervals.get(where, {}).get(figure))
    if figure == "null_ece" and cell is not DASH:
        return replace(cell, beside="")  # a yardstick, whose spread says nothing
    return cell


def has_unknown(group: Group) -> bool:
    """Whether the method ever says unknown; it is 0 everywhere where a method has none."""
    return any(table.get("unknown", 0) > 0 for run in group.runs for table in run.figures.values())


def headline(bunch: Bunch, rate: float | None) -> Table:
    """The figures on the known classes' test set, and the paper's where it has the same data, model and method."""
    swept = [group.first for group in bunch.groups if group.first.method == "eow" and not group.first.imported]
    lams = {run.config["method"]["lam"] for run in swept}
    printed = {
        name: [paper_figure(group, name, len(lams) > 1) for group in bunch.groups] for *_, name in KNOWN_COLUMNS if name
    }
    models = len({group.first.config["model"]["name"] for group in bunch.groups}) > 1
    header = ["method", *(["model"] if models else [])]
    rows = [
        [name_of(group), *([Cell(group.first.config["model"]["name"])] if models else [])] for group in bunch.groups
    ]
    for figure, title, factor, digits, name in KNOWN_COLUMNS:
        cells = [of_group(group, KNOWN, figure, factor, digits) for group in bunch.groups]
        if all(cell is DASH for cell in cells):
            continue
        header.append(title)
        for row, cell in zip(rows, cells):
            row.append(cell)
        if name and any(value is not None for value in printed[name]):
            header.append(f"paper's {title}")
            for row, value in zip(rows, printed[name]):
                row.append(DASH if value is None else Cell(f"{value:g}", value))
    trained = not all(group.first.imported for group in bunch.groups)
    header += ["seconds", "seeds"] if trained else ["seeds"]
    for row, group in zip(rows, bunch.groups):
        row += [figure_cell([run.summary["train_seconds"] for run in group.runs], 1, 1)] if trained else []
        row.append(Cell(str(len(group.runs)), len(group.runs)))
    samples = len(bunch.groups[0].first.known.labels)
    beside = any(value is not None for values in printed.values() for value in values)
    caption = (
        f"On the {samples:,} test samples of known classes. {SPREAD} ECE: 15 bins of equal width; null ECE is what a "
        "perfectly calibrated model with the same confidences would measure, so an ECE close to it is not a sign of "
        "miscalibration. NLL: as predicted, so that probability given to unknown is lost; NLL of K: with the K classes "
        "renormalised. AURC: area under the risk-coverage curve." + " Seconds: of training." * trained
    )
    caption += rate_words(rate)
    if beside:
        tables = "tables 1 and, by λ, 3" if len(lams) > 1 else "table 1"
        caption += f" The paper's figures are those printed in its {tables}, for its own training."
    return Table("headline", "Known classes", header, rows, caption)


def rate_words(rate: float | None) -> str:
    return "" if rate is None else f" Runs with an unknown logit are shown for an unknown rate of {rate:g}."


def paper_figure(group: Group, column: str, by_lambda: bool) -> float | None:
    """What the paper prints for this data, model and method: in table 1, or where runs differ in λ in table 3, if that
    has the data."""
    config = group.first.config
    if config["data"].get("unknown_classes") or group.first.imported:
        return None
    keys = {"dataset": config["data"]["name"], "model": config["model"]["name"]}
    swept = by_lambda and any(row["dataset"] == keys["dataset"] for row in paper.read("table3_lambda"))
    if swept and group.first.method == "eow":
        return paper.figure("table3_lambda", column, {**keys, "lambda": float(config["method"]["lam"])})
    return paper.figure("table1_calibration", column, {**keys, "method": group.first.method})


def unknowns(bunch: Bunch, rate: float | None) -> Table | None:
    """How each method tells the known test set from every unknown set."""
    if not bunch.sets:
        return None
    columns = [
        column for column in UNKNOWN_COLUMNS
        if any(of_group(group, name, *column_of(column)) is not DASH for group in bunch.groups for name in bunch.sets)
    ]  # fmt: skip
    rows = [
        [name_of(group), Cell(set_name(bunch, name)), Cell(bunch.sets[name]),
         *(of_group(group, name, *column_of(column)) for column in columns)]
        for name, group in sets_of_groups(bunch)
    ]  # fmt: skip
    caption = (
        f"Each unknown set against the known test set. {SPREAD} AUROC: how often a known sample looks more known than "
        "an unknown one, by confidence, by entropy (the lower, the more known) or by 1 - unknown. FPR95: the share of "
        "unknown samples accepted where 95 % of the known ones are. OSCR: the area under correct classification "
        "against false acceptance. The last two columns are means over the unknown set." + rate_words(rate)
    )
    return Table("unknowns", "Unknowns", ["method", "unknowns", "kind", *(c[1] for c in columns)], rows, caption)


def sets_of_groups(bunch: Bunch) -> list[tuple[str, Group]]:
    """Every set of unknowns with every group that has met it."""
    return [
        (name, group) for name in bunch.sets for group in bunch.groups if any(name in run.others for run in group.runs)
    ]


def column_of(column: tuple[str, str, float, int]) -> tuple[str, float, int]:
    return column[0], column[2], column[3]


def set_name(bunch: Bunch, name: str) -> str:
    """How a set of unknowns is called on the page."""
    if name != "unknown":
        return name
    classes = bunch.groups[0].first.config["data"].get("unknown_classes", [])
    return f"classes {', '.join(map(str, classes))}" if classes else "unseen classes"


def at_thresholds(bunch: Bunch, rate: float | None) -> Table | None:
    """The paper's table 2: accuracy among the predictions above a threshold, unknown samples counted as wrong."""
    if not bunch.sets:
        return None
    names = [f"{threshold:g}" for threshold in THRESHOLDS]
    lines = sets_of_groups(bunch)
    printed = [[paper_at(group, name, threshold) for threshold in THRESHOLDS] for name, group in lines]
    beside = any(value is not None for line in printed for value in line)
    header = ["method", "with"]
    for name in names:
        header += [f"above {name}, %", *([f"paper's above {name}, %"] if beside else [])]
    rows = []
    for (name, group), values in zip(lines, printed):
        row = [name_of(group), Cell(set_name(bunch, name))]
        for threshold, value in zip(names, values):
            found = [run.figures.get(name, {}).get("accuracy_at", {}).get(threshold) for run in group.runs]
            row.append(figure_cell(found, 100, 2))
            row += [DASH if value is None else Cell(f"{value:g}", value)] if beside else []
        rows.append(row)
    caption = (
        "The paper's table 2: of all predictions on both sets with a confidence above the threshold, the share that is "
        "right; every unknown sample counts as wrong. A dash: nothing is left above the threshold." + rate_words(rate)
    )
    return Table("table2", "Accuracy above a threshold", header, rows, caption)


def paper_at(group: Group, name: str, threshold: float) -> float | None:
    config = group.first.config
    if (config["data"]["name"], config["model"]["name"]) != ("cifar100", "resnet50"):
        return None  # the paper's one setting of table 2
    if config["data"].get("unknown_classes"):
        return None
    keys: dict[str, str | float] = {"ood_dataset": name, "method": group.first.method, "threshold": threshold}
    return paper.figure("table2_ood_thresholds", "acc_pct", keys)
