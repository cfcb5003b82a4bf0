"""The command line, nothing else: every command calls one function of the package and prints what it returns."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from eow.errors import EowError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich")
data_app = typer.Typer(no_args_is_help=True)
app.add_typer(data_app, name="data", help="Data sets: what there is, fetch it, check it.")

Root = Annotated[str, typer.Option(help="Where data sets lie; else EOW_DATA, else the user's cache folder.")]
Unofficial = Annotated[bool, typer.Option("--allow-unofficial", help="Use files whose hash is not the official one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Rate = Annotated[float | None, typer.Option(help="The share of unknowns to expect, 0 to below 1: re-sets the prior λ.")]


def version(wanted: bool) -> None:
    if wanted:
        from eow import __version__

        typer.echo(f"eow {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Energy-based open-world softmax: classifiers that can answer "unknown"."""


@app.command(epilog="Example:  eow train --data digits --unknown-classes 8,9 --method eow --out runs/digits")
def train(
    out: Annotated[Path, typer.Option(help="The run's folder.")],
    data: Annotated[
        str | None, typer.Option(help="A data set: see `eow data list`; folder:PATH, npz:PATH, csv:PATH.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="eow (the default) or another of `eow methods`.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp, vgg11, resnet18, resnet50, resnet101 or wrn28_10.")] = None,
    recipe: Annotated[str | None, typer.Option(help="modern, paper or release.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs to train.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed makes a run.")] = None,
    unknown_classes: Annotated[str, typer.Option(help="Classes held out of training and used as unknowns: 8,9.")] = "",
    outliers: Annotated[str, typer.Option(help="Data sets to predict as unknowns: noise,permuted:mnist.")] = "",
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, as often as needed.")] = None,
    root: Root = "",
    allow_unofficial: Unofficial = False,
    resident: Annotated[
        str, typer.Option(help="yes: the data lies on the device; no: it is streamed from memory.")
    ] = "",
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1.")] = None,
    graph: Annotated[str | None, typer.Option(help="The step as one CUDA graph: auto, on or off.")] = None,
    devices: Annotated[int, typer.Option(min=1, help="Processes to spread the training over, one a GPU.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; start it where there is none.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train a classifier into a run folder: config, log, weights, predictions and summary."""
    from eow.config import from_assignments, from_toml, resolve

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
    wishes = resolve(from_toml(config) if config else {}, given(flags), from_assignments(settings or []))
    if devices > 1 and "RANK" not in os.environ:
        from eow.distributed import launch
        from eow.runs import check

        check(wishes, out, resume=resume, world=devices)
        raise typer.Exit(launch(devices, sys.argv[1:]))
    from eow.runs import train as train_run

    try:
        summary = train_run(wishes, out, resume=resume, progress=not quiet)
    except KeyboardInterrupt:
        typer.echo(f"\nstopped; go on with the same command and --resume (last checkpoint in {out})", err=True)
        raise typer.Exit(130) from None
    if summary:
        show_metrics(
            f"{summary['method']} on {summary['data']}, {summary['train_seconds']:.1f} s of training",
            summary["metrics"],
        )
        typer.echo(f"everything is in {out}")


def given(table: dict[str, Any]) -> dict[str, Any]:
    """The table without what was not given on the command line."""
    kept = {key: given(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


@app.command(epilog="Example:  eow evaluate runs/digits --unknown-rate 0.01 --on noise")
def evaluate(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    unknown_rate: Rate = None,
    on: Annotated[list[str] | None, typer.Option("--on", help="Another data set to predict as unknowns first.")] = None,
    root: Root = "",
    allow_unofficial: Unofficial = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy, ECE, NLL and AUROC of a run, from its stored predictions."""
    from eow.evaluate import evaluate as figures_of

    if on:
        from eow import runs
        from eow.data import load
        from eow.predictions import predict_set

        opened = runs.load(run)
        for name in on:
            outlier = load(name, root or None, "test", allow_unofficial=allow_unofficial, shape=opened.in_shape)
            if outlier.shape != opened.in_shape:
                raise EowError(
                    f"{name} is of shape {outlier.shape}, but {run} was trained on {opened.in_shape}: choose another"
                )
            predict_set(opened, name, outlier)
    figures = figures_of(run, unknown_rate)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        show_metrics(f"{run}" + (f" at an unknown rate of {unknown_rate}" if unknown_rate is not None else ""), figures)


def show_metrics(title: str, metrics: dict[str, dict[str, float]]) -> None:
    from eow.console import print_table

    known = metrics["test"]
    rows = [["accuracy %", f"{100 * known['accuracy']:.2f}"], ["ECE %, 15 bins", f"{100 * known['ece']:.2f}"]]
    rows += [["NLL", f"{known['nll']:.4f}"], ["NLL, K-renormalised", f"{known['nll_renormalised']:.4f}"]]
    rows += [["mean confidence", f"{known['confidence']:.4f}"], ["mean unknown", f"{known['unknown']:.4f}"]]
    print_table(title, ["known classes, test", ""], rows)
    others = {name: each for name, each in metrics.items() if name != "test"}
    if others:
        columns = ["unknowns", "AUROC confidence %", "AUROC unknown %", "mean confidence", "mean unknown"]
        cells = [
            [
                name,
                f"{100 * each['auroc_confidence']:.2f}",
                f"{100 * each['auroc_unknown']:.2f}" if "auroc_unknown" in each else "-",
                f"{each['confidence']:.4f}",
                f"{each['unknown']:.4f}",
            ]
            for name, each in others.items()
        ]
        print_table("", columns, cells)


@app.command(epilog="Example:  eow predict runs/digits photo.png batch.npy --unknown-rate 0.1 --json")
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    files: Annotated[list[Path], typer.Argument(help="Images, or .npy arrays of samples.")],
    unknown_rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Label, confidence and unknown of images or arrays."""
    from eow.console import print_table
    from eow.predictions import predict_files
    from eow.runs import load

    rows = predict_files(load(run), files, unknown_rate)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        cells = [
            [
                f"{r['file']}" + (f" [{r['index']}]" if r["of"] > 1 else ""),
                r["class"],
                f"{r['confidence']:.4f}",
                f"{r['unknown']:.4f}",
            ]
            for r in rows
        ]
        print_table("", ["file", "label", "confidence", "unknown"], cells)


@app.command(epilog="Example:  eow demo --all --seeds 3 --out runs/demo-all")
def demo(
    out: Annotated[Path, typer.Option(help="Where the runs go; without --all, an old demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="The seed of a demo of two methods.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="Every method; goes on where it was stopped.")] = False,
    seeds: Annotated[int, typer.Option(help="With --all: how many seeds, from 0 on.")] = 3,
) -> None:
    """Train vanilla and EOW-Softmax, or all methods, on digits 0-7 and meet 8 and 9 for the first time."""
    from eow.demo import run_all, run_demo

    if every:
        run_all(out, seeds)
    else:
        run_demo(out, seed)


@app.command(epilog="Example:  eow theory --out theory.png --lam 0.1")
def theory(
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("theory.png"),
    lam: Annotated[float, typer.Option(help="λ, the weight of the energy term.")] = 0.1,
) -> None:
    """Draw what exact sampling drives each energy to, for a mixture in one dimension: p(x), the known mass and the
    unknown."""
    from eow.console import print_table
    from eow.theory import draw

    rows = draw(out, lam=lam)
    columns = ["energy", "rank correlation with p", "largest deviation from proportional"]
    cells = [[row.energy, f"{row.rank_correlation:.4f}", f"{row.deviation:.3f}"] for row in rows]
    print_table(f"fixed points, λ = {lam}", columns, cells)
    typer.echo(f"drawn to {out}")


@app.command(epilog="Example:  eow methods")
def methods() -> None:
    """Every method by name: what it is, whether it needs held-out data, what a prediction costs."""
    from eow.console import print_table
    from eow.methods import METHODS

    columns = ["name", "what it is", "held-out data", "a prediction costs"]
    rows = [
        [name, kind.summary, "yes" if kind.needs_holdout else "no", kind.costlier or "one pass"]
        for name, kind in METHODS.items()
    ]
    print_table("methods", columns, rows)


@data_app.command("list", epilog="Example:  eow data list")
def data_list(root: Root = "") -> None:
    """Every data set by name, and whether it is on this disk."""
    from eow.console import print_table
    from eow.data.fetch import describe

    columns = ["name", "shape", "classes", "on disk", "what it is"]
    rows = [[row.name, row.shape, row.classes, row.on_disk, row.about] for row in describe(root or None)]
    print_table("data sets", columns, rows)


@data_app.command("fetch", epilog="Example:  eow data fetch cifar10 --root data")
def data_fetch(name: Annotated[str, typer.Argument(help="A name from `eow data list`.")], root: Root = "") -> None:
    """Download a data set from its official address, check its hash, unpack it. Can be interrupted and repeated."""
    from eow.data.fetch import fetch

    typer.echo(f"{name} is in {fetch(name, root or None)}")


@data_app.command("verify", epilog="Example:  eow data verify mnist")
def data_verify(name: Annotated[str, typer.Argument(help="A name from `eow data list`.")], root: Root = "") -> None:
    """Compare a data set's files with the official hashes. Exit code 1 if one is missing or differs."""
    from eow.console import print_table
    from eow.data.fetch import verify

    found = verify(name, root or None)
    print_table(name, ["file", "status"], [[str(file), status] for file, status in found])
    if any(status in ("missing", "differs") for _, status in found):
        raise typer.Exit(1)


def main() -> None:
    """The command's entry: what the user can put right is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without λ gets a ?
    try:
        app()
    except EowError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: reading or writing failed: {error}", file=sys.stderr)
        # What is still to be printed must go somewhere, or Python complains of it after the sentence.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


if __name__ == "__main__":
    main()
