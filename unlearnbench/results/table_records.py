"""Records with the numbers of the table, for readers of records that need today's numbers.

A record keeps the numbers that its run saw when it was made, because the run took decisions by
them. Settings or code of a metric may have changed since.
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

    def of_table(record: Record, results: Iterable[EpochResult]) -> tuple[EpochResult, ...]:
        return tuple(
            replace(result, metrics=metrics[record.id, result.epoch, result.variant])
            for result in results
        )

    for record in records:
        epochs = of_table(record, record.epochs)
        attacked = of_table(record, record.attacked)
        yield replace(record, epochs=epochs, attacked=attacked)
