"""Where cells run: processes of this machine, or a Ray cluster. Both take a task and give a future.

A task never raises: it returns what became of the cell. So a future that does raise says that its process died, and
the scheduler runs the cell again, from its last checkpoint.
"""

import os
import signal
import socket
import tempfile
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NamedTuple

from eow import storage
from eow.config import Table, from_table
from eow.errors import EowError
from eow.plain import first_line
from eow.training import stopping

STOP_SECONDS = 3.0  # for workers that are told to stop, until they are killed
LOCK_SECONDS = 20.0  # a worker whose parent was killed lets go of its folder within a second
CHECKPOINTS = "checkpoint*"  # as in eow/training/checkpoints.py, which needs torch


class Task(NamedTuple):
    """All that another process needs to run a cell."""

    config: Table
    folder: Path
    source: Path | None  # of the vanilla run whose weights it takes over
    give: bool  # whether others will take over its own
    corruptions: bool


class Outcome(NamedTuple):
    """What became of a cell: an error in one line, where there was one, with its traceback."""

    error: str = ""
    trace: str = ""
    files: dict[str, bytes] | None = None  # the run's, where the worker does not write to our disk


class Engine(NamedTuple):
    slots: Callable[[], int]  # how many cells can run at a time
    submit: Callable[[Task], "Future[Outcome]"]


def run_task(task: Task, threads: int) -> Outcome:
    """Train a cell, or go on with it, and say what happened."""
    import torch

    from eow.console import plain_warnings
    from eow.robustness import write_corruptions
    from eow.runs import train

    plain_warnings()
    for told in ("only .* steps? in all", ".* and changes nothing: it goes with"):  # rows share what a grid says
        warnings.filterwarnings("ignore", message=told)
    torch.set_num_threads(threads)
    try:
        wait_for(task.folder)
        config = from_table(task.config)
        train(config, task.folder, resume=True, progress=False)
        if task.corruptions:
            write_corruptions(task.folder, config.data.root, config.train.device)
    except EowError as error:
        return Outcome(" ".join(str(error).split()))
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return Outcome(f"{type(error).__name__}: {text}" if text else type(error).__name__, traceback.format_exc())
    return Outcome()


def wait_for(folder: Path) -> None:
    """Until nobody holds the folder: a worker whose parent was just killed may still be about to notice."""
    ends = time.monotonic() + LOCK_SECONDS
    while folder.is_dir():
        try:
            with storage.locked(folder):
                return
        except EowError as error:
            if time.monotonic() > ends or not isinstance(error.__context__, BlockingIOError):
                return  # the training itself says who holds it, or what else is wrong with the folder
            time.sleep(0.1)


# Local processes


@contextmanager
def local(jobs: int, threads: int, gpus: Sequence[str]) -> Iterator[Engine]:
    """`jobs` worker processes, each a pool of its own, so that one that dies takes no other cell with it. Each sees one
    of the `gpus`, where there are any."""
    from joblib.externals.loky import ProcessPoolExecutor

    # A worker that has grown is replaced by loky between two cells, which is what we want; it takes that for an alarm.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs were given")
    quiet_tracker()
    pools: list[Any] = [None] * jobs
    last: list[Any] = [None] * jobs  # the future that each slot had last
    others = {*active_children()}

    def open_pool(slot: int) -> Any:
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
            environment["EOW_DEVICE"] = wanted_device()[0]  # whatever its number here, there it is the only one
        return ProcessPoolExecutor(1, env=environment, initializer=begin_worker, initargs=(os.getpid(),))

    def submit(task: Task) -> "Future[Outcome]":
        slot = next(slot for slot in range(jobs) if last[slot] is None or last[slot].done())
        if last[slot] is not None and last[slot].exception() is not None:
            pools[slot].shutdown(wait=False, kill_workers=True)
            pools[slot] = None
        pools[slot] = pools[slot] or open_pool(slot)
        last[slot] = pools[slot].submit(run_task, task, threads)
        return last[slot]

    try:
        yield Engine(lambda: jobs, submit)
    except stopping.STOPS:
        for worker in {*active_children()} - others:  # one that trains keeps its last whole epoch
            worker.terminate()
        wait([each for each in last if each is not None], STOP_SECONDS)
        raise
    finally:
        for pool in pools:
            if pool is not None:
                pool.shutdown(wait=True, kill_workers=True)


def quiet_tracker() -> None:
    """loky keeps count of semaphores in a process of its own, which warns of those that a worker took along when it was
    told to stop. That comes after our last words, and is news to nobody."""
    from joblib.externals.loky.backend import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


