"""Settings as the types that their annotations name, whether a file, the command line or a caller gives them: converted
where nothing is lost by it, else refused in a sentence that names the key."""

import dataclasses
import types
import typing
from datetime import date, time
from difflib import get_close_matches
from typing import Any, Literal

from eow.assignments import Table, number_or_text
from eow.errors import EowError

KINDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def as_python(value: Any) -> Any:
    """Python's numbers and lists for numpy's and torch's, which come out of arrays and grids, in a tuple or list too:
    `tuple(sizes)` of an array is a tuple of numpy's numbers."""
    if isinstance(value, list | tuple):
        parts = [as_python(part) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value.tolist() if hasattr(value, "tolist") else value


def convert(value: Any, wanted: Any, key: str) -> Any:
    """`value` as the annotated type `wanted`, or an error that names the key. Whole floats are not ints, bools are no
    numbers."""
    origin, choices = typing.get_origin(wanted), typing.get_args(wanted)
    if type(value) is int and value.bit_length() > 63:
        raise EowError(f"{key} is a whole number of {value.bit_length()} bits: give one below 2**63")
    if origin is Literal:
        if type(value) is int and str(value) in choices:
            value = str(value)  # TOML reads 32 as a number, whatever the choices are
        if value not in choices:
            raise EowError(f"{key} is {value!r}: choose one of {', '.join(map(str, choices))}")
        return value
    if origin in (types.UnionType, typing.Union):
        if type(value) in choices:
            return convert(value, type(value), key)
        for choice in choices:
            try:
                return convert(value, choice, key)
            except EowError:
                continue
        raise EowError(f"{key} is {value!r}: give {' or '.join(KINDS.get(choice, str(choice)) for choice in choices)}")
    if origin is tuple:
        words = str in (choices[0], *typing.get_args(choices[0]))
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
            value = [number_or_text(part, words) for part in parts if part]
        elif not isinstance(value, list | tuple):
            value = [value]
        for part in value:
            if words and isinstance(part, bool | float | date | time):
                text = str(part).lower()
                raise EowError(
                    f'{key} is {text}, which TOML takes for no name: if it is one, write it in quotes, "{text}"'
                )
        return tuple(convert(part, choices[0], key) for part in value)
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise EowError(f"{key} is {value!r}: give {KINDS.get(wanted, wanted.__name__)}")
    if wanted is float and not abs(value) < float("inf"):
        raise EowError(f"{key} is {value!r}: give a finite number")
    return value


def build(cls: type, table: Table, section: str) -> Any:
    """The dataclass `cls` from a table, every key and type checked."""
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = (
                f"did you mean {section}.{near[0]}?" if near else f"{section} has {', '.join(known) or 'no settings'}"
            )
            raise EowError(f"there is no setting {section}.{key}: {hint}")
    return cls(**{key: convert(value, hints[key], f"{section}.{key}") for key, value in table.items()})


def check_range(key: str, value: float, least: float, most: float = float("inf")) -> None:
    if value < least:
        raise EowError(f"{key} is {value}: it must be at least {least}")
    if value > most:
        raise EowError(f"{key} is {value}: it must be at most {most:,}")
