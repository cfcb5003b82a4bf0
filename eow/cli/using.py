"""Commands that use a finished run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from eow.cli.options import TO_WRITE, AsJson, Rate, Root, RunFolder, app

ABSTAINED = "- (unknown)"  # a class may be called unknown
Threshold = Annotated[
    float | None,
    typer.Option(
        help="Abstain below this confidence; 0: never. By default the run's own threshold, else wherever unknown is "
        "most probable."
    ),
]


@app.command(epilog="Example:  eow predict runs/digits photo.png batch.npy --unknown-rate 0.1 --json")
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run, or an .onnx file of `eow export`.")],
    files: Annotated[
        list[Path], typer.Argument(help="Images, .npy arrays, or a .csv where the run was trained on one.")
    ],
    unknown_rate: Rate = None,
    threshold: Threshold = None,
    as_json: AsJson = False,
) -> None:
    """Label, confidence and unknown of images, arrays or a table's rows. The label is "- (unknown)", in JSON -1 with a
    class of null, where the confidence is below the threshold or, without a threshold, where "unknown" is the most
    probable answer."""
    from eow.answering import opened, predict_files
    from eow.console import print_table

    rows = predict_files(opened(run), files, unknown_rate, threshold)
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        cells = [
            [
                f"{r['file']}" + (f" [{r['index']}]" if r["of"] > 1 else ""),
                ABSTAINED if r["class"] is None else r["class"],
                f"{r['confidence']:.4f}",
                f"{r['unknown']:.4f}",
            ]
            for r in rows
        ]
        strange = sum(r["label"] >= 0 and r["unknown"] > r["confidence"] for r in rows)
        hint = f"unknown is more probable than the label in {strange} of {len(rows)}: raise the threshold to abstain"
        print_table("", ["file", "label", "confidence", "unknown"], cells, hint if strange else "")


@app.command(epilog="Example:  eow export runs/digits -o digits.onnx")
def export(
    run: RunFolder,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write: .onnx, or .pt2 with --format torch.", **TO_WRITE)
    ],
    form: Annotated[str, typer.Option("--format", help="onnx, or torch (torch.export).")] = "onnx",
    unknown_rate: Rate = None,
    threshold: Threshold = None,
    on: Annotated[
        str | None, typer.Option(help="A file of real inputs to check with, or random; by default the test data.")
    ] = None,
    root: Root = "",
) -> None:
    """Write the run as one file that returns label, confidence, unknown and probs; it is checked against the run
    first."""
    from eow.export.run import export as export_run

    told = export_run(run, out, form, unknown_rate, threshold, on, root or None)
    typer.echo(
        f"{told['path']}, {told['bytes'] / 1000:,.0f} kB: agrees with the run on {told['samples']} samples of "
        f"{told['compared_on']}, to within {told['largest_difference']:.1g}"
    )
