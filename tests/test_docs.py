"""Every code block of the README and the docs is run as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, code in enumerate(
            re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        ):
            found.append(pytest.param(code, id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", blocks("bash"))
def test_commands_run(code: str, tmp_path: Path) -> None:
    """`eow` commands in the order they stand; `make` ones must name a target of the Makefile."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in code.strip().splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "make":
            assert words[1] in targets, line
            continue
        if words[0] == "python":  # a benchmark: minutes long, so only that it exists
            assert (ROOT / words[1]).exists(), line
            continue
        assert words[0] == "eow", f"nobody checks {line!r}"
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_method_is_in_the_readme() -> None:
    from eow.methods import METHODS

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"`{name}`" not in text] == []


def test_the_readme_tables_are_the_records() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from readme import rendered

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert rendered(text) == text, "run `make readme`"
