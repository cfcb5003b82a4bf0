"""Files and names from people who mean harm: a file loads or is one sentence, and a name is text wherever it stands."""

import ast
import contextlib
import csv
import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import FORMS, mutated, png_chunk
from handmade import spoken, write_run
from safetensors import safe_open
from scripts import script
from test_storage import limited

from eow import cli, config, deployed, runs, storage
from eow.console import print_table
from eow.data import fetch, files, load
from eow.data.catalog import CATALOG
from eow.data.inputs import read_inputs
from eow.errors import EowError
from eow.export.run import export
from eow.plain import no_formula, printable
from eow.predictions import file_name
from eow.report import report
from eow.training import checkpoints
from eow.training.distributed import Place

ROOT = Path(__file__).parent.parent
HASHES = {"data": "of training", "test": "of the test"}
NASTY = "</script><script>x()</script>\x1b[31m\n\u202e\"'=1|`{{7*7}}`\\input{x}"


# Mutated files


def test_200_mutated_files_load_or_are_refused_in_one_line() -> None:
    """The short form of benchmarks/fuzz.py, in a process of its own whose memory is limited."""
    result = script("benchmarks/fuzz.py").run(200, seed=0, timeout=500)
    assert result["crashed"] == ""
    assert [(row["case"], row["failures"]) for row in result["cases"] if row["failed"]] == []
    assert result["files"] >= 200
    assert result["refused"] > result["loaded"] > 10  # both happen, or the fuzzer does nothing


