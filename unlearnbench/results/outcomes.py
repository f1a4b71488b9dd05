"""Outcomes of a sweep's runs, counted for terminal, page and MLflow."""

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
"""Ends other than `finished`, in the order in which they are counted."""
WITHOUT_RESULT = ("collapsed", "failed")


@dataclass(frozen=True)
class RunOutcome:
    """The end of one run."""

    title: str
    """Method, rate, model, split and seed."""
    status: str
    """As in `Record`."""
    reason: str = ""
    """First line of its error."""
    family: str = ""
    """Method with its retain term, by which it is coloured."""

    @property
    def why_no_number(self) -> str:
        """`no number: collapsed, the loss is NaN`, of a method without any other run."""
        return f"no number: {self.status}, {self.reason or 'no message'}"

    def __str__(self) -> str:
        return f"{self.status}: {self.title}: {self.reason or 'no reason is recorded'}"


def outcome(record: Record) -> RunOutcome:
    """RunOutcome of a run."""
    rate = "" if record.learning_rate is None else f" at {float_text(record.learning_rate)}"
    title = (
        f"{record.method}{rate}, {record.model}, {split_percent(record.forget_fraction)}, "
        f"seed {record.seed}"
    )
    reason = (record.error or "").strip().partition("\n")[0]
    return RunOutcome(title, record.status, reason, record.method)


def without_result(ends: Iterable[RunOutcome]) -> list[RunOutcome]:
    """The runs that came to no result, and are to be named."""
    return [end for end in ends if end.status in WITHOUT_RESULT]


def tally(statuses: Iterable[str], planned: int | None = None) -> str:
    """`3 of 5 runs finished; 1 collapsed; 1 failed`.

    planned  runs that there are to be; None: those that there are
    """
    counts = Counter(statuses)
    total = counts.total() if planned is None else planned
    finished = counts["finished"]
    whole = finished == total > 1
    first = f"{total} runs, all finished" if whole else f"{finished} of {total} runs finished"
    return "; ".join([first, *(f"{counts[s]} {word}" for s, word in WORDS.items() if counts[s])])
