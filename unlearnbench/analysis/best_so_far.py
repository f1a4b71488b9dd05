"""The records of a sweep while it runs, from which its tables are made now and then."""

from collections.abc import Collection

from unlearnbench.analysis.best_settings import Panel, panels
from unlearnbench.base.errors import RecordError
from unlearnbench.results.records import Record
from unlearnbench.results.table import table


class LiveBest:
    """The records so far, and the panels that they make."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._left_out: set[str] = set()
        """Ids of runs that are not in the plan, or not yet: seeds on which a choice is reported."""

    def add(self, record: Record) -> None:
        """Add a record, or replace the one of the same id."""
        self._records[record.id] = record

    def retain_only(self, ids: Collection[str]) -> None:
        """Leave out all other runs added so far, until they are among the `ids` of a later call."""
        self._left_out = self._records.keys() - set(ids)

    def panels(self) -> tuple[Panel, ...]:
        """The panels of the records so far; none where they do not compare, which ends no run."""
        shown = (
            record
            for record in self._records.values()
            if record.kind != "run" or record.id not in self._left_out
        )
        try:
            return panels(table(shown))
        except RecordError:
            return ()
