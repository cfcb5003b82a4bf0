"""`eow import`: predictions of other models, measured as a run's are."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eow.cli.measuring import show_metrics
from eow.cli.options import TO_WRITE, AsJson, app
from eow.errors import EowError


@app.command("import", epilog="Example:  eow import resnet.npz --out runs/resnet --unknown svhn=svhn.npz")
def import_(
    file: Annotated[
        Path, typer.Argument(help="An .npz with labels and with probs or logits, (N, K); unknown and classes if any.")
    ],
    out: Annotated[Path, typer.Option(help="The new folder.", **TO_WRITE)],
    name: Annotated[str, typer.Option(help="The model, as tables call it; else the file's name.")] = "",
    unknown: Annotated[
        list[str] | None,
        typer.Option("--unknown", help="NAME=FILE: the same for samples of no known class, without labels."),
    ] = None,
    certify: Annotated[
        Path | None,
        typer.Option(help="The same for samples that nothing was trained or fitted on, for `eow threshold`."),
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="A run on the same test samples in the same order, to compare with.")
    ] = None,
    data: Annotated[str, typer.Option(help="The name of the test data, where there is no such run.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Which training this is, of a model trained several times.")] = 0,
    odds: Annotated[
        float | None, typer.Option(help="The prior odds of unknown in them; the last of K+1 logits is then unknown's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predictions of any model, from any library, as a folder for `eow evaluate`, `compare`, `threshold` and
    `report`. Nothing is fitted to them, and nothing is renormalised."""
    from eow.importing import import_predictions, read_file

    said, labels, classes = read_file(file)
    summary = import_predictions(
        out, said, labelled(labels, file), name=name or file.stem, unknowns=unknowns_in(unknown or [], file, classes),
        certify=None if certify is None else to_certify(certify, file, classes), seed=seed, data=data,
        classes=classes, like=like, odds=odds,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(summary["metrics"], indent=2))
    else:
        show_metrics(str(out), summary["metrics"])


def labelled(labels: Any, file: Path) -> Any:
    if labels is None:
        raise EowError(f"{file} holds no labels: add the true classes as `labels`")
    return labels


def of_same_classes(file: Path, first: Path, classes: list[Any]) -> tuple[Any, Any]:
    """What a further file says, and its labels. Where it has classes they are the first file's, column by column."""
    from eow.importing import read_file

    said, labels, theirs = read_file(file)
    if theirs and theirs != classes:
        raise EowError(f"{file} has other classes than {first}: bring its columns into that order, with these names")
    return said, labels


def to_certify(file: Path, first: Path, classes: list[Any]) -> tuple[Any, Any]:
    said, labels = of_same_classes(file, first, classes)
    return said, labelled(labels, file)


def unknowns_in(given: list[str], first: Path, classes: list[Any]) -> dict[str, Any]:
    """What the files of each NAME=FILE say, by name."""
    found: dict[str, Any] = {}
    for each in given:
        name, sign, file = each.partition("=")
        if not sign or not name or not file:
            raise EowError(f"--unknown {each} names no set and file: write --unknown svhn=svhn.npz")
        if name in found:
            raise EowError(f"--unknown names {name} twice: give each set a name of its own")
        found[name] = of_same_classes(Path(file), first, classes)[0]
    return found
