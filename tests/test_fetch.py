"""Fetching against a small web server of our own: whole, resumed, wrong and hostile downloads."""

import gzip
import hashlib
import http.server
import io
import shutil
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eow.data import fetch as fetching
from eow.data.catalog import CATALOG, Archive, Entry, File
from eow.data.fetch import describe, fetch, verify
from eow.errors import EowError


class Server(http.server.ThreadingHTTPServer):
    """Serves `files` and remembers (path, Range header) of each request; `ranges` says whether it honours Range,
    `ahead` by how much it misses what was asked for, `packs` whether it compresses for who lets it."""

    files: dict[str, bytes]
    requests: list[tuple[str, str | None]]
    ranges: bool
    ahead: int
    packs: bool

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.requests.append((name, wanted))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else None
        start = None if start is None else start + self.server.ahead
        if start is not None and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200 if start is None else 206)
        if start is not None:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        body = content[start or 0 :]
        if self.server.packs and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.requests, server.ranges, server.ahead, server.packs = {}, [], True, 0, False
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def add_set(monkeypatch: pytest.MonkeyPatch, files: tuple[File, ...], *archives: Archive) -> None:
    monkeypatch.setitem(CATALOG, "toy", Entry("a toy", (1, 2, 2), 2, test=files, archives=archives))


def add_file(monkeypatch: pytest.MonkeyPatch, server: Server, content: bytes, *urls: str, hash: str = "") -> None:
    """A set of one plain file, deep/toy.mat, served as /toy.mat."""
    server.files.setdefault("toy.mat", content)
    hash = hash or md5(content)
    urls = urls or (server.url("toy.mat"),)
    add_set(monkeypatch, (File("deep/toy.mat", hash),), Archive("deep/toy.mat", urls, hash))


def below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


CONTENT = bytes(range(256)) * 4096


