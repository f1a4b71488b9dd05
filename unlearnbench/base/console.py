"""Terminal output: notes and progress while a command runs, tables and JSON at its end.

Results go to standard output, notes and progress to standard error, so that a pipe gets results
only. Tables and sentences fit the terminal; bars are shown on a terminal only. Secrets are removed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from unlearnbench.base.redaction import redact

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress

WARNING_STYLE = "bold red"


def format_duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Results:
    """The stream of results inside `results_only_on_stdout`."""

    stream: TextIO | None = None


def results() -> TextIO:
    """The stream of results: standard output, even inside `results_only_on_stdout`."""
    return _Results.stream or sys.stdout


@contextmanager
def results_only_on_stdout() -> Generator[None, None, None]:
    """Send whatever is printed past a Console, as plug-ins do, to standard error."""
    before, _Results.stream = _Results.stream, results()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Results.stream = before


class Console:
    """Standard output for results, standard error for notes; both without secrets."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or results()
        self.err = err or sys.stderr

    def note(self, text: str) -> None:
        """Print a line about the progress of the command."""
        self.err.write(self._broken(redact(text)) + "\n")
        self.err.flush()

    def _broken(self, text: str) -> str:
        """The text with its long lines broken at spaces, if a terminal shows it."""
        if not self.err.isatty():
            return text
        from unlearnbench.base.text_table import paragraph, width_of

        width = width_of(self.err)
        lines = text.split("\n")
        return "\n".join(
            paragraph(line, width, "    ") if len(line) > width else line for line in lines
        )

    def warn(self, text: str) -> None:
        """Print a line that must not be overlooked: red on a terminal."""
        if not self.err.isatty():
            self.note(text)
            return
        _terminal(self.err).print(
            self._broken(redact(text)),
            style=WARNING_STYLE,
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def print(self, text: str = "") -> None:
        """Print a line of the result."""
        self.out.write(redact(text) + "\n")
        self.out.flush()

    def print_json(self, value: Any) -> None:
        """Print the result for a program; `value` has finite floats only."""
        self.print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

    def paragraph(self, text: str = "", indent: str = "") -> None:
        """Print a sentence of the result, broken at the terminal's width.

        Args:
            text: Without line breaks.
            indent: What all lines but the first begin with.
        """
        from unlearnbench.base.text_table import paragraph, width_of

        self.print(paragraph(redact(text), width_of(self.out), indent))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        title: str = "",
        *,
        flowing: Collection[str] = (),
        keys: int = 1,
        is_wide: bool = False,
    ) -> None:
        """Print a table of the result that fits the terminal, or 80 columns if there is none.

        Names and numbers are never broken. Columns of numbers are aligned to the right.

        Args:
            columns: Their headings.
            rows: Their cells; None is printed as a hyphen.
            title: Line above the table.
            flowing: Headings of the columns with sentences or lists, which may be broken at spaces.
            keys: Number of first columns that say what a row is.
            is_wide: Whether each row takes one line, however long.
        """
        from unlearnbench.base.text_table import table_lines, width_of

        cells = [[_cell(value) for value in row] for row in rows]
        numbers = [
            place
            for place in range(len(columns))
            if all(isinstance(row[place], int | float | None) for row in rows)
        ]
        width = None if is_wide else width_of(self.out)
        lines = table_lines(columns, cells, numbers, flowing=flowing, keys=keys, width=width)
        if title:
            self.paragraph(title)
        for line in lines:
            self.print(line)

    def bar(self, note: str = "") -> Progress:
        """A bar of rich, on a terminal only; `note`: format of what stands behind it."""
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn(note),
        )
        off = not self.err.isatty()
        return progress.Progress(*columns, console=_terminal(self.err), transient=True, disable=off)


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """The lines of a table with at least one row; `right` marks columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def append_log_line(text: str, path: Path) -> None:
    """Append a line with the time to a log; errors of the disk are ignored."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"{now}  {redact(text)}\n")


_shown_bars: list[Progress] = []
"""The bars of `progress_bar` that a terminal shows now."""


@contextmanager
def progress_bar(console: Console, title: str) -> Generator[Callable[[int, int], None], None, None]:
    """A function that shows (done, total) as a bar on a terminal."""
    from rich.markup import escape

    with console.bar() as bar:
        _shown_bars.append(bar)
        try:
            task = bar.add_task(escape(redact(title)), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        finally:
            _shown_bars.remove(bar)


class DownloadBar:
    """A bar of bytes, from the first byte on. Another bar gives way to it meanwhile.

    A terminal can show only one bar of rich at a time.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._paused: list[Progress] = []

    def show(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are here. Safe to call from any thread."""
        with self._lock:
            if self._bar is None:
                self._bar = self._start(total)
            (task,) = self._bar.task_ids
            self._bar.update(task, completed=done, total=total)

    def stop(self) -> None:
        """Remove the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            for bar in self._paused:
                bar.start()

    def _start(self, total: int) -> Progress:
        from rich import progress
        from rich.markup import escape

        self._paused = [*_shown_bars]
        for bar in self._paused:
            bar.stop()
        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        )
        started = progress.Progress(*columns, console=_terminal(self._console.err), transient=True)
        started.add_task(escape(redact(self._title)), total=total)
        started.start()
        return started


@contextmanager
def download_bar(title: str) -> Generator[Callable[[int, int], None] | None, None, None]:
    """A function that shows (done, total) bytes on a terminal; None if there is no terminal.

    Of several processes, only the first one of the machine shows them.
    """
    console = Console()
    if not console.err.isatty() or os.environ.get("LOCAL_RANK", "0") != "0":
        yield None
        return
    bar = DownloadBar(console, title)
    try:
        yield bar.show
    finally:
        bar.stop()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return redact(str(value)).replace("\n", "\\n")


def _terminal(stream: TextIO) -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=stream)
