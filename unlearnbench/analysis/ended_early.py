"""Runs that ended before their last planned epoch, and the epochs at which they have no number."""

from collections.abc import Iterable
from dataclasses import dataclass

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.results.records import Record
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.table import TableRow


@dataclass(frozen=True)
class EarlyEnd:
    """A run that ended early, and has no number after some epoch."""

    run_id: str
    setting: tuple[str, SplitKey, str, float | None, str]
    """Model, split, method, learning rate and `TableRow.setting_id`."""
    seed: int
    due: frozenset[int]
    """Epochs after which the run would have been evaluated; empty if that is not known."""
    last: int
    """The last epoch at which the run has a number; 0 without one."""
    text: str
    """What happened, in a sentence: `seed 2 collapsed at epoch 3`."""

    def lacks(self, epoch: int) -> bool:
        """Whether the run has no number at an epoch because it ended early."""
        return epoch > self.last and (not self.due or epoch in self.due)


def early_ends(records: Iterable[Record], rows: Iterable[TableRow]) -> tuple[EarlyEnd, ...]:
    """List the runs that collapsed, were stopped by a search, or ran out of patience.

    A run that failed is not listed. It says nothing about its setting, and is tried again.

    Args:
        records: All records of a table.
        rows: The rows of the table.
    """
    records = list(records)
    ended = [record for record in records if record.kind == "run" and _how_ended(record)]
    if not ended:
        return ()
    setting_ids = {row.run_id: row.setting_id for row in rows if row.kind == "run"}
    if any(record.id not in setting_ids for record in ended):
        # A run that collapsed before its first evaluation has no row.
        setting_ids |= {id_: settings.id for id_, settings in run_settings(records).items()}
    ends: list[EarlyEnd] = []
    for record in ended:
        last = max((result.epoch for result in record.epochs), default=0)
        due = frozenset(record.spec.get("evaluate_at") or ())
        setting = (*record.panel, record.method, record.learning_rate, setting_ids[record.id])
        how = _how_ended(record)
        ends.append(EarlyEnd(record.id, setting, record.seed, due, last, how))
    return tuple(ends)


def _how_ended(record: Record) -> str:
    """Return what ended a run early: `seed 2 collapsed at epoch 3`; empty if nothing did."""
    unit = record.unit
    last = max((result.epoch for result in record.epochs), default=0)
    if record.status == "collapsed":
        # The last step may be in an epoch that was not evaluated any more.
        begun = max((step.moment(unit) for step in record.steps), default=0)
        return f"seed {record.seed} collapsed at {unit.at(max(last, begun, 1))}"
    if record.status == "stopped":
        return f"seed {record.seed} was stopped by the search after {unit.at(last)}"
    if record.ended:
        return f"seed {record.seed} ran out of patience after {unit.at(last)}"
    return ""