def test_fresh_fetch(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(monkeypatch, server, CONTENT)
    assert verify("toy", tmp_path) == [("deep/toy.mat", "missing")]
    assert fetch("toy", tmp_path, progress=False) == tmp_path
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT
    assert below(tmp_path) == ["deep/toy.mat"]
    assert verify("toy", tmp_path) == [("deep/toy.mat", "ok")]
    fetch("toy", tmp_path, progress=False)
    assert len(server.requests) == 1  # an intact file is not fetched again


def test_resumed_fetch_asks_for_the_rest(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(monkeypatch, server, CONTENT)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/toy.mat.part").write_bytes(CONTENT[:1000])
    fetch("toy", tmp_path, progress=True)
    assert server.requests == [("toy.mat", "bytes=1000-")]
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT
    assert below(tmp_path) == ["deep/toy.mat"]


@pytest.mark.parametrize("kept", [1000, len(CONTENT) + 1000])
def test_server_that_ignores_ranges(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    add_file(monkeypatch, server, CONTENT)
    server.ranges = False
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/toy.mat.part").write_bytes(b"x" * kept)
    fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT


def test_server_that_answers_with_another_range(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has arrived is kept: it may go on with a server that listens."""
    add_file(monkeypatch, server, CONTENT)
    server.ahead = 5
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/toy.mat.part").write_bytes(CONTENT[:1000])
    with pytest.raises(EowError, match=r"answered with the range 'bytes 1005-.*' instead of 1000-"):
        fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "deep/toy.mat.part").read_bytes() == CONTENT[:1000]
    server.ahead = 0
    fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT


def test_a_server_is_not_let_compress(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(monkeypatch, server, CONTENT)
    server.packs = True
    fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [0, 7])
def test_part_as_long_as_the_file_or_longer(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: int
) -> None:
    add_file(monkeypatch, server, CONTENT)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/toy.mat.part").write_bytes(CONTENT + b"x" * extra)
    if extra:
        with pytest.raises(EowError, match="does not belong"):
            fetch("toy", tmp_path, progress=False)
        assert below(tmp_path) == []
    fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT


def test_wrong_hash_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(monkeypatch, server, CONTENT, hash=md5(b"something else"))
    with pytest.raises(EowError, match="toy could not be fetched"):
        fetch("toy", tmp_path, progress=False)
    assert below(tmp_path) == []


def test_differing_file_is_replaced_and_mirrors_take_turns(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["bad.mat"] = b"not it"
    add_file(monkeypatch, server, CONTENT, server.url("gone.mat"), server.url("bad.mat"), server.url("toy.mat"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/toy.mat").write_bytes(b"old")
    assert verify("toy", tmp_path) == [("deep/toy.mat", "differs")]
    fetch("toy", tmp_path, progress=False)
    assert [name for name, _ in server.requests] == ["gone.mat", "bad.mat", "toy.mat"]
    assert (tmp_path / "deep/toy.mat").read_bytes() == CONTENT


def test_all_mirrors_down_names_each(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(monkeypatch, server, CONTENT, server.url("a"), server.url("b"))
    with pytest.raises(EowError, match=r"/a: 404.*/b: 404"):
        fetch("toy", tmp_path, progress=False)


def test_a_folder_that_cannot_be_written_to_is_not_the_mirrors_fault(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_file(monkeypatch, server, CONTENT)
    (tmp_path / "file").touch()
    with pytest.raises(
        EowError, match=r"the folder \S+file/deep cannot be written to: Not a directory; choose another"
    ):
        fetch("toy", tmp_path / "file", progress=False)
    assert server.requests == []


def test_without_a_network_one_sentence_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody listens on is no network; neither is a name that nobody knows."""
    monkeypatch.setenv("NO_PROXY", "*")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/"
    urls = (f"{address}a", f"{address}b", "http://nowhere.invalid/c")
    add_set(monkeypatch, (File("deep/er/toy.mat", "0"),), Archive("deep/er/toy.mat", urls, "0"))
    (tmp_path / "root").mkdir()
    for root in (tmp_path / "root", tmp_path / "new"):
        with pytest.raises(EowError) as caught:
            fetch("toy", root, progress=False)
        assert str(caught.value) == (
            "toy could not be fetched (no connection to 127.0.0.1 or nowhere.invalid): see to the network and try "
            f"again, or put deep/er/toy.mat below {root} by hand"
        )
    assert [path.name for path in tmp_path.rglob("*")] == ["root"]


def tar_of(members: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo("toy/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
    return buffer.getvalue()


def zip_of(members: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo("toy/link")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, link)
    return buffer.getvalue()


def add_archive(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, content: bytes) -> None:
    server.files[name] = content
    add_set(monkeypatch, (File("toy/data", md5(b"data")),), Archive(name, (server.url(name),), md5(content), "toy"))


def add_gzip(monkeypatch: pytest.MonkeyPatch, server: Server, packed: bytes) -> None:
    server.files["toy-ubyte.gz"] = packed
    file = File("raw/toy-ubyte", md5(CONTENT), md5(packed))
    add_set(monkeypatch, (file,), Archive("raw/toy-ubyte.gz", (server.url("toy-ubyte.gz"),), md5(packed)))


PACKERS = {"toy.tar.gz": tar_of, "toy.zip": zip_of}


@pytest.mark.parametrize("name", PACKERS)
def test_archive_is_unpacked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    add_archive(monkeypatch, server, name, PACKERS[name]({"toy/data": b"data", "toy/deep/more": b"more"}))
    fetch("toy", tmp_path, progress=False)
    assert below(tmp_path) == ["toy/data", "toy/deep/more"]
    (tmp_path / "toy/data").write_bytes(b"spoilt")
    (tmp_path / "toy/mine").write_bytes(b"the user's own")
    fetch("toy", tmp_path, progress=False)
    assert (tmp_path / "toy/data").read_bytes() == b"data"
    assert (tmp_path / "toy/mine").read_bytes() == b"the user's own"


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("member", ["../escaped", "toy/../../escaped", "/{root}/escaped", "toy\\..\\..\\escaped", ""])
def test_hostile_archive_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, member: str
) -> None:
    root = tmp_path / "inner" / "root"
    members = {"toy/data": b"data"}
    if member:
        members[member.replace("/{root}", str(tmp_path))] = b"escaped"
    add_archive(monkeypatch, server, name, PACKERS[name](members, link="" if member else str(tmp_path)))
    with pytest.raises(EowError, match="was not unpacked"):
        fetch("toy", root, progress=False)
    assert below(tmp_path) == [f"inner/root/{name}"]


@pytest.mark.parametrize("name", PACKERS)
def test_broken_archive(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = PACKERS[name]({"toy/data": bytes(100_000)})
    for content in (whole[:-40], whole[:12], b"no archive"):
        add_archive(monkeypatch, server, name, content)
        with pytest.raises(EowError, match=r"could not be unpacked \(.*\): remove it and fetch it again"):
            fetch("toy", tmp_path, progress=False)
        assert below(tmp_path) == [name]


def test_broken_gzip(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off, of another checksum, and no gzip at all: an EOFError, and two that Python counts as the system's."""
    whole = gzip.compress(CONTENT)
    for content in (whole[:-40], whole[:-8] + bytes(8), b"no archive"):
        add_gzip(monkeypatch, server, content)
        with pytest.raises(EowError, match=r"could not be unpacked \(.*\): remove it and fetch it again"):
            fetch("toy", tmp_path, progress=False)
        assert below(tmp_path) == ["raw/toy-ubyte.gz"]


def test_archive_that_is_not_as_it_should_be(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_archive(monkeypatch, server, "toy.zip", zip_of({"other/data": b"data"}))
    with pytest.raises(EowError, match=r"has no folder toy in it: remove it and fetch it again"):
        fetch("toy", tmp_path, progress=False)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("toy/data", b"data")
    add_archive(monkeypatch, server, "toy.zip", packed.getvalue())
    with pytest.raises(
        EowError, match=r"was not unpacked, do it by hand: its member 'toy/data' is packed in an unusual"
    ):
        fetch("toy", tmp_path, progress=False)
    assert below(tmp_path) == ["toy.zip"]


def test_gzip_is_unpacked_over_a_differing_plain_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_gzip(monkeypatch, server, gzip.compress(CONTENT))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/toy-ubyte").write_bytes(b"old")
    fetch("toy", tmp_path, progress=False)
    assert below(tmp_path) == ["raw/toy-ubyte"]
    assert (tmp_path / "raw/toy-ubyte").read_bytes() == CONTENT


def test_sets_without_a_download(tmp_path: Path) -> None:
    with pytest.raises(EowError, match="notMNIST has no official idx files"):
        fetch("notmnist", tmp_path)
    with pytest.raises(EowError, match="no data set named 'imagenet22k'"):
        fetch("imagenet22k", tmp_path)
    with pytest.raises(EowError, match="digits is built in: nothing to fetch"):
        fetch("digits", tmp_path)
    assert verify("digits", tmp_path) == []
    for name in ("permuted:mnist", f"folder:{tmp_path}", "noise:1x8x8"):
        for look in (fetch, verify):
            with pytest.raises(EowError, match="has no official files: only the sets that `eow data list` names"):
                look(name, tmp_path)


def test_describe(tmp_path: Path) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    rows = {row.name: row for row in describe(tmp_path)}
    assert rows["svhn"].on_disk == "test only"
    assert rows["digits"].on_disk == "built in"
    assert rows["cifar100"][2:] == ("3x32x32", 100, "no")


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_32x32.mat").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", denied)
        with pytest.raises(EowError, match=r"test_32x32\.mat cannot be read \(Permission denied\)"):
            verify("svhn", tmp_path)
    monkeypatch.setattr(Path, "stat", denied)
    for look in (lambda: describe(tmp_path), lambda: verify("mnist", tmp_path)):
        with pytest.raises(EowError, match=r"MNIST/raw.*cannot be read \(Permission denied\)"):
            look()


def denied(path: Path, *arguments: object, **options: object) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("name", ["raw/toy-ubyte.gz", *PACKERS])
def test_an_archive_that_cannot_be_unpacked_here(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A full disk is said to be one, whatever is unpacked, and what was there stays."""
    if name in PACKERS:
        add_archive(monkeypatch, server, name, PACKERS[name]({"toy/data": b"data"}))
    else:
        add_gzip(monkeypatch, server, gzip.compress(CONTENT))
    old = tmp_path / ("toy/data" if name in PACKERS else "raw/toy-ubyte")

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for module in (shutil, tarfile):
        monkeypatch.setattr(module, "copyfileobj", full)
    old.parent.mkdir()
    old.write_bytes(b"old")
    with pytest.raises(
        EowError, match=r"could not be unpacked \(.*No space left on device\): make room for it, or name"
    ):
        fetch("toy", tmp_path, progress=False)
    assert old.read_bytes() == b"old"


def test_every_archive_of_the_catalog_brings_files() -> None:
    for name, entry in CATALOG.items():
        for archive in entry.archives:
            assert any(fetching._comes_from(file, archive) for file in entry.files), (name, archive.path)
        brought = [file for file in entry.files if any(fetching._comes_from(file, a) for a in entry.archives)]
        assert len(brought) == (len(entry.files) if entry.archives else 0), name
