"""Ctrl-C, SIGTERM and SIGHUP (a terminal that is closed) at a moment that suits.

Inside `listening` SIGINT raises KeyboardInterrupt and the others raise Terminated, at once; inside `held` they are
remembered instead, until the end of it or until `allowed` opens a gap. A training is held, but for its steps: whatever
is half-done there can be undone, while a log, a checkpoint and their order cannot.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(SystemExit):
    """SIGTERM or SIGHUP: the process ends, with the exit code that shells give to it."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.number = number


STOPS = (KeyboardInterrupt, Terminated)
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has no SIGHUP
DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Moment(threading.local):
    """What handlers see is the main thread's; a training in another thread holds nothing up."""

    held = False
    asked = 0  # the signal that came first


moment = Moment()


def stop(number: int = signal.SIGTERM) -> KeyboardInterrupt | Terminated:
    """The exception for the signal that came first; `number`, if none has: another process was told to stop."""
    moment.asked = moment.asked or number
    return KeyboardInterrupt() if moment.asked == signal.SIGINT else Terminated(moment.asked)


def asked() -> bool:
    """Whether a stop was asked for since `listening` began."""
    return moment.asked != 0


def on_signal(number: int, frame: FrameType | None) -> None:
    if moment.asked:
        return  # a second signal does not disturb the end that the first has begun
    moment.asked = number
    if not moment.held:
        raise stop()


@contextmanager
def listening() -> Iterator[None]:
    """These signals are ours inside, unless somebody handles or ignores them already."""
    main = threading.current_thread() is threading.main_thread()
    free = [each for each in SIGNALS if main and signal.getsignal(each) in DEFAULTS]
    before = {each: signal.signal(each, on_signal) for each in free}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if before:
            moment.held, moment.asked = False, 0


@contextmanager
def held() -> Iterator[None]:
    """No stop inside. One that was asked for comes at the end, unless something else went wrong."""
    before, moment.held = moment.held, True
    try:
        yield
    finally:
        moment.held = before
    if moment.asked and not before:
        raise stop()


@contextmanager
def allowed() -> Iterator[None]:
    """A stop at once, inside `held`: also one that was asked for before."""
    before, moment.held = moment.held, False
    try:
        if moment.asked:
            raise stop()
        yield
    finally:
        moment.held = before


def end_with(parent: int) -> None:
    """When the parent is gone, however it went, so is this process: within a second."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
