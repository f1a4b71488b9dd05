"""Data of the trade-off panels: what is kept against what is forgotten, by the headline.

`panels` computes everything that is shown, as values that a test can read; `tradeoff_plot.py` only
draws them. Points left out of a panel are counted in it.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
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
class PublishedSeries:
    """Points of a paper's figure, drawn apart from measured ones."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(kept, forgotten) in the figure's order."""


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
    floor: float | None
    """log10 of the smallest p that n questions on either side can give."""
    collapse_below: float | None
    """What is kept below which a model counts as collapsed."""
    undrawn: int
    """Number of settings without both metrics."""
    low: float | None
    """Lower end of the panel, until the reader chooses to see all of it; None: all of it."""
    below: tuple[Setting, ...]
    """Collapsed settings below that."""
    references: frozenset[Reference]
    """Models that the benchmark has besides those of the runs."""
    published: tuple[PublishedSeries, ...] = ()

    @property
    def headline(self) -> Headline:
        """The two numbers of the axes."""
        return self.begins.headline

    @property
    def significance(self) -> float | None:
        """Level of the headline's test, on the axis; None without a test."""
        test = self.headline.forgotten.test
        return None if test is None else math.log10(test.level)

    @property
    def start(self) -> tuple[float, float] | None:
        """Position of the fine-tuned model, where trajectories begin."""
        return None if self.fine_tuned is None else position(self.fine_tuned)

    def has_collapsed(self, setting: Setting) -> bool:
        """True if a setting keeps too little for its other number to mean anything."""
        kept = setting.kept
        return self.collapse_below is not None and kept is not None and kept < self.collapse_below


def position(point: TableRow | Setting) -> tuple[float, float] | None:
    """Look up (kept, forgotten) by the headline; None unless both are numbers."""
    kept, forgotten = point.kept, point.forgotten
    return None if kept is None or forgotten is None else (kept, forgotten)


def panels(rows: Sequence[TableRow], *, published: bool = False) -> tuple[Panel, ...]:
    """Compute one panel per model and forget fraction, in the table's order."""
    by_panel: dict[tuple[str, SplitKey], list[TableRow]] = defaultdict(list)
    for row in rows:
        by_panel[row.model, row.forget_fraction].append(row)
    return tuple(
        _panel(model, fraction, tuple(here), published)
        for (model, fraction), here in by_panel.items()
    )


def _panel(model: str, fraction: SplitKey, rows: tuple[TableRow, ...], published: bool) -> Panel:
    found = Rows(model, fraction, rows)
    settings, start = found.settings, found.start
    placed = [(s, xy) for s in settings if (xy := position(s)) is not None]
    moved = [(s, xy) for s, xy in placed if s.epoch > 0]
    forgotten = start.headline.forgotten
    better = [(kept, forgotten.oriented(left)) for _, (kept, left) in moved]
    front = tuple(moved[i][0] for i in pareto_front(better))
    # A share of a faulty start model's utility would be meaningless.
    utility = None if start.fault else start.utility
    collapse = None if utility is None else COLLAPSE_SHARE * utility
    best = sorted(found.best, key=lambda one: one.family)  # as the legend has them
    fine_tuned = next((r for r in rows if r.kind == "fine-tuned"), None)
    retain = next((r for r in rows if r.kind == "retain"), None)
    references = [xy for r in (fine_tuned, retain) if r and (xy := position(r)) is not None]
    low, questions = None, None
    if (test := forgotten.test) is not None:
        level = math.log10(test.level)
        low = _low(references, [xy for _, xy in placed], collapse, level)
        runs = (r for r in rows if r.kind == "run")
        counts = {int(n) for r in runs if (n := r.metrics.get(test.questions)) is not None}
        questions = counts.pop() if len(counts) == 1 else None
    return Panel(
        model=model,
        forget_fraction=fraction,
        trajectories=_trajectories([s for s, _ in placed]),
        front=front,
        best=tuple(replace(one, setting=None) if start.fault else one for one in best),
        begins=start,
        fine_tuned=fine_tuned,
        retain=retain,
        questions=questions,
        floor=None if questions is None else ks_floor(questions),
        collapse_below=collapse,
        undrawn=len(settings) - len(placed),
        low=low,
        below=tuple(s for s, (_, quality) in placed if low is not None and quality < low),
        references=rows[0].schema.references,
        published=published_series(model, fraction) if published else (),
    )


def _trajectories(settings: Sequence[Setting]) -> tuple[Trajectory, ...]:
    return tuple(
        Trajectory(method, family, rate, tuple(points))
        for (family, method, rate), points in groupby(
            settings, key=lambda s: (s.family, s.method, s.learning_rate)
        )
    )


def _low(
    references: Sequence[tuple[float, float]],
    points: Sequence[tuple[float, float]],
    collapse: float | None,
    level: float,
) -> float:
    """Compute the lower end of a panel, so that collapsed models do not squeeze the others.

    Start, retain and working models are inside; collapsed ones down to 1.5 times their range.
    """
    working = [q for u, q in points if collapse is None or u >= collapse]
    inside = min([q for _, q in references] + working, default=None)
    lowest = min((q for _, q in points), default=level)
    if inside is None:
        return lowest
    return max(min(inside, lowest), 1.5 * min(inside, level * 2))


def ks_floor(n: int) -> float:
    """Compute log10 p of the exact two-sample KS test, n against n, at complete separation.

    2 of the C(2n, n) orderings are as extreme: n = 40 gives 1.9e-23.
    """
    log_orderings = math.lgamma(2 * n + 1) - 2 * math.lgamma(n + 1)
    return (math.log(2) - log_orderings) / math.log(10)


def published_series(model: str, split: SplitKey) -> tuple[PublishedSeries, ...]:
    """Read the CE-U paper's points of a model and split, if it has any.

    The paper's `phi` matches any model whose name begins so, because names differ in suffixes.
    """
    if isinstance(split, str):
        return ()
    name = _plain(model)
    series: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for line in paper_points():
        same = name.startswith(_plain(line["model"]))
        if same and math.isclose(float(line["forget_fraction"]), split):
            point = float(line["model_utility"]), float(line["log10_forget_quality"])
            series[line["series"]].append((int(line["point"]), *point))
    return tuple(
        PublishedSeries(label, tuple((x, y) for _, x, y in sorted(points)))
        for label, points in series.items()
    )


def paper_points() -> list[dict[str, str]]:
    """Read every point of the CE-U paper's figure."""
    source = files(__package__ or "dashboards") / "published" / "ceu_figure_points.csv"
    return [*csv.DictReader(source.read_text(encoding="utf-8").splitlines())]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
