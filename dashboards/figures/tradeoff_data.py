"""Data of the trade-off panels: what is kept against what is forgotten, by the headline.

`panels` computes everything that is shown, as values that a test can read. `tradeoff_plot.py` only
draws them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter

from unlearnbench.analysis import best_settings as analysis
from unlearnbench.analysis.best_settings import Choice, Panel
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.settings import Setting
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import lowest_log10_p


@dataclass(frozen=True)
class Trajectory:
    """A setting epoch by epoch, averaged over its seeds."""

    method: str
    family: str
    learning_rate: float | None
    points: tuple[Setting, ...]
    """The setting after each epoch that has both numbers."""


@dataclass(frozen=True, eq=False)
class TradeOffPanel(Panel):
    """A model and split, and everything that its panel shows."""

    @cached_property
    def fine_tuned(self) -> TableRow | None:
        """The start model."""
        return self.row("fine-tuned")

    @cached_property
    def retain(self) -> TableRow | None:
        """The retain model."""
        return self.row("retain")

    @cached_property
    def drawn(self) -> list[Setting]:
        """The settings with both numbers."""
        return [setting for setting in self.settings if position(setting) is not None]

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Each setting epoch by epoch."""
        trajectories: list[Trajectory] = []
        # Settings are sorted by trajectory, so the epochs of one trajectory are adjacent.
        for _, epochs in groupby(self.drawn, key=attrgetter("trajectory")):
            points = tuple(epochs)
            first = points[0]
            trajectories.append(Trajectory(first.method, first.family, first.learning_rate, points))
        return tuple(trajectories)

    @property
    def significance(self) -> float | None:
        """log10 of the level of the headline's test; None without a test."""
        test = self.headline.forgotten.test
        return None if test is None else math.log10(test.level)

    @property
    def floor(self) -> float | None:
        """log10 of the smallest p that n questions per model can give; None without a test."""
        return None if self.questions is None else lowest_log10_p(self.questions)

    @property
    def origin(self) -> tuple[float, float] | None:
        """Position of the start model, where trajectories begin."""
        return None if self.fine_tuned is None else position(self.fine_tuned)

    @cached_property
    def low(self) -> float | None:
        """Lower end of the first view, so that collapsed models do not squeeze all others.

        All start, retain and working models are inside. Collapsed models are inside down to 1.5
        times the range of the others. None without a test, because only the logarithm of a p value
        has no lower end.
        """
        if self.significance is None:
            return None
        working: list[TableRow | Setting] = []
        for setting in self.drawn:
            if not self.has_collapsed(setting):
                working.append(setting)
        for model in (self.fine_tuned, self.retain):
            if model is not None:
                working.append(model)
        lowest_working = min(_heights(working), default=None)
        lowest = min(_heights(self.drawn), default=None)
        if lowest_working is None or lowest is None:
            return lowest_working if lowest is None else lowest
        limit = 1.5 * min(lowest_working, 2 * self.significance)
        return max(min(lowest_working, lowest), limit)


def _heights(points: Iterable[TableRow | Setting]) -> list[float]:
    """List the forgetting of all points that have both numbers."""
    places = [position(point) for point in points]
    return [place[1] for place in places if place is not None]


def position(point: TableRow | Setting) -> tuple[float, float] | None:
    """Return utility and forgetting by the headline. None unless both are numbers."""
    kept = point.kept
    forgotten = point.forgotten
    if kept is None or forgotten is None:
        return None
    return kept, forgotten


def panels(
    rows: Iterable[TableRow], choices: Iterable[Choice] = (), ends: Iterable[EarlyEnd] = ()
) -> tuple[TradeOffPanel, ...]:
    """Make a panel for each model and split, in the table's order.

    Args:
        rows: Rows of evaluations without an attack.
        choices: Settings that `select` or `tune` has chosen.
        ends: Runs that ended early.
    """
    return drawn_panels(analysis.panels(rows, choices, ends))


def drawn_panels(panels: Iterable[Panel]) -> tuple[TradeOffPanel, ...]:
    """Make panels that can be drawn, with the same rows, choices and early ends."""
    return tuple(
        TradeOffPanel(panel.model, panel.forget_fraction, panel.rows, panel.choices, panel.ends)
        for panel in panels
    )
