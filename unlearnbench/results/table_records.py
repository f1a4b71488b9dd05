"""Replace the numbers of records by those of the table.

A record keeps the numbers that its run saw when it was made, because the run decided by them when
to stop. The settings or the code of a metric may have changed since, and the table has the numbers
of today.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import Table


def with_numbers(records: Iterable[Record], table: Table) -> Iterator[Record]:
    """Yield the records with the numbers that a table has for them.

    Args:
        records: Records of the table.
        table: All numbers of a sweep.
    """
    metrics = {
        (row.run_id, row.epoch, row.variant): row.metrics for row in (*table.rows, *table.attacked)
    }

    def updated(record: Record, results: Iterable[EpochResult]) -> tuple[EpochResult, ...]:
        return tuple(
            replace(result, metrics=metrics[record.id, result.epoch, result.variant])
            for result in results
        )

    for record in records:
        epochs = updated(record, record.epochs)
        attacked = updated(record, record.attacked)
        yield replace(record, epochs=epochs, attacked=attacked)
