"""What a person sees: notes while something runs, tables and JSON at the end.

Results go to standard output, notes and progress to standard error, so that a pipe gets results
only. What is no terminal gets plain lines; rich is imported only for one that is. Names are
anybody's: what would move a terminal's cursor or turn its text around is printed escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from unlearnbench.errors import OutputError
from unlearnbench.outputs import printable
from unlearnbench.redaction import redact

ALARM = "bold red"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Results:
    """Where results go while everything else that is printed goes elsewhere."""

    stream: TextIO | None = None


def results() -> TextIO:
    """The stream of results: standard output, even inside `results_apart`."""
    return _Results.stream or sys.stdout


@contextmanager
def results_apart() -> Generator[None, None, None]:
    """Keep standard output for results: what others print, plug-ins say, goes to standard error."""
    before, _Results.stream = _Results.stream, results()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _Results.stream = before


class Console:
    """Where a command tells what it is doing; no secret of an address gets through."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or results()
        self.err = err or sys.stderr

    def note(self, text: str) -> None:
        """A line about what is going on."""
        self.err.write(_shown(text) + "\n")
        self.err.flush()

    def alarm(self, text: str) -> None:
        """A line that must not be overlooked: red on a terminal."""
        if not self.err.isatty():
            self.note(text)
            return
        from rich.console import Console as RichConsole

        screen = RichConsole(file=self.err)
        screen.print(text, style=ALARM, markup=False, highlight=False, soft_wrap=True)

    def print(self, text: str = "") -> None:
        """A line of the result."""
        try:
            self.out.write(_shown(text) + "\n")
            self.out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output: {error.strerror}") from error

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
        if title:
            self.print(title)
        for line in aligned([list(columns), *cells], right):
            self.print(line)

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


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Lines of a table of at least one row; `right`: the columns that are set to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def note_down(text: str, path: Path) -> None:
    """A line in a log, with the time; a disk that does not take it is no reason to end a sweep."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(f"{now}  {redact(text)}\n")


class Bar:
    """How far one piece of work is, to be used in a `with`: a bar on a terminal, elsewhere a line
    for every quarter.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console, self._title = console, title
        self._quarter = -1
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, everything: int) -> None:
        """So much is done."""
        if self._console.err.isatty():
            bar = self._bar or self._start(everything)
            bar.update(self._task, completed=done)
            return
        quarter = 4 * done // max(everything, 1)
        if quarter > self._quarter:
            self._quarter = quarter
            self._console.note(f"{self._title}: {25 * quarter} %")

    def _start(self, everything: int) -> Any:
        from rich.console import Console as RichConsole
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=RichConsole(file=self._console.err),
        )
        self._task = self._bar.add_task(self._title, total=everything)
        self._bar.start()
        return self._bar


def finite(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """`values` with what JSON lacks, NaN and infinity, as None."""
    return {
        key: value if value is not None and abs(value) < float("inf") else None
        for key, value in values.items()
    }


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return _shown(str(value)).replace("\n", "\\n")


def _shown(text: str) -> str:
    """`text` without secrets, and without what would move the cursor."""
    return printable(redact(text))
