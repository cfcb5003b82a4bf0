"""Commands for data sets."""

from pathlib import Path
from typing import Annotated

import typer

from eow.cli.options import TO_WRITE, Flowing, Root, Unofficial
from eow.errors import EowError

data_app = typer.Typer(cls=Flowing, no_args_is_help=True)


@data_app.command("list", epilog="Example:  eow data list")
def data_list(root: Root = "") -> None:
    """Every data set by name, and whether it is on this disk."""
    from eow.console import print_table
    from eow.data.catalog import data_root
    from eow.data.fetch import describe

    columns = ["name", "shape", "classes", "on disk", "what it is"]
    rows = [[row.name, row.shape, row.classes, row.on_disk, row.about] for row in describe(root or None)]
    print_table("data sets", columns, rows, f"looked for below {data_root(root or None)}")


@data_app.command("fetch", epilog="Example:  eow data fetch cifar10 --root data")
def data_fetch(name: Annotated[str, typer.Argument(help="A name from `eow data list`.")], root: Root = "") -> None:
    """Download a data set from its official address, check its hash, unpack it. Can be interrupted and repeated."""
    from eow.data.fetch import fetch

    typer.echo(f"{name} is in {fetch(name, root or None)}")


@data_app.command("verify", epilog="Example:  eow data verify mnist")
def data_verify(name: Annotated[str, typer.Argument(help="A name from `eow data list`.")], root: Root = "") -> None:
    """Compare a data set's files with the official hashes. Exit code 1 if one is missing or differs."""
    from eow.console import print_table
    from eow.data.catalog import data_root, how_to_get, how_to_repair
    from eow.data.fetch import verify

    found = verify(name, root or None)
    if not found:
        typer.echo(f"{name} is built in: there are no files to verify")
        return
    states = {status for _, status in found}
    what_next = how_to_repair(name) if "differs" in states else how_to_get(name) if "missing" in states else ""
    note = f"looked for below {data_root(root or None)}"
    print_table(name, ["file", "status"], found, f"{note}; {what_next}" if what_next else note)
    if what_next:
        raise typer.Exit(1)


@data_app.command("corruptions", epilog="Example:  eow data corruptions --data cifar10 --out sheet.png")
def data_corruptions(
    out: Annotated[Path, typer.Option(help="The picture to write.", **TO_WRITE)] = Path("corruptions.png"),
    data: Annotated[str, typer.Option(help="The data set whose test image is shown.")] = "cifar10",
    index: Annotated[int, typer.Option(min=0, help="Which of its test images.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="The corruptions' seed.")] = 0,
    root: Root = "",
    allow_unofficial: Unofficial = False,
) -> None:
    """One image under all 19 corruptions at 5 severities, on a contact sheet."""
    from eow.data import load
    from eow.data.corruptions.sheet import contact_sheet

    images = load(data, root or None, "test", allow_unofficial=allow_unofficial).inputs
    if images.ndim != 4:
        raise EowError(f"only images can be corrupted, and {data} has rows of numbers: name a set of images")
    if index >= len(images):
        raise EowError(f"{data} has {len(images)} test images, counted from 0: there is no image {index}")
    contact_sheet(images[index], out, seed=seed)
    typer.echo(f"drawn to {out}")
