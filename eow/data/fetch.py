"""Bring the official files of a set below the data root, and say which of them are there and intact.

pooch checks the hash and renames. What is ours: a download that was cut off goes on where it stopped, mirrors are tried
in turn, and an archive is unpacked beside its place and then moved, so that a half-written file is never seen.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from eow.data.catalog import CATALOG, Archive, Entry, File, data_root
from eow.data.files import readable
from eow.data.readers import located, official_hash
from eow.errors import EowError
from eow.plain import near
from eow.storage import make_folder

CHUNK = 1 << 18
TIMEOUT_SECONDS = (10, 60)
# What a damaged archive ends in; ValueError: names that are not the UTF-8 they say they are. No other OSError: a full
# disk is not the archive's fault.
DAMAGED = (gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


class Row(NamedTuple):
    """A line of `eow data list`."""

    name: str
    about: str
    shape: str
    classes: int
    on_disk: str


def describe(root: str | Path | None = None) -> list[Row]:
    """All named sets. `on_disk` is "built in", "yes", "train only", "test only" or "no"; nothing is hashed."""
    folder = data_root(root)
    return [
        Row(name, entry.about, "x".join(map(str, entry.shape)), entry.class_count, _on_disk(entry, folder))
        for name, entry in CATALOG.items()
    ]


def _on_disk(entry: Entry, root: Path) -> str:
    if not entry.files:
        return "built in"
    train = bool(entry.train) and all(located(file, root) for file in entry.train)
    test = all(located(file, root) for file in entry.test)
    return {(True, True): "yes", (True, False): "train only", (False, True): "test only"}.get((train, test), "no")


def verify(name: str, root: str | Path | None = None) -> list[tuple[str, str]]:
    """(file below the root, "ok" | "missing" | "differs" | "no official hash") for each file of the set."""
    folder = data_root(root)
    return [_status(file, folder) for file in official(name, lambda entry: entry.files).files]


def official(name: str, offered: Callable[[Entry], object]) -> Entry:
    """The catalog's entry of a set that has official files, or none at all; else an error that names those offered."""
    if ":" in name or name == "noise":
        raise EowError(f"{name} has no official files: only the sets that `eow data list` names have them")
    if name not in CATALOG:
        names = [each for each, entry in CATALOG.items() if offered(entry)]
        raise EowError(f"there is no data set named {name!r} here: {near(name, names)}use one of {', '.join(names)}")
    return CATALOG[name]


def _status(file: File, root: Path) -> tuple[str, str]:
    path = located(file, root)
    if path is None:
        return file.path, "missing"
    shown, expected = path.relative_to(root).as_posix(), official_hash(file, path)
    if expected is None:
        return shown, "no official hash"
    with readable(path), path.open("rb") as stream:
        digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False))
    return shown, "ok" if digest.hexdigest() == expected else "differs"


def fetch(name: str, root: str | Path | None = None, progress: bool = True) -> Path:
    """Download what of the set is missing or differs, and return the root. A file that differs is replaced."""
    entry = official(name, lambda entry: entry.archives)
    if not entry.files:
        raise EowError(f"{name} is built in: nothing to fetch")
    if not entry.archives:
        raise EowError(f"{name} cannot be fetched: {entry.by_hand}")
    folder = data_root(root)
    for archive in entry.archives:
        wanted = [file for file in entry.files if _comes_from(file, archive)]
        if all(_status(file, folder)[1] in ("ok", "no official hash") for file in wanted):
            continue
        path = _downloaded(name, archive, folder, progress)
        if archive.folder is not None:
            _unpack_folder(path, archive.folder, folder)
            path.unlink()
        elif path.suffix == ".gz":
            _unpack_gzip(path)
            path.unlink()
    return folder


def _comes_from(file: File, archive: Archive) -> bool:
    if archive.folder is not None:
        return file.path.startswith(f"{archive.folder}/")
    return file.path == archive.path.removesuffix(".gz")


def _downloaded(name: str, archive: Archive, root: Path, progress: bool) -> Path:
    """The archive, its hash right, at its path below the root; the mirrors are tried in order."""
    import pooch
    import requests
    import urllib3

    pooch.get_logger().setLevel("WARNING")
    target = root / archive.path
    failures, unreachable = [], []
    missing = [place for place in (target.parent, *target.parent.parents) if not place.exists()]
    make_folder(target.parent)  # no mirror is to be tried where nothing can be written
    for url in archive.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"md5:{archive.md5}",
                fname=target.name,
                path=target.parent,
                downloader=_resuming_downloader(target.with_name(f"{target.name}.part"), progress),
            )
            return target
        except (ValueError, OSError, requests.RequestException, urllib3.exceptions.HTTPError) as error:
            failures.append(f"{url}: {' '.join(str(error).split())}")
            unreachable += [urlsplit(url).hostname] if isinstance(error, requests.ConnectionError) else []
    for place in missing:  # what was made for it
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    if len(unreachable) == len(failures):
        hosts = " or ".join(dict.fromkeys(map(str, unreachable)))
        why, how = f"no connection to {hosts}", "see to the network and try again"
    else:
        why, how = "; ".join(failures), "try again, a download that was cut off goes on where it stopped"
    raise EowError(f"{name} could not be fetched ({why}): {how}, or put {archive.path} below {root} by hand")


