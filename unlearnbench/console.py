"""What a person sees while something runs: lines, tables, progress with an honest time to go.

Results go to standard output, progress and notes to standard error, so that a pipe gets results
only. What is no terminal gets plain lines; rich is imported only for one that is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

_PLAIN_SECONDS = 1.0
"""Least time between two plain lines of progress."""


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class Console:
    """Where a command tells what it is doing."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.clock = clock

    def note(self, text: str) -> None:
        """A line about what is going on."""
        self.err.write(text + "\n")
        self.err.flush()

    def print(self, text: str = "") -> None:
        """A line of the result."""
        self.out.write(text + "\n")
        self.out.flush()

    def print_json(self, value: Any) -> None:
        """The result, for a program; `value` holds finite floats only."""
        self.print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> None:
        """A table of the result; numbers to the right."""
        cells = [[_cell(value) for value in row] for row in rows]
        right = [
            all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))
        ]
        if self.out.isatty():
            self._rich_table(columns, cells, right, title)
            return
        widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
        if title:
            self.print(title)
        for row in [list(columns), *cells]:
            padded = [
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(row, widths, right, strict=True)
            ]
            self.print("  ".join(padded).rstrip())

    def _rich_table(
        self,
        columns: Sequence[str],
        cells: Sequence[Sequence[str]],
        right: Sequence[bool],
        title: str,
    ) -> None:
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left")
        for name, is_number in zip(columns, right, strict=True):
            table.add_column(name, justify="right" if is_number else "left")
        for row in cells:
            table.add_row(*map(Text, row))  # Text: brackets in a value are no markup
        RichConsole(file=self.out).print(table)

    def progress(self, title: str, total: int) -> Progress:
        """Progress over `total` pieces of about equal work, to be used in a `with`."""
        return Progress(self, title, total)


class Progress:
    """How many are done, how long it took, and how long the rest will take at that pace."""

    def __init__(self, console: Console, title: str, total: int) -> None:
        self.console, self.title, self.total = console, title, total
        self.done = 0
        self._began = console.clock()
        self._said = -_PLAIN_SECONDS
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._began = self.console.clock()
        if self.console.err.isatty():
            self._start_bar()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def advance(self, note: str = "", amount: int = 1) -> None:
        """`amount` more are done; `note` says what the last one was."""
        self.done += amount
        text = f"{self.timing()} · {note}" if note else self.timing()
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, timing=text)
            return
        now = self.console.clock() - self._began
        if now - self._said >= _PLAIN_SECONDS or self.done >= self.total:
            self._said = now
            self.console.note(f"{self.title} {self.done}/{self.total} · {text}")

    def timing(self) -> str:
        """`20 s · about 40 s to go`; no promise before the first is done."""
        elapsed = self.console.clock() - self._began
        if not 0 < self.done < self.total:
            return duration(elapsed)
        to_go = elapsed * (self.total - self.done) / self.done
        return f"{duration(elapsed)} · about {duration(to_go)} to go"

    def _start_bar(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[timing]}", markup=False),
            console=RichConsole(file=self.console.err),
        )
        self._task = self._bar.add_task(self.title, total=self.total, timing="")
        self._bar.start()


def finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """`values` with what JSON lacks, NaN and infinity, as None."""
    return {
        key: value if value is not None and abs(value) < float("inf") else None
        for key, value in values.items()
    }


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
