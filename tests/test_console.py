"""What is printed is what was given: no markup, no emoji, whatever a name looks like; and all of it is printed, however
narrow the terminal is."""

import io
from collections.abc import Sequence

import pytest

import eow.console
from eow.console import PlainConsole, console, laid_out, print_table


def test_text_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("runs[/b]/x:smile:", ["a[/i]"], [["[bold]cell"]], note="note[/red]")
    console.print("folder[/b]:smile:")
    out = capsys.readouterr().out
    for text in ("runs[/b]/x:smile:", "a[/i]", "[bold]cell", "note[/red]", "folder[/b]:smile:"):
        assert text in out


def printed(width: int, columns: Sequence[str], rows: Sequence[Sequence[str]], keys: int = 1) -> list[str]:
    """The lines of a table in a terminal of that width."""
    file = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            eow.console, "console", PlainConsole(file=file, force_terminal=True, width=width, no_color=True)
        )
        print_table("title", columns, rows, "note", keys=keys)
    return [line.rstrip() for line in file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()]


SETS = ("cifar10", "svhn", "noise", "permuted:cifar100")
FIGURES = ["accuracy %", "ECE %", *(f"AUROC {score} %: {name}" for name in SETS for score in ("confidence", "unknown"))]


@pytest.mark.parametrize("width", [50, 80, 100, 200])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_a_table_of_many_columns_is_whole_at_any_width(width: int, count: int) -> None:
    rows = [
        [f"0.{row}", f"method_{row}", *(f"{row}{column}.34 ± 1.{column} v+ b-" for column in range(len(FIGURES)))]
        for row in range(count)
    ]
    lines = printed(width, ["λ", "method", *FIGURES], rows, keys=2)
    assert max(map(len, lines)) <= width
    text, words = "\n".join(lines), " ".join(lines).replace("│", " ").replace("┃", " ").split()
    assert "…" not in text
    assert {word for each in FIGURES for word in each.split()} <= {*words}  # headings break between words alone
    for row in rows:
        assert all(f" {cell} " in text for cell in row)


def test_few_rows_of_many_figures_are_turned_and_many_rows_split() -> None:
    figures = [f"figure {index} of something" for index in range(12)]
    lines = printed(80, ["method", *figures], [["vanilla", *(f"{index}.50" for index in range(12))]])
    assert [line for line in lines if "figure 7 of something" in line and "7.50" in line]
    rows = [[f"method_{row}", *(f"{row}.{index:02d}" for index in range(12))] for row in range(9)]
    lines = printed(80, ["method", *figures], rows)
    parts = [line for line in lines if "method_5" in line]
    assert len(parts) > 1
    assert [word for line in parts for word in line.split() if "." in word] == rows[5][1:]  # each once, in order


def test_many_rows_are_laid_out_at_once() -> None:
    """Turned, each would be a column: that they do not fit is seen without looking for what each could spare,
    which took minutes."""
    text = [["file", "label", "confidence"], *([f"photographs/{row}.png", "a cat", "0.9876"] for row in range(20_000))]
    assert [len(each[0]) for each in laid_out(text, 1, 30)] == [2, 2]
    assert laid_out([["a" * 24], ["b"]], 1, 10) == [[["a" * 24], ["b"]]]


def test_the_column_with_the_most_text_gets_the_room() -> None:
    rows = [[f"method_{row}", "a dozen words " * 4, "no", "one pass"] for row in range(8)]
    rows[3][2:] = "by recipe alone: yes", "one pass of every network that was trained"
    lines = printed(60, ["method", "what it is", "held-out data", "what a prediction costs"], rows)
    assert max(map(len, lines)) == 60
    assert len([line for line in lines if line.startswith("│")]) == 7 * 3 + 5  # three lines a row, five where they must


def test_a_shell_may_say_that_it_has_no_columns_at_all() -> None:
    lines = printed(0, ["method", "figure"], [["vanilla", "0.9876"]])
    assert lines[0] == "title"
    assert lines[-1] == "note"


def test_a_long_name_is_folded_and_no_figure_with_it() -> None:
    path = f"/{'a' * 90}/image.png"
    lines = printed(60, ["file", "label", "confidence"], [[path, "cat", "0.9876"]])
    assert "".join(line.split()[1] for line in lines if line.startswith("│")) == path
    assert any("cat" in line and "0.9876" in line for line in lines)
    lines = printed(10, ["file", "label"], [["cats.png", "0.9876"]])  # no room at all: wider than that, and whole
    assert any("cats.png" in line and "0.9876" in line for line in lines)
