"""How the runs of a sweep ended, in words, for the terminal, the page and MLflow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlearnbench.api.benchmark import split_percent
from unlearnbench.base.number_text import float_text

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

WORDS = {
    "collapsed": "collapsed",
    "failed": "failed",
    "stopped": "stopped early by the search",
}
"""Statuses other than `finished` in words, in the order in which they are counted."""
WITHOUT_RESULT = ("collapsed", "failed")
"""Statuses of runs that have no numbers."""


@dataclass(frozen=True)
class RunOutcome:
    """The end of one run."""

    title: str
    """Method, rate, model, split and seed."""
    status: str
    """`finished`, `collapsed`, `failed` or `stopped`, as in the record."""
    reason: str = ""
    """First line of the run's error; empty without one."""
    family: str = ""
    """Method with its retain term, which decides the colour."""

    @property
    def why_no_number(self) -> str:
        """Text in place of a number, if a method has no other run.

        For example `no number: collapsed, the loss is NaN`.
        """
        return f"no number: {self.status}, {self.reason or 'no message'}"

    def __str__(self) -> str:
        return f"{self.status}: {self.title}: {self.reason or 'no reason is recorded'}"


def outcome(record: Record) -> RunOutcome:
    """Describe the end of a run from its record."""
    rate = "" if record.learning_rate is None else f" at {float_text(record.learning_rate)}"
    title = (
        f"{record.method}{rate}, {record.model}, {split_percent(record.forget_fraction)}, "
        f"seed {record.seed}"
    )
    reason = (record.error or "").strip().partition("\n")[0]
    return RunOutcome(title, record.status, reason, record.method)


def without_result(ends: Iterable[RunOutcome]) -> list[RunOutcome]:
    """Return the runs that have no numbers, which a report names."""
    return [end for end in ends if end.status in WITHOUT_RESULT]


def tally(statuses: Iterable[str], planned: int | None = None) -> str:
    """Count runs by how they ended: `3 of 5 runs finished; 1 collapsed; 1 failed`.

    Args:
        statuses: Status of each run that has ended.
        planned: Number of runs in the plan. None for the number of `statuses`.
    """
    counts = Counter(statuses)
    total = counts.total() if planned is None else planned
    finished = counts["finished"]
    if finished == total > 1:
        phrases = [f"{total} runs, all finished"]
    else:
        phrases = [f"{finished} of {total} runs finished"]
    phrases += [f"{counts[status]} {word}" for status, word in WORDS.items() if counts[status]]
    return "; ".join(phrases)
