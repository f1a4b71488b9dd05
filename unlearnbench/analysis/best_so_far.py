"""Best settings while a sweep runs, by the same rule as on its page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Panel,
    Setting,
    Start,
    best_first,
    best_per_method,
    p_value,
    panel_order,
    shared_places,
    start_of,
)
from unlearnbench.api.benchmark import Headline
from unlearnbench.console import aligned
from unlearnbench.results.records import Record
from unlearnbench.results.table import Labels, TableRow, table


class LiveBest:
    """The rows of a sweep's records so far, and the best settings among them."""

    def __init__(self) -> None:
        self._labels = Labels()
        self._rows: dict[str, tuple[TableRow, ...]] = {}
        """By record id."""
        self._left_out: set[str] = set()
        """Ids of runs that are not in the plan, or not yet: seeds on which a choice is reported."""

    def add(self, record: Record) -> None:
        """Add a record, or replace the one of the same id."""
        self._labels.add(record)
        # One by one: of an earlier command there may be start models of another precision.
        self._rows[record.id] = table([record])

    def retain_only(self, ids: Collection[str]) -> None:
        """Leave out all other runs added so far, until they are among the `ids` of a later call."""
        self._left_out = self._rows.keys() - set(ids)

    def rows(self) -> tuple[TableRow, ...]:
        """The rows so far, with the labels that they have together."""
        return tuple(
            replace(row, method=self._labels.label(row.family, row.hyperparameters))
            for rows in self._rows.values()
            for row in rows
            if row.kind != "run" or row.run_id not in self._left_out
        )

    def starts(self) -> dict[Panel, Start]:
        """The start model of each panel."""
        return _starts(self.rows())

    def tables(self, most: int, *, last: bool = False) -> dict[Panel, list[str]]:
        """The lines of `best_lines` by panel, without panels that have no start or no best."""
        rows = self.rows()
        starts, settings = _starts(rows), dict[Panel, list[Setting]]()
        for best in best_per_method(rows):
            if best.setting is not None:
                settings.setdefault(best.panel, []).append(best.setting)
        return {
            panel: best_lines(start, settings[panel], most, last=last)
            for panel, start in starts.items()
            if panel in settings and not start.fault
        }


def _starts(rows: Sequence[TableRow]) -> dict[Panel, Start]:
    panels = {(row.model, row.forget_fraction) for row in rows}
    return {panel: start_of(rows, *panel) for panel in sorted(panels, key=panel_order)}


def best_lines(start: Start, settings: Sequence[Setting], most: int, *, last: bool) -> list[str]:
    """The `most` best of the methods' best settings as a table, with the start for comparison.

    last  True once all runs have ended
    """
    headline, forgotten = start.headline, start.headline.forgotten
    numbers = [headline.kept.plain_short, forgotten.plain_short, *(["p"] if forgotten.test else [])]
    ordered = sorted(settings, key=lambda setting: best_first(setting, setting.family))
    rows = [["method", "rate", "epoch", *numbers, "seeds", "place"]]
    for setting, place in zip(ordered[:most], shared_places(ordered), strict=False):
        rate = "-" if setting.learning_rate is None else f"{setting.learning_rate:g}"
        cells = _cells(headline, setting.kept, setting.forgotten)
        seeds = str(len(setting.rows))
        rows.append([setting.method, rate, str(setting.epoch), *cells, seeds, str(place)])
    cells = _cells(headline, start.utility, start.quality)
    rows.append(["start", "-", "0", *cells, "-", "-"])
    if all(row[-2] in ("1", "-") for row in rows[1:]):
        rows = [row[:-2] for row in rows]
    short = f" ({forgotten.test.short})" if forgotten.test else ""
    heading = (
        f"best {'' if last else 'so far '}of {start.place}: the {forgotten.best_word} "
        f"{forgotten.name}{short} that keeps {100 * UTILITY_SHARE:g} % of the start's "
        f"{headline.kept.plain_short}"
    )
    right = [False, *[True] * (len(rows[0]) - 1)]
    return [heading, *(f"  {line}" for line in aligned(rows, right))]


def _cells(headline: Headline, kept: float | None, forgotten: float | None) -> list[str]:
    """The headline's numbers, and p where a test is behind them."""
    cells = [headline.kept.text(kept), headline.forgotten.text(forgotten)]
    if headline.forgotten.test:
        cells.append("-" if forgotten is None else p_value(forgotten))
    return cells
