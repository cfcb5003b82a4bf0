"""What tells one cell from another: a hash of its settings, and of a user's own files that it reads."""

import hashlib
import json
from pathlib import Path

from eow.config import ELSEWHERE, Table
from eow.data.files import at_home, entries, files_below, is_file, is_folder
from eow.storage import file_hash


def config_hash(table: Table, known: dict[str, str] | None = None) -> str:
    """One hash of all settings that decide what comes out of a run, and of a user's own files that it reads. Those of
    `known` are not read again: the cells of a grid share them."""
    kept = {
        section: {key: each for key, each in value.items() if (section, key) not in ELSEWHERE}
        if isinstance(value, dict)
        else value
        for section, value in table.items()
    }
    known = {} if known is None else known
    names = [name for name in (table["data"]["name"], *table["data"]["outliers"]) if ":" in name]
    known.update({name: files_hash(name) for name in names if name not in known})
    own = {name: known[name] for name in names}
    return hashlib.sha256(json.dumps([kept, own] if own else kept, sort_keys=True).encode()).hexdigest()


def files_hash(name: str) -> str:
    """Of what a reader sees at folder:PATH, npz:PATH or csv:PATH; other names have no file of the user's."""
    kind, _, rest = name.partition(":")
    if kind == "permuted":
        return files_hash(rest)
    if kind not in ("folder", "npz", "csv"):
        return ""
    path, digest = at_home(rest), hashlib.sha256()
    for file in files_of(path) if is_folder(path) else [path]:
        if is_file(file):
            digest.update(f"{file.relative_to(path)}\n{file_hash(file)}\n".encode())
    return digest.hexdigest()


def files_of(folder: Path, depth: int = 2) -> list[Path]:
    """What readers look at, sorted: nothing hidden, and links to folders only where splits and classes lie."""
    if not depth:
        return files_below(folder)
    return [file for path in entries(folder) for file in (files_of(path, depth - 1) if is_folder(path) else [path])]
