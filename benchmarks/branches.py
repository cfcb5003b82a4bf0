"""The energy methods of a grid, and vanilla on the same split, as branches of one training a seed.

    python benchmarks/branches.py benchmarks/cifar100.toml --out runs/cifar100-quick
    eow bench benchmarks/cifar100.toml --out runs/cifar100-quick      # finds these runs, trains the others, one table

Two reasons. A branch costs the epochs after the energy term has begun, a sixth of a run with `modern`. And runs that
have their first epochs in common differ less by chance, so that as many seeds show smaller differences: what `eow
compare` says of two branches is about what came after.

An energy method's branch is the run that `eow bench` would have made (eow/training/branching.py). Vanilla's is not, to
the last bit: its first epochs had an unknown logit, trained down like that of any other class that never comes, and the
branch goes on with it, without negatives, until it is cut off at the end. Its log says so.
"""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arguments import several

from eow import config as configs
from eow import runs, storage
from eow.bench.grid import Cell, read_grid
from eow.config import RunConfig, from_assignments
from eow.console import in_one_line
from eow.data.sets import RunData, load_sets
from eow.errors import EowError
from eow.methods import Method, method_named
from eow.methods.eow import EOW
from eow.runfolder import environment, open_folder
from eow.training.branching import anywhere, branch, never, trunk
from eow.training.distributed import Place, pick_device

CUT_OFF = "trained with an unknown logit that never came, cut off at the end"


def is_energy(cell: Cell) -> bool:
    return issubclass(method_named(cell.config.method.name), EOW)


def trunk_key(config: RunConfig) -> str:
    """What runs have in common that may share a trunk: all but the method, where it is cut and its kind of unknown."""
    return repr(replace(config, method=None, model=replace(config.model, cut="", unknown="")))  # type: ignore[arg-type]


def groups_of(cells: Iterable[Cell]) -> list[tuple[list[Cell], list[Cell]]]:
    """For each trunk its energy cells and the vanilla ones, each cell once."""
    groups: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        if is_energy(cell) or cell.config.method.name == "vanilla":
            groups.setdefault(trunk_key(cell.config), {})[cell.name] = cell
    parted = [
        ([cell for cell in group.values() if is_energy(cell)], [cell for cell in group.values() if not is_energy(cell)])
        for group in groups.values()
    ]
    return [(energy, vanilla) for energy, vanilla in parted if energy]


def left_to_bench(cells: Iterable[Cell], groups: list[tuple[list[Cell], list[Cell]]]) -> list[Cell]:
    """The runs of rows that are no branch: of other methods, and of vanilla on a split that no energy method has."""
    made = {cell.name for group in groups for part in group for cell in part}
    return [cell for cell in cells if cell.name not in made and not cell.hidden]


def without_unknown(opened: Method, config: RunConfig) -> Method:
    """The vanilla method that is left when the last logit of an energy method is cut off."""
    closed = runs.make_method(config, opened.classes, opened.in_shape)
    known = {anywhere(name): each for name, each in opened.state_dict().items()}
    with torch.no_grad():
        for name, each in closed.state_dict().items():
            wanted = known[anywhere(name)]
            each.copy_(wanted[: len(each)] if each.dim() else wanted)
    return closed.to(next(opened.parameters()).device)


def run_group(energy: list[Cell], vanilla: list[Cell], folder: Path, place: Place) -> None:
    """All cells of one trunk that are not there yet."""
    missing = [cell for cell in (*vanilla, *energy) if not (folder / cell.name / "summary.json").exists()]
    if not missing:
        return
    config = energy[0].config
    first = min(cell.config.method.first_epoch(cell.config.train.epochs) for cell in energy)
    if not first:
        raise EowError("an energy term is on from the first epoch, so nothing is shared: use `eow bench`")
    data = load_sets(config.data, config.seed)
    start = trunk(runs.begin(config, data, place), first)
    for cell in missing:
        training = runs.begin(cell.config if is_energy(cell) else config, data, place)
        own = list(branch(training if is_energy(cell) else never(training), start))
        method = training.method if is_energy(cell) else without_unknown(training.method, cell.config)
        marks = [] if is_energy(cell) else [{"epoch": first, "event": "branched", "reason": CUT_OFF}]
        figures = write(cell, method, data, [*start.lines, *marks, *own], folder / cell.name, place)
        told = "  ".join(f"{name} {figures[name]:.4f}" for name in ("accuracy", "ece", "nll", "nll_renormalised"))
        print(f"{cell.title}: {told}", flush=True)


def write(
    cell: Cell, method: Method, data: RunData, lines: list[dict[str, Any]], folder: Path, place: Place
) -> dict[str, Any]:
    """The run's folder, as `eow train` would have left it; its figures on test."""
    with open_folder(folder, cell.config, resume=True):
        storage.write_json(folder / "config.json", configs.to_table(cell.config))
        storage.write_json(folder / "environment.json", environment(place.device))
        log = storage.Log(folder / "log.jsonl")
        log.keep(lambda line: False)
        for line in lines:
            log.write(**line)
        figures: dict[str, Any] = runs.complete_run(method, data, cell.config, folder, place)["metrics"]["test"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="quick")
    parser.add_argument("--only", action="append", default=[], help="a method, as often as needed")
    parser.add_argument("--seeds", type=partial(several, least=0), help="such as 0,1,2")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE over all other settings")
    arguments = parser.parse_args()
    grid = read_grid(
        arguments.grid,
        arguments.size,
        only=tuple(arguments.only),
        seeds=arguments.seeds or 0,
        settings=from_assignments(arguments.set),
    )
    groups = groups_of(grid.cells)
    if left := left_to_bench(grid.cells, groups):
        told = "; ".join(cell.title for cell in left)
        if not groups:
            raise EowError(
                f"{arguments.grid}: no energy method is asked for, so nothing can branch: use `eow bench` for {told}"
            )
        print(f"left to `eow bench`: {told}", flush=True)
    folder = arguments.out.absolute() / "runs"
    storage.make_folder(folder)
    for energy, vanilla in groups:
        place = Place(pick_device(energy[0].config.train.device))
        run_group(energy, vanilla, folder, place)


if __name__ == "__main__":
    with in_one_line():
        main()
