"""The examples run as they are, and what they print is what they promise."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {"lightning_loop": ["lightning"], "huggingface_trainer": ["transformers", "accelerate"]}

TIMES = {
    "huggingface_trainer": 1.3
}  # how much more unknown what was not seen is: a tiny transformer tells little apart


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_an_example_keeps_accuracy_and_knows_what_it_has_not_seen(name: str, tmp_path: Path) -> None:
    for package in NEEDS.get(name, []):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, cwd=tmp_path, timeout=600
    )
    assert done.returncode == 0, done.stderr
    accuracy = float(re.findall(r"accuracy on 0-7.* ([\d.]+)$", done.stdout, re.MULTILINE)[0])
    known, unseen = map(float, re.findall(r"mean unknown on 0-7 ([\d.]+), on 8 and 9 ([\d.]+)", done.stdout)[0])
    assert accuracy > 0.95
    assert known < 0.15
    assert unseen > TIMES.get(name, 2) * known
