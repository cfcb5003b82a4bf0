"""`eow train --devices N`: N processes of this machine, with the variables that torchrun would give them.

Not torchrun itself: it answers a signal with tracebacks, and does not wait for what the processes still have to write.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import torch

from eow.errors import EowError
from eow.training import stopping

PATIENCE = 3.0  # seconds for processes to write their checkpoint before they are killed
LEFT = 75  # the exit code of a process that another one has left alone
# What gloo and NCCL say then; they have no class of their own for it.
PARTED = re.compile("closed by peer|reset by peer|Broken pipe|Socket closed|likely closed|remote process exited")


def launch(devices: int, arguments: list[str]) -> int:
    """Run `eow ARGUMENTS` in `devices` processes; the first exit code that is not 0. A signal is passed on to them."""
    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        raise EowError(f"--devices {devices} asks for more than the {torch.cuda.device_count()} GPUs of this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # DDP would comment on parameters that are all used
        **os.environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(devices),
        "EOW_PARENT": str(os.getpid()),
    }  # fmt: skip
    processes = []
    try:
        with stopping.listening():
            for rank in range(devices):
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "eow.training.launching", *arguments],
                        env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        start_new_session=True,  # a terminal's Ctrl-C reaches this process alone
                    )
                )
            while any(process.poll() is None for process in processes) and not failure(processes):
                time.sleep(0.05)
            code = failure(processes)
            if code < 0 or (code == 0 and any(process.returncode == LEFT for process in processes)):
                why = f"one was ended by {signal.Signals(-code).name}" if code else "they lost each other"
                raise EowError(f"the {devices} processes did not end well, {why}: go on with --resume")
            return code
    finally:
        end(processes)


def member() -> None:
    """One of the processes. Where another one has ended, it is that one who says why."""
    from eow.cli import main

    try:
        main()
    except RuntimeError as error:
        if not PARTED.search(str(error)):
            raise
        os._exit(LEFT)


def failure(processes: list["subprocess.Popen[bytes]"]) -> int:
    """The exit code of the first process that has failed by itself; 0 while there is none."""
    return next((code for process in processes if (code := process.poll()) not in (None, 0, LEFT)), 0)


def end(processes: list["subprocess.Popen[bytes]"]) -> None:
    """Have all of them end: with a checkpoint, if they manage in time."""
    for process in processes:
        process.terminate()
    ends = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    member()