def test_a_case_that_is_not_there_is_no_table_without_failures(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzz = script("benchmarks/fuzz.py")
    with pytest.raises(SystemExit) as ended:
        fuzz.run(10, seed=0, only="svhn.mat;nosuch")
    (said,) = capfd.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert said.startswith("error: there is no case 'nosuch': choose of ")
    assert "svhn.mat" in said
    for only in ([], ["--only", "svhn.mat;cifar10"]):
        monkeypatch.setattr(sys, "argv", ["fuzz.py", "--index", "3", *only])
        with pytest.raises(SystemExit) as ended:
            fuzz.main()
        assert ended.value.code == 2


def test_a_seed_makes_the_same_files_and_another_one_others() -> None:
    data = json.dumps({"a": [1, 2, {"b": "c"}]}).encode()
    for form in ("json", "text", "bytes"):
        made = [[mutated(data, form, Random(f"{seed}/{index}")) for index in range(50)] for seed in (0, 0, 1)]
        assert made[0] == made[1] != made[2]
        assert sum(each != data for each in made[0]) > 40


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_mutators_keep_what_holds_a_file_together() -> None:
    """Else the readers' first check would be the only one that is tried."""
    packed = io.BytesIO()
    np.savez(packed, x=np.arange(6), y=np.arange(3))
    whole = broken = 0
    for index in range(100):
        try:
            with zipfile.ZipFile(io.BytesIO(FORMS["zip"](packed.getvalue(), Random(index)))) as archive:
                whole += archive.testzip() is None
        except zipfile.BadZipFile:
            broken += 1
    assert (whole, broken) == (100, 0)


# Nothing that is read is run


def calls_in(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_no_code_is_taken_from_a_file() -> None:
    """Over the whole source: nothing unpickles but the CIFAR reader's allow-list; numpy and torch are told not to."""
    forbidden = re.compile(
        r"(c?pickle|dill|joblib|marshal|shelve|cloudpickle)\.(loads?|open|Unpickler)|eval|exec|os\.system|yaml\.\w+"
        r"|(pd|pandas)\.read_pickle|torch\.hub\.\w+|torch\.jit\.load"
    )
    seen = 0
    for path in sorted((ROOT / "eow").rglob("*.py")):
        for name, call in calls_in(path):
            given = {each.arg: ast.unparse(each.value) for each in call.keywords}
            where = f"{path.relative_to(ROOT)}:{call.lineno}: {name}"
            assert not forbidden.fullmatch(name), where
            assert given.get("shell", "False") == "False", where
            if name in ("np.load", "numpy.load"):
                assert given.get("allow_pickle") == "False", where
                seen += 1
            if name == "torch.load":
                assert given.get("weights_only") == "True", where
        text = path.read_text(encoding="utf-8")
        if re.search(r"^\s*(import|from) (pickle|dill|marshal|shelve)\b", text, re.M):
            assert path.name == "readers.py"
            assert re.findall(r"pickle\.(?!UnpicklingError)\w+", text) == ["pickle._Unpickler"]
    assert seen >= 3  # the readers are there


def test_the_scan_finds_what_it_forbids(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import pickle, torch\npickle.load(open('x'))\ntorch.load('x', weights_only=True)\n")
    assert [name for name, _ in calls_in(tmp_path / "x.py")] == ["pickle.load", "torch.load", "open"]


# Bombs


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """What any file may unpack to, so low that a bomb takes no second to make."""
    monkeypatch.setattr(files, "ALWAYS_UNPACKED", 1 << 20)
    return 1 << 20


BOMB = 64 << 20


def peak_of(read: Any, message: str) -> int:
    tracemalloc.start()
    with pytest.raises(EowError, match=message):
        read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_an_npz_that_unpacks_to_a_thousand_times_its_size(tmp_path: Path, small_limit: int) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((BOMB // 64, 1, 8, 8), np.uint8), y=np.arange(BOMB // 64) % 2)
    assert peak_of(lambda: load(f"npz:{tmp_path}/x.npz"), "unpacks to .* far more than arrays do") < 8 * small_limit
    noise = np.random.default_rng(0).integers(0, 256, (50_000, 1, 8, 8), dtype=np.uint8)
    np.savez_compressed(tmp_path / "y.npz", x=noise, y=np.arange(50_000) % 2)
    assert len(load(f"npz:{tmp_path}/y.npz")) == 40_000  # what does not shrink so is no bomb, however large


def test_a_zip_that_lies_about_its_size_is_read_no_further(tmp_path: Path, small_limit: int) -> None:
    np.savez_compressed(
        tmp_path / "x.npz", x=np.zeros((BOMB // 64, 1, 8, 8), np.uint8), y=np.zeros(BOMB // 64, np.int8)
    )
    data = (tmp_path / "x.npz").read_bytes()
    true = struct.pack("<I", BOMB + 128)
    assert true in data
    (tmp_path / "x.npz").write_bytes(data.replace(true, struct.pack("<I", 1000)))
    assert peak_of(lambda: load(f"npz:{tmp_path}/x.npz"), "cannot be read") < 8 * small_limit


def test_a_gzip_bomb_in_the_place_of_an_idx_file(tmp_path: Path, small_limit: int) -> None:
    images, labels = (tmp_path / f"{file.path}.gz" for file in CATALOG["notmnist"].test)
    images.parent.mkdir(parents=True)
    images.write_bytes(gzip.compress(struct.pack(">4I", 0x803, BOMB // 784, 28, 28) + bytes(BOMB // 784 * 784)))
    labels.write_bytes(gzip.compress(struct.pack(">2I", 0x801, 1) + b"\1"))
    assert peak_of(lambda: load("notmnist", tmp_path, "test"), "far more than images do") < BOMB / 3


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_bomb_in_a_mat_file(tmp_path: Path, small_limit: int, order: str) -> None:
    (file,) = CATALOG["svhn"].test
    packed = zlib.compress(bytes(BOMB))
    head = b"x" * 124 + struct.pack(f"{order}2H", 0x100, 0x4D49)
    (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file.path).write_bytes(head + struct.pack(f"{order}2I", 15, len(packed)) + packed)
    read = lambda: load("svhn", tmp_path, "test", allow_unofficial=True)  # noqa: E731
    assert peak_of(read, "far more than images do") < BOMB / 3


def test_a_png_of_a_few_bytes_that_says_it_is_huge(tmp_path: Path) -> None:
    side = 9000  # under the size at which Pillow itself refuses
    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    body = zlib.compress(bytes(10_000))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        png_chunk(*each) for each in ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    )
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for read in (lambda: load(f"folder:{tmp_path}"), lambda: read_inputs(tmp_path / "a/0.png", (1, side, side))):
        assert peak_of(read, "9000x9000, more than any network takes") < 8 << 20


def test_a_pickle_that_makes_room_for_a_billion_objects(tmp_path: Path) -> None:
    """Python's unpickler in C would fill 16 GB with zeros; where it is used, the limit makes it another sentence."""
    batch, meta = (tmp_path / file.path for file in CATALOG["cifar10"].test)
    batch.parent.mkdir(parents=True)
    meta.write_bytes(pickle.dumps({b"label_names": [b"x"] * 10}))
    batch.write_bytes(b"\x80\x02}r\xff\xff\xff\x3f.")  # an empty dict, remembered as number 2**30
    code = (
        "import resource, sys; from eow.data import load; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "try: load('cifar10', sys.argv[1], 'test', allow_unofficial=True)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert "test_batch has no `data`" in done.stdout, done.stderr


# What the fuzzer has found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i2", "f4", "f8", "i8"])
def test_mat_files_are_read_as_scipy_reads_them(packed: bool, kind: str) -> None:
    """By a reader of our own: scipy's ends the whole process on one damaged file in a few hundred."""
    import scipy.io

    from eow.data.matlab import read_mat

    fields = {"t": "text", "X": np.arange(24).reshape(2, 3, 4).astype(kind), "y": np.array([[1], [10]], kind)}
    file = io.BytesIO()
    scipy.io.savemat(file, fields, do_compression=packed)
    found, wanted = read_mat(file.getvalue()), scipy.io.loadmat(io.BytesIO(file.getvalue()))
    assert {*found} == {"X", "y"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, wanted[name])
        assert array.dtype == wanted[name].dtype
    for size in range(0, len(file.getvalue()) - 1, 7):
        with contextlib.suppress(ValueError):  # cut between two elements it is a file with fewer
            assert len(read_mat(file.getvalue()[:size])) < 2


def test_characters_that_are_none_are_refused(tmp_path: Path) -> None:
    """numpy loads them and ends in a SystemError where they are looked at."""
    wrong = np.array([0x110000, 98], np.uint32).view("<U1")
    np.savez(tmp_path / "x.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2, classes=wrong)
    with pytest.raises(EowError, match="'classes' is not an array, or holds invalid characters"):
        load(f"npz:{tmp_path}/x.npz")
    np.savez(tmp_path / "x.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2, classes=np.array(["a", "猫"], ">U2"))
    assert load(f"npz:{tmp_path}/x.npz").classes == ("a", "猫")


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("summary.json", ("train_seconds",), "long"), ("summary.json", ("sets",), 3),
        ("summary.json", ("sets", "test", "official"), [1]), ("summary.json", ("chain", "mean"), {"a": 1}),
        ("summary.json", ("chain", "reach"), "far"), ("summary.json", ("chain", "reach"), float("nan")),
        ("summary.json", ("chain", "reach"), -1),
        ("config.json", ("seed",), "1"), ("config.json", ("model",), None), ("config.json", ("method", "lam"), {}),
        ("config.json", ("data", "name"), 3),
    ],
)  # fmt: skip
def test_a_report_refuses_files_of_another_make(
    run: Path, tmp_path: Path, file: str, path: tuple[str, ...], value: Any
) -> None:
    shutil.copytree(run, tmp_path / "run")
    table = inner = storage.read_json(tmp_path / "run" / file)
    for key in path[:-1]:
        inner = inner[key]
    assert path[-1] in inner
    inner[path[-1]] = value
    storage.write_json(tmp_path / "run" / file, table)
    with pytest.raises(EowError, match=rf"{file} is damaged \(.*\): train the run again"):
        report([tmp_path / "run"], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("line", ['{"epoch": 0, "ce": [1], "lr": 1}', '{"ce": 1, "lr": 1}', '{"epoch": NaN, "lr": 1}'])
def test_a_report_refuses_a_log_of_another_make(run: Path, tmp_path: Path, line: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_text(line)
    with pytest.raises(EowError, match=r"log\.jsonl is damaged"):
        report([tmp_path / "run"], tmp_path / "page.html")


# What atheris has found


def test_an_archive_whose_members_have_no_name_or_none_that_is_text(tmp_path: Path) -> None:
    """zipfile ends in an IndexError and a UnicodeDecodeError."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("top/é", b"x" * 100)
    data, name = packed.getvalue(), "top/é".encode()
    nameless = b"".join((zip_local(b""), zip_central(b""), zip_end(46, 30)))
    for content, word in (
        (nameless, "member '' is a link, a device, nameless"),
        (data.replace(name, b"top/\xff\xff"), "codec can't decode"),
        (data, ""),
    ):
        (tmp_path / "x.zip").write_bytes(content)
        with pytest.raises(EowError, match=word) if word else contextlib.nullcontext():
            fetch._unpack_folder(tmp_path / "x.zip", "top", tmp_path)
        assert (tmp_path / "top").exists() == (not word)


def test_an_archive_that_asks_for_a_dictionary_of_4_gigabytes(tmp_path: Path) -> None:
    """13 bytes of .lzma under a name in .tar.gz; a member of a zip packed with LZMA."""
    (tmp_path / "x.tar.gz").write_bytes(b"\x5d" + b"\xff" * 12)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("top/a", b"x" * 100)
    data = (tmp_path / "x.zip").read_bytes()
    place = data.index(b"top/a") + 5 + 5  # behind the name, the versions and one byte
    (tmp_path / "x.zip").write_bytes(data[:place] + b"\xff" * 4 + data[place + 4 :])
    for name, word in (("x.tar.gz", "not a gzip file"), ("x.zip", "'top/a' is packed in an unusual way")):
        read = lambda name=name: fetch._unpack_folder(tmp_path / name, "top", tmp_path)  # noqa: E731
        assert peak_of(read, word) < 1 << 20
    assert not (tmp_path / "top").exists()


def zip_local(name: bytes) -> bytes:
    return struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0) + name


def zip_central(name: bytes) -> bytes:
    return struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0, 0, 0, 0, 0, 0) + name


def zip_end(size: int, start: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, size, start, 0)


def test_an_idx_file_of_no_images_that_are_huge(tmp_path: Path) -> None:
    """Nothing times anything is nothing, but numpy makes no array of that shape."""
    images, labels = (tmp_path / file.path for file in CATALOG["mnist"].test)
    images.parent.mkdir(parents=True)
    images.write_bytes(struct.pack(">4I", 0x803, 0, 2**32 - 1, 2**32 - 1))
    labels.write_bytes(struct.pack(">2I", 0x801, 0))
    with pytest.raises(EowError, match=r"holds nothing, as its header \(0, 4294967295, 4294967295\) says"):
        load("mnist", tmp_path, "test", allow_unofficial=True)


def test_a_checkpoint_of_no_countable_epoch(tmp_path: Path) -> None:
    place = Place(torch.device("cpu"), 0, 1)
    train = {"epochs": 3, "rollbacks": 2, "holdout_epochs": 1}
    held_out = {"data": {"holdout": 100}, "method": {"name": "vanilla"}}
    wanted = config.resolve({"model": {"hidden": [4]}, "train": train}, held_out)
    _, training = runs.prepare(wanted, place, progress=False)
    checkpoints.save(training, tmp_path, place, 0, HASHES)
    state, header = storage.read_tensors(tmp_path / "checkpoint.safetensors")
    never = [("epoch", each) for each in (float("inf"), 4, 99, -1, -5, 1.0, True, "1", None, [], 10**30)]
    never += [("rollbacks", each) for each in (float("inf"), 3, -9, 0.5, False, "0")]
    for key, value in never:
        storage.write_tensors(tmp_path / "checkpoint.safetensors", state, {**header, key: value})
        with pytest.raises(EowError, match=f"does not fit this model .its {key} is "):
            checkpoints.restore(training, tmp_path, place, HASHES)
        assert training.rollbacks == 0
    for epoch, rollbacks in ((0, 0), (3, 2)):  # the last is the epoch on what was held out
        storage.write_tensors(
            tmp_path / "checkpoint.safetensors", state, {**header, "epoch": epoch, "rollbacks": rollbacks}
        )
        assert (checkpoints.restore(training, tmp_path, place, HASHES), training.rollbacks) == (epoch, rollbacks)


def test_an_onnx_file_with_a_name_that_is_no_text_is_refused_in_silence(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """onnxruntime fails over it, prints four lines and tries again, unless it is told not to."""
    export(run, tmp_path / "x.onnx")
    capfd.readouterr()
    data = (tmp_path / "x.onnx").read_bytes()
    for kind in (b"Gemm", b"Softmax", b"ArgMax", b"ReduceMax"):
        if kind in data:
            (tmp_path / "x.onnx").write_bytes(data.replace(kind, b"\xc1" + kind[1:]))
            with pytest.raises(EowError, match=r"x\.onnx is damaged"):
                deployed.load(tmp_path / "x.onnx")
            assert capfd.readouterr().out == ""
            break
    else:
        pytest.fail("the graph has none of these")


# The command line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    wanted = config.resolve({"data": {"outliers": ["noise"]}, "model": {"hidden": [4]}, "train": {"epochs": 1}})
    runs.train(wanted, folder, progress=False)
    return folder


@pytest.fixture
def here(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a copy of the run, to be damaged, and inputs for it."""
    shutil.copytree(run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((2, 1, 8, 8), np.uint8))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object) -> str:
    """What the command says of something it refuses: one line, exit code 2."""
    monkeypatch.setattr(sys, "argv", ["eow", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert re.fullmatch(r"error: .+\n", said), said
    return said


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("run/weights.safetensors", "predict run x.npy"),
        ("run/predictions/test.safetensors", "evaluate run"),
        ("run/summary.json", "report run -o page.html"),
        ("run/config.json", "report run -o page.html"),
        ("run/threshold.json", "predict run x.npy"),
        ("x.npy", "predict run x.npy"),
        ("x.png", "predict run x.png"),
        ("x.onnx", "predict x.onnx x.npy"),
        ("x.toml", "train --config x.toml --out new"),
        ("x.toml", "bench x.toml --out new"),
        ("x.npz", "train --data npz:x.npz --out new"),
        ("x.csv", "train --data csv:x.csv --out new"),
    ],
)
def test_the_command_line_says_one_line_of_a_damaged_file(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    before = set(here.rglob("*"))
    Path(file).write_bytes(b'{"\x1b[31m\xff\n=' + Random(file).randbytes(300))
    told(capsys, monkeypatch, *command.split())
    assert set(here.rglob("*")) - before <= {here / file}  # and nothing was written


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("weights.safetensors", "predict run x.npy"), ("weights.safetensors", "evaluate run"),
        ("threshold.json", "predict run x.npy"), ("predictions/test.safetensors", "evaluate run"),
        ("predictions/noise.safetensors", "evaluate run --on noise"),
        *((name, "report run -o page.html") for name in ("summary.json", "config.json", "environment.json")),
        ("log.jsonl", "report run -o page.html"), ("corruptions.json", "report run -o page.html"),
        ("../page.html", "report run -o page.html"),
    ],
)  # fmt: skip
def test_no_command_waits_for_a_pipe_in_a_runs_folder(
    here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, file: str, command: str
) -> None:
    (here / "run" / file).unlink(missing_ok=True)
    os.mkfifo(here / "run" / file)
    with limited(60):
        assert "it is a pipe, a socket or a device" in told(capsys, monkeypatch, *command.split())
    assert (here / "run" / file).is_fifo()


def test_nothing_is_replaced_before_the_weights_are_found_to_be_others(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    state, card = storage.read_tensors(tmp_path / "run" / "weights.safetensors")
    first = next(name for name in state if state[name].is_floating_point())
    storage.write_tensors(tmp_path / "run" / "weights.safetensors", {**state, first: state[first] + 1}, card)
    files = {path: path.read_bytes() for path in (tmp_path / "run" / "predictions").iterdir()}
    assert "it was damaged or replaced" in told(capsys, monkeypatch, "evaluate", tmp_path / "run", "--on", "noise")
    assert {path: path.read_bytes() for path in (tmp_path / "run" / "predictions").iterdir()} == files


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.gamma=1e300", "train.gamma is 1e+300: it must be at most 1"),
        ("train.lr=1e300", "train.lr is 1e+300: it must be at most 1e+30"),
        ("train.weight_decay=1e300", "train.weight_decay is 1e+300: it must be at most 1e+30"),
        ("data.name=" + 2000 * "permuted:" + "digits", "is permuted more than once"),
        ("data.outliers=" + 2000 * "permuted:" + "digits", "is permuted more than once"),
        ("data.name=noise:1000000x1000000x1000000", "is more than any network takes"),
        ("data.outliers=noise:1000000x1000000x1000000", "is more than any network takes"),
    ],
)
def test_settings_that_no_training_ends_with(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, setting: str, words: str
) -> None:
    step = ("--set", "train.schedule=step", "--set", "train.milestones=[0, 1]", "--set", "train.epochs=1")
    said = told(capsys, monkeypatch, "train", "--out", tmp_path / "run", "--quiet", *step, "--set", setting)
    assert words in said
    assert len(said) < 400
    assert not (tmp_path / "run").exists()


def test_data_that_no_run_is_measured_on(
    run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    for name in (2000 * "permuted:" + "digits", "noise:1000000x1000000x1000000"):
        told(capsys, monkeypatch, "evaluate", tmp_path / "run", "--on", name)


# Names


def test_an_error_is_one_line_that_commands_no_terminal(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(EowError(f"a {NASTY}")) == f"a {printable(NASTY)}"
    assert not set("\x1b\n\u202e") & set(printable(NASTY))
    assert printable("λ, 猫\u3000é ❤\u200d🔥 עברית") == "λ, 猫\u3000é ❤\u200d🔥 עברית"  # what people write stays
    said = told(capsys, monkeypatch, "evaluate", tmp_path / "\x1b[2Jno\nrun\u202e")
    assert "?[2Jno?run?" in said


def test_a_warning_is_one_line_that_commands_no_terminal(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # which plain_warnings replaces
    rows = [f"{row},{row % 7},{'ab'[row % 2]}" for row in range(60)]
    names = [f'1,1,"{100 * word}\x1b]0;owned\x07{chr(0x202E)}"' for word in "vwxyz"]
    (tmp_path / "x.csv").write_text("\n".join(["p,q,label", *rows, *names]) + "\n")
    monkeypatch.setattr(sys, "argv", f"eow train --data csv:{tmp_path}/x.csv --out {tmp_path}/run --epochs 1".split())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "have no test sample" in line]
    assert len(said) == 1
    assert said[0].startswith("warning: ")
    assert not set("\x1b\x07\u202e") & set(said[0])
    assert "vvv..." in said[0]
    assert 61 * "v" not in said[0]


def test_a_table_in_the_terminal_holds_names_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(NASTY, ["name", NASTY], [[NASTY, "1"]])
    out = capsys.readouterr().out
    assert not set("\x1b\u202e") & set(out)
    assert "</script>" in out
    assert "?[31m?" in out


def with_name(run: Path, folder: Path, name: str) -> Path:
    """The run with another name for its outliers, as a predictions file from elsewhere may have."""
    shutil.copytree(run, folder)
    path = folder / "predictions" / "noise.safetensors"
    with safe_open(path, "numpy") as file:
        header = json.loads(file.metadata()["eow"])
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    path.unlink()
    storage.write_arrays(path.with_name(file_name(name)), arrays, {**header, "name": name})
    return folder


def test_a_name_is_text_in_every_form_of_the_report(run: Path, tmp_path: Path) -> None:
    folder = with_name(run, tmp_path / "run", NASTY)
    texts = {
        kind: report([folder], tmp_path / f"r.{kind}", kind)[0].read_text() for kind in ("html", "md", "latex", "csv")
    }
    for kind, text in texts.items():
        assert not set("\x1b\u202e") & set(text), kind
        assert ("?\\[31m" if kind == "md" else "?[31m") in text, kind  # it is there, and as text
    assert "<script>x()" not in texts["html"]
    assert "&lt;/script&gt;&lt;script&gt;x()" in texts["html"]
    assert "{{7*7}}" in texts["html"]  # and not 49
    assert r"\</script\>" in texts["md"]
    assert "<script>" not in texts["md"]
    assert r"\input{x}" not in texts["latex"]
    assert r"\textbackslash{}input\{x\}" in texts["latex"]
    rows = list(csv.reader(io.StringIO(texts["csv"])))
    assert len({len(row) for row in rows}) == 1
    assert any("</script><script>x()</script>?[31m\n?\"'=1|" in cell for row in rows for cell in row)


def test_no_cell_of_a_csv_is_a_formula(run: Path, tmp_path: Path) -> None:
    assert [no_formula(cell) for cell in ("=1+1", "+x", "-x", "@x", "\tx", "-1.5", "+2e3", "a=1", -1.5, None)] == [
        "'=1+1", "'+x", "'-x", "'@x", "'\tx", "-1.5", "+2e3", "a=1", -1.5, None,
    ]  # fmt: skip
    folder = with_name(run, tmp_path / "run", "=HYPERLINK(1)")
    for file in report([folder], tmp_path / "csv", "csv"):
        for row in csv.reader(io.StringIO(file.read_text())):
            assert not any(re.match(r"[=+@\t\r]|-(?!\d)", cell) for cell in row), (file.name, row)


def test_class_names_reach_the_terminal_as_text(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    names = np.array(["a", f"b{NASTY}"])
    np.savez(tmp_path / "x.npz", x=random.normal(size=(60, 2)), y=np.arange(60) % 2, classes=names)
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    monkeypatch.chdir(tmp_path)
    runs.train(
        config.resolve({"data": {"name": "npz:x.npz"}, "model": {"hidden": [2]}, "train": {"epochs": 1, "batch": 8}}),
        tmp_path / "run", progress=False,
    )  # fmt: skip
    assert runs.load(tmp_path / "run").classes == tuple(names)
    monkeypatch.setattr(sys, "argv", ["eow", "predict", "run", "x.npy"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert not set("\x1b\u202e") & set(capsys.readouterr().out)


def test_predictions_are_mapped_and_as_strict_as_before(tmp_path: Path) -> None:
    """The arrays lie in the file; a header whose offsets leave it, overlap or do not fit the shape is refused."""
    from eow.mapping import file_of
    from eow.predictions import read

    path = write_run(tmp_path, {"test": spoken(0)}) / "predictions" / "test.safetensors"
    said, data = read(path), path.read_bytes()
    assert file_of(said.probs) is not None
    np.testing.assert_array_equal(said.probs, spoken(0)["probs"])
    with pytest.raises(ValueError, match="read-only"):
        said.probs[0] = 0
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    for field, change in (
        ("data_offsets", [0, 1 << 40]), ("data_offsets", [-4, 0]), ("data_offsets", [0, 4]), ("shape", [1 << 62, 4]),
        ("shape", [400, -4]), ("shape", "x"), ("dtype", "BF16"), ("dtype", "F8_E4M3"), ("dtype", 3),
    ):  # fmt: skip
        text = json.dumps({**header, "probs": {**header["probs"], field: change}}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
        with pytest.raises(EowError):
            read(path)
