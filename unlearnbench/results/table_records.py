"""Replace the numbers of records by those of the table.

A record keeps the numbers that its run saw when it was made, because the run decided by them when
to stop. The settings or the code of a metric may have changed since, and the table has the numbers
of today.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import Table

_NumbersOfTable = dict[tuple[str, int, str], Mapping[str, float | None]]
"""Numbers by column, of each record id, epoch and variant."""


def with_numbers(records: Iterable[Record], table: Table) -> Iterator[Record]:
    """Yield the records with the numbers that a table has for them.

    Args:
        records: Records of the table.
        table: All numbers of a sweep.
    """
    numbers: _NumbersOfTable = {}
    for row in (*table.rows, *table.attacked):
        numbers[row.run_id, row.epoch, row.variant] = row.metrics
    for record in records:
        epochs = _updated(record.id, record.epochs, numbers)
        attacked = _updated(record.id, record.attacked, numbers)
        yield replace(record, epochs=epochs, attacked=attacked)


def _updated(
    record_id: str, results: Iterable[EpochResult], numbers: _NumbersOfTable
) -> tuple[EpochResult, ...]:
    """Return the results of a record with the numbers of the table."""
    return tuple(
        replace(result, metrics=numbers[record_id, result.epoch, result.variant])
        for result in results
    )
