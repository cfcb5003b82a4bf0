"""Settings as they are written: a TOML file, `section.key=value` on the command line, names between commas."""

import re
import tomllib
from pathlib import Path
from typing import Any

from eow.errors import EowError

Table = dict[str, Any]
LONGEST = 16 << 20  # bytes of a settings file

NAMES = (("data", "unknown_classes"), ("data", "outliers"))  # lists of them


def number_or_text(part: str, words: bool) -> int | str:
    """One of several values between commas: a whole number in plain digits, else text. Where it may be a name, a number
    is just that name's spelling: 1_0 and 007 are names."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", part) or (words and str(int(part)) != part):
        return part
    return int(part)


def from_text(text: str) -> Any:
    """A value as TOML would read it; what TOML cannot read is a plain string, so that quotes are not needed in a
    shell."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except RecursionError:
        raise EowError(f"the value {text[:20]}... is nested too deeply: no setting is a list of lists") from None
    except ValueError:  # TOML's own, and that of a number too long to be read
        return float(text) if re.fullmatch(r"[+-]?\.\d+", text) else text  # TOML wants 0.2, a shell's user writes .2


def from_assignments(assignments: list[str]) -> Table:
    """["train.lr=0.1", "seed=3"] -> {"train": {"lr": 0.1}, "seed": 3}. Names between commas stay text: TOML would read
    the class 1_0 as 10."""
    table: Table = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not equals or not section or (dot and not key):
            raise EowError(f"--set {assignment!r} is not a setting: write section.key=value, such as train.epochs=20")
        if dot:
            if not isinstance(table.setdefault(section, {}), dict):
                raise EowError(f"--set {assignment!r} follows --set {section}={table[section]}: leave one of them out")
            plain_text = (section, key) in NAMES and not text.strip().startswith(("[", '"', "'"))
            table[section][key] = text.strip() if plain_text else from_text(text.strip())
        else:
            table[section] = from_text(text.strip())
    return table


def from_toml(path: str | Path) -> Table:
    return parsed(path, settings_text(path))


def settings_text(path: str | Path) -> str:
    """A settings file as it stands, read once: it may be a pipe, as a shell's <(...) is, or a device without end."""
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ValueError(f"it has more than {LONGEST:,} bytes")
        return data.decode("utf-8-sig")  # Windows' editors begin a file with a mark
    except FileNotFoundError:
        raise EowError(f"there is no file {path}: give the path of a TOML file with the run's settings") from None
    except (OSError, ValueError) as error:
        raise not_toml(path, error) from None


def parsed(path: str | Path, text: str) -> Table:
    """The settings in the text of the file at `path`."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise not_toml(path, error) from None


def not_toml(path: str | Path, error: Exception) -> EowError:
    return EowError(f"{path} cannot be read as TOML: {getattr(error, 'strerror', None) or error}")
