"""Where the numbers come from: each run's command, versions, commit and hashes, and each group's settings."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from eow.errors import EowError
from eow.report.gather import Bunch, Loaded
from eow.report.parts import Cell, Table
from eow.report.tables import name_of


@dataclass(frozen=True)
class Detail:
    """Text that is unfolded on demand."""

    title: str
    text: str


def runs_table(bunch: Bunch) -> Table:
    header = ["run", "method", "seed", "eow", "commit", "Python", "torch", "numpy", "device", "weights"]
    rows = []
    for group in bunch.groups:
        for run in group.runs:
            made = run.environment
            words = [str(made.get(key) or "–") for key in ("eow", "commit", "python", "torch", "numpy", "device")]
            words[1] = words[1][:10]
            rows.append([
                Cell(str(run.folder)), name_of(group), Cell(str(run.seed), run.seed), *map(Cell, words),
                Cell(str(run.summary["weights"])[:12]),
            ])  # fmt: skip
    caption = (
        "As each run wrote it down when it began: versions, commit and device; weights: the beginning of the sha256 of "
        "weights.safetensors, or of imported predictions. Everything on this page was computed from the predictions in "
        "these folders."
    )
    return Table("runs", "Provenance", header, rows, caption)


def details_of(bunch: Bunch) -> list[Detail]:
    runs = [run for group in bunch.groups for run in group.runs]
    details = [Detail("Commands", "\n".join(command_of(run) for run in runs))]
    details.append(Detail("Data", "\n\n".join(map(data_of, distinct_data(runs)))))
    for group in bunch.groups:
        details.append(Detail(f"Settings of {group.label}", json.dumps(public(group.first.config), indent=2)))
    text = "\n\n".join(f"{run.folder}\n{json.dumps({**run.environment, 'weights': run.summary['weights']}, indent=2)}"
                       for run in runs)  # fmt: skip
    return [*details, Detail("Environments and hashes", text)]


def public(config: dict[str, Any]) -> dict[str, Any]:
    """Without the place of the data on somebody's machine."""
    return {**config, "data": {key: value for key, value in config["data"].items() if key != "root"}}


def command_of(run: Loaded) -> str:
    """The `eow train` that makes the run again: name, recipe and seed, and whatever is not the recipe's."""
    from eow.config import from_table, resolve, to_table

    if run.imported:
        return f"# {run.folder}: imported, not made by eow"
    wanted = run.config
    names = {section: {"name": wanted[section]["name"]} for section in ("data", "model", "method")}
    try:
        usual = to_table(resolve({"recipe": wanted.get("recipe", "modern"), "seed": run.seed, **names}))
        wanted = to_table(from_table(wanted))
    except EowError as error:
        return f"# {run.folder}: this version of eow does not know its settings: {error}"
    words = ["eow", "train", "--data", wanted["data"]["name"], "--model", wanted["model"]["name"], "--method",
             wanted["method"]["name"], "--recipe", wanted["recipe"], "--seed", str(wanted["seed"])]  # fmt: skip
    for section in ("data", "model", "method", "train"):
        for key, value in wanted[section].items():
            if value != usual[section][key] and (section, key) not in (("data", "root"), ("train", "device")):
                words += ["--set", f"{section}.{key}={setting(value)}"]
    return shlex.join([*words, "--out", str(run.folder)])


def setting(value: Any) -> str:
    """A value as `--set` reads it."""
    return json.dumps(value) if isinstance(value, list | bool) else str(value)


def distinct_data(runs: list[Loaded]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        found.setdefault(json.dumps(run.summary["sets"], sort_keys=True), run.summary["sets"])
    return list(found.values())


def data_of(sets: dict[str, Any]) -> str:
    """One line a set: split, samples, classes, hash, whether it is the official file."""
    official = {True: "official files", False: "not the official files", None: "no official hashes"}
    lines = [
        f"{name}: {each.get('samples')} samples of {each.get('split')}, {each.get('classes')} classes, sha256 "
        f"{each.get('hash')}, {official[each.get('official')]}"
        for name, each in sets.items()
    ]
    return "\n".join(lines)
