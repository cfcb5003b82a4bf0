"""What is printed is what was given: no markup, no emoji, whatever a name looks like."""

import pytest

from eow.console import console, print_table


def test_text_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("runs[/b]/x:smile:", ["a[/i]"], [["[bold]cell"]], note="note[/red]")
    console.print("folder[/b]:smile:")
    out = "".join(capsys.readouterr().out.split())  # a title is folded to the table's width
    for text in ("runs[/b]/x:smile:", "a[/i]", "[bold]cell", "note[/red]", "folder[/b]:smile:"):
        assert text in out
