"""Tests run on the CPU wherever they are run (those of the GPU ask for it by name), and with one thread: their networks
are small, and threads that wait for one another are slow on a busy machine."""

import os
import signal
import sys

import pytest

os.environ["EOW_DEVICE"] = "cpu"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # some tests import onnxruntime before eow does

# A shell that starts the suite in the background has it and its children ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", "ignore:only .* steps? in all:RuntimeWarning")  # as most runs here are


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The command in this process: its exit code, standard output and standard error."""

    from eow import cli  # once the environment is as above

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["eow", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run_command
