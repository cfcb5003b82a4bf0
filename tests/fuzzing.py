"""A seeded fuzzer: files as somebody hostile, or a dying disk, might hand them over.

`mutated(data, form, random)` changes a whole file: its bytes, or what lies under them (the JSON in a safetensors
header, the members of a zip, a PNG's chunks with their sums put right), so that the damage gets past the first check.
`fuzz` gives such files to a reader, one after the other. A file may load or be refused with an EowError of one line
and nothing else: another exception, more than LIMIT_S seconds, a word printed, a file written outside the sandbox, a
program started, a connection or an unpickled name is a failure. File number i of a case is the same whatever else runs.
"""

import contextlib
import io
import json
import math
import os
import re
import signal
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from eow.errors import EowError
from eow.plain import printable

LIMIT_S = 10
STRANGE: list[Any] = [
    None, True, False, -1, 0, 1, 3, 0.5, -0.5, 1e308, float("nan"), float("inf"), 2**31, 2**63, 2**70, -(2**63), "",
    "x", "0", "x" * 300, "</script><script>x()</script>", "\x1b[31mred", "a\nb", "\u202eabc", "\ud800", "../../x",
    "/etc/passwd", "=1+1", [], {}, [[]], [[[[1]]]], [None], {"a": {}}, {"name": "x"}, [1e308, -1e308], ["a", 1],
]  # fmt: skip
NUMBERS = [struct.pack(form, value) for form in ("<i", ">i", "<q", ">q") for value in (0, -1, 1, 2**31 - 1, 65536)]
NUMBERS += [struct.pack("<f", value) for value in (float("nan"), float("inf"), -1.0, 1e30)]
TOKENS = ["1e999", "nan", "-1", "0", "99999999999", '"', "'", "[", "]", "{", "}", "=", ",", "\n", "\0", "é", "\u202e",
          "true", '""', "[[", "]]", "x.y", "#", "\\", "1979-05-27", "9" * 5000, "[" * 3000, "\x1b[2J"]  # fmt: skip


class Case(NamedTuple):
    """A valid file, where its mutants are to lie, and who reads them. `share` of a run's files is given to it."""

    name: str
    data: bytes
    form: str
    place: Path
    read: Callable[[], Any]
    share: float = 1.0


# Mutations


def mutated(data: bytes, form: str, random: Random) -> bytes:
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        change = FORMS.get(form, of_bytes) if random.random() < 0.7 else of_bytes
        try:
            data = change(data, random)
        except Exception:
            data = of_bytes(data, random)  # an earlier mutation has left nothing to take apart
    return data


def of_bytes(data: bytes, random: Random) -> bytes:
    size = len(data)
    if size < 2:
        return random.randbytes(random.randrange(64))
    # Headers decide most: half of the places lie in the first and last bytes.
    places = (random.randrange(size), random.randrange(min(size, 64)), size - 1 - random.randrange(min(size, 64)))
    at = random.choice((places[0], *places))
    way, length = random.randrange(8), random.choice((1, 2, 4, 16, 256))
    if way == 0:
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    if way == 1:
        return data[:at] + bytes([random.choice((0, 1, 127, 128, 255))]) + data[at + 1 :]
    if way == 2:
        return data[:at]
    if way == 3:
        return data[:at] + data[at + length :]
    if way == 4:
        return data[:at] + random.randbytes(length) + data[at:]
    if way == 5:
        return data[:at] + data[at : at + length] * random.choice((2, 3, 100)) + data[at + length :]
    if way == 6:
        number = random.choice(NUMBERS)
        return data[:at] + number + data[at + len(number) :]
    source = random.randrange(size)
    return data[:at] + data[source : source + length] + data[at + length :]


def of_text(data: bytes, random: Random) -> bytes:
    """A word, number or sign replaced, a line gone or doubled."""
    text = data.decode("utf-8", "surrogateescape")
    found = list(re.finditer(r"[\w.+-]+|[^\s\w]", text))
    if not found or random.random() < 0.2:
        lines = text.splitlines(keepends=True) or [""]
        at = random.randrange(len(lines))
        lines[at : at + 1] = random.choice(([], [lines[at]] * 2, [random.choice(lines)]))
        text = "".join(lines)
    else:
        one = random.choice(found)
        new = random.choice((random.choice(TOKENS), random.choice(found)[0]))
        text = text[: one.start()] + new + text[one.end() :]
    return text.encode("utf-8", "surrogateescape")


