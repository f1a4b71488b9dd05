"""Contract of a tracker: where the runs of a sweep are logged for review.

The harness turns the rows of the sweep's table into plain values and calls a tracker from one
thread, so that a slow server delays no run. Whatever a tracker raises ends the tracking with one
warning, and no run.

Numbers of a run may change after it was logged: the start model is evaluated later, a metric is
added, or `select` chooses the run. The run is then passed to `log` again, with another `digest`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from unlearnbench.base.hashing import content_hash


class MetricPoint(NamedTuple):
    """One point of a metric."""

    name: str
    value: float
    step: int
    moment: int
    """Milliseconds since 1970."""


@dataclass(frozen=True)
class TrackedSweep:
    """The sweep that runs are logged of."""

    id: str
    """The same from every folder and machine."""
    name: str
    experiment: str
    """Name under which sweeps of the same data stand together."""
    folder: Path
    uri: str | None = None
    """Address to log to, as configured."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    best: Sequence[str] = ()
    """Metrics of a run's best epoch; a table of runs is sorted by the first."""
    ascending: bool = False
    """True if the best run has the lowest value of that metric."""
    description: str = ""
    """What a reader of the numbers must know, in sentences; may be empty."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, or a start or retain model."""

    id: str
    """Id of the record."""
    name: str
    status: Literal["finished", "collapsed", "stopped", "failed"]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[MetricPoint]
    """By epoch, and under `train/` by optimizer step."""
    artefacts: Mapping[str, Callable[[], str]]
    """Functions that make the texts, by file name."""
    started: int | None
    """Milliseconds since 1970, as `ended`."""
    ended: int | None

    @cached_property
    def digest(self) -> str:
        """Hash of status, parameters, tags and points: 16 hexadecimal digits.

        A place that has the run with another digest has numbers that are out of date. Moments of
        points do not count, because a point that is logged again is the same point.
        """
        points = [(point.name, point.value, point.step) for point in self.points]
        return content_hash([self.status, dict(self.parameters), dict(self.tags), points])


class Tracker(ABC):
    """Place that the runs of one sweep are logged to; made without arguments, then started."""

    @abstractmethod
    def start(self, sweep: TrackedSweep) -> None:
        """Open the place, and go on with a sweep of the same id."""

    @abstractmethod
    def log(self, run: TrackedRun) -> bool:
        """Log a run that has ended, in place of what was logged of it before.

        Returns:
            False if the run is there already with the same digest. Nothing is logged then.
        """

    @abstractmethod
    def artefact(self, file: Path) -> None:
        """Attach a file of the sweep, such as its page, in place of an earlier one."""

    @abstractmethod
    def link(self, run: str | None = None) -> str | None:
        """Address of a logged run, or of the sweep; None if there is none."""

    @abstractmethod
    def finish(self, status: Literal["finished", "stopped"]) -> None:
        """Close the place; `stopped`: runs are missing."""