def _resuming_downloader(part: Path, progress: bool) -> Callable[[str, str, object], None]:
    """A downloader for pooch that keeps what has arrived in `part` and asks for the rest with an HTTP range."""

    def download(url: str, output_file: str, pooch: object) -> None:
        import requests

        have = part.stat().st_size if part.exists() else 0
        # "identity": a server must not compress on the way, or offsets and hashes would be those of another stream.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            content_range = response.headers.get("Content-Range", "")
            if response.status_code == 416 and content_range == f"bytes */{have}":
                os.replace(part, output_file)
                return
            if response.status_code == 416:
                part.unlink()
                raise ValueError("what was kept of an earlier download does not belong to this file and was removed")
            response.raise_for_status()
            if response.status_code != 206:
                have = 0
            elif not content_range.startswith(f"bytes {have}-"):
                raise ValueError(f"the server answered with the range {content_range!r} instead of {have}-")
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("r+b" if have else "wb") as stream, _bar(part.stem, have, total, progress) as advance:
                stream.seek(have)
                # The raw stream, because iter_content would undo a Content-Encoding that some servers put on .gz files.
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    stream.write(chunk)
                    advance(len(chunk))
        if total is not None and part.stat().st_size != total:
            raise ValueError(f"the connection ended after {part.stat().st_size} of {total} bytes")
        os.replace(part, output_file)

    return download


@contextmanager
def _bar(title: str, have: int, total: int | None, shown: bool) -> Iterator[Callable[[int], None]]:
    """A rich progress bar on stderr; gives the function that advances it by a number of bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(title, completed=have, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def _unpacking(path: Path) -> Iterator[None]:
    """What is wrong with the archive, or with the place it is unpacked to, becomes a sentence that says which."""
    try:
        yield
    except EowError:
        raise
    except DAMAGED as error:
        raise EowError(f"{path} could not be unpacked ({error}): remove it and fetch it again") from error
    except OSError as error:
        raise EowError(
            f"{path} could not be unpacked ({error}): make room for it, or name a --root that can be written to"
        ) from error


def _unpack_gzip(path: Path) -> None:
    """X.gz -> X, in one rename."""
    target = path.with_suffix("")
    with _unpacking(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=".unpacking-") as beside:
        with gzip.open(path) as packed, (Path(beside) / target.name).open("wb") as plain:
            shutil.copyfileobj(packed, plain, CHUNK)
        os.replace(Path(beside) / target.name, target)


def _unpack_folder(path: Path, folder: str, root: Path) -> None:
    """The archive's top folder below the root: one rename where it is new, file by file where it is there already."""
    with _unpacking(path), tempfile.TemporaryDirectory(dir=root, prefix=".unpacking-") as beside:
        if path.suffix == ".zip":
            _extract_zip(path, Path(beside))
        else:
            _extract_tar(path, Path(beside))
        unpacked = Path(beside) / folder
        if not unpacked.is_dir():
            raise EowError(f"{path} has no folder {folder} in it: remove it and fetch it again")
        if not (root / folder).exists():
            os.replace(unpacked, root / folder)
            return
        # Files of the user's own may lie in the folder: only those of the archive are replaced.
        for source in sorted(unpacked.rglob("*")):
            target = root / folder / source.relative_to(unpacked)
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, target)


def _refuse_outside(path: Path, member: str, plain: bool) -> None:
    """Only plain files and folders whose place is below the archive's own top may be unpacked."""
    place = PurePosixPath(member.replace("\\", "/"))
    if not plain or place.is_absolute() or ".." in place.parts or ":" in place.as_posix():
        raise EowError(
            f"{path} was not unpacked, remove it: its member {member!r} is a link, a device, nameless or lies outside "
            "the archive"
        )


def _extract_tar(path: Path, into: Path) -> None:
    with tarfile.open(path, "r:gz") as archive:  # not whatever else it may be: 13 bytes of .lzma can ask for 4 GB
        for member in archive:
            _refuse_outside(path, member.name or ".", member.isfile() or member.isdir())
        archive.extractall(into, filter="data")


def _extract_zip(path: Path, into: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            # The upper half of external_attr is the Unix mode, 0 where the archive was made elsewhere.
            kind = stat.S_IFMT(member.external_attr >> 16)
            plain = member.filename != "" and kind in (0, stat.S_IFREG, stat.S_IFDIR)  # zipfile fails on no name
            _refuse_outside(path, member.filename, plain)
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # LZMA, as above
                raise EowError(
                    f"{path} was not unpacked, do it by hand: its member {member.filename!r} is packed in an unusual "
                    "way"
                )
        archive.extractall(into)
