"""Files of a run: written whole or not at all, in formats that cannot run code, behind a lock that a dead process does
not hold."""

import fcntl
import hashlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from eow.errors import EowError


def atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """`write` fills a temporary sibling, which then takes the place of `path`: a reader sees the old file or the new
    one."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise EowError(
            f"{path} cannot be written: {error.strerror or error}; free the space or choose another folder"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    atomic(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EowError(f"there is no {path.name} in {path.parent}: is that the folder of a finished run?") from None
    except (OSError, ValueError) as error:
        raise EowError(f"{path} cannot be read as JSON: {error}; it is damaged, train the run again") from None


def write_tensors(path: Path, tensors: dict[str, Any], header: dict[str, Any]) -> None:
    """A safetensors file of torch tensors, with `header` as JSON in its metadata: one file, so one rename makes both
    current."""
    from safetensors.torch import save

    data = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {"eow": json.dumps(header)}
    )
    atomic(path, lambda file: file.write(data))


def write_arrays(path: Path, arrays: dict[str, Any], header: dict[str, Any]) -> None:
    """The same for numpy arrays."""
    from safetensors.numpy import save

    data = save(arrays, {"eow": json.dumps(header)})
    atomic(path, lambda file: file.write(data))


def read_tensors(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors ("pt") or arrays ("numpy") and header of a file that `write_tensors` or `write_arrays` made."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework) as file:
            header = json.loads((file.metadata() or {})["eow"])
            return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (it is no dict)
    except FileNotFoundError:
        raise EowError(f"there is no file {path}: has the run that makes it ended?") from None
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise EowError(f"{path} is damaged or was not made by eow ({error}): make it again") from None


def file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise EowError(
            f"the folder {path} cannot be written to: {error.strerror or error}; choose another one"
        ) from None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder belongs to this process. The kernel drops the lock when the process ends, however it ends."""
    file = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (closed below, and not before)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise EowError(f"{folder} is in use by {holder}: wait for it to end or choose another folder") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        file.close()


class Log:
    """log.jsonl: one JSON object a line, appended; a line that a kill cut short is dropped when the log is opened
    again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        lines = []
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    continue
        return lines

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Only the lines that are wanted, for a run that goes back to its last checkpoint."""
        text = "".join(json.dumps(line) + "\n" for line in self.read() if wanted(line))
        atomic(self.path, lambda file: file.write(text.encode()))

    def write(self, **line: Any) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
