"""The table of a grid: mean ± standard deviation over seeds, the paper's figure beside ours, marks where a difference
is significant, and the cells that failed. The same runs give the same bytes.

Marks: v+ (v-) better (worse) than vanilla, b+ (b-) better (worse) than the best baseline, at p < 0.05 by a paired
t-test over the seeds that both have, corrected after Holm over all comparisons of a column (within rows that share the
axes for all methods). One seed, or differences that do not vary at all, give no mark. The best baseline is the method
with the best mean among those that are not EOW or one of its controls; it is picked on the same runs, which favours it.
"""

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eow import storage
from eow.bench.beside import paper_figure
from eow.bench.columns import Column, figures_of, value_at
from eow.bench.grid import Cell, Grid
from eow.config import Table
from eow.console import console, print_table
from eow.plain import encoded, no_formula
from eow.recipes import CONTROLS

NO_BASELINES = ("eow", "shrink", *CONTROLS)  # ours, and controls of ours
LEVEL = 0.05
TABLES = ("table.json", "table.md", "table.csv")
NOTE = (
    "Mean ± standard deviation over seeds. v+ / v-: better / worse than vanilla; b+ / b-: than the best baseline "
    f"(p < {LEVEL}, paired t-test over seeds, Holm over the column)."
)


def make_table(grid: Grid, runs: Path, failed: dict[str, str]) -> Table:
    """All that the table says, as plain values: rows in the grid's order, each with its figures by column."""
    by_row: dict[tuple[str, ...], list[Cell]] = {}
    for cell in grid.cells:
        if not cell.hidden:
            by_row.setdefault(cell.row, []).append(cell)
    rows = [make_row(grid, cells, runs, failed) for cells in by_row.values()]
    shared = [index for index, axis in enumerate(grid.axes) if not axis.methods]
    groups: dict[tuple[str, ...], list[Table]] = {}
    for labels, row in zip(by_row, rows):
        groups.setdefault(tuple(labels[index] for index in shared), []).append(row)
    for group in groups.values():
        for column in grid.columns:
            mark(group, column)
    missing = [{"cell": cell.title, "run": cell.name, "reason": failed[cell.name]}
               for cell in grid.cells if cell.name in failed]  # fmt: skip
    columns = [
        {"title": column.title, "path": column.path, "factor": column.factor, "digits": column.digits,
         "better": column.better, "paper": bool(column.paper and grid.paper), "timing": column.timing}
        for column in grid.columns
    ]  # fmt: skip
    apart = " and ".join(grid.axes[index].title for index in shared) if len(groups) > 1 else ""
    note = NOTE.replace("over the column", f"over the column of each {apart}") if apart else NOTE
    if all(row["seeds"] == 1 for row in rows):
        note = ""  # neither a ± nor a mark
    return {
        "name": grid.name, "title": grid.title, "size": grid.size, "axes": [axis.title for axis in grid.axes],
        "columns": columns, "rows": rows, "failed": missing, "note": note,
    }  # fmt: skip


def make_row(grid: Grid, cells: list[Cell], runs: Path, failed: dict[str, str]) -> Table:
    found = {cell.seed: figures_of(runs / cell.name) for cell in cells if cell.name not in failed}
    figures = {}
    for column in grid.columns:
        read = {str(seed): value_at(table, column.path) for seed, table in found.items()}
        values = {seed: value for seed, value in read.items() if value is not None}
        if column.absent is not None and all(value == column.absent for value in values.values()):
            values = {}
        listed = list(values.values())
        figures[column.title] = {
            "mean": statistics.fmean(listed) if listed else None,
            "std": statistics.stdev(listed) if len(listed) > 1 else None,
            "by_seed": values,
            "paper": paper_figure(grid, column, cells[0]),
            "marks": {},
        }
    settings = cells[0].config
    return {
        "labels": dict(zip([axis.title for axis in grid.axes], cells[0].row)), "method": settings.method.name,
        "data": settings.data.name, "model": settings.model.name, "runs": [cell.name for cell in cells],
        "seeds": len(cells), "finished": len(found), "figures": figures,
    }  # fmt: skip


def mark(rows: list[Table], column: Column) -> None:
    """Compare every row with vanilla and with the best baseline, and note p-values and marks in `rows`."""
    if not column.better:
        return
    ranked = [row for row in rows if row["figures"][column.title]["mean"] is not None]
    sign = 1 if column.better == "high" else -1
    baselines = [row for row in ranked if row["method"] not in NO_BASELINES]
    best = max(baselines, key=lambda row: sign * row["figures"][column.title]["mean"], default=None)
    vanilla = next((row for row in ranked if row["method"] == "vanilla"), None)
    tests: dict[frozenset[int], tuple[float, list[tuple[str, bool, Table]]]] = {}
    for letter, other in (("v", vanilla), ("b", best)):
        for row in ranked:
            figure = row["figures"][column.title]
            if other is None or row is other or (found := compared(figure, other["figures"][column.title])) is None:
                continue
            # One pair is one test, whichever of the two is the other's baseline.
            _, entries = tests.setdefault(frozenset((id(row), id(other))), (found[1], []))
            entries.append((letter, sign * found[0] > 0, figure))
    for (p, entries), adjusted in zip(tests.values(), holm([p for p, _ in tests.values()])):
        for letter, better, figure in entries:
            figure["marks"][letter] = {"p": p, "p_holm": adjusted, "mark": sign_of(letter, better, adjusted)}


