"""The app itself, and the options that more than one command has."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode="rich")

Root = Annotated[str, typer.Option(help="Where data sets lie; else EOW_DATA, else the user's cache folder.")]
Unofficial = Annotated[bool, typer.Option("--allow-unofficial", help="Use files whose hash is not the official one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Rate = Annotated[float | None, typer.Option(help="The share of unknowns to expect, 0 to below 1: re-sets the prior λ.")]
RunFolder = Annotated[Path, typer.Argument(help="The folder of a finished run.")]
