"""Commands that measure finished runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from eow.cli.options import AsJson, Device, Rate, Root, RunFolder, Unofficial, app, refuse_alone
from eow.errors import EowError


@app.command(epilog="Example:  eow evaluate runs/digits --unknown-rate 0.01 --on noise --intervals")
def evaluate(
    run: RunFolder,
    unknown_rate: Rate = None,
    on: Annotated[
        list[str] | None, typer.Option("--on", help="Another data set, labelled or not, to predict first as unknowns.")
    ] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="Show 95 % intervals.")] = False,
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Also evaluate the test images under 19 corruptions at 5 severities.")
    ] = False,
    official: Annotated[
        Path | None, typer.Option(help="With --corruptions: a folder with the released CIFAR-C files, to use instead.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="With --corruptions: the corruptions' seed, 0 where none is given.")
    ] = None,
    root: Root = "",
    allow_unofficial: Unofficial = False,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Calibration, open world and, on demand, corruption: all figures of a run from its stored predictions."""
    from eow.evaluate import evaluate as figures_of

    refuse_alone("--corruptions", corruptions, official=official is not None, seed=seed is not None)
    refuse_alone("--on", bool(on), allow_unofficial=allow_unofficial)
    refuse_alone("--on or --corruptions", bool(on) or corruptions, root=bool(root), device=device is not None)
    if official is not None and seed is not None:
        raise EowError("the released files of --official were made with their own seed: leave --seed or --official out")
    if corruptions and unknown_rate is not None:
        raise EowError("corrupted predictions are stored at the run's own λ: leave --unknown-rate or --corruptions out")
    if on:
        predict_others(run, on, root, allow_unofficial, device or "auto")
    figures = figures_of(run, unknown_rate, bootstrap=intervals)
    if corruptions:
        figures["corruptions"] = corrupted(run, root, seed or 0, official, device or "auto", quiet=as_json)
    if as_json:
        typer.echo(json.dumps(figures, indent=2))
    else:
        show_metrics(f"{run}" + (f" at an unknown rate of {unknown_rate}" if unknown_rate is not None else ""), figures)
        if corruptions:
            typer.echo(f"written to {run / 'corruptions.json'} and {run / 'corruptions.png'}")


def predict_others(folder: Path, names: list[str], root: str, allow_unofficial: bool, device: str) -> None:
    """Predictions on further data sets, into the run, whose other ones must be of the same weights."""
    from dataclasses import replace

    from eow import runs
    from eow.data.sets import load_outlier
    from eow.evaluate import CERTIFY, KNOWN, read_all
    from eow.predictions import predict_set
    from eow.training.distributed import pick_device

    if mine := {KNOWN, "unknown", CERTIFY} & {*names}:
        raise EowError(f"{mine.pop()} is a part of the run's own data: name another data set, such as noise")
    run = runs.load(folder, str(pick_device(device)))
    known, _ = read_all(folder, without=names)  # before anything is replaced
    wanted = replace(run.config.data, root=root, allow_unofficial=allow_unofficial)
    tested, columns = known.manifest.get("data_hash", ""), known.manifest.get("columns", [])
    for name in names:
        predict_set(run, name, load_outlier(name, wanted, run.in_shape, tested, columns))


def corrupted(folder: Path, root: str, seed: int, official: Path | None, device: str, quiet: bool) -> dict[str, Any]:
    """The corruption matrix of a run: into corruptions.json and corruptions.png in its folder."""
    from rich.progress import track

    from eow.console import console
    from eow.data.corruptions import CORRUPTIONS
    from eow.report.plots import draw_corruptions
    from eow.robustness import write_corruptions

    def bar(steps: Any) -> Any:
        return track(steps, "corrupting", len(CORRUPTIONS), console=console, transient=True, disable=quiet)

    figures = write_corruptions(folder, root, device, seed=seed, official=official, watch=bar)
    draw_corruptions(figures, folder / "corruptions.png")
    return figures


