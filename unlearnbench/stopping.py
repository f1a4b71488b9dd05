"""SIGTERM: raised as `Stopped` at once, as Ctrl-C is, but for what runs within `held`.

There a step or a write is carried through, and `asked` is looked at afterwards. Nothing is saved
because of it: the epoch is the unit of restart. Only Python's main thread receives signals; what
is not it installs nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM


class Stopped(SystemExit):
    """SIGTERM has come; no error, so nothing that handles errors catches it."""

    def __init__(self, message: str = "stopped by SIGTERM; what is finished is kept") -> None:
        """`message`: what is lost, and what is kept."""
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class _State:
    """Of the whole process, as signals are."""

    asked = False
    holding = 0


def asked() -> bool:
    """Whether SIGTERM has come."""
    return _State.asked


def install() -> None:
    """Take SIGTERM over from whoever had it, such as Ray, for good."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _handle)


@contextmanager
def caught() -> Generator[None, None, None]:
    """SIGTERM is `Stopped` inside the `with`."""
    before = signal.getsignal(signal.SIGTERM)
    _State.asked = False
    install()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def held() -> Generator[None, None, None]:
    """SIGTERM waits for what is inside, which looks at `asked`."""
    _State.holding += 1
    try:
        yield
    finally:
        _State.holding -= 1


def check() -> None:
    """Raise `Stopped` where SIGTERM has come."""
    if _State.asked:
        raise Stopped


def _handle(_number: int, _frame: FrameType | None) -> None:
    first, _State.asked = not _State.asked, True
    # A second one must not end what the first one waits for: a checkpoint that is being written.
    if first and not _State.holding:
        raise Stopped
