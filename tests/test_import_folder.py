"""Where imported predictions are written: whole or not at all, whatever ends the import, and never over anything."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import spoken

from eow.compare import compare
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.importing import HALF, import_predictions
from eow.report import report
from eow.storage import locked

SAID = spoken(0, open_world=False)
SLOW = """
import sys, time
import numpy as np
from eow import importing
from eow.console import in_one_line

def stay(*_, **__):
    print("half", flush=True)
    time.sleep(60)

importing.evaluate = stay  # after the predictions, before the summary
with in_one_line():
    importing.import_predictions(sys.argv[1], np.eye(2), [0, 1])
"""


def take(folder: Path | str) -> dict[str, Any]:
    return import_predictions(folder, SAID["probs"], SAID["labels"])


def stopped(folder: Path, number: int) -> int:
    """An import that is ended by a signal when it is half done."""
    child = subprocess.Popen([sys.executable, "-c", SLOW, folder], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    with pytest.raises(EowError, match="there are no predictions"):
        evaluate(folder)
    time.sleep(0.1)
    child.send_signal(number)
    return child.wait(30)


def test_a_signal_leaves_nothing_and_a_kill_what_the_next_import_removes(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert stopped(folder, signal.SIGTERM) == 128 + signal.SIGTERM
    assert not any(tmp_path.iterdir())
    assert stopped(folder, signal.SIGINT) != 0
    assert not any(tmp_path.iterdir())
    stopped(folder, signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(HALF)
    (tmp_path / f"{HALF}mine").mkdir()  # nobody's but the user's
    living = tmp_path / f"{HALF}0123abcd"
    living.mkdir()
    with locked(living):
        take(folder)
    assert {each.name for each in tmp_path.iterdir()} == {"new", f"{HALF}mine", living.name}


def test_of_two_imports_at_once_one_is_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def meanwhile(*words: Any, **more: Any) -> Any:
        monkeypatch.undo()
        take(tmp_path / "new")
        return evaluate(*words, **more)

    monkeypatch.setattr("eow.importing.evaluate", meanwhile)
    with pytest.raises(EowError, match="cannot be made: Directory not empty; import into a new folder"):
        import_predictions(tmp_path / "new", SAID["probs"][::-1], SAID["labels"])
    assert evaluate(tmp_path / "new")["test"]["accuracy"] == np.mean(SAID["label"] == SAID["labels"])
    assert [each.name for each in tmp_path.iterdir()] == ["new"]


def test_a_link_is_followed_and_a_long_name_has_room(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "ahead").symlink_to("later")
    for name, place in (("link", "empty"), ("ahead", "later"), ("a" * 255, "a" * 255)):
        assert take(tmp_path / name)["metrics"] == evaluate(tmp_path / place)


def test_places_where_no_folder_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, file = tmp_path / "here", tmp_path / "file"
    here.mkdir()
    file.write_text("mine")
    monkeypatch.chdir(here)
    for folder, words in (
        ("", "an empty text"),
        (7, "7 cannot be made"),
        (".", "the folder you are in"),
        (here, "the folder you are in"),
        (file, "is there already"),
        (file / "new", "cannot be written to"),
        (tmp_path / ("a" * 256), "File name too long; import into"),
        (f"{tmp_path}/a\0b", "cannot be made"),
    ):
        with pytest.raises(EowError, match=words):
            take(folder)
    assert {each.name for each in tmp_path.iterdir()} == {"here", "file"}
    assert file.read_text() == "mine"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {"cut": cut, "empty": lambda path: path.write_bytes(b""), "{}": lambda path: path.write_text("{}"),
           "gone": Path.unlink}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_to_be_imported_again_and_not_trained(tmp_path: Path, damage: str) -> None:
    take(tmp_path / "whole")
    looks = {"evaluate": evaluate, "report": lambda folder: report([folder], tmp_path / "r.md", "md")}
    looks["compare"] = lambda folder: compare([folder], [tmp_path / "whole"])
    told = []
    for name in ("summary.json", "environment.json", "config.json", "predictions/test.safetensors"):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / name.replace("/", "-"))
        DAMAGES[damage](folder / name)
        for look in looks.values():
            try:
                look(folder)
            except EowError as error:
                told.append(str(error))
    assert len(told) >= 4
    assert not [each for each in told if "resume" in each or each.endswith("train the run again")]
    assert [each for each in told if each.endswith("import it again")]
