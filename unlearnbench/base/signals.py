"""Stop the process on SIGTERM, as Ctrl-C does.

`Stopped` is raised at once, except inside `defer_sigterm`. There a step or a write is completed,
and its caller looks at `sigterm_received` afterwards. Nothing is saved because of a signal, since a
run restarts from its last epoch. Python delivers signals only to the main thread, so other threads
install no handler.
"""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Stopped(SystemExit):
    """SIGTERM was received. This is no `Exception`, so that no error handler catches it."""

    def __init__(self, message: str = "stopped by SIGTERM; finished work is kept") -> None:
        """State the message, which says what is lost and what is kept."""
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _State:
    """Signal state of the process."""

    received = False
    """Whether SIGTERM was received."""
    deferring = 0
    """Number of `defer_sigterm` contexts that are open, one inside the other."""


def sigterm_received() -> bool:
    """Whether SIGTERM was received."""
    return _State.received


def install_handler() -> None:
    """Replace the handler of SIGTERM, such as Ray's, for the rest of the process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handle)


@contextmanager
def handle_sigterm() -> Generator[None, None, None]:
    """Raise `Stopped` on SIGTERM inside the context, and restore the handler at its end."""
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
    """Raise nothing on SIGTERM inside the context. The caller looks at `sigterm_received`."""
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
    """Note SIGTERM, and raise `Stopped` unless that is deferred."""
    is_first = not _State.received
    _State.received = True
    # A second signal must not interrupt what the first one waits for, such as a checkpoint.
    if is_first and not _State.deferring:
        raise Stopped