def show_metrics(title: str, metrics: dict[str, Any]) -> None:
    from eow.console import print_table
    from eow.evaluate import KNOWN
    from eow.metrics.ood import SCORES
    from eow.metrics.statistics import FEWEST

    sure = metrics.get("intervals", {})
    others = {name: each for name, each in metrics.items() if name not in ("test", "intervals", "corruptions")}

    def row(label: str, figure: str, factor: float = 100, digits: int = 2, of: str = "test") -> list[str]:
        if figure not in metrics[of] or (figure == "unknown" and not metrics[of][figure]):
            return [label, "-"]  # no such score of this set, a method without an unknown
        text, null = f"{factor * metrics[of][figure]:.{digits}f}", metrics[of].get(f"null_{figure}")
        text += f"  (null {factor * null:.{digits}f})" if null is not None else ""
        if found := sure.get(of, {}).get(figure):
            text += f"  [{factor * found[0]:.{digits}f}, {factor * found[1]:.{digits}f}]"
        return [label, text]

    rows = [row("accuracy %", "accuracy"), row("ECE %, 15 bins", "ece"), row("smooth ECE %", "smooth_ece")]
    rows += [row("equal-mass ECE %", "ece_equal_mass"), row("classwise ECE %", "ece_classwise", digits=3)]
    rows += [row("NLL", "nll", 1, 4), row("NLL, K-renormalised", "nll_renormalised", 1, 4), row("Brier", "brier", 1, 4)]
    rows += [row("AURC %", "aurc"), row("mean confidence", "confidence", 1, 4), row("mean unknown", "unknown", 1, 4)]
    note = "null: what a perfectly calibrated model with these confidences would measure"
    if "intervals" in metrics and not sure[KNOWN]:
        note += f"; no intervals: of fewer than {FEWEST} test samples they would say nothing"
    print_table(title, ["known classes, test", ""], rows, note)
    if others:
        scores = [name for name in SCORES if any(f"auroc_{name}" in each for each in others.values())]
        best = "unknown" if "unknown" in scores else "confidence"
        columns = [
            "unseen classes" if name == "unknown" else f"{name} ({each['kind']})" for name, each in others.items()
        ]

        def line(label: str, figure: str, factor: float = 100, digits: int = 2) -> list[str]:
            return [label, *(row("", figure, factor, digits, of=name)[1] for name in others)]

        lines = [line(f"AUROC % by {score.replace('_', ' ')}", f"auroc_{score}") for score in scores]
        lines += [line(f"FPR95 % by {best}", f"fpr95_{best}"), line("mean confidence", "confidence", 1, 4)]
        print_table("", ["known against unknown", *columns], [*lines, line("mean unknown", "unknown", 1, 4)])
    if "corruptions" in metrics:
        show_corruptions(metrics["corruptions"])


def show_corruptions(figures: dict[str, Any]) -> None:
    from eow.console import print_table

    def cell(figure: str, column: int, factor: float, digits: int) -> str:
        found = figures["severity"][figure][column]
        return f"{factor * found['mean']:.{digits}f} ± {factor * found['std']:.{digits}f}"

    rows = [
        [severity, cell("accuracy", i, 100, 1), cell("ece", i, 100, 2), cell("nll", i, 1, 3), cell("unknown", i, 1, 3)]
        for i, severity in enumerate(figures["severities"])
    ]
    title = f"{len(figures['corruptions'])} corruptions ({figures['source']}): mean ± deviation over them"
    print_table(title, ["severity", "accuracy %", "ECE %", "NLL", "unknown"], rows)


@app.command(epilog="Example:  eow compare runs/eow-0 runs/eow-1 --against runs/vanilla-0 --against runs/vanilla-1")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs of one method, one per seed.")],
    against: Annotated[list[Path], typer.Option("--against", help="A run of the other method; repeat for each seed.")],
    unknown_rate: Rate = None,
    as_json: AsJson = False,
) -> None:
    """Two methods on the same samples, seed by seed: differences with 95 % intervals and p-values."""
    from eow.compare import compare as rows_of
    from eow.console import print_table

    def p_text(p: float) -> str:
        return f"{p:.3f}" if p >= 0.001 else "<.001"

    def shown(row: Any) -> str:
        return row.figure if row.unknowns is None else f"{row.figure}, {row.unknowns}"

    rows = rows_of(runs, against, unknown_rate)
    if as_json:
        typer.echo(json.dumps([row._asdict() for row in rows], indent=2))
        return
    cells = [
        [shown(row), *(f"{value:.4f}" for value in row[1:4]), f"[{row.low:.4f}, {row.high:.4f}]", p_text(row.p_value)]
        for row in rows
    ]
    columns = ["figure", "first", "second", "difference", "95 %", "p"]
    seeds = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
    note = "of these trained networks on new samples" if len(runs) == 1 else "over new samples and new seeds"
    print_table(f"{runs[0]} against {against[0]}, {seeds}", columns, cells, f"intervals and p: {note}")


@app.command(epilog="Example:  eow threshold runs/digits --max-risk 0.01 --delta 0.05")
def threshold(
    run: RunFolder,
    max_risk: Annotated[float, typer.Option(help="The share of wrong answers to allow, among the answers given.")],
    delta: Annotated[float, typer.Option(help="The probability with which the promise may be broken.")] = 0.05,
    unknown_rate: Rate = None,
    root: Root = "",
    as_json: AsJson = False,
) -> None:
    """Certify a confidence threshold on data the run has never seen, so that `eow predict` abstains below it."""
    from eow.certify import certify
    from eow.evaluate import is_imported

    found = certify(run, max_risk, delta, unknown_rate, root)
    if as_json:
        typer.echo(json.dumps(found and found._asdict(), indent=2))
        return
    if found is None:
        typer.echo(f"no threshold qualifies: none keeps the risk under {max_risk:g} with probability {1 - delta:g}")
        then = f"the run has none now, and `eow predict {run}` abstains only where unknown is the most probable answer"
    else:
        typer.echo(
            f"answer at a confidence of {found.threshold:.6g} or more: at most {max_risk:.2%} of the answers on known "
            f"classes are wrong, with probability {1 - delta:g}\n"
            f"on the {found.samples:,} samples it was found on: {found.coverage:.1%} answered, {found.risk:.2%} of "
            f"these wrong, at most {found.bound:.2%} by the bound"
        )
        then = f"`eow predict {run}` now abstains below it"
    if not is_imported(run):  # else there is no network to predict with
        typer.echo(then)
