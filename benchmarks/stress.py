"""What a run survives, the long way: kills of a training and of a bench, signals, and a long loop of trainings.

    python benchmarks/stress.py train --kills 50       # kill -9 at random moments, resume, compare every byte
    python benchmarks/stress.py bench --kills 50
    python benchmarks/stress.py signals --kills 5      # SIGINT and SIGTERM, five of each for every command
    nice -n 19 python benchmarks/stress.py soak --minutes 30
    ... --json stress.json adds what came out to that file, under its name

Everything happens on digits, with networks of a few units, on the CPU and one thread. Work is done in children of a
process that has imported everything: a new attempt costs milliseconds, so that kills fall into the work and not into
imports (a bench's workers have to import for themselves). A kill falls uniformly into the time that an undisturbed run
takes, but for the first half of what passes before it trains. After each, the folder is opened as a user
would: it must give a result or one sentence. A run that ends before its kill is compared with the undisturbed one, and
the next is begun. Exits with 1 where anything differs, or where a soak leaves more and more behind, and says what.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from arguments import whole, writable

import eow.bench.engines
import eow.bench.table
import eow.bench.view  # noqa: F401 (imported before anything is forked)
from eow import runs, storage
from eow.bench import bench
from eow.config import RunConfig, resolve
from eow.console import in_one_line
from eow.errors import EowError
from eow.evaluate import evaluate
from eow.methods import METHODS

SMALL = {
    "train": {"epochs": 8, "checkpoint_every": 1},
    "model": {"hidden": [32]},
    "method": {"name": "eow", "start": "buffer", "buffer_size": 200, "start_epoch": 1},
    "data": {"unknown_classes": [8, 9], "outliers": ["noise"]},
}
# In the second half of a soak. The record has 0.023, which is the allocator's; at its 44 trainings a minute, 24 KiB
# that each leaves behind are beyond this. Shorter soaks are still filling their caches.
MOST_MIB_A_MINUTE = 1.0
MINUTES_TO_SETTLE = 10
GRID = """
[grid]
name = "small"
methods = ["vanilla", "temperature", "eow"]
seeds = 1
columns = ["accuracy", "ece", "nll", "unknown", "seconds"]
[settings.data]
name = "digits"
unknown_classes = [8, 9]
[settings.model]
hidden = [32]
[settings.train]
epochs = 20
checkpoint_every = 1
[quick]
"""


def start(work: Callable[[], Any]) -> int:
    """`work` in a child, which leads a process group of its own; its number."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return child


def wait_until(child: int, ends: float) -> int | None:
    """The child's status when it ends before that time, else None."""
    while time.monotonic() < ends:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    return None


def kill_and_resume(
    work: Callable[[Path], Any], look: Callable[[Path], str], same: Callable[[Path, Path], list[str]], kills: int
) -> dict[str, Any]:
    """`work` on a folder, killed `kills` times at random moments and resumed until it ends; `look` at every folder that
    a kill leaves, and `same` lists in what a finished one differs from the undisturbed."""
    moments = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        runs.train(resolve(SMALL), Path(scratch) / "first", progress=False)  # imports what is imported when needed
        whole, began = Path(scratch) / "whole", time.monotonic()
        child = start(lambda: work(whole))
        status = None
        while status is None and not list(whole.rglob("log.jsonl")):
            status = wait_until(child, time.monotonic() + 0.01)
        idle = time.monotonic() - began
        assert (wait_until(child, float("inf")) if status is None else status) == 0
        usual = time.monotonic() - began
        done, finished, seen, different = 0, 0, {}, []
        folder = Path(scratch) / "run0"
        while True:
            child = start(lambda folder=folder: work(folder))  # type: ignore[misc]
            ends = time.monotonic() + moments.uniform(idle / 2, usual) if done < kills else float("inf")
            status = wait_until(child, ends)
            if status is None:
                # Half of the kills reach everything at once, the others only the process itself, as `kill -9` would.
                os.killpg(child, signal.SIGKILL) if moments.random() < 0.5 else os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                done += 1
                found = look(folder)
                seen[found] = seen.get(found, 0) + 1
                continue
            finished += 1
            different += [f"it ended with status {status}"] if status else same(whole, folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder = Path(scratch) / f"run{finished}"
            if done >= kills or different:
                return {
                    "kills": done, "finished runs": finished, "seconds of one": round(usual, 2),
                    "seconds until it trains": round(idle, 2), "folders left": seen,
                    "different": different,
                }  # fmt: skip


def look_at_run(folder: Path) -> str:
    """What `load` and `evaluate` make of a folder: a result or a sentence. Anything else is raised."""
    answers = []
    for name, work in (("load", runs.load), ("evaluate", evaluate)):
        try:
            work(folder)
            answers.append(f"{name}: a result")
        except EowError as error:
            answers.append(f"{name}: {str(error).replace(str(folder), 'RUN').splitlines()[0]}")
    storage.Log(folder / "log.jsonl").read()
    if (folder / "checkpoint.safetensors").exists():
        storage.read_tensors(folder / "checkpoint.safetensors")
    return "; ".join(answers)


def timeless(value: Any) -> Any:
    """Without what a clock says."""
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if "second" not in key}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def same_run(whole: Path, folder: Path) -> list[str]:
    """Files in which two finished runs differ, seconds aside."""
    names = [
        {str(file.relative_to(each)) for file in each.rglob("*") if file.is_file() and file.name != ".lock"}
        for each in (whole, folder)
    ]
    different = [f"{name} is not in both" for name in sorted(names[0] ^ names[1])]
    for name in sorted(names[0] & names[1]):
        if name.endswith((".json", ".jsonl")):
            old, new = ([json.loads(line) for line in lines_of(each / name)] for each in (whole, folder))
            alike = timeless(old) == timeless(new)
        else:
            alike = (whole / name).read_bytes() == (folder / name).read_bytes()
        different += [] if alike else [f"{name} differs"]
    return different


