"""The log for other programs: the same numbers as log.jsonl, also after a resume."""

import csv
import sys
from pathlib import Path

import pytest

from eow.errors import EowError
from eow.storage import Log
from eow.training.loggers import loggers

LINES = [
    {"epoch": 0, "ce": 2.0, "seconds": 0.5},
    {"epoch": 1, "event": "rollback", "reason": "the loss became nan", "seconds": 0.1},
    {"epoch": 1, "ce": 1.5, "energy": 0.25, "seconds": 0.75},
    {"epoch": 2, "ce": 1.0, "energy": 0.125, "seconds": 0.75},
]


def write(folder: Path, names: list[str], lines: list[dict]) -> None:
    log = Log(folder / "log.jsonl")
    with loggers(names, folder) as pass_on:
        for line in lines:
            log.write(**line)
            pass_on(line)


def test_the_csv_holds_every_line_and_a_column_for_every_key(tmp_path: Path) -> None:
    write(tmp_path, ["csv"], LINES)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [{key: value for key, value in row.items() if value} for row in rows] == [
        {key: str(value) for key, value in line.items()} for line in LINES
    ]


def test_a_resumed_run_leaves_no_line_of_the_lost_epochs(tmp_path: Path) -> None:
    write(tmp_path, ["csv"], LINES)
    Log(tmp_path / "log.jsonl").keep(lambda line: line["epoch"] < 2)
    write(tmp_path, ["csv"], [{"epoch": 2, "ce": 0.5}])
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [(row["epoch"], row["ce"]) for row in rows] == [("0", "2.0"), ("1", ""), ("1", "1.5"), ("2", "0.5")]


def test_tensorboard_reads_the_same_numbers(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is not installed"
    )
    write(tmp_path, ["tensorboard"], [*LINES[:-1], {"epoch": 2, "ce": 9.0}])
    Log(tmp_path / "log.jsonl").keep(lambda line: line["epoch"] < 2)  # epoch 3 is lost and done again
    write(tmp_path, ["tensorboard", "csv"], LINES[-1:])
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("ce")] == [(1, 2.0), (2, 1.5), (3, 1.0)]
    assert [(event.step, event.value) for event in events.Scalars("energy")] == [(2, 0.25), (3, 0.125)]


def test_what_cannot_be_logged_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EowError, match="no logger 'wandb'"), loggers(["wandb"], tmp_path):
        pass
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(EowError, match=r"pip install eow\[tensorboard\]"), loggers(["tensorboard"], tmp_path):
        pass
    assert not (tmp_path / "tensorboard").exists()
