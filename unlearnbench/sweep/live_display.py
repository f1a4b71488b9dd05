"""The display at the foot of a terminal: bar, running runs and best settings so far.

It never takes more than two thirds of the screen: what does not fit is counted. A thread of rich
draws it twice a second from an immutable `View`, so that no caller waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TextIO

from unlearnbench.analysis.best_so_far import LiveBest, headings
from unlearnbench.console import WARNING_STYLE, format_duration
from unlearnbench.files.outputs import printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PER_SECOND = 2.0
RUNS, METHODS = 4, 5
"""Running runs that are listed, and methods for a panel, at most."""
BAR = 30
"""Columns of the bar; with room for less than a quarter there is none."""


@dataclass(frozen=True)
class View:
    """The progress that the display shows."""

    title: str
    done: int
    total: int
    started_at: float
    """By the clock, as `measured_at`."""
    failed: int = 0
    seconds_left: float | None = None
    """At `measured_at`."""
    measured_at: float = 0.0
    note: str = ""
    """Replaces the time left."""
    running: tuple[str, ...] = ()


class Display:
    """Draws from its creation until `stop`."""

    def __init__(
        self, file: TextIO, view: View, live_best: LiveBest, clock: Callable[[], float]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.view, self._live_best, self._clock = view, live_best, clock
        self._console = Console(file=file)
        self._live = Live(
            get_renderable=self.content,
            console=self._console,
            refresh_per_second=PER_SECOND,
            transient=True,
        )
        self._live.start()

    def print(self, text: str, *, red: bool = False) -> None:
        """Print a line above the display."""
        style = WARNING_STYLE if red else None
        self._console.print(
            printable(text), style=style, markup=False, highlight=False, soft_wrap=True
        )

    def stop(self) -> None:
        """Remove the display; the printed lines stay."""
        self._live.stop()

    def content(self) -> RenderableType:
        """The display as it is now."""
        from rich.console import Group

        view, height = self.view, self._console.size.height
        most = min(RUNS, height // 6)
        runs = list(view.running[:most])
        if len(view.running) > most:
            runs.append(f"and {len(view.running) - most} more")
        lines = [_text(f"  {run}") for run in runs]
        room = max(1, 2 * height // 3 - len(lines) - 2)
        return Group(self._bar(view), *lines, *self._best_settings(room))

    def _bar(self, view: View) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        now, note = self._clock(), view.note
        if not note and view.seconds_left is not None:
            left = view.seconds_left - (now - view.measured_at)
            note = f"about {format_duration(left)} left" if left >= 1 else ""
        parts = [
            f"{view.done}/{view.total}",
            f"{len(view.running)} running" if view.running else "",
            f"{view.failed} failed" if view.failed else "",
            str(timedelta(seconds=round(now - view.started_at))),
            note,
        ]
        text = "  ".join(filter(None, parts))
        width = min(BAR, self._console.size.width - len(view.title) - len(text) - 3)
        if width < BAR // 4:
            return _text(f"{view.title} {text}")
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=view.total, completed=view.done, width=width)
        grid.add_row(view.title, bar, _text(text))
        return grid

    def _best_settings(self, room: int) -> list[RenderableType]:
        """The best of each panel, in `room` lines and a heading."""
        starts = self._live_best.starts()
        panels = {
            panel: found
            for panel, found in self._live_best.leaders(METHODS).items()
            if found and panel in starts and not starts[panel].fault
        }
        if not panels:
            return []
        from rich.table import Table

        shown = list(panels.items())
        if len(shown) > room:
            shown = shown[: max(1, room - 1)]
        each = max(1, room // len(shown))
        rows: list[tuple[str, ...]] = []
        for panel, found in shown:
            place = f"  {starts[panel].place}"
            for one in found[:each]:
                rows.append((place, *one.cells))
                place = ""
        grid = Table.grid(padding=(0, 2))
        first = shown[0][1][0]
        for column in range(1 + len(first.cells)):
            is_number = column > 1
            # Where room is short, `_text` cuts names but no numbers.
            grid.add_column(no_wrap=is_number, justify="right" if is_number else "left")
        for row in [("best so far", *headings(first.headline)), *rows]:
            grid.add_row(*map(_text, row))
        more = len(panels) - len(shown)
        rest = [_text(f"  and {more} more panels")] if more else []
        return [grid, *rest]


def _text(line: str) -> Text:
    """A line without markup, cut at the edge of the screen."""
    from rich.text import Text

    return Text(line, no_wrap=True, overflow="ellipsis")
