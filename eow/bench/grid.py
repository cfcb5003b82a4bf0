"""A grid file: what is compared with what. TOML in, cells out.

    [grid]       name, title, methods, seeds (a count or a list), columns, paper, corruptions
    [settings]   of every run, as `eow train --config` takes them
    [methods.X]  settings of the method X alone
    [[axis]]     title, then key + values (one setting) or points (a label and settings each); methods, where it is not
                 for all of them: the others have one row whatever its value
    [quick] [full]   the two sizes: each may override anything above

A cell is one run: its settings, and a folder named after them and their hash. An unknown key is an error that names it
and the file, before anything is run.
"""

import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from eow import config as configs
from eow.assignments import parsed, settings_text
from eow.bench.beside import check_match, paper_column
from eow.bench.columns import Column
from eow.bench.hashes import config_hash
from eow.config import RunConfig, Table
from eow.errors import EowError

SIZES = ("quick", "full")
MOST_SEEDS = 10_000  # of a row: beyond, a slip of the hand and no memory
KEYS = {  # of each section
    "": ("grid", "settings", "methods", "axis", *SIZES),
    "grid": ("name", "title", "methods", "seeds", "columns", "paper", "corruptions"),
    "grid.paper": ("table", "match"),
    "axis": ("title", "key", "values", "points", "methods"),
    "size": ("grid", "settings", "methods", "axis"),
}


class Point(NamedTuple):
    """One value of an axis: what the table calls it, in its column and elsewhere, and the settings it lays over."""

    label: str
    title: str
    settings: Table


class Axis(NamedTuple):
    title: str
    points: tuple[Point, ...]
    methods: tuple[str, ...]  # empty: all


@dataclass(frozen=True)
class Cell:
    """One run of the grid. A hidden one is in no row: it is there because others take its weights over."""

    name: str  # of its folder
    hash: str
    row: tuple[str, ...]  # the axes' labels and the method
    title: str
    seed: int
    config: RunConfig
    needs: str = ""  # the name of the vanilla run that must have ended before
    hidden: bool = False


@dataclass(frozen=True)
class Grid:
    name: str
    title: str
    size: str
    axes: tuple[Axis, ...]
    columns: tuple[Column, ...]
    paper: Table  # {"table": ..., "match": {CSV column: path into the settings}}, or empty
    corruptions: bool  # whether runs are also evaluated under corruption
    cells: tuple[Cell, ...]
    text: str  # the file as it stood


def read_grid(
    file: str | Path,
    size: str,
    *,
    only: tuple[str, ...] = (),
    seeds: int | list[int] = 0,
    settings: Table | None = None,
) -> Grid:
    """The grid of a file in one of its sizes; `only` some methods, other `seeds`, other `settings`."""
    if size not in SIZES:
        raise EowError(f"there is no size {size!r}: choose {' or '.join(SIZES)}")
    text = settings_text(file)
    table = parsed(file, text)
    try:
        return make_grid(table, size, text, only, seeds, settings or {})
    except EowError as error:
        raise EowError(f"{file}: {error}") from None