def lines_of(file: Path) -> list[str]:
    text = file.read_text()
    return text.splitlines() if file.suffix == ".jsonl" else [text]


def kill_trainings(kills: int) -> dict[str, Any]:
    config = resolve(SMALL)
    return kill_and_resume(
        lambda folder: runs.train(config, folder, resume=True, progress=False), look_at_run, same_run, kills
    )


def kill_benches(kills: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(GRID)
        file.flush()
        return kill_and_resume(
            lambda folder: bench_whole(file.name, folder), look_at_bench, same_bench, kills
        )  # fmt: skip


def bench_whole(grid: str, folder: Path) -> None:
    table = bench(grid, folder, jobs=2)
    if table["failed"]:
        raise EowError(str(table["failed"]))


def look_at_bench(folder: Path) -> str:
    for run in folder.glob("runs/*"):
        look_at_run(run)
    begun, finished = (len(list(folder.glob(f"runs/*/{name}"))) for name in ("log.jsonl", "summary.json"))
    return f"{begun} runs begun, {finished} of them finished"


def same_bench(whole: Path, folder: Path) -> list[str]:
    old, new = (json.loads((each / "table.json").read_text()) for each in (whole, folder))
    different = [] if without_clock(old) == without_clock(new) else ["the table differs"]
    for run in sorted(whole.glob("runs/*")):
        different += [f"{run.name}: {each}" for each in same_run(run, folder / "runs" / run.name)]
    return different


def without_clock(table: dict[str, Any]) -> dict[str, Any]:
    timed = {column["title"] for column in table["columns"] if column["timing"]}
    for row in table["rows"]:
        row["figures"] = {title: figure for title, figure in row["figures"].items() if title not in timed}
    return table


def signals(count: int) -> dict[str, Any]:
    """`count` times SIGINT and SIGTERM at a random moment of each command; the seconds until it has ended, with which
    code, and what is wrong: more than 5 s, more than one line, a checkpoint that is not of the last logged epoch."""
    small = ["--set", "model.hidden=32", "--set", "train.checkpoint_every=100000"]
    train = ["train", "--data", "digits", "--device", "cpu", "--quiet", "--epochs", "100000", *small]
    endless = GRID.replace("epochs = 20\ncheckpoint_every = 1\n", "epochs = 100000\ncheckpoint_every = 100000\n")
    moments, found, different = random.Random(0), {}, []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "endless.toml").write_text(endless)
        commands = {
            "eow train": train, "eow train --devices 2": [*train, "--devices", "2"],
            "eow bench": ["bench", f"{scratch}/endless.toml", "--jobs", "2", "--cpus", "1"],
        }  # fmt: skip
        for name, command in commands.items():
            took, codes = [], {}
            for number in [signal.SIGINT, signal.SIGTERM] * count:
                out = Path(scratch) / "out"
                process = subprocess.Popen(
                    [sys.executable, "-m", "eow", *command, "--out", str(out)],
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                )  # fmt: skip
                while not list(out.rglob("log.jsonl")) and process.poll() is None:
                    time.sleep(0.05)
                time.sleep(moments.uniform(0.5, 3))
                began = time.monotonic()
                process.send_signal(number)
                said = process.communicate()[1].strip()
                took.append(round(time.monotonic() - began, 2))
                codes[process.returncode] = codes.get(process.returncode, 0) + 1
                folders = [file.parent for file in out.rglob("log.jsonl")]
                kept = [last_epochs(folder) for folder in folders]
                wrong = took[-1] > 5 or said.count("\n") or process.returncode != 128 + number
                if wrong or any(checkpoint != logged for checkpoint, logged in kept):
                    different.append(f"{name}, {signal.Signals(number).name}: {took[-1]} s, {said!r}, {kept}")
                shutil.rmtree(out)
            found[name] = {"signals": len(took), "most seconds": max(took), "exit codes": codes}
    return {**found, "different": different}


