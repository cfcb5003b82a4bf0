"""Every code block of the README and the docs is run as it stands (of `make`, `python` and `eow bench` lines it is
checked that what they name exists); the drawings are those of their numbers."""

import ast
import itertools
import json
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from scripts import script

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IMAGES = DOCS / "img"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
# What a page's blocks need but a reader does not (a model to upgrade, say) stands in a comment of the page.
BLOCK = r"(?:```(python|bash)|<!-- run by the tests:)\n(.*?)(?:```|-->)"


def named(pages: list[Path]) -> list:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages]


def code_of(page: Path, kinds: tuple[str, ...] = ("python", "bash")) -> str:
    """The page's blocks as Python, in their order, each line where it stands: an error names the page's own line."""
    text, code = page.read_text(encoding="utf-8"), ""
    for found in re.finditer(BLOCK, text, re.DOTALL):
        kind = found[1] or "python"
        block = found[2] if kind == "python" else "\n".join(map(as_python, found[2].splitlines()))
        if kind in kinds:
            code += "\n" * (text.count("\n", 0, found.start(2)) - code.count("\n")) + block
    return code


def as_python(line: str) -> str:
    """An `eow` command as a call, for torch takes seconds to import. `make` ones must name a target, `eow bench` ones a
    grid that can be read, and scripts must exist: these take minutes and are not run."""
    from eow.bench.grid import read_grid

    words = shlex.split(line, comments=True)
    if not words:
        return ""
    if words[0] == "make":
        assert words[1] in TARGETS, words
    elif words[0] == "python":
        assert (ROOT / words[1]).exists(), words
    elif words[:2] == ["eow", "bench"]:
        size = words[words.index("--size") + 1] if "--size" in words else "quick"
        only = [after for word, after in itertools.pairwise(words) if word == "--only"]
        assert read_grid(ROOT / words[2], size, only=tuple(only)).cells, words
    else:
        assert words[0] == "eow", f"nobody checks {words}"
        return (
            f"from eow.cli import app; print({words}, flush=True); assert not app({words[1:]}, standalone_mode=False)"
        )
    return ""


def run(code: str, folder: Path) -> str:
    """What the code prints, in a process of its own, which must end well."""
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", named([page for page in PAGES if code_of(page).strip()]))
def test_the_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """In one process and one folder: later blocks go on from earlier ones."""
    run(code_of(page), tmp_path)


def test_the_method_on_the_page_keeps_the_contract(tmp_path: Path) -> None:
    """Page and contract in one process, where METHODS has the page's entry."""
    contract = str(ROOT / "tests" / "test_method_contract.py")
    checks = f"import pytest\nraise SystemExit(pytest.main([{contract!r}, '-vv', '-k', 'focal', '--tb=short']))\n"
    told = run(f"{code_of(DOCS / 'adding-a-method.md', ('python',))}\n{checks}", tmp_path)
    assert told.count("PASSED") >= 10, told


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text) + re.findall(r'<img[^>]* src="([^":]+)"', text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in a link: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_a_heading_have_one() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(page.parent / target if target else page), f"{page.name}: {target}#{anchor}"


def test_every_page_and_every_grid_can_be_found() -> None:
    index, reproducing = (DOCS / "README.md").read_text(encoding="utf-8"), (DOCS / "reproducing.md").read_text("utf-8")
    assert [page.name for page in DOCS.glob("*.md") if page.name != "README.md" and f"({page.name})" not in index] == []
    assert [grid.stem for grid in (ROOT / "benchmarks").glob("*.toml") if f"`{grid.stem}`" not in reproducing] == []


def test_every_method_and_every_command_is_in_the_readme() -> None:
    from typer.main import get_command

    from eow.cli import app
    from eow.methods import METHODS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"`{name}`" not in text] == []
    assert [name for name in get_command(app).commands if f"`eow {name}" not in text] == []  # type: ignore[attr-defined]


README = script("benchmarks/readme.py")


@pytest.mark.parametrize("page", README.PAGES)
def test_tables_are_the_records(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert README.rendered(page, text) == text, "run `make readme`"


def test_the_drawings_are_those_of_their_numbers_and_these_of_the_record() -> None:
    draw = script("docs/img/draw.py")
    told = json.loads(draw.NUMBERS.read_text(encoding="utf-8"))
    for name, content in draw.drawn(told).items():
        assert (IMAGES / name).read_text(encoding="utf-8") == content, "run `python docs/img/draw.py`"
    record = json.loads((ROOT / README.DIGITS / "table.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for row in record["rows"]:
        if row["method"] in ("vanilla", "eow"):
            drawn = told[row["method"]]
            assert row["figures"]["ECE %"]["by_seed"]["0"] == pytest.approx(drawn["ece"], abs=1e-4)
            assert row["figures"]["AUROC %"]["by_seed"]["0"] == pytest.approx(drawn["auroc"], abs=1e-4)
            told_of = [
                f"{100 * drawn['surer_than_0.9']:.0f} %",
                f"{100 * drawn['ece']:.1f} %",
                f"{100 * drawn['auroc']:.1f}",
            ]
            told_of += [f"{100 * drawn['surer_by_recipe']:.0f} %"] if row["method"] == "eow" else []
            assert [words for words in told_of if words not in readme.split("## One figure")[1].split("## ")[0]] == []
            assert sum(drawn["counts"]["known"]) == 433
            assert sum(drawn["counts"]["unseen"]) == 106


@pytest.mark.parametrize("picture", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_readable_in_light_and_dark_and_fetches_nothing(picture: Path) -> None:
    """A page shows it as an image, so its colours must be its own: each is a name that both modes define."""
    text = picture.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    names = set(re.findall(r"(--\w+):", light))
    assert names
    assert names == set(re.findall(r"(--\w+):", dark))
    assert set(re.findall(r"var\((--\w+)\)", text)) <= names
    assert not re.search(r'(fill|stroke)="', text)
    assert "href" not in text
    assert root.get("aria-label")


ROOMS = ["", "bench", "cli", "data", "export", "methods", "metrics", "models", "own", "report", "sampling", "tabular"]
ROOMS += ["training"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_file_has_a_place_in_its_packages_list(room: str) -> None:
    folder = ROOT / "eow" / room
    listed = set(re.findall(r"\b\w+\.py\b", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""))
    there = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert there <= listed, f"eow/{room}/__init__.py does not say what these are: {sorted(there - listed)}"
    assert all((folder / name).exists() for name in listed), f"no such file: {sorted(listed - there)}"
