"""Files of a run: what is damaged, missing or forbidden is a sentence that says which of the three."""

import json
import os
import signal
import stat
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from eow import storage
from eow.errors import EowError
from eow.storage import NUMBERS


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


def test_what_was_made_after_training_needs_no_new_training(tmp_path: Path) -> None:
    for name, command in (("threshold.json", "eow threshold"), ("corruptions.json", "eow evaluate --corruptions")):
        (tmp_path / name).write_text("{")
        with pytest.raises(EowError, match=f"it is damaged, make it again with `{command}`"):
            storage.read_json(tmp_path / name)


def test_what_cannot_be_removed_is_told_of(tmp_path: Path) -> None:
    storage.remove(tmp_path / "none")
    (tmp_path / "link").symlink_to("none")
    storage.remove(tmp_path / "link")
    assert not any(tmp_path.iterdir())
    with pytest.raises(EowError, match="cannot be removed: Is a directory; remove it yourself"):
        storage.remove(tmp_path)


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


READERS = [storage.read_json, storage.read_tensors, storage.map_arrays, storage.file_hash]
READERS += [lambda path: storage.Log(path).read(), lambda path: storage.Log(path).write(epoch=0)]


def node_of(kind: str, path: Path) -> Path:
    """What is no plain file: a pipe that nobody writes to, an endless device, or a link to one."""
    real = path if kind in ("pipe", "device") else path.with_name("behind")
    if kind == "pipe":
        os.mkfifo(real)
    else:
        try:
            os.mknod(real, stat.S_IFCHR | 0o666, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    if real != path:
        path.symlink_to(real)
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device"])
@pytest.mark.parametrize("read", READERS)
def test_a_pipe_or_a_device_in_a_files_place_is_not_waited_for(tmp_path: Path, kind: str, read) -> None:
    path = node_of(kind, tmp_path / "x")
    with limited(), pytest.raises(EowError, match=r"x cannot be (read|written): it is a pipe, a socket or a device"):
        read(path)


@contextmanager
def limited(seconds: int = 20) -> Iterator[None]:
    """A reader that waits for ever fails the test instead of holding it up."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("read", [storage.read_json, lambda path: storage.Log(path).read()])
def test_a_text_that_would_fill_the_memory_is_not_read(tmp_path: Path, read) -> None:
    with open(tmp_path / "x", "wb") as file:
        file.truncate(storage.LARGEST_TEXT + 1)  # a hole: it takes up no room
    tracemalloc.start()
    with pytest.raises(EowError, match="x cannot be read: it has 268,435,457 bytes"):
        read(tmp_path / "x")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a device"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, kind: str) -> None:
    path = node_of(kind, tmp_path / "x")
    before = {each.name: each.lstat() for each in tmp_path.iterdir()}
    with pytest.raises(EowError, match="x cannot be written: it is a pipe, a socket or a device"):
        storage.write_json(path, {})
    after = {each.name: each.lstat() for each in tmp_path.iterdir()}
    assert {name: (each.st_ino, each.st_mode) for name, each in after.items()} == {
        name: (each.st_ino, each.st_mode) for name, each in before.items()
    }


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_written_through(tmp_path: Path, there: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "real.json", tmp_path / "link.json"
    if there:
        target.write_text("{}")
    (tmp_path / "second").symlink_to(Path("elsewhere") / "real.json")
    link.symlink_to("second")
    storage.write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}
    assert [each.name for each in (tmp_path / "elsewhere").iterdir()] == ["real.json"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "link.json", "second"]


def test_of_a_kill_remains_nothing_and_of_the_users_files_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `atomic` leaves if it never comes to its end is what is removed, and no other file that is hidden."""
    monkeypatch.setattr(os, "replace", lambda *names: None)
    monkeypatch.setattr(os, "unlink", lambda name: None)
    storage.write_json(tmp_path / "summary.json", {})
    monkeypatch.undo()
    [left] = tmp_path.iterdir()
    theirs = [
        ".env.local",
        ".pre-commit-config.yaml",
        ".summary.json.bak",
        ".notes.txt.deadbeef",
        ".summary.jsonx.00000000",
    ]
    for name in theirs:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".summary.json.0123abcd").mkdir()
    storage.remove_temporary(tmp_path, "summary.json")
    assert not left.exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*theirs, ".summary.json.0123abcd"])


def test_a_link_that_leads_to_itself_or_nowhere_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("x")
    (tmp_path / "y").symlink_to("no/such/file")
    for name, why in (("x", "Too many levels of symbolic links"), ("y", "No such file or directory")):
        with pytest.raises(EowError, match=f"{name} cannot be written: {why}"):
            storage.write_json(tmp_path / name, {})
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_symlink()) == ["x", "y"]


@pytest.mark.parametrize("header", ["[1]", "3", "{", 100_000 * "["])
def test_a_tensors_header_is_an_object(tmp_path: Path, header: str) -> None:
    (tmp_path / "x").write_bytes(save({"a": np.zeros(2)}, {"eow": header}))
    with pytest.raises(EowError, match="damaged or was not made by eow"):
        storage.read_tensors(tmp_path / "x")
    storage.write_arrays(tmp_path / "x", {"a": np.arange(2)}, {"b": 1})
    arrays, read = storage.read_tensors(tmp_path / "x", "numpy")
    assert (arrays["a"].tolist(), read) == ([0, 1], {"b": 1})


def test_arrays_are_written_as_safetensors_does_and_not_held_twice(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    few = {f"a{place}": (9 * random.normal(size=(50, 7))).astype(code) for place, code in enumerate(NUMBERS.values())}
    few |= {'"': np.arange(3), "none": np.zeros((0, 3), np.float32), "narrow": np.zeros((3, 0))}
    for header in ({}, {"name": 'λ"\\\n', "seed": None}):
        storage.write_arrays(tmp_path / "x", few, header)
        assert (tmp_path / "x").read_bytes() == save(few, {"eow": json.dumps(header)})
    large = {"logits": np.zeros((500_000, 10), np.float32), "labels": np.zeros(500_000, np.int64)}  # 24 MB
    tracemalloc.start()
    storage.write_arrays(tmp_path / "x", large, {})
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert (tmp_path / "x").read_bytes() == save(large, {"eow": "{}"})


def test_arrays_are_written_whatever_the_order_of_their_memory(tmp_path: Path) -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    views = {"columns": table[:, :2], "turned": table.T, "fortran": np.asfortranarray(table), "back": table[::-1],
             "big": table.astype(">f4")}  # fmt: skip
    storage.write_arrays(tmp_path / "x", views, {})
    for read in (storage.map_arrays(tmp_path / "x")[0], storage.read_tensors(tmp_path / "x", "numpy")[0]):
        assert {name: array.tolist() for name, array in read.items()} == {
            name: array.tolist() for name, array in views.items()
        }


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
    with pytest.raises(EowError, match="is not text"):
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