def last_epochs(folder: Path) -> tuple[int, int]:
    """Of the checkpoint and of the log; -1 where there is none."""
    file, log = folder / "checkpoint.safetensors", storage.Log(folder / "log.jsonl").read()
    return storage.read_tensors(file)[1]["epoch"] if file.exists() else -1, log[-1]["epoch"] if log else -1


def resident() -> float:
    """MiB of memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def soaked(method: str, seed: int) -> RunConfig:
    """A short training; all leave samples out, since some fit something to them."""
    wish = {"method": {"name": method}, "data": {"holdout": 0.2}, "seed": seed}
    return resolve({"train": {"epochs": 4}, "model": {"hidden": [32]}}, wish)


def soak(minutes: float) -> dict[str, Any]:
    """Every method in turn is trained, opened and evaluated, in one process, until the time is over; after each round
    of all methods memory, open files and threads are counted. What is told of is the second half, when caches and
    allocators have found their size."""
    samples: list[dict[str, float]] = []
    began, trainings = time.monotonic(), 0
    while time.monotonic() - began < 60 * minutes or len(samples) < 4:
        for name in METHODS:
            with tempfile.TemporaryDirectory() as scratch:
                runs.train(soaked(name, trainings), Path(scratch) / "run", progress=False)
                evaluate(runs.load(Path(scratch) / "run").folder)
                trainings += 1
        samples.append({
            "minute": round((time.monotonic() - began) / 60, 2), "trainings": trainings, "MiB": round(resident(), 1),
            "files": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task")),
        })  # fmt: skip
        print(samples[-1], flush=True)
    half = samples[len(samples) // 2 :]
    spread = {
        key: [min(each[key] for each in half), max(each[key] for each in half)] for key in ("MiB", "files", "threads")
    }
    times, sizes = ([each[key] for each in half] for key in ("minute", "MiB"))
    growth = slope(times, sizes)
    return {
        "minutes": samples[-1]["minute"], "trainings": trainings, "second half": spread,
        "MiB a minute in the second half": round(growth, 3), "samples": samples,
        "different": left_behind(spread, growth, samples[-1]["minute"]),
    }  # fmt: skip


def left_behind(spread: dict[str, list[float]], growth: float, minutes: float) -> list[str]:
    """What grows in a soak and should not."""
    found = [
        f"{spread[key][0]} to {spread[key][1]} {key} in the second half"
        for key in ("files", "threads")
        if spread[key][0] != spread[key][1]
    ]
    if minutes >= MINUTES_TO_SETTLE and growth >= MOST_MIB_A_MINUTE:
        found.append(f"memory grows by {growth:.2f} MiB a minute: less than {MOST_MIB_A_MINUTE:g} is allowed")
    return found


def slope(x: list[float], y: list[float]) -> float:
    """Of the least-squares line."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread if spread else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "bench", "signals", "soak"], help="what is put under stress")
    parser.add_argument(
        "--kills", type=whole, default=50, help="or, with signals, how many of each kind a command gets"
    )
    parser.add_argument("--minutes", type=float, default=30, help="of soak")
    parser.add_argument("--json", type=writable, help="add what came out to this file")
    wanted = parser.parse_args()
    told_before(wanted.json)  # a file that cannot be added to is refused now
    torch.set_num_threads(1)
    began = time.monotonic()
    if wanted.what == "soak":
        found = soak(wanted.minutes)
    else:
        work = {"train": kill_trainings, "bench": kill_benches, "signals": signals}[wanted.what]
        found = work(wanted.kills)
    print(json.dumps(found, indent=2))
    if wanted.json:
        told = {**told_before(wanted.json), wanted.what: {"seconds": round(time.monotonic() - began, 1), **found}}
        wanted.json.write_text(json.dumps(told, indent=2) + "\n")
    sys.exit(1 if found["different"] else 0)


def told_before(file: Path | None) -> dict[str, Any]:
    """What the file has already, which other stresses may have added."""
    if file is None or not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
    except ValueError as error:
        raise EowError(f"{file} cannot be read as JSON: {error}; choose another file") from None
    if not isinstance(found, dict):
        raise EowError(f"{file} holds no JSON object: choose another file")
    return found


if __name__ == "__main__":
    with in_one_line():
        main()
