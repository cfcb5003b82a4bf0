"""Files of a run: what is damaged, missing or forbidden is a sentence that says which of the three."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from eow import storage
from eow.errors import EowError


@pytest.fixture
def nobody() -> Iterator[None]:
    """A user whom permissions bind, which they do not root."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


def test_json_survives_names_that_are_not_utf8(tmp_path: Path) -> None:
    value = {"name": os.fsdecode(b"x\xff"), "letter": "λ"}
    storage.write_json(tmp_path / "x.json", value)
    assert storage.read_json(tmp_path / "x.json") == value


def test_files_are_as_open_as_the_umask_lets_them_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the umask, which all threads share, is not touched."""
    (tmp_path / "old").touch(0o600)
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
            for name in ("old", "new"):
                storage.write_json(tmp_path / name, {})
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("old", "new")] == [0o640, 0o640]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{", "", 100_000 * "[", "\xff"])
def test_json_that_is_no_object_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="latin-1")
    with pytest.raises(EowError, match=r"x\.json .*damaged"):
        storage.read_json(tmp_path / "x.json")


def test_json_must_have_the_keys_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert storage.read_json(tmp_path / "x.json", "a") == {"a": 1}
    with pytest.raises(EowError, match="has no b, c: it is damaged"):
        storage.read_json(tmp_path / "x.json", "a", "b", "c")


@pytest.mark.parametrize("read", [storage.read_json, storage.read_tensors, lambda path: storage.Log(path).read()])
def test_a_folder_in_a_files_place_is_said_to_be_one(tmp_path: Path, read) -> None:
    with pytest.raises(EowError, match="cannot be read: Is a directory"):
        read(tmp_path)


@pytest.mark.parametrize("read", [storage.read_json, storage.read_tensors, lambda path: storage.Log(path).read()])
def test_a_forbidden_file_is_said_to_be_forbidden(tmp_path: Path, read, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "file"
    file.write_text("{}")
    file.chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(EowError, match="cannot be read: Permission denied"):
        read(file)


@pytest.mark.parametrize("header", ["[1]", "3", "{", 100_000 * "["])
def test_a_tensors_header_is_an_object(tmp_path: Path, header: str) -> None:
    (tmp_path / "x").write_bytes(save({"a": np.zeros(2)}, {"eow": header}))
    with pytest.raises(EowError, match="damaged or was not made by eow"):
        storage.read_tensors(tmp_path / "x")
    storage.write_arrays(tmp_path / "x", {"a": np.arange(2)}, {"b": 1})
    arrays, read = storage.read_tensors(tmp_path / "x", "numpy")
    assert (arrays["a"].tolist(), read) == ([0, 1], {"b": 1})


def test_a_log_skips_broken_lines_and_refuses_what_is_no_text(tmp_path: Path) -> None:
    log = storage.Log(tmp_path / "log.jsonl")
    assert log.read() == []
    log.write(epoch=0)
    with open(log.path, "a") as file:
        file.write("3\n[1]\n" + 100_000 * "[" + '\n{"epoch": 1}\n{"epo')
    assert log.read() == [{"epoch": 0}, {"epoch": 1}]
    log.keep(lambda line: line["epoch"] == 1)
    assert log.path.read_text() == json.dumps({"epoch": 1}) + "\n"
    log.path.write_bytes(bytes(range(256)))
    with pytest.raises(EowError, match="is no text"):
        log.read()


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EowError, match="cannot be written: Is a directory"):
        storage.Log(tmp_path).write(epoch=0)


def test_a_lock_that_is_a_folder_or_forbidden(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(EowError, match="cannot be locked: Is a directory"), storage.locked(tmp_path):
        pass
    (tmp_path / ".lock").rmdir()
    (tmp_path / ".lock").write_text("")
    (tmp_path / ".lock").chmod(0)
    request.getfixturevalue("nobody")
    with pytest.raises(EowError, match="cannot be locked: Permission denied"), storage.locked(tmp_path):
        pass


def test_a_lock_leaves_errors_of_its_user_alone(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"\xff")  # who held it does not matter once it is free
    with pytest.raises(FileNotFoundError), storage.locked(tmp_path):
        (tmp_path / "none").read_text()
    in_use = pytest.raises(EowError, match=f"in use by process {os.getpid()} on ")
    with storage.locked(tmp_path), in_use, storage.locked(tmp_path):
        pass