def sign_of(letter: str, better: bool, p: float) -> str:
    return f"{letter}{'+' if better else '-'}" if p < LEVEL else ""


def compared(one: Table, other: Table) -> tuple[float, float] | None:
    """The mean difference over the seeds that both have, and its p-value; None where there is nothing to test."""
    from eow.metrics.statistics import paired_t

    seeds = [seed for seed in one["by_seed"] if seed in other["by_seed"]]
    ours, theirs = ([each["by_seed"][seed] for seed in seeds] for each in (one, other))
    differences = [a - b for a, b in zip(ours, theirs)]
    if len(seeds) < 2 or max(differences) - min(differences) <= 1e-12:
        return None  # no spread to judge by: figures of small test sets are often equal by rounding
    found = paired_t(ours, theirs)
    return found.value, found.p_value


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values after Holm: the smallest times m, the next times m - 1, ..., never falling, at most 1."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# As text


def text_cells(table: Table, paper: str = "paper") -> tuple[list[str], list[list[str]]]:
    """Header and rows as they are printed: axes, method, then each column and, where it has one, the paper's."""
    header = [*table["axes"], "method"]
    for column in table["columns"]:
        header += [column["title"], *([paper.format(column["title"])] if column["paper"] else [])]
    rows = []
    for row in table["rows"]:
        missing = row["seeds"] - row["finished"]
        note = f" ({missing} of {row['seeds']} failed)" if missing and row["finished"] else ""
        cells = [*(row["labels"][axis] or "-" for axis in table["axes"]), row["method"] + note]
        for column in table["columns"]:
            figure = row["figures"][column["title"]]
            few = len(figure["by_seed"]) < row["finished"] and bool(figure["by_seed"])
            fewer = f" ({len(figure['by_seed'])} of {row['finished']} seeds)" if few else ""
            cells.append(figure_text(figure, column) + fewer if row["finished"] else "failed")
            if column["paper"]:
                cells.append("-" if figure["paper"] is None else f"{figure['paper']:g}")
        rows.append(cells)
    return header, rows


def figure_text(figure: Table, column: Table) -> str:
    """ "1.57 ± 0.12 v+ b+"; what a method does not have is a dash."""
    if figure["mean"] is None:
        return "-"
    numbers = [figure["mean"], *([] if figure["std"] is None else [figure["std"]])]
    text = " ± ".join(f"{column['factor'] * number:.{column['digits']}f}" for number in numbers)
    return " ".join([text, *(each["mark"] for each in figure["marks"].values() if each["mark"])])


MARKS = str.maketrans({"|": "/", "<": "&lt;", "\n": " "})  # a label is not markup


def markdown(table: Table) -> str:
    header, rows = text_cells(table)
    lines = [header, ["---"] * len(header), *rows]
    body = "\n".join(f"| {' | '.join(cell.translate(MARKS) for cell in line)} |" for line in lines)
    failed = "".join(f"\n- failed: {each['cell']}: {each['reason']}" for each in table["failed"])
    return f"# {table['title']} ({table['size']})\n\n{body}\n\n{table['note']}\n{failed}".rstrip() + "\n"


def comma_separated(table: Table) -> str:
    """One line a row and seed and one for the means, figures in full: for other programs."""
    text = io.StringIO()
    titles = [column["title"] for column in table["columns"]]
    writer = csv.writer(text, lineterminator="\n")
    papers = [f"{column['title']} (paper)" for column in table["columns"] if column["paper"]]
    writer.writerow(map(no_formula, [*table["axes"], "method", "seed", *titles, *papers]))
    for row in table["rows"]:
        labels, figures = [no_formula(row["labels"][axis]) for axis in table["axes"]], row["figures"]
        printed = [figures[column["title"]]["paper"] for column in table["columns"] if column["paper"]]
        for seed in dict.fromkeys(seed for title in titles for seed in figures[title]["by_seed"]):
            values = [scaled(figures[c["title"]]["by_seed"].get(seed), c["factor"]) for c in table["columns"]]
            writer.writerow([*labels, row["method"], seed, *values, *([""] * len(printed))])
        for what, beside in (("mean", printed), ("std", [""] * len(printed))):
            values = [scaled(figures[c["title"]][what], c["factor"]) for c in table["columns"]]
            writer.writerow([*labels, row["method"], what, *values, *beside])
    return text.getvalue()


def scaled(value: Any, factor: float) -> Any:
    return "" if value is None else value * factor


def write_table(table: Table, out: Path) -> None:
    storage.write_json(out / TABLES[0], table)
    for name, text in zip(TABLES[1:], (markdown(table), comma_separated(table))):
        storage.atomic(out / name, lambda file, text=text: file.write(encoded(text)))  # type: ignore[misc]


def show_table(table: Table) -> None:
    header, rows = text_cells(table, "{} (paper)")  # it may come to stand in another table than ours
    print_table(f"{table['title']} ({table['size']})", header, rows, table["note"], keys=len(table["axes"]) + 1)
    for each in table["failed"]:
        console.print(f"failed: {each['cell']}: {each['reason']}")
