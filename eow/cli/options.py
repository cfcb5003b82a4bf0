"""The app itself, and the options that more than one command has."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from eow.errors import EowError

ORDER = (
    "demo", "train", "evaluate", "report", "predict", "threshold", "export", "compare", "import", "bench", "data",
    "methods", "theory",
)  # fmt: skip


def taking_nothing(params: list[Any]) -> list[Any]:
    """Typer writes <bool> behind a flag, as if it took a word."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Flowing(TyperGroup):
    """Commands whose docstrings are shown without the line breaks of the source."""

    def get_params(self, ctx: Any) -> Any:
        return taking_nothing(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            taking_nothing(command.get_params(ctx))
        if command is not None and command.help:
            command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
        return command


class InOrderOfUse(Flowing):
    """Commands in the order in which one needs them, not that in which their modules happen to be imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=ORDER.index)


app = typer.Typer(
    cls=InOrderOfUse,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)


def named(text: str | Path) -> Path:
    """The path of something to write. An empty one, as an unset variable of a shell gives it, would be this folder."""
    if text == "":
        raise typer.BadParameter("it is empty: name a path, or . for this folder")
    return Path(text)


TO_WRITE: dict[str, Any] = {"parser": named, "metavar": "PATH"}  # what each option with such a path has
Root = Annotated[str, typer.Option(help="The folder with the data sets; else EOW_DATA, else the user's cache folder.")]
Unofficial = Annotated[bool, typer.Option("--allow-unofficial", help="Use files whose hash is not the official one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Rate = Annotated[
    float | None, typer.Option(help="The share of unknowns to expect, 0 to below 1; replaces the prior λ of training.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a finished run.")]


def refuse_alone(needed: str, there: bool, **given: bool) -> None:
    """Options that nothing would read without `needed` are not silently left unread."""
    alone = [] if there else [f"--{name.replace('_', '-')}" for name, here in given.items() if here]
    if alone:
        raise EowError(f"{alone[0]} goes with {needed}: add that, or leave {alone[0]} out")