def begin_worker(parent: int) -> None:
    """Ctrl-C is the parent's to handle, and when the parent is gone, however it went, so is the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stopping.end_with(parent)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted_device() -> tuple[str, str]:
    """EOW_DEVICE as kind and number, "" where it has none."""
    kind, _, number = os.environ.get("EOW_DEVICE", "auto").partition(":")
    return kind, number


def own_gpus() -> list[str]:
    """The GPUs that cells may use, as CUDA_VISIBLE_DEVICES names them: all of this process's, or EOW_DEVICE's one."""
    import torch

    kind, number = wanted_device()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if kind not in ("auto", "cuda"):
        return []
    places = range(torch.cuda.device_count())
    return [named.split(",")[place] if named else str(place) for place in places if number in ("", str(place))]


# Ray


@contextmanager
def on_ray(address: str, jobs: int, cpus: int, shared: Path) -> Iterator[Engine]:
    """The Ray cluster at `address`, or one of this machine alone: a cell gets one GPU where the cluster has any, else
    `cpus` CPUs. Machines that do not see the folder `shared` get what they need with the task and send back files."""
    try:
        import ray
    except ImportError:
        raise EowError("--engine ray needs Ray: pip install ray, or use --engine local") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    try:
        if address:
            check_address(address)
            ray.init(address=address, **quiet)
        else:
            wanted = (jobs or max(1, cores() // cpus)) * cpus
            ray.init("local", num_cpus=wanted, include_dashboard=False, object_store_memory=100_000_000, **quiet)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        why = first_line(error)
        raise EowError(f"Ray at {address or 'this machine'} cannot be reached ({why}): is it running?") from None
    mark = shared / f".shared-{uuid.uuid4().hex}"
    mark.touch()
    gpus = bool(ray.cluster_resources().get("GPU"))
    per_cell: dict[str, Any] = {"num_cpus": cpus, **({"num_gpus": 1} if gpus else {})}
    remote = ray.remote(**per_cell, max_retries=0)(run_remote)  # a worker that died is the scheduler's to replace

    def slots() -> int:
        found = ray.cluster_resources()  # asked again and again: a cluster may grow
        free = found.get("GPU", 0) if gpus else found.get("CPU", 0) // cpus
        return max(1, min(int(free), jobs or int(free)))

    loans: dict[Path, Any] = {}  # vanilla runs for machines that do not see them, each sent once

    def submit(task: Task) -> "Future[Outcome]":
        if address and task.source is not None and task.source not in loans:
            loans[task.source] = ray.put(read_files(task.source, weights=True))
        loan = [loans[task.source]] if task.source in loans else []  # in a list, so that Ray does not fetch it unasked
        future: Future[Outcome] = remote.remote(task, cpus, str(mark), loan).future()
        return future

    try:
        yield Engine(slots, submit)
    finally:
        mark.unlink(missing_ok=True)
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise an OSError or ValueError unless somebody listens at ray://HOST:PORT or HOST:PORT. Ray would try for
    minutes. "auto" is a cluster that this machine belongs to."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError("an address is HOST:PORT, ray://HOST:PORT or auto")
    socket.create_connection((host, int(port)), timeout=10).close()


def run_remote(task: Task, threads: int, mark: str, loan: list[Any]) -> Outcome:
    """`run_task` on a machine of the cluster. Where that machine does not see our disk, it works in a folder of its
    own, which it keeps: a cell that is run again there goes on from its checkpoint."""
    if Path(mark).exists():
        return run_task(task, threads)
    own = Path(tempfile.gettempdir()) / f"eow-bench-{os.getuid()}" / task.folder.parent.name
    if task.source is not None and not (own / task.source.name / "summary.json").exists():
        import ray

        write_files(own / task.source.name, ray.get(loan[0]))
    outcome = run_task(task._replace(folder=own / task.folder.name), threads)
    if outcome.error:
        return outcome
    return outcome._replace(files=read_files(own / task.folder.name, weights=task.give))


def read_files(folder: Path, *, weights: bool) -> dict[str, bytes]:
    """A finished run's files by their path in its folder; its weights only where somebody takes them over."""
    left_out = {*folder.glob(CHECKPOINTS), *([] if weights else folder.glob("weights*"))}
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in found if file not in left_out}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """A run's files, the summary last: it says that the run is complete."""
    for name in sorted(files, key=lambda name: name == "summary.json"):
        path = folder / name
        storage.make_folder(path.parent)
        storage.atomic(path, lambda file, name=name: file.write(files[name]))  # type: ignore[misc]
