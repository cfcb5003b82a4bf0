"""Files of a run: written whole or not at all, in formats that cannot run code, behind a lock that a dead process does
not hold."""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

from eow.errors import EowError

IMPORTED = "imported"  # in place of a recipe's name in the config.json of predictions that eow has not made
LATER = {"threshold.json": "eow threshold", "corruptions.json": "eow evaluate --corruptions"}  # written then
LARGEST_TEXT = 256 << 20  # bytes of a JSON file or a log: a run's own have a thousandth of it
TOKEN = re.compile(r"[0-9a-f]{8}")  # what ends the name of a file that `atomic` is filling


def atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """`write` fills a temporary sibling, which then takes the place of `path`: a reader sees the old file or the new
    one. A link stays, and the file it leads to is replaced; a device or a pipe is not."""
    temporary = None
    try:
        target = Path(os.path.realpath(path))
        if os.path.lexists(target):
            check_regular(target)
        # Not by tempfile: its files are for their owner alone, where these are as open as the umask lets them be.
        with open(target.with_name(f".{target.name}.{secrets.token_hex(4)}"), "xb") as file:
            temporary = file.name
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise EowError(
            f"{path} cannot be written: {error.strerror or error}; free the space or choose another folder"
        ) from error
    finally:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)


def remove_temporary(folder: Path, *names: str) -> None:
    """What a kill has left of `atomic` in the folder, of files with these names (or patterns), and nothing else: there
    may be hidden files of the user's. Only with the lock in hand."""
    for file in folder.glob(".*"):
        name, _, token = file.name[1:].rpartition(".")
        if TOKEN.fullmatch(token) and any(fnmatchcase(name, each) for each in names) and file.is_file():
            file.unlink()


def check_regular(path: Path) -> os.stat_result:
    """What the system says of a file; an OSError unless it is a plain one: a pipe would be waited for, a device read
    without end."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, and no file", str(path))
    return found


def read_text(path: Path) -> str:
    """A file's text; an OSError where it is not a plain file, or far larger than what a run writes."""
    if (size := check_regular(path).st_size) > LARGEST_TEXT:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {LARGEST_TEXT:,} are the most", str(path))
    return path.read_text(encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2) + "\n"  # in ASCII: a file's name need not be UTF-8
    atomic(path, lambda file: file.write(text.encode()))


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object in the file, which must have these keys."""
    try:
        value = json.loads(read_text(path))
    except FileNotFoundError:
        raise EowError(f"there is no {path.name} in {path.parent}: is that the folder of a finished run?") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise EowError(f"{path} cannot be read as JSON: {error}; it is damaged, {made_again(path)}") from None
    if not isinstance(value, dict):
        raise EowError(f"{path} holds no JSON object: it is damaged, {made_again(path)}")
    if missing := [key for key in keys if key not in value]:
        raise EowError(f"{path} has no {', '.join(missing)}: it is damaged, {made_again(path)}")
    return value


def made_again(path: Path) -> str:
    """What to do where a file in the folder of a run is damaged: predictions from elsewhere cannot be trained, and what
    was made after training need not be."""
    if path.name in LATER:
        return f"make it again with `{LATER[path.name]}`"
    try:
        recipe = json.loads(read_text(path.with_name("config.json")))["recipe"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return "train the run again or, if it was imported, import it again"
    return "import it again" if recipe == IMPORTED else "train the run again"


def unreadable(path: Path, error: OSError) -> EowError:
    """The error for a file that is there and cannot be opened."""
    return EowError(f"{path} cannot be read: {error.strerror or error}; give a file that you may read")


def write_tensors(path: Path, tensors: dict[str, Any], header: dict[str, Any]) -> None:
    """A safetensors file of torch tensors, with `header` as JSON in its metadata: one file, so one rename makes both
    current."""
    from safetensors.torch import save

    data = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, {"eow": json.dumps(header)}
    )
    atomic(path, lambda file: file.write(data))


def write_arrays(path: Path, arrays: dict[str, Any], header: dict[str, Any]) -> None:
    """The same for numpy arrays: the bytes that safetensors would make, piece by piece, for its own way holds every
    array three times. And it writes what lies behind an array's first entry, which of a slice of columns is not it."""
    import numpy as np

    from eow.mapping import pieces

    kinds = {np.dtype(code): name for name, code in NUMBERS.items()}
    little = {name: array.dtype.newbyteorder("<") for name, array in arrays.items()}
    order = sorted(arrays, key=lambda name: (-list(kinds).index(little[name]), name))
    table: dict[str, Any] = {"__metadata__": {"eow": json.dumps(header)}}
    end = 0
    for name in order:
        start, end = end, end + arrays[name].nbytes
        table[name] = {"dtype": kinds[little[name]], "shape": arrays[name].shape, "data_offsets": [start, end]}
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def fill(file: IO[bytes]) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for rows in pieces(arrays[name]):
                file.write(np.ascontiguousarray(arrays[name][rows], little[name]).data)

    atomic(path, fill)


