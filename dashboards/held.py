"""Which evaluations a page looks into: more than a large sweep's would fit no page, nor be read in
reasonable time.

Anchors come first, then every epoch of each method's best setting, then the last epochs of all
other runs, then the last but one, and so on.
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
    best = {row.run_id for found in _best(rows) for row in found.rows}
    wanted = wanted_first(records, best)[: MAX_EVALUATIONS if limit is None else limit]
    return Held(
        {(record.id, epoch): record.evaluations[epoch] for record, epoch in wanted},
        sum(len(record.evaluations) for record in records),
    )


def first_look(rows: Iterable[Row]) -> tuple[str, int] | None:
    """Run and epoch that a reader is shown first: of the method that forgets most, and works."""
    best = max(_best(rows), key=lambda s: s.metrics["log10_forget_quality"] or 0.0, default=None)
    return None if best is None else (best.rows[0].run_id, best.epoch)


def _best(rows: Iterable[Row]) -> list[Setting]:
    """Each method's best setting on each model and fraction."""
    return [b.setting for b in best_per_method(tuple(rows)) if b.setting is not None]


def wanted_first(records: Sequence[Record], best: Iterable[str]) -> list[tuple[Record, int]]:
    """Every evaluation, in the order in which a reader would miss them; see the module."""
    best = frozenset(best)
    pairs = [
        ((record.kind == "run", 0 if record.id in best else 1 + place, index), record, epoch)
        for index, record in enumerate(records)
        for place, epoch in enumerate(sorted(record.evaluations, reverse=True))
    ]
    return [(record, epoch) for _, record, epoch in sorted(pairs, key=lambda pair: pair[0])]
