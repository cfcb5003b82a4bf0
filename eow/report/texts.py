"""The report for people who write: Markdown, LaTeX tables, and CSV of all that the page shows."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eow.plain import encoded, no_formula
from eow.report.parts import DASH, Cell, Figure, Table, rows_of
from eow.report.sections import Section

# Characters that mean something to TeX, and what it prints for them.
TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "–": "--", "±": r"$\pm$", "λ": r"$\lambda$", "×": r"$\times$", "\n": " ",
}  # fmt: skip
MARKDOWN = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|"} | {"\n": " ", "&": "&amp;"})


def plain(cell: Cell) -> str:
    return f"{cell.text} {cell.beside}".strip()


# Markdown


def markdown(sections: list[Section]) -> str:
    """All tables with their captions; figures are on the page, their numbers in the CSV."""
    parts = ["# eow report"]
    for section in sections:
        parts += [f"## {section.title.translate(MARKDOWN)}", f"{section.seeds}."]
        for table in section.every_table:
            parts += [f"### {table.title.translate(MARKDOWN)}", markdown_table(table), caption(table)]
        for figure in section.figures:
            if figure.key == "corruption-bars":
                header, rows = rows_of(figure)
                cells = [
                    [Cell(f"{each:.4g}" if isinstance(each, float) else str(each)) for each in row] for row in rows
                ]
                parts += [f"### {figure.title}", markdown_table(Table("", "", header, cells, "")), caption(figure)]
        commands = "\n".join(f"    {line}" for line in section.details[0].text.splitlines())
        parts += [f"{section.details[0].title}:", commands]
    return "\n\n".join(parts) + "\n"


def caption(part: Table | Figure) -> str:
    """As it stands: captions are ours, but they may name a method's group."""
    return "".join(
        f"`{piece}`" if place % 2 else piece.translate(MARKDOWN) for place, piece in enumerate(part.caption.split("`"))
    )


def markdown_table(table: Table) -> str:
    numeric = [any(row[index].value is not None for row in table.rows) for index in range(len(table.header))]
    lines = [[name.translate(MARKDOWN) for name in table.header], ["---:" if each else "---" for each in numeric]]
    lines += [[plain(cell).translate(MARKDOWN) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# LaTeX


def latex(sections: list[Section]) -> str:
    """One booktabs table after another; \\usepackage{booktabs} is all that they need."""
    tables = [latex_table(section, table) for section in sections for table in (section.headline, *section.tables)]
    return "% made by eow report; needs \\usepackage{booktabs}\n\n" + "\n\n".join(tables) + "\n"


def tex(text: str) -> str:
    return "".join(TEX.get(letter, letter) for letter in text)


def latex_table(section: Section, table: Table) -> str:
    numeric = [any(row[index].value is not None for row in table.rows) for index in range(len(table.header))]
    lines = [" & ".join(map(tex, table.header))]
    rows = [" & ".join(tex(plain(cell)) for cell in row) for row in table.rows]
    words = tex(f"{section.title}: {table.title}. {table.caption}".replace("`", ""))
    return "\n".join([
        r"\begin{table}", r"\centering", f"\\begin{{tabular}}{{{''.join('r' if each else 'l' for each in numeric)}}}",
        r"\toprule", f"{lines[0]} \\\\", r"\midrule", *(f"{row} \\\\" for row in rows), r"\bottomrule",
        r"\end{tabular}", f"\\caption{{{words}}}", f"\\label{{tab:{section.slug}-{table.key}}}", r"\end{table}",
    ])  # fmt: skip


# CSV


def csv_files(sections: list[Section], out: Path, many: bool) -> dict[Path, bytes]:
    """A file for every table and figure in the folder `out`, or all of them in the one file `out`, one number a row."""
    parts = [(section, part) for section in sections for part in section.with_numbers]
    if many:
        single = len(sections) == 1
        return {
            out / f"{part.key if single else f'{section.slug}-{part.key}'}.csv": csv_of(*rows_of(part))
            for section, part in parts
        }
    header = ["section", "part", "panel", "series", "x", "y", "low", "high", "samples"]
    rows = [[section.title, part.key, *row] for section, part in parts if part is not section.runs
            for row in long_rows(part)]  # fmt: skip
    return {out: csv_of(header, rows)}


def long_rows(part: Table | Figure) -> list[list[Any]]:
    """One row a number: a table's column is a panel, its row (by its first words) a series, its spread low and high."""
    if isinstance(part, Figure):
        header, rows = rows_of(part)
        heat = header[:2] == ["panel", "row"]
        names = header if heat else ["panel", "series", "x", "y", *header[4:]]
        wanted = ["panel", "row", header[2], "value"] if heat else ["panel", "series", "x", "y"]
        return [[dict(zip(names, row)).get(name, "") for name in (*wanted, "low", "high", "samples")] for row in rows]
    found = []
    for row in part.rows:
        words = [cell.text for cell in row if cell.value is None and cell != DASH]
        for name, cell in zip(part.header, row):
            if cell.value is not None:
                low, high = cell.low, cell.high
                if cell.spread is not None:
                    low, high = cell.value - cell.spread, cell.value + cell.spread
                ends = ["" if end is None else end for end in (low, high)]
                found.append([name, words[0], " ".join(words[1:]), cell.value, *ends, ""])
    return found


def csv_of(header: list[str], rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(no_formula, header))
    writer.writerows([no_formula(cell) for cell in row] for row in rows)
    return encoded(text.getvalue())


WRITERS: dict[str, Callable[[list[Section]], str]] = {"md": markdown, "latex": latex}
