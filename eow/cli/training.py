"""Commands that train: one run and the demo; and what there is to train, and its theory."""

import math
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eow.cli.measuring import show_metrics
from eow.cli.options import TO_WRITE, Device, Root, Unofficial, app, refuse_alone
from eow.errors import EowError

if TYPE_CHECKING:
    from eow.config import RunConfig, Table


@app.command(epilog="Example:  eow train --data digits --unknown-classes 8,9 --method eow --out runs/digits")
def train(
    out: Annotated[Path, typer.Option(help="The run's folder.", **TO_WRITE)],
    data: Annotated[
        str | None, typer.Option(help="A data set: see `eow data list`; folder:PATH, npz:PATH, csv:PATH.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="eow (the default) or another of `eow methods`.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, vgg11, resnet18, resnet50, resnet101 or wrn28_10.")] = None,
    recipe: Annotated[str | None, typer.Option(help="modern, paper or release.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to train.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of this run; 0 where none is given.")] = None,
    unknown_classes: Annotated[
        str, typer.Option(help="Classes kept out of training, as unknowns, by name: 8,9 or cat,dog.")
    ] = "",
    outliers: Annotated[
        str, typer.Option(help="Data sets to predict as unknowns, with labels or without: noise,csv:PATH.")
    ] = "",
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, as often as needed.")] = None,
    root: Root = "",
    allow_unofficial: Unofficial = False,
    resident: Annotated[
        str, typer.Option(help="yes: keep all data on the device; no: stream it, a folder of images from a file.")
    ] = "",
    device: Device = None,
    graph: Annotated[str | None, typer.Option(help="The step as one CUDA graph: auto, on or off.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="Processes to spread the training over, one a GPU.")] = 1,
    log: Annotated[str, typer.Option(help="Write the log as csv, tensorboard or csv,tensorboard as well.")] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in --out, by its own settings where none are given; start it if there is none.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress; warnings are still shown.")] = False,
) -> None:
    """Train a classifier into a run folder: config, log, weights, predictions and summary."""
    from eow.config import from_assignments, from_toml

    if resident not in ("", "yes", "no"):
        raise EowError(f"--resident is {resident!r}: say yes or no")
    flags = {
        "recipe": recipe, "seed": seed, "method": {"name": method}, "model": {"name": model},
        "train": {"epochs": epochs, "device": device, "graph": graph},
        "data": {
            "name": data, "root": root or None, "allow_unofficial": allow_unofficial or None,
            "resident": {"yes": True, "no": False}.get(resident),
            "unknown_classes": unknown_classes or None, "outliers": outliers or None,
        },
    }  # fmt: skip
    layers = (from_toml(config) if config else {}, given(flags), from_assignments(settings or []))
    wishes = wanted(out if resume else None, *layers)
    if devices > 1 and "RANK" not in os.environ:
        from eow.runs import check
        from eow.training.launching import launch

        with told_how_to_go_on(out):
            check(wishes, out, resume=resume, world=devices)
            code = launch(devices, sys.argv[1:])
        raise typer.Exit(code)
    with told_how_to_go_on(out):
        from eow.runs import train as train_run

        summary = train_run(wishes, out, resume=resume, progress=not quiet, loggers=log)
    if summary:
        show_metrics(
            f"{summary['method']} on {summary['data']}, {summary['train_seconds']:.1f} s of training",
            summary["metrics"],
        )
        typer.echo(f"everything is in {out}; as a page: eow report {shlex.quote(str(out))} -o report.html")


def wanted(resumed: Path | None, *layers: "Table") -> "RunConfig":
    """The settings that were given; of a run to go on with, its own where none are, but where it is to happen."""
    from eow.config import ELSEWHERE, from_table, merge, resolve
    from eow.evaluate import refuse_imported
    from eow.storage import read_json

    asked = merge(*layers)
    keys = {(name, key) for name, section in asked.items() for key in (section if isinstance(section, dict) else [""])}
    if resumed is not None and not resumed.exists() and not keys - {*ELSEWHERE}:
        raise EowError(
            f"there is no run in {resumed} to go on with: name its folder, or give settings (--data, ...) to start one"
        )
    if resumed is None or keys - {*ELSEWHERE} or not (resumed / "config.json").is_file():
        return resolve(*layers)
    refuse_imported(resumed)
    return from_table(merge(read_json(resumed / "config.json"), asked))


@contextmanager
def told_how_to_go_on(out: Path) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end in one line, and in the exit code that shells give them."""
    from eow.training import stopping

    parent = os.environ.get("EOW_PARENT")  # where one process speaks for several
    if parent is not None:
        stopping.end_with(int(parent))
    try:
        with stopping.listening():
            yield
    except stopping.STOPS as stop:
        code = 128 + (stop.number if isinstance(stop, stopping.Terminated) else signal.SIGINT)
        if parent is not None:
            os._exit(code)  # all is written, and torch takes a second or two to be taken apart
        from eow.training import checkpoints

        kept = "its last whole epoch is" if checkpoints.exists(out) else "no epoch is finished yet"
        if os.environ.get("RANK", "0") == "0":
            typer.echo(f"\nstopped; go on with the same command and --resume ({kept} in {out})", err=True)
        raise typer.Exit(code) from None


def given(table: dict[str, Any]) -> dict[str, Any]:
    """The table without what was not given on the command line."""
    kept = {key: given(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


@app.command(epilog="Example:  eow demo --all --seeds 3 --out runs/demo-all")
def demo(
    out: Annotated[
        Path, typer.Option(help="Where everything goes; without --all an old demo there is replaced.", **TO_WRITE)
    ] = Path("runs/demo"),
    seed: Annotated[int | None, typer.Option(min=0, help="Without --all: the seed, 0 where none is given.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every method; goes on where it was stopped.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="With --all: how many seeds, from 0 on; 3 where none is given.")
    ] = None,
    web: Annotated[bool, typer.Option("--web", help="A page to draw on, in your browser.")] = False,
    build: Annotated[Path | None, typer.Option(help="Write that page into this folder and end.", **TO_WRITE)] = None,
    data: Annotated[
        str, typer.Option(help="With --web or --build: digits, or mnist if it has been fetched.")
    ] = "digits",
    port: Annotated[int | None, typer.Option(help="With --web: where to serve it; else the next free one.")] = None,
    root: Root = "",
) -> None:
    """Train vanilla and EOW-Softmax, or all methods, on digits 0-7 and show them 8 and 9 for the first time; or make a
    page to draw on, where both answer."""
    page = web or build is not None
    if every and page:
        raise EowError("--all is a table, --web and --build a page: ask for one of them")
    if every and seed is not None:
        raise EowError("--all has --seeds, from 0 on: leave --seed or --all out")
    refuse_alone("--all", every, seeds=seeds is not None)
    refuse_alone("--web", web, port=port is not None)
    refuse_alone("--web or --build", page, data=data != "digits", root=bool(root))
    if port is not None and not 0 <= port <= 65535:
        raise EowError(f"there is no port {port}: give a number from 0 to 65535")
    if page:
        from eow import play

        written = play.build(build or out / "page", out / "web", data, seed or 0, root)
        if web:
            play.serve(written.parent, port)
        return
    from eow.demo import run_all, run_demo

    if every:
        run_all(out, seeds or 3)
    else:
        run_demo(out, seed or 0)


@app.command(epilog="Example:  eow theory --out theory.png --lam 0.1")
def theory(
    out: Annotated[Path, typer.Option(help="The picture to write.", **TO_WRITE)] = Path("theory.png"),
    lam: Annotated[float, typer.Option(help="λ, the weight of the energy term, from 1e-6 to 1e6.")] = 0.1,
) -> None:
    """Draw where training with exact sampling comes to rest, for each energy and a mixture in one dimension: the data's
    density, the known mass and the unknown."""
    from eow.console import print_table
    from eow.theorydrawing import draw

    rows = draw(out, lam=lam)
    columns = ["energy", "rank correlation with p", "largest deviation from proportional"]
    cells = [[row.energy, dashed(row.rank_correlation, 4), dashed(row.deviation, 3)] for row in rows]
    none = [row.energy for row in rows if math.isnan(row.deviation)]
    note = f"{' and '.join(none)}: no fixed point at this λ, the known mass falls to 0" if none else ""
    print_table(f"fixed points, λ = {lam:g}", columns, cells, note)
    typer.echo(f"drawn to {out}")


def dashed(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


@app.command(epilog="Example:  eow methods")
def methods() -> None:
    """Every method by name: what it is, whether it fits anything to held-out data, what a prediction costs."""
    from eow.console import print_table
    from eow.methods import METHODS

    columns = ["name", "what it is", "fits on held-out data", "a prediction costs"]
    rows = []
    for name, kind in METHODS.items():
        held_out = "yes" if kind.needs_holdout else "recipe modern: yes" if hasattr(kind.Options, "calibrate") else "no"
        rows.append([name, kind.summary, held_out, kind.costlier or "one pass"])
    print_table("methods", columns, rows)
