"""What is printed is what was given: no markup, no emoji, whatever a name looks like."""

import io

import pytest

from eow import console as terminal
from eow.console import PlainConsole, console, print_table


def test_text_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("runs[/b]/x:smile:", ["a[/i]"], [["[bold]cell"]], note="note[/red]")
    console.print("folder[/b]:smile:")
    out = "".join(capsys.readouterr().out.split())  # a title is folded to the table's width
    for text in ("runs[/b]/x:smile:", "a[/i]", "[bold]cell", "note[/red]", "folder[/b]:smile:"):
        assert text in out


@pytest.mark.parametrize("width", [40, 72, 80, 100, 120, 200])
def test_no_figure_is_cut_in_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench's table, once printed as 97.… and 0.0… in 80 columns."""
    screen = io.StringIO()
    monkeypatch.setattr(
        terminal, "console", PlainConsole(file=screen, width=width, force_terminal=True, color_system=None)
    )
    columns = ["method", "accuracy %", "ECE %", "null ECE %", "NLL", "AUROC %", "unknown: known", "unseen", "seconds"]
    figures = ["98.38 ± 0.23", "10.89 ± 0.12", "2.95 ± 0.09", "0.134 ± 0.001", "96.1 ± 0.1", "0.049 ± 0.001",
               "0.421 ± 0.007", "14.8 ± 0.4"]  # fmt: skip
    print_table("digits", columns, [["feature_negatives", *figures], ["vanilla", *(["-"] * 8)]])
    shown = screen.getvalue()
    assert "…" not in shown
    for figure in figures:
        mean, spread = figure.split(" ± ")
        assert mean in shown
        assert f"± {spread}" in shown
    if width >= 80:
        assert max(map(len, shown.splitlines())) <= width


def test_words_are_folded_and_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        terminal, "console", PlainConsole(file=screen, width=50, force_terminal=True, color_system=None)
    )
    said = "the unknown trained on Langevin chains in the latent space, of which there are many in a step"
    print_table("methods", ["name", "what it is"], [["feature_negatives", said]])
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 50
    assert all(word in screen.getvalue() for word in said.split())
