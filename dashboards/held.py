"""Which evaluations a page looks into: more than a large sweep's would fit no page, nor be read in
reasonable time.

Anchors come first, then each method's best setting at its best epoch, then the other epochs of that
setting's first seed, then the last epochs of all other runs, then the last but one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unlearnbench.evaluation.result import Evaluation
from unlearnbench.ranking import Setting, best_per_method
from unlearnbench.records import Record
from unlearnbench.table import Row

MAX_EVALUATIONS = 600
"""Models, each at one epoch."""


@dataclass(frozen=True)
class Held:
    """Evaluations that were read, most wanted first."""

    evaluations: Mapping[tuple[str, int], Evaluation]
    """By record and epoch."""
    there: int
    """How many there are."""


def read(records: Sequence[Record], rows: Iterable[Row], limit: int | None = None) -> Held:
    """The evaluations of `records` that a page looks into, each read once."""
    wanted = wanted_first(records, best_settings(rows))[
        : MAX_EVALUATIONS if limit is None else limit
    ]
    return Held(
        {(record.id, epoch): record.evaluations[epoch] for record, epoch in wanted},
        sum(len(record.evaluations) for record in records),
    )


def first_look(rows: Iterable[Row]) -> tuple[str, int] | None:
    """Run and epoch that a reader is shown first: of the method that forgets most, and works."""
    best = max(
        best_settings(rows), key=lambda s: s.metrics["log10_forget_quality"] or 0.0, default=None
    )
    return None if best is None else (best.rows[0].run_id, best.epoch)


def best_settings(rows: Iterable[Row]) -> list[Setting]:
    """Each method's best setting on each model and fraction."""
    return [b.setting for b in best_per_method(tuple(rows)) if b.setting is not None]


def wanted_first(records: Sequence[Record], best: Iterable[Setting]) -> list[tuple[Record, int]]:
    """Every evaluation, in the order in which a reader would miss them; see the module."""
    best = tuple(best)
    epochs = {row.run_id: setting.epoch for setting in best for row in setting.rows}
    leading = {setting.rows[0].run_id for setting in best}

    def tier(record: Record, epoch: int, back: int) -> int:
        if record.kind != "run":
            return 0
        if epochs.get(record.id) == epoch:
            return 1
        return 2 if record.id in leading else 3 + back

    pairs = [
        ((tier(record, epoch, back), index, back), record, epoch)
        for index, record in enumerate(records)
        for back, epoch in enumerate(sorted(record.evaluations, reverse=True))
    ]
    return [(record, epoch) for _, record, epoch in sorted(pairs, key=lambda pair: pair[0])]
