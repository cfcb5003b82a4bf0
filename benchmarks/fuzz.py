"""10,000 mutated files of every kind that eow reads: each must load, or be refused in one line.

    python benchmarks/fuzz.py                              two minutes on one core
    python benchmarks/fuzz.py --count 200 --seed 1         the form that `make test` runs
    python benchmarks/fuzz.py --only svhn.mat --index 17   one file again, with its traceback
    python benchmarks/fuzz.py --atheris --seconds 900      guided by coverage, where atheris is installed

The readers run in a process of their own, whose memory is limited: a crash or a bomb ends that process and is told.
Prints a table; with --out FOLDER also writes fuzz.json and record.md (atheris.json and atheris.md) there. Exits with 1
where a file failed; files that atheris found to fail are kept under `found` (in FOLDER, or here).
"""

import argparse
import hashlib
import json
import mmap
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
VERDICTS = ("loaded", "refused", "failed")
REFUSED = 2  # the exit code where what was asked for is not there
MEMORY = 2 << 30  # address space that reading may take beyond what the imports took


def worker(folder: Path, count: int, seed: int, only: str) -> None:
    """Prints one line of JSON a case."""
    from fuzzing import fuzz

    cases = cases_of(folder, only)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + MEMORY,) * 2)
    fuzz(cases, count, seed, folder, lambda row: print(json.dumps(row), flush=True))
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def cases_of(folder: Path, only: str) -> list:
    """Those that are asked for; a name that none has is told in one line."""
    from fuzz_cases import make_cases

    with warnings.catch_warnings(action="ignore"):  # of the short training that makes some of them
        cases = {case.name: case for case in make_cases(folder)}
    wanted = only.split(";") if only else list(cases)
    if strange := [name for name in wanted if name not in cases]:
        print(f"error: there is no case {strange[0]!r}: choose of {'; '.join(cases)}", file=sys.stderr)
        sys.exit(REFUSED)
    return [case for name, case in cases.items() if name in wanted]


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def again(folder: Path, name: str, seed: int, index: int) -> None:
    """One file as the fuzzer made it, read without a net."""
    from fuzzing import mutated

    (case,) = cases_of(folder, name)
    case.place.write_bytes(mutated(case.data, case.form, Random(f"{seed}/{name}/{index}")))
    print(case.place, case.read())


def guided(folder: Path, seconds: float, seed: int, only: str, keep: Path) -> Iterator[dict]:
    """One row a case: atheris chooses bytes and mutators for the lines of eow, Pillow and tomllib that they reach.

    A case is a process of its own, for libFuzzer ends the one that it runs in. Files that failed lie under `keep`.
    """
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: the seeded fuzzer does without it")
    with atheris.instrument_imports(include=["eow", "PIL", "tomllib"]):
        cases = cases_of(folder, only)
        for case in cases:
            case.place.write_bytes(case.data)
            case.read()  # what is imported only then counts too
    whole = sum(case.share for case in cases)
    for number, case in enumerate(cases):
        counts = memoryview(mmap.mmap(-1, 24)).cast("Q")  # as VERDICTS; shared with the process
        room, place = folder / f"atheris{number}", keep / re.sub(r"\W+", "-", case.name)
        room.mkdir()
        limit = max(5, round(seconds * case.share / whole))
        if not (child := os.fork()):
            hunt(case, limit, seed, counts, room, place)
        code, output = waited(child, limit + 60), (room / "output").read_text(errors="replace")
        failures = [json.loads(line) for line in (room / "failures").read_text().splitlines()]
        if code:
            failures.append({"index": save(place, case.place.read_bytes()), "what": f"exit {code}: {output[-1000:]}"})
        case.place.write_bytes(case.data)
        reached = [int(lines) for lines in re.findall(r"cov: (\d+)", output)] or [0]
        yield {
            "case": case.name, "files": sum(counts) + bool(code), **dict(zip(VERDICTS, counts)),
            "failed": counts[2] + bool(code), "reached": [reached[0], reached[-1]], "ended": code, "failures": failures,
        }  # fmt: skip


def hunt(case, seconds: float, seed: int, counts: memoryview, room: Path, place: Path) -> None:
    """In a process of its own, which it ends."""
    import atheris
    from fuzzing import Watch, judged, mutated, set_alarm

    (room / "seeds").mkdir()
    (room / "seeds" / "whole").write_bytes(case.data)
    (room / "failures").touch()
    os.dup2(os.open(room / "output", os.O_WRONLY | os.O_CREAT), 2)
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + MEMORY,) * 2)
    set_alarm()
    watch, ends = Watch(room.parent.resolve()), time.monotonic() + seconds

    def one(data: bytes) -> None:
        verdict, words = judged(case, data, watch)
        counts[VERDICTS.index(verdict)] += 1
        if verdict == "failed":
            with open(room / "failures", "a") as file:
                file.write(json.dumps({"index": save(place, data), "what": words}) + "\n")
        if time.monotonic() > ends:
            os._exit(0)  # libFuzzer's own end would wait for threads that a fork does not have

    def change(data: bytes, most: int, number: int) -> bytes:
        random = Random(number)
        return mutated(data, case.form, random)[:most] if random.random() < 0.5 else atheris.Mutate(data, most)

    options = [f"-max_len={2 * len(case.data) + 1024}", "-timeout=0", f"-seed={seed + 1}", f"-artifact_prefix={room}/"]
    atheris.Setup([sys.argv[0], *options, str(room / "seeds")], one, custom_mutator=change)
    atheris.Fuzz()


