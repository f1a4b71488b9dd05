"""SIGTERM is raised as `Stopped` at once, as Ctrl-C is, except inside `defer_sigterm`.

A step or a write inside `defer_sigterm` is completed, and its caller looks at `sigterm_received`
afterwards. Nothing is saved because of a signal: the epoch is the unit of restart. Python delivers
signals to the main thread only; other threads install no handler.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Stopped(SystemExit):
    """SIGTERM was received. Not an Exception, so that no error handler catches it."""

    def __init__(self, message: str = "stopped by SIGTERM; finished work is kept") -> None:
        """`message`: what is lost, and what is kept."""
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _State:
    """Signal state of the process."""

    received = False
    deferring = 0


def sigterm_received() -> bool:
    """True if SIGTERM was received."""
    return _State.received


def install_handler() -> None:
    """Replace the handler of SIGTERM, such as Ray's, for the rest of the process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handle)


@contextmanager
def handle_sigterm() -> Generator[None, None, None]:
    """Raise `Stopped` on SIGTERM inside the `with`."""
    before = signal.getsignal(signal.SIGTERM)
    _State.received = False
    install_handler()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def defer_sigterm() -> Generator[None, None, None]:
    """Raise nothing on SIGTERM inside the `with`; the caller looks at `sigterm_received`."""
    _State.deferring += 1
    try:
        yield
    finally:
        _State.deferring -= 1


def raise_if_stopped() -> None:
    """Raise `Stopped` if SIGTERM was received."""
    if _State.received:
        raise Stopped


def _handle(_number: int, _frame: FrameType | None) -> None:
    first, _State.received = not _State.received, True
    # A second signal must not interrupt what the first one waits for, such as a checkpoint.
    if first and not _State.deferring:
        raise Stopped
