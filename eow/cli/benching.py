"""Commands about many runs: a grid of them, and a report on those that are there."""

from pathlib import Path
from typing import Annotated

import typer

from eow.cli.options import TO_WRITE, Rate, Root, app
from eow.errors import EowError


@app.command(epilog="Example:  eow bench benchmarks/table1-mnist.toml --size quick --jobs 2")
def bench(
    file: Annotated[Path, typer.Argument(help="A grid: one of benchmarks/*.toml, or your own.")],
    out: Annotated[Path | None, typer.Option(help="Where runs and table go; else runs/NAME-SIZE.", **TO_WRITE)] = None,
    size: Annotated[str, typer.Option(help="quick, or full: the paper's.")] = "quick",
    jobs: Annotated[int, typer.Option(min=0, help="Cells at a time; 0: one a GPU, else one a core.")] = 0,
    cpus: Annotated[int, typer.Option(min=0, help="Cores for each cell; 0: an equal share.")] = 0,
    engine: Annotated[str, typer.Option(help="local, or ray: on a cluster.")] = "local",
    address: Annotated[str, typer.Option(help="With --engine ray: the cluster's; else one is started here.")] = "",
    only: Annotated[list[str] | None, typer.Option("--only", help="One of the grid's methods, repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Another number of seeds than the grid's.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="section.key=value, over all cells.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Write it into records/, to be committed.")] = False,
) -> None:
    """Run a grid of methods, data sets and seeds and print its table; goes on where it was stopped."""
    from eow.bench import bench as run_bench

    try:
        table = run_bench(
            file, out, size=size, jobs=jobs, cpus=cpus, engine=engine, address=address, record=record,
            only=only or (), seeds=seeds or 0, settings=settings or (),
        )  # fmt: skip
    except KeyboardInterrupt:
        raise typer.Exit(130) from None  # as shells do
    if table["failed"]:
        raise typer.Exit(1)


@app.command(epilog="Example:  eow report runs/vanilla runs/eow -o report.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or of a bench.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write, or a folder for csv and png; else report.*.", **TO_WRITE),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="html, md, csv, png or latex; else what the file's ending says.")
    ] = None,
    unknown_rate: Rate = None,
    root: Root = "",
) -> None:
    """One page about runs: tables with the paper's figures beside ours, diagrams, curves, pictures, provenance."""
    from eow.report import SUFFIX
    from eow.report import report as write_report

    endings = {f".{suffix}": name for name, suffix in SUFFIX.items()}
    ending = out.suffix.lower() if out else ""
    if out and not form and ending not in ("", *endings) and not out.is_dir():
        raise EowError(f"{out} does not fit a report: end it in {', '.join(endings)}, or choose a --format")
    form = form or endings.get(ending, "html")
    for path in write_report(runs, out or Path(f"report.{SUFFIX.get(form, form)}"), form, unknown_rate, root):
        typer.echo(f"written to {path}")