def of_json(data: bytes, random: Random) -> bytes:
    return json.dumps(changed(json.loads(data), random)).encode()


def of_lines(data: bytes, random: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = random.randrange(len(lines))
    lines[at] = of_json(lines[at], random) + b"\n"
    return b"".join(lines)


def changed(tree: Any, random: Random) -> Any:
    """The JSON value with one place in it replaced, removed, renamed, wrapped or filled from another place."""
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            places.append((node, key))
            collect(value)

    collect(tree)
    if not places or random.random() < 0.02:
        return random.choice(STRANGE)
    depth = [place for place in places if not isinstance(place[0], list)] or places
    node, key = random.choice(random.choice((places, depth)))
    way = random.randrange(6)
    if way == 0:
        del node[key]
    elif way == 1 and isinstance(node, dict):
        node[f"{random.choice(STRANGE)}"] = node.pop(key)
    elif way == 2:
        node[key] = [node[key]]
    elif way == 3:
        other, where = random.choice(places)
        node[key] = json.loads(json.dumps(other[where]))
    else:
        node[key] = random.choice(STRANGE)
    return tree


def of_safetensors(data: bytes, random: Random) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    way = random.randrange(3)
    if way == 0 and len(body) >= 8:
        at = random.randrange(len(body) // 4) * 4
        number = random.choice(NUMBERS)
        body = body[:at] + number + body[at + len(number) :]
    elif way == 1:
        header = changed(header, random)
    else:
        header["__metadata__"]["eow"] = of_json(header["__metadata__"]["eow"].encode(), random).decode()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def of_zip(data: bytes, random: Random) -> bytes:
    """One member changed or renamed, and all of them packed again with the right sums."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        chosen, rename = random.choice(names), random.random() < 0.15
        for name in names:
            content = old.read(name)
            if name == chosen and rename:
                name = random.choice(("../../outside", "/tmp/outside", "x", "x.npy", "\\..\\x", "a/" * 200 + "x"))
            elif name == chosen:
                content = random.choice((of_bytes, of_npy))(content, random)
            new.writestr(name, content)
    return out.getvalue()


def of_npy(data: bytes, random: Random) -> bytes:
    """A .npy whose header is damaged but as long as it says."""
    size = int.from_bytes(data[8:10], "little")
    header = of_text(data[10 : 10 + size], random)
    return data[:8] + min(len(header), 65535).to_bytes(2, "little") + header + data[10 + size :]


def of_png(data: bytes, random: Random) -> bytes:
    chunks, at = [], 8
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    one = random.randrange(len(chunks))
    chunks[one] = chunks[one][0], of_bytes(chunks[one][1], random)
    if random.random() < 0.2:
        random.shuffle(chunks)
    return data[:8] + b"".join(png_chunk(kind, body) for kind, body in chunks)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def of_gzip(data: bytes, random: Random) -> bytes:
    import gzip

    return gzip.compress(of_bytes(gzip.decompress(data), random))


def of_onnx(data: bytes, random: Random) -> bytes:
    """An entry of the metadata, a number of an attribute or of a shape changed."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_from_string(data)
    except DecodeError:
        raise ValueError from None
    if random.random() < 0.5:
        entry = random.choice(model.metadata_props)
        entry.value = of_json(entry.value.encode(), random).decode("utf-8", "replace")
        return bytes(model.SerializeToString())
    node = random.choice(model.graph.node)
    if node.attribute and random.random() < 0.6:
        one = random.choice(node.attribute)
        one.i = random.choice((-1, 0, 1, 7, 2**31, 2**62))
        one.ints[:] = [random.choice((-1, 0, 1, 2**40)) for _ in one.ints]
    else:
        node.input[random.randrange(len(node.input))] = random.choice(random.choice(model.graph.node).output)
    return bytes(model.SerializeToString())


FORMS = {
    "text": of_text, "json": of_json, "lines": of_lines, "safetensors": of_safetensors, "zip": of_zip, "npy": of_npy,
    "png": of_png, "gzip": of_gzip, "onnx": of_onnx,
}  # fmt: skip


# Running


class TooSlow(BaseException):
    """Not an Exception, so that no reader takes it for a broken file."""


class Watch:
    """What readers do behind their return values, as Python's audit events tell it."""

    def __init__(self, sandbox: Path) -> None:
        self.sandbox, self.seen, self.on = str(sandbox), [], False  # type: ignore[var-annotated]
        sys.addaudithook(self.hook)

    def hook(self, event: str, values: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open" and isinstance(values[0], str | bytes | os.PathLike):
            writes = isinstance(values[1], str) and set(values[1]) & set("wax+")
            if writes or (isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                self.check(event, values[0])
        elif event in ("os.rename", "os.link", "os.symlink"):
            self.check(event, values[1])
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.chmod") and values[-1] == -1:
            self.check(event, values[0])  # what is named relative to an open folder, shutil has opened below another
        elif event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.fork",
                       "os.posix_spawn", "pickle.find_class", "ctypes.dlopen"):  # fmt: skip
            self.seen.append(f"{event} {values[:2]}")

    def check(self, event: str, path: Any) -> None:
        place = os.path.realpath(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        if not f"{place}/".startswith(f"{self.sandbox}/") and not place.startswith(("/dev", "/proc")):
            self.seen.append(f"{event} {os.fsdecode(path)!r}")


def judged(case: Case, data: bytes, watch: Watch) -> tuple[str, str]:
    """("loaded" | "refused" | "failed", the sentence or what went wrong) of a file with these bytes."""
    case.place.write_bytes(data)
    watch.seen.clear()
    verdict, words = "loaded", ""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    said = io.StringIO()
    try:
        watch.on = True
        with contextlib.redirect_stdout(said):
            case.read()
    except EowError as error:
        verdict, words = "refused", str(error)
        if printable(words) != words:
            verdict, words = "failed", f"not one printable line: {words!r}"
    except TooSlow:
        verdict, words = "failed", f"no answer in {LIMIT_S} s"
    except Exception as error:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if "/eow/" in frame.filename] or frames
        verdict, words = "failed", f"{type(error).__name__}: {error} ({Path(own[-1].filename).name}:{own[-1].lineno})"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        watch.on = False
    if said.getvalue():
        verdict, words = "failed", f"a reader printed {said.getvalue()!r}"
    if watch.seen:
        verdict, words = "failed", f"did what no reader may: {watch.seen[0]}"
    return verdict, words[:300]


def set_alarm() -> None:
    """From here on SIGALRM is TooSlow."""

    def ring(*_: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, ring)


def fuzz(
    cases: list[Case], count: int, seed: int, sandbox: Path, told: Callable[[dict[str, Any]], None] = lambda _: None
) -> list[dict[str, Any]]:
    """About `count` mutants over all cases, by their shares; one line of results a case."""
    set_alarm()
    warnings.simplefilter("ignore")
    watch, whole, rows = Watch(sandbox.resolve()), sum(case.share for case in cases), []
    for case in cases:
        case.place.write_bytes(case.data)
        case.read()  # the file itself must load, or refusing would prove nothing
        row: dict[str, Any] = {"case": case.name, "files": 0, "loaded": 0, "refused": 0, "failed": 0, "failures": []}
        for index in range(math.ceil(count * case.share / whole)):
            (sandbox / "current").write_text(f"{case.name} {index}")  # what a crash was about
            data = mutated(case.data, case.form, Random(f"{seed}/{case.name}/{index}"))
            verdict, words = judged(case, data, watch)
            row["files"] += 1
            row[verdict] += 1
            if verdict == "failed":
                row["failures"].append({"index": index, "what": words})
        case.place.write_bytes(case.data)
        rows.append(row)
        told(row)
    return rows
