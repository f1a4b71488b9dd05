"""The first line of a command that takes seconds, printed before the import that takes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock, Timer
from types import ModuleType

from unlearnbench.console import Console

HEAVY = frozenset({"torch", "transformers", "ray", "mlflow", "plotly", "accelerate", "scipy"})
"""Libraries that take a second or more to import from a cold disk."""
AFTER = 0.6
"""Seconds without output after which the line is printed though nothing heavy is imported."""


class _Announcer(MetaPathFinder):
    """Prints one line, at the first of: a heavy import, `AFTER` seconds; finds no module."""

    def __init__(self, command: str, console: Console) -> None:
        self.command, self.console = command, console
        self._lock = Lock()
        self._done = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Print the line before a heavy import; the module itself is for others to find."""
        del path, target
        if fullname in HEAVY:
            self.print(f"loading {fullname}")
        return None

    def print(self, what: str) -> None:
        """Print the line, unless it is printed, or the command has printed something."""
        with self._lock:
            done, self._done = self._done, True
        if not done and not Console.printed:
            with suppress(OSError, ValueError):  # standard error is full or closed
                self.console.note(f"{self.command}: {what} …")

    def stop(self) -> None:
        """Print nothing from now on."""
        self._done = True


@contextmanager
def first_line(command: str) -> Generator[None, None, None]:
    """Print a line of progress if the command has printed nothing for a second, or loads for long.

    Of several processes of one run only the first prints it.
    """
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    Console.printed = False
    announcer = _Announcer(command, Console())
    timer = Timer(AFTER, announcer.print, ["working"])
    timer.daemon = True
    sys.meta_path.insert(0, announcer)
    timer.start()
    try:
        yield
    finally:
        announcer.stop()
        timer.cancel()
        sys.meta_path.remove(announcer)
