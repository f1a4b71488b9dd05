"""Terminal output: notes and progress while a command runs, tables and JSON at its end.

Results go to standard output. Notes and progress go to standard error, so that a pipe gets only
results. Tables and sentences fit the terminal, and bars are shown only on a terminal. Secrets are
removed from everything that is printed.
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
    """Return a duration in words: `45 s`, `3 min 20 s`, `2 h 05 min`."""
    total_seconds = max(0, round(seconds))
    if total_seconds < 60:
        return f"{total_seconds} s"
    minutes, seconds_left = divmod(total_seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left:02d} s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min"


class _Results:
    """Holds the stream of results while standard output is redirected."""

    stream: TextIO | None = None
    """None outside `results_only_on_stdout`."""


def results() -> TextIO:
    """Return the stream of results: standard output, even inside `results_only_on_stdout`."""
    return _Results.stream or sys.stdout


@contextmanager
def results_only_on_stdout() -> Generator[None, None, None]:
    """Send everything that is not printed by a Console to standard error.

    Plug-ins may print, and a program that reads standard output must not see it.
    """
    earlier_stream = _Results.stream
    _Results.stream = results()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Results.stream = earlier_stream


class Console:
    """Standard output for results and standard error for notes, both without secrets."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        """Open a console.

        Args:
            out: Stream of results. None for standard output.
            err: Stream of notes. None for standard error.
        """
        self.out = out or results()
        self.err = err or sys.stderr

    def note(self, text: str) -> None:
        """Print a line about the progress of the command."""
        self.err.write(self._broken(redact(text)) + "\n")
        self.err.flush()

    def _broken(self, text: str) -> str:
        """Break the long lines of a text at spaces, if a terminal shows it."""
        if not self.err.isatty():
            return text
        from unlearnbench.base.text_table import paragraph, width_of

        width = width_of(self.err)
        lines = [
            line if len(line) <= width else paragraph(line, width, indent="    ")
            for line in text.split("\n")
        ]
        return "\n".join(lines)

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
        """Print the result for a program. All floats in `value` have to be finite."""
        self.print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))

    def paragraph(self, text: str = "", indent: str = "") -> None:
        """Print a sentence of the result, broken at the terminal's width.

        Args:
            text: The sentence, without line breaks.
            indent: Text before all lines except the first one.
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
            columns: Headings of the columns.
            rows: Cells of each row. None is printed as a hyphen.
            title: Line above the table.
            flowing: Headings of the columns with sentences or lists, which may be broken at spaces.
            keys: Number of columns at the left that say what a row is.
            is_wide: Whether each row takes one line, however long.
        """
        from unlearnbench.base.text_table import table_lines, width_of

        cells = [[_cell(value) for value in row] for row in rows]
        number_columns = [
            index
            for index in range(len(columns))
            if all(isinstance(row[index], int | float | None) for row in rows)
        ]
        width = None if is_wide else width_of(self.out)
        lines = table_lines(columns, cells, number_columns, flowing=flowing, keys=keys, width=width)
        if title:
            self.paragraph(title)
        for line in lines:
            self.print(line)

    def bar(self, note: str = "") -> Progress:
        """Return a progress bar of rich, which is shown only on a terminal.

        Args:
            note: Format of the text at its right, in the fields of rich's tasks.
        """
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn(note),
        )
        return progress.Progress(
            *columns,
            console=_terminal(self.err),
            transient=True,
            disable=not self.err.isatty(),
        )


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return the lines of a table, with its columns aligned.

    Args:
        rows: Cells of each row. There has to be at least one row.
        right: For each column, whether it is aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def append_log_line(text: str, path: Path) -> None:
    """Append a line with the time to a log. Errors of the disk are ignored."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"{now}  {redact(text)}\n")


_shown_bars: list[Progress] = []
"""The bars of `progress_bar` that a terminal shows now."""


@contextmanager
def progress_bar(console: Console, title: str) -> Generator[Callable[[int, int], None], None, None]:
    """Show a progress bar on a terminal.

    Yields:
        A function to call with the numbers of things that are done, and of all things.
    """
    from rich.markup import escape

    with console.bar() as bar:
        _shown_bars.append(bar)
        try:
            task = bar.add_task(escape(redact(title)), total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        finally:
            _shown_bars.remove(bar)


class DownloadBar:
    """A bar of downloaded bytes, which appears with the first byte.

    A terminal can show only one bar of rich at a time, so other bars pause until this one stops.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
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
        """Remove the bar, and show the paused bars again."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
            for bar in self._paused:
                bar.start()

    def _start(self, total: int) -> Progress:
        """Pause all other bars, and show a bar of `total` bytes."""
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
    """Show a bar of downloaded bytes on a terminal.

    Yields:
        A function to call with the bytes that are here, and with all bytes. None if there is no
        terminal, or if another process of this machine shows the bar.
    """
    console = Console()
    is_first_process = os.environ.get("LOCAL_RANK", "0") == "0"
    if not console.err.isatty() or not is_first_process:
        yield None
        return
    bar = DownloadBar(console, title)
    try:
        yield bar.show
    finally:
        bar.stop()


def _cell(value: Any) -> str:
    """Return a value as the text of a cell, in one line."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return redact(str(value)).replace("\n", "\\n")


def _terminal(stream: TextIO) -> RichConsole:
    from rich.console import Console as RichConsole

    return RichConsole(file=stream)
