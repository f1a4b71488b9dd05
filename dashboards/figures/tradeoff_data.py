"""Data of the trade-off panels: what is kept against what is forgotten, by the headline.

`panels` computes everything that is shown, as values that a test can read; `tradeoff_plot.py` only
draws them. Points left out of a panel are counted in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from unlearnbench.analysis.best_settings import (
    COLLAPSE_SHARE,
    Best,
    Setting,
    Start,
)
from unlearnbench.analysis.best_settings import Panel as Rows
from unlearnbench.api.benchmark import Headline, Reference, SplitKey
from unlearnbench.results.table import TableRow
from unlearnbench.stats.pareto_front import pareto_front


@dataclass(frozen=True)
class Trajectory:
    """One setting epoch by epoch, averaged over its seeds."""

    method: str
    family: str
    learning_rate: float | None
    points: tuple[Setting, ...]
    """Epochs with both metrics."""


@dataclass(frozen=True)
class Panel:
    """Everything that one panel shows."""

    model: str
    forget_fraction: SplitKey
    trajectories: tuple[Trajectory, ...]
    front: tuple[Setting, ...]
    """Settings that no other setting of the panel beats, by utility."""
    best: tuple[Best, ...]
    """Best settings; without a setting if the start model is faulty."""
    begins: Start
    """The start model, and its fault, if any."""
    fine_tuned: TableRow | None
    retain: TableRow | None
    questions: int | None
    """Forget questions behind the headline's test; None without one, and where they differ."""
    undrawn: int
    """Number of settings without both metrics."""
    references: frozenset[Reference]
    """Models that the benchmark has besides those of the runs."""

    @property
    def headline(self) -> Headline:
        """The two numbers of the axes."""
        return self.begins.headline

    @property
    def settings(self) -> list[Setting]:
        """All settings that are drawn."""
        return [one for trajectory in self.trajectories for one in trajectory.points]

    @property
    def significance(self) -> float | None:
        """Level of the headline's test, on the axis; None without a test."""
        test = self.headline.forgotten.test
        return None if test is None else math.log10(test.level)

    @property
    def floor(self) -> float | None:
        """log10 of the smallest p that n questions on either side can give."""
        return None if self.questions is None else ks_floor(self.questions)

    @property
    def start(self) -> tuple[float, float] | None:
        """Position of the fine-tuned model, where trajectories begin."""
        return None if self.fine_tuned is None else position(self.fine_tuned)

    @property
    def collapse_below(self) -> float | None:
        """What is kept below which a model counts as collapsed; None of a faulty start model."""
        utility = None if self.begins.fault else self.begins.utility
        return None if utility is None else COLLAPSE_SHARE * utility

    def has_collapsed(self, setting: Setting) -> bool:
        """True if a setting keeps too little for its other number to mean anything."""
        kept = setting.kept
        return self.collapse_below is not None and kept is not None and kept < self.collapse_below

    @property
    def low(self) -> float | None:
        """Lower end of the first view, so that collapsed models do not squeeze the others.

        Start, retain and working models are inside; collapsed ones down to 1.5 times their range.
        None without a test, whose logarithm has no end.
        """
        if self.significance is None:
            return None
        shown: list[TableRow | Setting] = [s for s in self.settings if not self.has_collapsed(s)]
        shown += [one for one in (self.fine_tuned, self.retain) if one is not None]
        inside = min([xy[1] for one in shown if (xy := position(one))], default=None)
        lowest = min([xy[1] for s in self.settings if (xy := position(s))], default=None)
        if inside is None or lowest is None:
            return inside if lowest is None else lowest
        return max(min(inside, lowest), 1.5 * min(inside, 2 * self.significance))

    @property
    def below(self) -> tuple[Setting, ...]:
        """Collapsed settings below that."""
        low = self.low
        return tuple(s for s in self.settings if low is not None and (s.forgotten or 0.0) < low)


def position(point: TableRow | Setting) -> tuple[float, float] | None:
    """Look up (kept, forgotten) by the headline; None unless both are numbers."""
    kept, forgotten = point.kept, point.forgotten
    return None if kept is None or forgotten is None else (kept, forgotten)


def panels(rows: Sequence[TableRow]) -> tuple[Panel, ...]:
    """Compute one panel per model and forget fraction, in the table's order."""
    by_panel: dict[tuple[str, SplitKey], list[TableRow]] = defaultdict(list)
    for row in rows:
        by_panel[row.model, row.forget_fraction].append(row)
    return tuple(
        _panel(model, fraction, tuple(here)) for (model, fraction), here in by_panel.items()
    )


def _panel(model: str, fraction: SplitKey, rows: tuple[TableRow, ...]) -> Panel:
    found = Rows(model, fraction, rows)
    settings, start = found.settings, found.start
    placed = [(s, xy) for s in settings if (xy := position(s)) is not None]
    moved = [(s, xy) for s, xy in placed if s.epoch > 0]
    forgotten = start.headline.forgotten
    better = [(kept, forgotten.oriented(left)) for _, (kept, left) in moved]
    best = sorted(found.best, key=lambda one: one.family)  # as the legend has them
    counts: set[int] = set()
    if (test := forgotten.test) is not None:
        runs = (r for r in rows if r.kind == "run")
        counts = {int(n) for r in runs if (n := r.metrics.get(test.questions)) is not None}
    return Panel(
        model=model,
        forget_fraction=fraction,
        trajectories=tuple(
            Trajectory(method, family, rate, tuple(points))
            for (family, method, rate), points in groupby(
                [s for s, _ in placed], key=lambda s: (s.family, s.method, s.learning_rate)
            )
        ),
        front=tuple(moved[i][0] for i in pareto_front(better)),
        best=tuple(replace(one, setting=None) if start.fault else one for one in best),
        begins=start,
        fine_tuned=next((r for r in rows if r.kind == "fine-tuned"), None),
        retain=next((r for r in rows if r.kind == "retain"), None),
        questions=counts.pop() if len(counts) == 1 else None,
        undrawn=len(settings) - len(placed),
        references=rows[0].schema.references,
    )


def ks_floor(n: int) -> float:
    """Compute log10 p of the exact two-sample KS test, n against n, at complete separation.

    2 of the C(2n, n) orderings are as extreme: n = 40 gives 1.9e-23.
    """
    log_orderings = math.lgamma(2 * n + 1) - 2 * math.lgamma(n + 1)
    return (math.log(2) - log_orderings) / math.log(10)
