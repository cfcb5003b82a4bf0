"""Commands that use a finished run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from eow.cli.options import AsJson, Rate, app


@app.command(epilog="Example:  eow predict runs/digits photo.png batch.npy --unknown-rate 0.1 --json")
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    files: Annotated[list[Path], typer.Argument(help="Images, or .npy arrays of samples.")],
    unknown_rate: Rate = None,
    threshold: Annotated[
        float | None, typer.Option(help="Abstain below this confidence; 0: never. Else the run's own, if it has one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Label, confidence and unknown of images or arrays; -1 and "unknown" where it abstains."""
    from eow.console import print_table
    from eow.predictions import predict_files
    from eow.runs import load

    rows = predict_files(load(run), files, unknown_rate, threshold)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        cells = [
            [
                f"{r['file']}" + (f" [{r['index']}]" if r["of"] > 1 else ""),
                "unknown" if r["class"] is None else r["class"],
                f"{r['confidence']:.4f}",
                f"{r['unknown']:.4f}",
            ]
            for r in rows
        ]
        print_table("", ["file", "label", "confidence", "unknown"], cells)
