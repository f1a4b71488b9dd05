"""Data of the trade-off panels: what is kept against what is forgotten, by the headline.

`panels` computes everything that is shown, as values that a test can read; `tradeoff_plot.py` only
draws them. Points left out of a panel are counted in it.
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
    """One setting epoch by epoch, averaged over its seeds."""

    method: str
    family: str
    learning_rate: float | None
    points: tuple[Setting, ...]
    """Epochs with both metrics."""


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
        lines = [tuple(points) for _, points in groupby(self.drawn, key=attrgetter("trajectory"))]
        return tuple(
            Trajectory(first.method, first.family, first.learning_rate, points)
            for points in lines
            for first in points[:1]
        )

    @property
    def significance(self) -> float | None:
        """Level of the headline's test, on the axis; None without a test."""
        test = self.headline.forgotten.test
        return None if test is None else math.log10(test.level)

    @property
    def floor(self) -> float | None:
        """log10 of the smallest p that n questions on either side can give."""
        return None if self.questions is None else lowest_log10_p(self.questions)

    @property
    def origin(self) -> tuple[float, float] | None:
        """Position of the fine-tuned model, where trajectories begin."""
        return None if self.fine_tuned is None else position(self.fine_tuned)

    @cached_property
    def low(self) -> float | None:
        """Lower end of the first view, so that collapsed models do not squeeze the others.

        Start, retain and working models are inside; collapsed ones down to 1.5 times their range.
        None without a test, whose logarithm has no end.
        """
        if self.significance is None:
            return None
        shown: list[TableRow | Setting] = [s for s in self.drawn if not self.has_collapsed(s)]
        shown += [item for item in (self.fine_tuned, self.retain) if item is not None]
        inside = min([xy[1] for item in shown if (xy := position(item))], default=None)
        lowest = min([xy[1] for s in self.drawn if (xy := position(s))], default=None)
        if inside is None or lowest is None:
            return inside if lowest is None else lowest
        return max(min(inside, lowest), 1.5 * min(inside, 2 * self.significance))


def position(point: TableRow | Setting) -> tuple[float, float] | None:
    """Look up (kept, forgotten) by the headline; None unless both are numbers."""
    kept, forgotten = point.kept, point.forgotten
    return None if kept is None or forgotten is None else (kept, forgotten)


def panels(
    rows: Iterable[TableRow], choices: Iterable[Choice] = (), ends: Iterable[EarlyEnd] = ()
) -> tuple[TradeOffPanel, ...]:
    """Make one panel per model and forget fraction, in the table's order.

    Args:
        rows: Of plain evaluations.
        choices: What `select` or `tune` has chosen.
        ends: Runs that ended early.
    """
    return drawn_panels(analysis.panels(rows, choices, ends))


def drawn_panels(panels: Iterable[Panel]) -> tuple[TradeOffPanel, ...]:
    """Make the panels to draw from panels, with their choices."""
    return tuple(
        TradeOffPanel(panel.model, panel.forget_fraction, panel.rows, panel.choices, panel.ends)
        for panel in panels
    )