def read_tensors(path: Path, framework: str = "pt") -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors ("pt") or arrays ("numpy") and header of a file that `write_tensors` or `write_arrays` made."""
    with tensor_file(path, framework) as (file, header):
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 (it is not a dict)


def map_arrays(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same arrays without reading them: they lie in the file, and what is looked at is fetched. Not to be written
    to. They stay what they are when the file is replaced, as `atomic` does, but not when it is cut short."""
    import numpy as np

    with tensor_file(path, "numpy") as (_, header):  # safetensors has found every type, shape and offset in order
        data = np.memmap(path, np.uint8, "r")
        first = 8 + int.from_bytes(data[:8].tobytes(), "little")
        arrays = {}
        for name, about in json.loads(data[8:first].tobytes()).items():
            if name != "__metadata__":
                start, end = (first + offset for offset in about["data_offsets"])
                arrays[name] = np.asarray(data[start:end].view(NUMBERS[about["dtype"]]).reshape(about["shape"]))
    return arrays, header


# How safetensors calls the numbers that numpy has too, the last of them first in a file.
NUMBERS = {
    "BOOL": "?", "U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8",
}  # fmt: skip


@contextmanager
def tensor_file(path: Path, framework: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A safetensors file, opened, and eow's header in it; what is wrong with either becomes a sentence."""
    from safetensors import SafetensorError, safe_open

    try:
        check_regular(path)
        open(path, "rb").close()  # safetensors does not say why it cannot open a file
        with safe_open(path, framework) as file:
            header = json.loads((file.metadata() or {})["eow"])
            if not isinstance(header, dict):
                raise TypeError("its header is not an object")
            yield file, header
    except FileNotFoundError:
        raise EowError(f"there is no file {path}: has the run that makes it ended?") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise EowError(f"{path} is damaged or was not made by eow ({error}): make it again") from None


def file_hash(path: Path) -> str:
    try:
        check_regular(path)
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


def remove(path: Path) -> None:
    try:
        if os.path.lexists(path):  # in a folder that cannot be written to there may be nothing to remove
            path.unlink()
    except OSError as error:
        raise EowError(f"{path} cannot be removed: {error.strerror or error}; remove it yourself") from None


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
    with ExitStack() as stack:
        try:
            # Unbuffered: what a full disk has refused would be tried, and refused, again on closing.
            file = stack.enter_context(open(folder / ".lock", "a+b", buffering=0))
            take_lock(file, folder)
        except OSError as error:
            raise EowError(
                f"{folder} cannot be locked: {error.strerror or error}; .lock there must be a file one can write: "
                "see to that, or choose another folder"
            ) from None
        yield


def take_lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read(200).decode(errors="replace").strip() or "another process"
        raise EowError(f"{folder} is in use by {holder}: wait for it to end or choose another folder") from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())


class Log:
    """log.jsonl: one JSON object a line, appended; a line that a kill cut short is dropped when the log is opened
    again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        try:
            text = read_text(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self.path, error) from None
        except UnicodeDecodeError:
            raise EowError(f"{self.path} is not text: it is damaged, {made_again(self.path)}") from None
        lines = []
        for line in text.splitlines():
            try:
                lines.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
        return [line for line in lines if isinstance(line, dict)]

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Only the lines that are wanted, for a run that goes back to its last checkpoint."""
        text = "".join(json.dumps(line) + "\n" for line in self.read() if wanted(line))
        atomic(self.path, lambda file: file.write(text.encode()))

    def write(self, **line: Any) -> None:
        try:
            if self.path.exists():
                check_regular(self.path)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise EowError(f"{self.path} cannot be written: {error.strerror or error}; free the space") from error