def save(place: Path, data: bytes) -> str:
    """The file's name, which its content makes."""
    place.mkdir(parents=True, exist_ok=True)
    path = place / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path.name


def waited(child: int, seconds: float) -> int:
    """The process's exit code; one that does not end in time is killed."""
    ends = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.1)
    return os.waitstatus_to_exitcode(ended[1])


def run(count: int, seed: int, only: str = "", timeout: float = 7200) -> dict:
    """The worker's rows, and how it ended. Where it refuses what was asked for, this process ends as it has."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "EOW_DEVICE": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", folder, "--count", str(count), "--seed", str(seed)]
        command += ["--only", only] if only else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
            if done.returncode == REFUSED:
                sys.stderr.write(done.stderr)
                sys.exit(REFUSED)
            ended, output = ("" if done.returncode == 0 else f"exit {done.returncode}"), done.stdout
            errors = done.stderr[-2000:]
        except subprocess.TimeoutExpired as late:
            ended, errors = f"no end after {timeout} s", ""
            output = (late.stdout or b"").decode()
        current = Path(folder) / "files" / "current"
        if ended and current.exists():
            ended += f" at {current.read_text()}: {errors}"
        elif ended:
            ended += f": {errors}"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    rows = [line for line in lines if "case" in line]
    peak = next((line["peak_mb"] for line in lines if "peak_mb" in line), None)
    return summed(rows, seed, ended, peak, time.perf_counter() - began)


def summed(rows: list[dict], seed: int, ended: str, peak: int | None, seconds: float) -> dict:
    total = {key: sum(row[key] for row in rows) for key in ("files", *VERDICTS)}
    about = {"crashed": ended, "peak_mb": peak, "seconds": round(seconds, 1)}
    return {"seed": seed, **total, **about, "cases": rows}


def table(result: dict) -> str:
    lines = ["| file | mutants | loaded | refused | failed |", "|---|---:|---:|---:|---:|"]
    for row in (*result["cases"], {**result, "case": "all"}):
        lines.append(f"| {row['case']} | {row['files']} | {row['loaded']} | {row['refused']} | {row['failed']} |")
    return "\n".join(lines)


def record(result: dict, title: str, command: str) -> str:
    state = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return (
        f"# {title}, seed {result['seed']}\n\n{table(result)}\n\n"
        f"Crashes: {result['crashed'] or 'none'}. Peak memory of the reading process: {result['peak_mb']} MB.\n\n"
        f"`{command}`, {result['seconds']:.0f} s, commit `{state or 'none'}`, Python {platform.python_version()}.\n"
    )


def explore(seconds: float, seed: int, only: str, keep: Path) -> dict:
    """guided's rows, each told as it comes."""
    began, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for row in guided(Path(folder) / "files", seconds, seed, only, keep):
            rows.append(row)
            print({key: value for key, value in row.items() if key != "failures"}, flush=True)
    crashed = "; ".join(row["case"] for row in rows if row.pop("ended"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return summed(rows, seed, crashed, peak, time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="files over all cases")
    parser.add_argument("--seed", type=int, default=0, help="another one makes other files")
    parser.add_argument("--only", default="", help="names of cases as the table has them, separated by ;")
    parser.add_argument("--index", type=int, help="read this one file of the case that --only names")
    parser.add_argument("--out", type=Path, help="a folder for the figures and a record")
    parser.add_argument("--atheris", action="store_true", help="let coverage choose the files")
    parser.add_argument("--seconds", type=float, default=900, help="for atheris, over all cases")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.count < 1:
        parser.error(f"--count is {chosen.count}: give at least 1")
    if chosen.index is not None and (not chosen.only or ";" in chosen.only):
        parser.error("--index is of one case: name it with --only")
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if chosen.worker:
        return worker(chosen.worker / "files", chosen.count, chosen.seed, chosen.only)
    if chosen.index is not None:
        with tempfile.TemporaryDirectory() as folder:
            return again(Path(folder) / "files", chosen.only, chosen.seed, chosen.index)
    if chosen.atheris:
        name, title, words = "atheris", "Files that coverage chose", f"--atheris --seconds {chosen.seconds:.0f}"
        result = explore(chosen.seconds, chosen.seed, chosen.only, (chosen.out or Path()) / "found")
    else:
        name, title, words = "fuzz", "Mutated files", f"--count {chosen.count}"
        result = run(chosen.count, chosen.seed, chosen.only)
    words += f" --seed {chosen.seed}" if chosen.seed else ""
    print(table(result))
    for row in result["cases"]:
        for failure in row["failures"][:10]:
            print(f"{row['case']} {failure['index']}: {failure['what']}")
    print(f"{result['seconds']:.0f} s, peak {result['peak_mb']} MB, crashes: {result['crashed'] or 'none'}")
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
        page = "record.md" if name == "fuzz" else f"{name}.md"
        (chosen.out / page).write_text(record(result, title, f"python benchmarks/fuzz.py {words}"))
    sys.exit(1 if result["failed"] or result["crashed"] else 0)


if __name__ == "__main__":
    main()
