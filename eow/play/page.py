"""Builds the page: two trained MLPs and the few lines of JavaScript that run them, in one HTML file.

All ten digits are known here, since a visitor may draw any; anything else is the unknown. EOW's setting was chosen
among some forty on held-out training digits, digits drawn from templates and random scribbles, the last two brought
from strokes to pixels as the page does it. AUROC of the unknown (vanilla: of the confidence) for scribbles against
held-out and against drawn digits, and the mean unknown at a rate of 50 %; the 400 scribbles of digits were drawn anew
for this table, the 300 of MNIST are those of the choice (among nine):

    digits, three seeds                   accuracy    AUROC: held-out, drawn    unknown: held-out, drawn, scribbles
    vanilla                                   98.0         .89   .78
    eow, λ .1, 20 steps                       98.0         .84   .71                 .27   .37   .55
    eow, λ 1, 5 steps (shipped)               98.3         .93   .85                 .24   .31   .56
    mnist, one seed, 5 epochs
    vanilla                                   98.1         .96   .96
    eow, λ .1, 20 steps                       97.0         .90   .91                 .23   .25   .64
    eow, cut `input`, 5 steps (shipped)       98.2         .93   .93                 .30   .29   .72

So EOW with λ .1 ranks scribbles worse than vanilla's confidence does; the shipped one ranks them better on digits
(where it calls 79 % of them, 10 % of the held-out and 27 % of the drawn digits unknown) and not on MNIST. What the page
shows on both is the level: on digits, vanilla's mean confidence in scribbles is .87 and EOW's .36.
"""

import base64
import html
import json
import re
import tempfile
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from eow import __version__
from eow.config import RunConfig, Table, merge, resolve
from eow.console import console
from eow.data import Dataset, load
from eow.errors import EowError
from eow.models.layers import OpenLinear
from eow.runs import Run, train
from eow.runs import load as load_run
from eow.storage import atomic, make_folder, read_text, unreadable
from eow.threads import one_thread

NETWORKS = ("vanilla", "eow")
# What differs from the recipe: for both networks, and for EOW's alone.
SETTINGS: dict[str, Table] = {"digits": {}, "mnist": {"train": {"epochs": 5, "batch": 128}}}
PLAIN_EOW: Table = {  # the unknown at the odds that it was trained with, all data, no fence
    "data": {"holdout": 0}, "model": {"unknown": "linear"},
    "method": {"start": "noise:0.5,mixed:0.5", "steps": 5, "start_epoch": 0.6, "onset": "as_is",
               "calibrate": "none", "unknown_rate": "trained", "fence": 0},
}  # fmt: skip
EOW_SETTINGS: dict[str, Table] = {
    "digits": merge(PLAIN_EOW, {"method": {"lam": 1.0}}),
    "mnist": merge(PLAIN_EOW, {"method": {"lam": 0.1}, "model": {"cut": "input"}}),
}
TITLE = "Draw a digit, or anything else"
RATE = 50  # % of unknowns that the page expects at first: a visitor may draw anything
MARK = 'id="eow-page"'  # of the script element that every page of ours has
EXAMPLES = 4  # real test digits of each class in the page
SCRIPTS = ("network.js", "pen.js", "page.js")


def build(
    out: str | Path, runs_dir: str | Path | None = None, data: str = "digits", seed: int = 0, root: str = ""
) -> Path:
    """Write out/index.html and return its path. Trained networks are kept in `runs_dir` and used again from there;
    without one, nothing but the page is left. `root` is where MNIST lies, if not in the usual places."""
    if data not in SETTINGS:
        raise EowError(f"there is no page for {data!r}: choose one of {', '.join(SETTINGS)}")
    configs = {method: play_config(method, data, seed, root) for method in NETWORKS}
    test = load(data, root or None, "test")
    path = Path(out) / "index.html"
    check_own(path)
    make_folder(path.parent)
    with ExitStack() as stack:
        folder = Path(runs_dir) if runs_dir else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs, summaries = {}, {}
        for method, config in configs.items():
            place = folder / f"{data}-{method}-seed{seed}"
            with one_thread():
                summaries[method] = train(config, place, resume=True)
            runs[method] = load_run(place)
        text = compose(runs, summaries, test)
    atomic(path, lambda file: file.write(text.encode()))
    console.print(f"the page is in {path} ({len(text) / 1e6:.1f} MB, nothing else is needed)")
    return path


