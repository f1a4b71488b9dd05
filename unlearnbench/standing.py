"""Which settings lead while a sweep runs, by the rule that its page will judge them by.

A record that comes in changes one setting, and only that one is averaged again: the work for a
thousand runs is a thousand times that for one.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.console import aligned
from unlearnbench.ranking import (
    UTILITY_SHARE,
    Merit,
    average_seeds,
    best_of,
    merit_of,
    start_utility,
)
from unlearnbench.records import Record
from unlearnbench.starts import Leading, Start, conclusion, p_value, start_of
from unlearnbench.table import Labels, Row, table

Panel = tuple[str, float]
"""A model, and a forget fraction."""
HEADINGS = ("method", "rate", "epoch", "utility", "log10 FQ", "p")
RIGHT = (False, True, True, True, True, True)
"""Which columns are set to the right."""


@dataclass(frozen=True)
class Leader:
    """A method's best setting on a panel, so far."""

    method: str
    learning_rate: float | None
    epoch: int
    seeds: int
    model_utility: float
    log10_forget_quality: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As a line of a table with `HEADINGS`."""
        rate = "-" if self.learning_rate is None else f"{self.learning_rate:g}"
        return (
            *(self.method, rate, str(self.epoch), f"{self.model_utility:.3f}"),
            *(f"{self.log10_forget_quality:.2f}", p_value(self.log10_forget_quality)),
        )


@dataclass
class _Setting:
    family: str
    learning_rate: float | None
    hyperparameters: Mapping[str, Any]
    rows: dict[str, tuple[Row, ...]]
    """By record."""
    best: Merit | None = None


class Standing:
    """The best settings of a sweep's records so far; safe to call from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._labels = Labels()
        self._of: dict[str, tuple[Panel, str]] = {}
        """Panel and setting, by record of a run."""
        self._panels: dict[Panel, dict[str, _Setting]] = {}
        self._starts: dict[Panel, dict[str, tuple[Row, ...]]] = defaultdict(dict)
        """What says where runs start, by record."""
        self._told: dict[int, dict[Panel, tuple[Leader, ...]]] = {}
        """What was asked for since the last change."""

    def add(self, record: Record) -> None:
        """A record is there, or there is another one of the same id."""
        with self._lock:
            self._told = {}
            self._add(record)

    def _add(self, record: Record) -> None:
        panel = (record.model, record.forget_fraction)
        rows = table([record])
        if record.kind != "run" or any(row.epoch == 0 for row in rows):
            before = self._start(panel)
            self._starts[panel][record.id] = rows
            if self._start(panel) != before:
                for setting in self._panels.get(panel, {}).values():
                    self._judge(panel, setting)
        if record.kind != "run" or not rows:
            return
        self._labels.add(record)
        first = rows[0]
        told = json.dumps(first.hyperparameters, sort_keys=True)
        key = f"{first.family} {first.learning_rate} {told}"
        blank = _Setting(first.family, first.learning_rate, first.hyperparameters, {})
        setting = self._panels.setdefault(panel, {}).setdefault(key, blank)
        setting.rows[record.id] = rows
        self._of[record.id] = (panel, key)
        self._judge(panel, setting)

    def keep(self, ids: Collection[str]) -> None:
        """Leave out the runs that are none of these: a grid that has changed names them no more."""
        with self._lock:
            self._told = {}
            self._keep(ids)

    def _keep(self, ids: Collection[str]) -> None:
        for record in [one for one in self._of if one not in ids]:
            panel, key = self._of.pop(record)
            setting = self._panels[panel][key]
            del setting.rows[record]
            if setting.rows:
                self._judge(panel, setting)
            else:
                del self._panels[panel][key]

    def _start(self, panel: Panel) -> float | None:
        rows = [row for rows in self._starts[panel].values() for row in rows]
        return start_utility(rows, *panel)

    def _judge(self, panel: Panel, setting: _Setting) -> None:
        start = self._start(panel)
        if start is None:
            return
        averaged = average_seeds(row for rows in setting.rows.values() for row in rows)
        best = best_of(averaged, UTILITY_SHARE * start)
        setting.best = None if best is None else merit_of(best)

    def starts(self) -> dict[Panel, Start]:
        """By panel, where its runs begin; those that nobody has evaluated are left out."""
        with self._lock:
            return {
                panel: start_of([row for rows in found.values() for row in rows], *panel)
                for panel, found in sorted(self._starts.items())
                if found
            }

    def leaders(self, most: int) -> dict[Panel, tuple[Leader, ...]]:
        """By panel, the best setting of each of the `most` best methods, best first."""
        with self._lock:
            if most not in self._told:
                self._told[most] = {
                    panel: tuple(_leaders(settings.values(), most, self._labels))
                    for panel, settings in sorted(self._panels.items())
                }
            return self._told[most]


def _leaders(settings: Iterable[_Setting], most: int, labels: Labels) -> list[Leader]:
    best: dict[str, tuple[Merit, _Setting]] = {}
    for setting in settings:
        merit = setting.best
        if merit and (setting.family not in best or merit > best[setting.family][0]):
            best[setting.family] = (merit, setting)
    ordered = sorted(best.values(), key=lambda pair: pair[0], reverse=True)[:most]
    return [
        Leader(
            method=labels.label(setting.family, setting.hyperparameters),
            learning_rate=setting.learning_rate,
            epoch=-minus_epoch,
            seeds=len(setting.rows),
            model_utility=utility,
            log10_forget_quality=quality,
        )
        for (quality, utility, minus_epoch), setting in ordered
    ]


def best_lines(start: Start, leaders: Sequence[Leader], *, last: bool) -> list[str]:
    """The leading settings of a panel as a table, with the start for comparison.

    last  all runs have ended: a sentence on what came of them follows
    """
    share = f"{100 * UTILITY_SHARE:g} % of the start's utility"
    heading = f"best {'' if last else 'so far '}of {start.place}: the highest Forget Quality (FQ) "
    lines = [f"{heading}that keeps {share}"] if leaders else []
    if leaders:
        rows = [HEADINGS, *(one.cells for one in leaders), _start_cells(start)]
        right = list(RIGHT)
        if any(one.seeds > 1 for one in leaders):
            seeds = ["seeds", *(str(one.seeds) for one in leaders), "-"]
            rows = [(*row, more) for row, more in zip(rows, seeds, strict=True)]
            right.append(True)
        lines += [f"  {line}" for line in aligned(rows, right)]
    if last:
        top = _leading(leaders[0]) if leaders else None
        lines.append(f"{start.place}: {conclusion(start, top).text}")
    return lines


def _start_cells(start: Start) -> tuple[str, ...]:
    utility = "-" if start.utility is None else f"{start.utility:.3f}"
    quality = ("-", "-")
    if start.quality is not None:
        quality = (f"{start.quality:.2f}", p_value(start.quality))
    return ("start", "-", "0", utility, *quality)


def _leading(one: Leader) -> Leading:
    rate = "" if one.learning_rate is None else f" at {one.learning_rate:g}"
    name = f"{one.method}{rate}, epoch {one.epoch}"
    return Leading(name, one.model_utility, one.log10_forget_quality)