def make_grid(table: Table, size: str, text: str, only: tuple[str, ...], seeds: Any, settings: Table) -> Grid:
    check_keys(table, "", "the file")
    for each in SIZES:
        check_keys(table.get(each, {}), "size", f"[{each}]")
    if size not in table and any(each in table for each in SIZES):
        raise EowError(f"there is no section [{size}]: add one, empty if nothing differs")
    table = overlay({key: value for key, value in table.items() if key not in SIZES}, table.get(size, {}))
    about = table.get("grid", {})
    check_keys(about, "grid", "[grid]")
    check_keys(about.get("paper", {}), "grid.paper", "grid.paper")
    if missing := [key for key in ("name", "methods", "seeds", "columns") if key not in about]:
        raise EowError(f"[grid] has no {missing[0]}: add it")
    if not isinstance(about["name"], str) or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", about["name"]):
        raise EowError(f"grid.name is {about['name']!r}: use small letters, digits, - and _ only, it names folders")
    methods = chosen_methods(listed(about, "methods"), only)
    if not isinstance(table.get("axis", []), list):
        raise EowError(f"axis is {table['axis']!r}: write a section [[axis]] for each")
    axes = tuple(make_axis(axis) for axis in table.get("axis", []))
    if len({axis.title for axis in axes}) < len(axes):
        raise EowError("two [[axis]] have one title: give each its own")
    counted = seed_list(seeds or about["seeds"])
    columns = tuple(paper_column(spec, about.get("paper", {})) for spec in listed(about, "columns"))
    if len({column.title for column in columns}) < len(columns):
        raise EowError("two columns have one title: spell one out with another")
    own, corruptions = table.get("methods", {}), about.get("corruptions", False)
    if not isinstance(own, dict):
        raise EowError(f"methods is {own!r}: write a section [methods.X] for each, and their names into grid.methods")
    if not isinstance(corruptions, bool):
        raise EowError(f"grid.corruptions is {corruptions!r}: give true or false")
    for name in (*own, *(name for axis in axes for name in axis.methods)):
        if name not in listed(about, "methods"):
            raise EowError(
                f"there are settings for {name!r}, which is not among grid.methods: add it or leave them out"
            )
    check_free(table.get("settings", {}), "[settings]")
    check_free(settings, "--set")
    for axis in axes:
        for point in axis.points:
            check_free(point.settings, f"the axis {axis.title!r}")
    cells: list[Cell] = []
    files: dict[str, str] = {}
    for row, points, method in rows_of(axes, methods):
        check_free(own.get(method, {}), f"[methods.{method}]")
        laid = (table.get("settings", {}), own.get(method, {}), *(p.settings for p in points))
        for seed in counted:
            config = configs.resolve(*laid, settings, {"method": {"name": method}, "seed": seed})
            cells.append(make_cell(config, row, points, files))
    check_different(cells)
    check_match(about.get("paper", {}), listed(about, "methods"))
    return Grid(
        about["name"], str(about.get("title", about["name"])), size, axes, columns, about.get("paper", {}),
        corruptions, with_vanilla(cells, files), text,
    )  # fmt: skip


def check_keys(table: Any, section: str, where: str) -> None:
    if not isinstance(table, dict):
        raise EowError(f"{where} is {table!r}: it is a section with keys")
    for key in table:
        if key not in KEYS[section]:
            raise EowError(f"there is no key {key!r} in {where}: it has {', '.join(KEYS[section])}")


def check_free(settings: Any, where: str) -> None:
    """What a row is called by, the grid sets itself: anything else would be laid under it, or be another row than its
    name says."""
    if not isinstance(settings, dict):
        return  # which is said elsewhere
    options = settings.get("method")
    named = isinstance(options, dict) and "name" in options
    for key, there in (("seed", "seed" in settings), ("method.name", named)):
        if there:
            raise EowError(
                f"{where} sets {key}: a grid's methods and seeds are grid.methods and grid.seeds (on the command line "
                "--only and --seeds)"
            )


def check_different(cells: list[Cell]) -> None:
    """Two rows of the same run would be a comparison of something with itself."""
    row_of: dict[str, tuple[str, ...]] = {}
    for cell in cells:
        other = row_of.setdefault(cell.hash, cell.row)
        if other != cell.row:
            raise EowError(
                f"the rows {' / '.join(other)} and {' / '.join(cell.row)} are the same runs: leave one out, or have "
                "them differ in a setting that decides a run"
            )


def overlay(below: Table, above: Table) -> Table:
    """Tables laid over one another to any depth; lists are replaced whole."""
    laid = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        laid[key] = overlay(below[key], value) if both else value
    return laid


def listed(table: Table, key: str) -> list[Any]:
    if not isinstance(table[key], list) or not table[key]:
        raise EowError(f"{key} is {table[key]!r}: give a list of at least one")
    return table[key]


def chosen_methods(methods: list[Any], only: tuple[str, ...]) -> list[str]:
    from eow.methods import method_named

    for name in methods:
        method_named(str(name))
    if len(set(methods)) < len(methods):
        raise EowError("grid.methods names a method twice: leave one out")
    if strange := [name for name in only if name not in methods]:
        raise EowError(f"{strange[0]!r} is not among its methods: choose of {', '.join(methods)}")
    return [name for name in methods if not only or name in only]


