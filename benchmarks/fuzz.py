"""10,000 mutated files of every kind that eow reads: each must load, or be refused in one line.

    python benchmarks/fuzz.py                              about 10 minutes on one core
    python benchmarks/fuzz.py --count 200 --seed 1         the form that `make test` runs
    python benchmarks/fuzz.py --only svhn.mat --index 17   one file again, with its traceback
    python benchmarks/fuzz.py --atheris                    guided by coverage, where atheris is installed

The readers run in a process of their own, whose memory is limited: a crash or a bomb ends that process and is told.
Prints a table; with --out FOLDER also writes fuzz.json and record.md there. Exits with 1 where a file failed.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parent.parent
MEMORY = 2 << 30  # address space that reading may take beyond what the imports took


def worker(folder: Path, count: int, seed: int, only: str) -> None:
    """Prints one line of JSON a case."""
    from fuzz_cases import make_cases
    from fuzzing import fuzz

    cases = [case for case in make_cases(folder) if not only or case.name in only.split(";")]
    resource.setrlimit(resource.RLIMIT_AS, (address_space() + MEMORY,) * 2)
    fuzz(cases, count, seed, folder, lambda row: print(json.dumps(row), flush=True))
    print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def again(folder: Path, name: str, seed: int, index: int) -> None:
    """One file as the fuzzer made it, read without a net."""
    from fuzz_cases import make_cases
    from fuzzing import mutated

    (case,) = (each for each in make_cases(folder) if each.name == name)
    case.place.write_bytes(mutated(case.data, case.form, Random(f"{seed}/{name}/{index}")))
    print(case.place, case.read())


def guided(folder: Path, only: str, count: int) -> None:
    """The same cases, bytes chosen by atheris for the coverage they reach."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: the seeded fuzzer does without it")
    with atheris.instrument_imports(include=["eow"]):
        from fuzz_cases import make_cases

        from eow.errors import EowError
    (case,) = (each for each in make_cases(folder) if each.name == only)

    def one(data: bytes) -> None:
        case.place.write_bytes(data)
        with suppress(EowError):
            case.read()

    atheris.Setup([sys.argv[0], f"-runs={count}"], one)
    atheris.Fuzz()


def run(count: int, seed: int, only: str = "", timeout: float = 7200) -> dict:
    """The worker's rows, and how it ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "EOW_DEVICE": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", folder, "--count", str(count), "--seed", str(seed)]
        command += ["--only", only] if only else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
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
    total = {key: sum(row[key] for row in rows) for key in ("files", "loaded", "refused", "failed")}
    peak = next((line["peak_mb"] for line in lines if "peak_mb" in line), None)
    return {
        "seed": seed, **total, "crashed": ended, "peak_mb": peak, "seconds": round(time.perf_counter() - began, 1),
        "cases": rows,
    }  # fmt: skip


def table(result: dict) -> str:
    lines = ["| file | mutants | loaded | refused | failed |", "|---|---:|---:|---:|---:|"]
    for row in (*result["cases"], {**result, "case": "all"}):
        lines.append(f"| {row['case']} | {row['files']} | {row['loaded']} | {row['refused']} | {row['failed']} |")
    return "\n".join(lines)


def record(result: dict, command: str) -> str:
    state = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return (
        f"# Mutated files, seed {result['seed']}\n\n{table(result)}\n\n"
        f"Crashes: {result['crashed'] or 'none'}. Peak memory of the reading process: {result['peak_mb']} MB.\n\n"
        f"`{command}`, {result['seconds']:.0f} s, commit `{state or 'none'}`, Python {platform.python_version()}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--index", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--atheris", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if chosen.worker:
        return worker(chosen.worker / "files", chosen.count, chosen.seed, chosen.only)
    if chosen.atheris or chosen.index is not None:
        with tempfile.TemporaryDirectory() as folder:
            if chosen.atheris:
                return guided(Path(folder) / "files", chosen.only, chosen.count)
            return again(Path(folder) / "files", chosen.only, chosen.seed, chosen.index)
    result = run(chosen.count, chosen.seed, chosen.only)
    print(table(result))
    for row in result["cases"]:
        for failure in row["failures"][:10]:
            print(f"{row['case']} {failure['index']}: {failure['what']}")
    print(f"{result['seconds']:.0f} s, peak {result['peak_mb']} MB, crashes: {result['crashed'] or 'none'}")
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "fuzz.json").write_text(json.dumps(result, indent=1) + "\n")
        (chosen.out / "record.md").write_text(record(result, f"python benchmarks/fuzz.py --count {chosen.count}"))
    sys.exit(1 if result["failed"] or result["crashed"] else 0)


if __name__ == "__main__":
    main()