def check_own(path: Path) -> None:
    """An error where a page stands that is not of our making: it would be replaced."""
    try:
        own = MARK in read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        own = False
    if not own:
        raise EowError(f"{path} is a page that eow has not made: move it away, or choose another folder")


def play_config(method: str, data: str, seed: int, root: str = "") -> RunConfig:
    names = {"data": {"name": data, "root": root}, "model": {"name": "mlp"}, "method": {"name": method}, "seed": seed}
    return resolve(names, SETTINGS[data], EOW_SETTINGS[data] if method == "eow" else {})


def compose(runs: dict[str, Run], summaries: dict[str, dict[str, Any]], test: Dataset) -> str:
    """The page's text. What comes from outside (names of classes, say) is escaped for the place it stands in."""
    run, figures = runs["eow"], {method: each["metrics"]["test"] for method, each in summaries.items()}
    odds = run.config.method.odds
    words = {
        "title": TITLE, "side": run.in_shape[-1], "rate": RATE, "learned": round(100 * odds / (1 + odds)),
        "samples": f"{summaries['eow']['sets']['train']['samples']:,}", "tests": f"{len(test):,}",
        "vanilla_accuracy": f"{100 * figures['vanilla']['accuracy']:.1f}",
        "eow_accuracy": f"{100 * figures['eow']['accuracy']:.1f}",
        "unknown": f"{100 * figures['eow']['unknown']:.0f}", "version": __version__,
        "negatives": "pictures that are not digits" if run.config.model.cut == "input" else
        "points of its own feature space where digits are not",
    }  # fmt: skip
    source = files("eow.play")
    parts = {name: html.escape(str(word)) for name, word in words.items()}
    parts["style"] = source.joinpath("page.css").read_text(encoding="utf-8")
    parts["script"] = "\n".join(source.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts["page"] = script_json(content(runs, test))
    template = source.joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def content(runs: dict[str, Run], test: Dataset) -> dict[str, Any]:
    """Everything the script reads: the networks, what is done to their input, class names, a few test digits."""
    run = runs["eow"]
    by_class = [np.flatnonzero(test.labels == label)[:EXAMPLES] for label in range(len(run.classes))]
    chosen = np.stack(by_class, axis=1).ravel()  # one of each class, then the next of each
    return {
        "data": test.name, "classes": list(run.classes), "side": run.in_shape[-1],
        "mean": run.transform.mean[0], "std": run.transform.std[0],
        "networks": {
            method: {"layers": layers_of(each), "odds": getattr(each.config.method, "odds", None)}
            for method, each in runs.items()
        },
        "examples": [{"label": int(test.labels[i]), "pixels": encode(test.inputs[i])} for i in chosen],
    }  # fmt: skip


def layers_of(run: Run) -> list[dict[str, str]]:
    """The MLP's linear layers in order; a ReLU stands between each two, and nothing else. The last one
    may have a square."""
    linear = [module for module in run.method.model.modules() if isinstance(module, nn.Linear)]
    parts = [{"weight": layer.weight, "bias": layer.bias} for layer in linear]
    if isinstance(linear[-1], OpenLinear):
        parts[-1]["square"] = linear[-1].coefficients()
    return [{name: encode(value.detach().numpy()) for name, value in part.items()} for part in parts]


def encode(array: np.ndarray) -> str:
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


def script_json(value: Any) -> str:
    """JSON that can stand in a script element: no "</script>" or "<!--" can come about without a "<"."""
    return json.dumps(value).replace("<", "\\u003c")
