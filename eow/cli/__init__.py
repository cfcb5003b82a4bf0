"""The command line, nothing else: every command calls one function of the package and prints what it returns.

training.py    train, methods, demo, theory
measuring.py   evaluate, compare, threshold
benching.py    bench, report
using.py       predict, export
importing.py   import
data.py        data list, fetch, verify, corruptions
options.py     what several of them take
"""

import io
import sys
from typing import Annotated, Any

import typer

from eow.cli import benching, data, importing, measuring, training, using
from eow.cli.options import app
from eow.console import in_one_line, plain_warnings
from eow.plain import printable

__all__ = ["app", "benching", "data", "importing", "main", "measuring", "training", "using"]

app.add_typer(data.data_app, name="data", help="Data sets: what there is, fetch it, check it, corrupt it.")


def version(wanted: bool) -> None:
    if wanted:
        from eow import __version__

        typer.echo(f"eow {__version__}")
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Energy-based open-world softmax: classifiers that can answer "unknown"."""


# UsageError of the click that typer has: the package of that name, or one of its own.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def told(error: Any) -> str:
    """An unknown option, a missing argument or a bad value in one sentence."""
    said = printable(" ".join(error.format_message().split()).rstrip("."))
    return f"error: {said[:1].lower()}{said[1:]} (see `{getattr(error.ctx, 'command_path', None) or called()} --help`)"


def called() -> str:
    """The command in the words of the command line, for errors that do not know theirs: an option without its value."""
    words: list[str] = ["eow"]
    command: Any = typer.main.get_command(app)
    for word in sys.argv[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    return " ".join(words)


def main() -> None:
    """The command's entry: what the user can put right is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without λ gets a ?
    plain_warnings()
    try:
        with in_one_line():
            sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # `eow` alone, which has shown its help
            print(told(error), file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        sys.exit(1)
