"""The evaluations that a page embeds, most useful first.

All evaluations of a large sweep would neither fit on a page nor be read in reasonable time. The
order is: start and retain models; each method's best setting at its best epoch; the other epochs of
that setting's first seed; the last epochs of all other runs; their last but one; and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unlearnbench.analysis.best_settings import Setting, best_per_method, merit_of
from unlearnbench.api.observations import Evaluation
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow

MAX_EVALUATIONS = 600
"""Evaluations: a model at an epoch."""


@dataclass(frozen=True)
class EmbeddedEvaluations:
    """Evaluations that the page embeds, most useful first."""

    evaluations: Mapping[tuple[str, int | str], Evaluation]
    """By record id and epoch; under an attack, epoch and variant: `5 relearning@13`."""
    total: int
    """Number of evaluations in all records."""


def embedded_evaluations(
    records: Sequence[Record], rows: Iterable[TableRow], limit: int | None = None
) -> EmbeddedEvaluations:
    """Read the evaluations of `records` that a page embeds, each once."""
    pairs = by_usefulness(records, best_settings(rows))[
        : MAX_EVALUATIONS if limit is None else limit
    ]
    return EmbeddedEvaluations(
        {(record.id, epoch): record.evaluations[epoch] for record, epoch in pairs},
        sum(len(record.evaluations) for record in records),
    )


def initial_selection(rows: Iterable[TableRow]) -> tuple[str, int] | None:
    """Choose the run and epoch that are shown first: the best setting that forgets most."""
    best = max(best_settings(rows), key=lambda s: merit_of(s) or (), default=None)
    return None if best is None else (best.rows[0].run_id, best.epoch)


def best_settings(rows: Iterable[TableRow]) -> list[Setting]:
    """Find each method's best setting on each model and forget fraction."""
    return [b.setting for b in best_per_method(tuple(rows)) if b.setting is not None]


def by_usefulness(records: Sequence[Record], best: Iterable[Setting]) -> list[tuple[Record, int]]:
    """Sort every evaluation, most useful first; see the module for the order."""
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