def seed_list(seeds: Any) -> list[int]:
    """3 -> [0, 1, 2]; a list stays as it is."""
    if (seeds if type(seeds) is int else len(seeds) if isinstance(seeds, list) else 0) > MOST_SEEDS:
        raise EowError(f"grid.seeds asks for more than {MOST_SEEDS:,} seeds: a run for each would never end")
    counted = list(range(seeds)) if type(seeds) is int else seeds
    if not isinstance(counted, list) or not counted or not all(type(seed) is int and seed >= 0 for seed in counted):
        raise EowError(f"grid.seeds is {seeds!r}: give a count of at least 1, or a list of seeds")
    if len(set(counted)) < len(counted):
        raise EowError(f"grid.seeds is {seeds!r}: each seed once")
    return counted


def make_axis(axis: Any) -> Axis:
    check_keys(axis, "axis", "[[axis]]")
    if "title" not in axis or ("points" in axis) == ("key" in axis) or ("key" in axis) != ("values" in axis):
        raise EowError("an [[axis]] needs a title and either key and values, or points")
    if not isinstance(axis.get("key", ""), str):
        raise EowError(f"the key of the axis {axis['title']!r} is {axis['key']!r}: name a setting, such as train.lr")
    points = []
    for value in listed(axis, "values" if "key" in axis else "points"):
        if "key" in axis:
            label = f"{value:g}" if isinstance(value, float) else str(value)
            points.append(Point(label, f"{axis['title']} {label}", at(axis["key"], value)))
        elif isinstance(value, dict) and isinstance(value.get("label"), str):
            points.append(
                Point(value["label"], value["label"], {key: each for key, each in value.items() if key != "label"})
            )
        else:
            raise EowError(
                f"a point of the axis {axis['title']!r} is {value!r}: give a table with a label and settings"
            )
    if len({point.label for point in points}) < len(points):
        raise EowError(f"two points of the axis {axis['title']!r} have one label: the table could not tell them apart")
    return Axis(str(axis["title"]), tuple(points), tuple(listed(axis, "methods") if "methods" in axis else ()))


def at(key: str, value: Any) -> Table:
    section, dot, rest = key.partition(".")
    return {section: {rest: value}} if dot else {section: value}


def rows_of(axes: tuple[Axis, ...], methods: list[str]) -> list[tuple[tuple[str, ...], tuple[Point, ...], str]]:
    """The table's rows in order: the axes for all methods outermost, then the method, then the axes of its own."""
    common = [axis for axis in axes if not axis.methods]
    rows = []
    for outer in product(*(axis.points for axis in common)):
        for method in methods:
            own = [axis for axis in axes if method in axis.methods]
            for inner in product(*(axis.points for axis in own)):
                at_axis = {axis.title: point.label for axis, point in zip([*common, *own], [*outer, *inner])}
                labels = [at_axis.get(axis.title, "") for axis in axes]
                rows.append(((*labels, method), (*outer, *inner), method))
    return rows


def make_cell(config: RunConfig, row: tuple[str, ...], points: tuple[Point, ...], files: dict[str, str]) -> Cell:
    """`files`: hashes of a user's files that other cells have asked for already."""
    digest = config_hash(configs.to_table(config), files)
    data = re.sub(r"[^A-Za-z0-9_-]+", "-", config.data.name).strip("-")[-24:]
    name = f"{data}-{config.model.name}-{config.method.name}-s{config.seed}-{digest[:10]}"
    title = ", ".join([*(point.title for point in points), config.method.name, f"seed {config.seed}"])
    return Cell(name, digest, row, title, config.seed, config)


def with_vanilla(cells: list[Cell], files: dict[str, str]) -> tuple[Cell, ...]:
    """The cells, and before them a hidden one for each vanilla run that post-hoc methods share and no row has."""
    from eow.methods import method_named
    from eow.methods.vanilla import VanillaOptions

    present, linked = {cell.name for cell in cells}, []
    hidden: dict[str, Cell] = {}
    for cell in cells:
        if method_named(cell.config.method.name).post_hoc:
            vanilla = make_cell(replace(cell.config, method=VanillaOptions()), (), (), files)
            if vanilla.name not in present:
                title = f"vanilla for {cell.title}" if vanilla.name not in hidden else hidden[vanilla.name].title
                hidden[vanilla.name] = replace(vanilla, title=title, hidden=True)
            cell = replace(cell, needs=vanilla.name)
        linked.append(cell)
    return (*hidden.values(), *linked)
