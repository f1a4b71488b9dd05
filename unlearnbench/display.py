"""What stands still at a terminal's foot while lines go by: bar, runs under way, leaders.

It never takes more than two thirds of the screen: what does not fit is counted. It is drawn twice a
second by a thread of rich's, from a `View` that is never changed, so that nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from unlearnbench.console import ALARM, duration
from unlearnbench.outputs import printable
from unlearnbench.standing import HEADINGS, RIGHT, Standing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

PER_SECOND = 2.0
UNDER_WAY = 4
"""Runs under way that are named."""
METHODS = 5
"""Of a panel, at most."""
BAR = 30
"""Columns of the bar, where there is room; with a quarter of it there is none."""


@dataclass(frozen=True)
class View:
    """How far a sweep is."""

    title: str
    done: int
    total: int
    begun: float
    """Of the clock, as the next but one."""
    failed: int = 0
    left: float | None = None
    """Seconds to go at `at`."""
    at: float = 0.0
    told: str = ""
    """In place of the time to go."""
    under_way: tuple[str, ...] = ()


class Display:
    """Lives from its making to `stop`."""

    def __init__(
        self, file: TextIO, view: View, standing: Standing, clock: Callable[[], float]
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.view, self._standing, self._clock = view, standing, clock
        self._console = Console(file=file)
        self._live = Live(
            get_renderable=self.drawn,
            console=self._console,
            refresh_per_second=PER_SECOND,
            transient=True,
        )
        self._live.start()

    def say(self, text: str, *, alarm: bool = False) -> None:
        """A line that goes by; `alarm`: red."""
        style = ALARM if alarm else None
        self._console.print(
            printable(text), style=style, markup=False, highlight=False, soft_wrap=True
        )

    def stop(self) -> None:
        """Leave the terminal as it was, with the lines."""
        self._live.stop()

    def drawn(self) -> RenderableType:
        """What is to be seen now."""
        from rich.console import Group

        view, height = self.view, self._console.size.height
        most = min(UNDER_WAY, height // 6)
        runs = list(view.under_way[:most])
        if len(view.under_way) > most:
            runs.append(f"and {len(view.under_way) - most} more")
        lines = [_text(f"  {run}") for run in runs]
        room = max(1, 2 * height // 3 - len(lines) - 2)
        return Group(self._bar(view), *lines, *self._leaders(room))

    def _bar(self, view: View) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        now = self._clock()
        left = None if view.left is None else view.left - (now - view.at)
        seconds = round(now - view.begun)
        told = [
            f"{view.done}/{view.total}",
            f"{len(view.under_way)} running" if view.under_way else "",
            f"{view.failed} failed" if view.failed else "",
            f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}",
            view.told or (f"about {duration(left)} left" if left is not None and left >= 1 else ""),
        ]
        words = "  ".join(filter(None, told))
        width = min(BAR, self._console.size.width - len(view.title) - len(words) - 3)
        if width < BAR // 4:
            return _text(f"{view.title} {words}")
        grid = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=view.total, completed=view.done, width=width)
        grid.add_row(view.title, bar, _text(words))
        return grid

    def _leaders(self, room: int) -> list[RenderableType]:
        """The best of each panel, in `room` lines and a heading."""
        starts = self._standing.starts()
        panels = {
            panel: found
            for panel, found in self._standing.leaders(METHODS).items()
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
        for number in (False, *RIGHT):
            # Where room is short, names give way (`_text` cuts them) and numbers do not.
            grid.add_column(no_wrap=number, justify="right" if number else "left")
        for row in [("best so far", *HEADINGS), *rows]:
            grid.add_row(*map(_text, row))
        more = len(panels) - len(shown)
        rest = [_text(f"  and {more} more panels")] if more else []
        return [grid, *rest]


def _text(words: str) -> Text:
    """One line, cut where the screen ends; brackets in it are no markup."""
    from rich.text import Text

    return Text(words, no_wrap=True, overflow="ellipsis")
