"""Best settings while a sweep runs, by the same rule as on its page.

A new record changes one setting, and only that one is averaged again, so that the work grows
linearly with the number of runs.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Merit,
    Panel,
    average_seeds,
    best_of,
    merit_of,
    panel_order,
    start_utility,
)
from unlearnbench.analysis.start_models import Start, p_value, start_of
from unlearnbench.api.benchmark import Headline
from unlearnbench.console import aligned
from unlearnbench.results.records import Record
from unlearnbench.results.table import Labels, TableRow, table


def headings(headline: Headline) -> tuple[str, ...]:
    """Headings above the cells of leaders; all but the first are aligned to the right."""
    numbers = (headline.kept.plain_short, headline.forgotten.plain_short)
    return ("method", "rate", "epoch", *numbers, *(("p",) if headline.forgotten.test else ()))


@dataclass(frozen=True)
class Leader:
    """A method's best setting on a panel, so far."""

    method: str
    learning_rate: float | None
    epoch: int
    seeds: int
    kept: float
    """The headline's numbers, as `forgotten`."""
    forgotten: float
    headline: Headline

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table row below `headings`."""
        rate = "-" if self.learning_rate is None else f"{self.learning_rate:g}"
        own = (self.method, rate, str(self.epoch))
        return (*own, *_cells(self.headline, self.kept, self.forgotten))


@dataclass
class _Setting:
    first: TableRow
    rows: dict[str, tuple[TableRow, ...]] = field(default_factory=dict[str, tuple[TableRow, ...]])
    """By record id."""
    best: Merit | None = None
    seeds: int = 0
    """Number of records behind `best`."""


class LiveBest:
    """The best settings of a sweep's records so far; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels = Labels()
        self._of: dict[str, tuple[Panel, str]] = {}
        """Panel and key of the setting, by id of a run's record."""
        self._left_out: set[str] = set()
        """Ids of runs that are not in the plan, or not yet: seeds on which a choice is reported."""
        self._panels: dict[Panel, dict[str, _Setting]] = {}
        self._starts: dict[Panel, dict[str, tuple[TableRow, ...]]] = defaultdict(dict)
        """Rows of start models and of runs' epoch 0, by record id."""
        self._cache: dict[int, dict[Panel, tuple[Leader, ...]]] = {}
        """Results of `leaders` since the last change."""

    def add(self, record: Record) -> None:
        """Add a record, or replace the one of the same id."""
        panel = (record.model, record.forget_fraction)
        rows = table([record])
        with self._lock:
            self._cache = {}
            if record.kind != "run" or any(row.epoch == 0 for row in rows):
                before = self._start(panel)
                self._starts[panel][record.id] = rows
                if self._start(panel) != before:
                    for setting in self._panels.get(panel, {}).values():
                        self._update_best(panel, setting)
            if record.kind != "run" or not rows:
                return
            self._labels.add(record)
            first = rows[0]
            hyperparameters = json.dumps(first.hyperparameters, sort_keys=True)
            key = f"{first.family} {first.learning_rate} {hyperparameters}"
            setting = self._panels.setdefault(panel, {}).setdefault(key, _Setting(first))
            setting.rows[record.id] = rows
            self._of[record.id] = (panel, key)
            self._update_best(panel, setting)

    def retain_only(self, ids: Collection[str]) -> None:
        """Leave out all other runs added so far, until they are among the `ids` of a later call."""
        with self._lock:
            self._cache = {}
            left_out = {one for one in self._of if one not in ids}
            changed = {self._of[one] for one in left_out ^ self._left_out}
            self._left_out = left_out
            for panel, key in changed:
                self._update_best(panel, self._panels[panel][key])

    def _start(self, panel: Panel) -> float | None:
        rows = [row for rows in self._starts[panel].values() for row in rows]
        return start_utility(rows, *panel)

    def _update_best(self, panel: Panel, setting: _Setting) -> None:
        start = self._start(panel)
        if start is None:
            return
        shown = [rows for one, rows in setting.rows.items() if one not in self._left_out]
        averaged = average_seeds(row for rows in shown for row in rows)
        setting.seeds = len(shown)
        best = best_of(averaged, UTILITY_SHARE * start)
        setting.best = None if best is None else merit_of(best)

    def starts(self) -> dict[Panel, Start]:
        """The evaluated start models by panel."""
        with self._lock:
            return {
                panel: start_of([row for rows in found.values() for row in rows], *panel)
                for panel in sorted(self._starts, key=panel_order)
                if (found := self._starts[panel])
            }

    def leaders(self, most: int) -> dict[Panel, tuple[Leader, ...]]:
        """The best settings of the `most` best methods, best first, by panel."""
        with self._lock:
            if most not in self._cache:
                self._cache[most] = {
                    panel: tuple(_leaders(self._panels[panel].values(), most, self._labels))
                    for panel in sorted(self._panels, key=panel_order)
                }
            return self._cache[most]


def _leaders(settings: Iterable[_Setting], most: int, labels: Labels) -> list[Leader]:
    best: dict[str, tuple[Merit, _Setting]] = {}
    for setting in settings:
        merit, family = setting.best, setting.first.family
        if merit and (family not in best or merit > best[family][0]):
            best[family] = (merit, setting)
    ordered = sorted(best.values(), key=lambda pair: pair[0], reverse=True)[:most]
    return [
        Leader(
            method=labels.label(setting.first.family, setting.first.hyperparameters),
            learning_rate=setting.first.learning_rate,
            epoch=-minus_epoch,
            seeds=setting.seeds,
            kept=kept,
            forgotten=setting.first.headline.forgotten.oriented(oriented),
            headline=setting.first.headline,
        )
        for (oriented, kept, minus_epoch), setting in ordered
    ]


def best_lines(start: Start, leaders: Sequence[Leader], *, last: bool) -> list[str]:
    """The leading settings of a panel as a table, with the start for comparison.

    last  True once all runs have ended
    """
    headline, forgotten = start.headline, start.headline.forgotten
    share = f"{100 * UTILITY_SHARE:g} % of the start's {headline.kept.plain_short}"
    short = f" ({forgotten.test.short})" if forgotten.test else ""
    heading = (
        f"best {'' if last else 'so far '}of {start.place}: the {forgotten.best_word} "
        f"{forgotten.name}{short} "
    )
    lines: list[str] = []
    if leaders:
        rows = [headings(headline), *(one.cells for one in leaders), _start_cells(start)]
        if any(one.seeds > 1 for one in leaders):
            seeds = ["seeds", *(str(one.seeds) for one in leaders), "-"]
            rows = [(*row, more) for row, more in zip(rows, seeds, strict=True)]
        right = [False, *[True] * (len(rows[0]) - 1)]
        lines = [f"{heading}that keeps {share}"]
        lines += [f"  {line}" for line in aligned(rows, right)]
    return lines


def _start_cells(start: Start) -> tuple[str, ...]:
    return ("start", "-", "0", *_cells(start.headline, start.utility, start.quality))


def _cells(headline: Headline, kept: float | None, forgotten: float | None) -> tuple[str, ...]:
    """The headline's numbers, and p where a test is behind them."""
    cells = [headline.kept.text(kept), headline.forgotten.text(forgotten)]
    if headline.forgotten.test:
        cells.append("-" if forgotten is None else p_value(forgotten))
    return tuple(cells)
