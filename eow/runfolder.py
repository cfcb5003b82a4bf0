"""A run's folder from outside: made or found again, locked, compared with what is wished for, described."""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eow
from eow import config as configs
from eow import storage
from eow.config import ELSEWHERE, RunConfig
from eow.data.sets import RunData
from eow.errors import EowError
from eow.evaluate import refuse_imported
from eow.opening import checked_hash

FILES = {  # that a run writes whole, by the folder in it: of these, and of no others, a kill may leave halves
    "": (
        "config.json", "environment.json", "log.jsonl", "log.csv", "weights.safetensors", "checkpoint*.safetensors",
        "summary.json", "threshold.json", "corruptions.json", "corruptions.png",
    ),
    "predictions": ("*.safetensors",),
    "corrupted": ("*.safetensors",),
}  # fmt: skip


def environment(device: torch.device) -> dict[str, Any]:
    """What the run was made with."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "eow": eow.__version__, "commit": commit(), "python": platform.python_version(), "torch": torch.__version__,
        "numpy": np.__version__, "system": f"{platform.system()} {platform.machine()}",
        "device": f"{device.type} ({name})", "cores": os.cpu_count(), "threads": torch.get_num_threads(),
    }  # fmt: skip


def commit() -> str | None:
    """That of the source, with a + where it has been changed since; None where it does not lie in a checkout of its
    own: the package may be copied into somebody else's."""
    source = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=source, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != source:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "eow")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def note_environment(folder: Path, device: torch.device) -> None:
    """environment.json: what the run is made with and, where it was begun with another, what with before."""
    file, now = folder / "environment.json", environment(device)
    before = storage.read_json(file) if file.exists() else now
    earlier = [*before.pop("earlier", []), *([] if before == now else [before])]
    storage.write_json(file, {**now, **({"earlier": earlier} if earlier else {})})


def difference(old: dict[str, Any], new: dict[str, Any], path: str = "") -> str | None:
    """The first setting in which two configs differ, as a sentence's part."""
    for key in sorted({*old, *new}):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            if found := difference(old[key], new[key], f"{path}{key}."):
                return found
        elif old.get(key) != new.get(key) and tuple(f"{path}{key}".split(".")) not in ELSEWHERE:
            return f"{path}{key} is {old.get(key)!r} there and {new.get(key)!r} now"
    return None


@contextmanager
def open_folder(folder: Path, config: RunConfig, resume: bool) -> Iterator[bool]:
    """The run's folder, made or found again, and locked. Yields whether the run in it is already complete."""
    present = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    if present and not (folder / "config.json").exists():
        raise EowError(f"{folder} is not empty and holds no run: choose another folder for --out")
    if present:
        refuse_imported(folder)
    if present and not resume:
        with storage.locked(folder):  # a run that is under way is the better thing to say
            raise EowError(
                f"{folder} already holds a run: pass --resume (resume=True) to go on with it, or choose another folder "
                "for --out"
            )
    storage.make_folder(folder)
    with storage.locked(folder):
        remove_leftovers(folder)
        if present and (found := difference(storage.read_json(folder / "config.json"), configs.to_table(config))):
            raise EowError(
                f"{folder} holds a run with other settings ({found}): resume it with its own, or choose another --out"
            )
        yield (folder / "summary.json").exists()


def remove_leftovers(folder: Path) -> None:
    """What a kill left half-written of a run's files. Only with the lock in hand."""
    for place, names in FILES.items():
        storage.remove_temporary(folder / place, *names)


def foreign_files(folder: Path) -> list[Path]:
    """What lies in a run's folder but is not a run's file; hidden files do not count."""
    own = {folder / place for place in FILES} | {*run_files(folder)}
    return [path for path in sorted(folder.rglob("*")) if path not in own and not path.name.startswith(".")]


def run_files(folder: Path) -> Iterator[Path]:
    for place, names in FILES.items():
        for name in names:
            yield from (folder / place).glob(name)


def remove_run(folder: Path) -> None:
    """All files of the run in the folder, and no others. Only with the lock in hand, which stays."""
    remove_leftovers(folder)
    for file in [*run_files(folder)]:
        file.unlink()
    for place in (folder / name for name in FILES if name):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()


def find_vanilla(folder: Path, config: RunConfig, data: RunData, device: torch.device) -> Path | None:
    """A finished vanilla run beside `folder` with the same data, model, training and seed, whose weights will do:
    trained on the same kind of device, where that decides the precision."""
    wanted = {**configs.to_table(config), "method": {"name": "vanilla"}}
    hashes = {name: each and each.hash for name, each in (("train", data.train), ("holdout", data.holdout))}
    for beside in sorted(folder.absolute().parent.iterdir()):
        try:
            settings, summary = (storage.read_json(beside / name) for name in ("config.json", "summary.json"))
            found = {name: summary["sets"][name]["hash"] if name in summary["sets"] else None for name in hashes}
            if found != hashes or difference(settings, wanted) or not (beside / "weights.safetensors").is_file():
                continue
            checked_hash(beside)
            where = str(storage.read_json(beside / "environment.json", "device")["device"])
            if config.train.precision != "auto" or where.startswith(device.type):
                return beside
        except (EowError, OSError, TypeError, KeyError, AttributeError):
            continue  # no run, or a damaged one: nothing to take over
    return None
