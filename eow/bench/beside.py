"""The paper's figures beside a grid's: which of its tables, which column, which row. What is wrong with them is said
before anything is run."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from eow import paper
from eow.bench.columns import Column, column_of
from eow.config import DataConfig, ModelConfig, Table, TrainConfig, to_table
from eow.errors import EowError

if TYPE_CHECKING:
    from eow.bench.grid import Cell, Grid


def paper_column(spec: Any, about: Table) -> Column:
    """A column; one that was only named has the paper's figure beside it where the paper's table has one."""
    column = column_of(spec)
    if about and not isinstance(about.get("table"), str):
        raise EowError("grid.paper has no table: name one of the paper's, for example table1_calibration")
    known = paper.read(about["table"])[0] if about else {}
    if column.paper and about and column.paper not in known:
        if isinstance(spec, dict):
            raise EowError(f"the paper's {about['table']} has no column {column.paper!r}: it has {', '.join(known)}")
        return replace(column, paper="")
    return column


def check_match(about: Table, methods: Sequence[str]) -> None:
    """What would be wrong with grid.paper.match once all runs have ended is said before the first."""
    from eow.methods import method_named

    match, columns = about.get("match", {}), [*paper.read(about["table"])[0]] if about else []
    if not isinstance(match, dict):
        raise EowError(f"grid.paper.match is {match!r}: give a table, for example {{ dataset = 'data.name' }}")
    kinds: dict[str, list[Any]] = {"data": [DataConfig], "model": [ModelConfig], "train": [TrainConfig]}
    kinds["method"] = [method_named(name).Options for name in methods]
    known = {section: {each.name for kind in listed for each in fields(kind)} for section, listed in kinds.items()}
    known["method"].add("name")  # not a field: it says whose options they are
    for name, path in match.items():
        section, _, key = path.partition(".") if isinstance(path, str) else ("", "", "")
        if key not in known.get(section, ()):
            raise EowError(f"grid.paper.match.{name} is {path!r}: name a setting of its runs, for example data.name")
        if name not in columns:
            raise EowError(
                f"grid.paper.match has {name!r}, but {about['table']} has {', '.join(columns)}: name a column"
            )


def paper_figure(grid: "Grid", column: Column, cell: "Cell") -> float | None:
    """The paper's figure for a row, as printed; None where it has none."""
    if not (grid.paper and column.paper):
        return None
    settings, keys = to_table(cell.config), dict(column.match)
    for name, path in grid.paper.get("match", {}).items():
        section, _, key = path.partition(".")
        if key not in settings.get(section, {}):
            return None  # a method without that setting is not in the paper's table
        keys[name] = settings[section][key]
    if "method" not in keys:
        keys["method"] = cell.config.method.name
    return paper.figure(grid.paper["table"], column.paper, keys)
