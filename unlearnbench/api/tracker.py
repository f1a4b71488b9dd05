"""Contract of a tracker: where the runs of a sweep are logged for review.

The harness turns the rows of the sweep's table into plain values and calls a tracker from one
thread, so that a slow server delays no run. Whatever a tracker raises ends the tracking with one
warning, and no run.

Numbers of a run may change after it was logged: the start model is evaluated later, a metric is
added, or `select` chooses the run. The run is then passed to `log` again, with another `digest`.

What a tracker does not show may be ignored: answers, the data set, and the summary of the sweep.
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


class AnswerTable(NamedTuple):
    """The answers of a run's model to the questions, next to those that it is compared with."""

    columns: tuple[str, ...]
    """Names of the columns. The first is the question, the second the answer of the run."""
    rows: Sequence[tuple[str | float | int | None, ...]]
    """A row for each question. The questions of the forget set come first."""
    forget_sets: Sequence[str] = ()
    """Names of the sets whose rows are to be forgotten."""
    unit: str = "epoch"
    """What the column `when` counts: `epoch` or `step`."""


class TrackedData(NamedTuple):
    """The rows that a run unlearns."""

    name: str
    """Benchmark and split: `tofu forget 0.1`."""
    digest: str
    """Fingerprint of the rows."""
    source: str
    """The benchmark: `tofu`."""


@dataclass(frozen=True)
class TrackedSweep:
    """The sweep that runs are logged of.

    Attributes:
        id: Id of the sweep, the same from every folder and machine.
        name: Name of the sweep.
        experiment: Name under which sweeps of the same data stand together.
        folder: The sweep's folder.
        uri: Address to log to, as configured. None: the tracker's default.
        tags: Tags of the sweep.
        best: Metrics of a run's best epoch. A table of runs is sorted by the first one.
        ascending: Whether the best run has the lowest value of that metric.
        description: What a reader of the numbers must know, in sentences. May be empty.
        configuration: The resolved configuration as YAML, without secrets.
        data: The rows of the sweep's splits.
    """

    id: str
    name: str
    experiment: str
    folder: Path
    uri: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    best: Sequence[str] = ()
    ascending: bool = False
    description: str = ""
    configuration: str = ""
    data: Sequence[TrackedData] = ()

    def title(self, averaged: str = "") -> str:
        """Return the name of the sweep's own run: `sweep quickstart (mean of 3 seeds)`.

        Args:
            averaged: What the run's metrics are, see `SweepSummary.averaged`.
        """
        title = f"sweep {self.name}"
        return f"{title} ({averaged})" if averaged else title


@dataclass(frozen=True)
class SweepSummary:
    """What a sweep has found, at its end.

    Attributes:
        description: The conclusion in Markdown.
        metrics: Numbers of the recommended setting. Their names are those of a run's best epoch
            (`best/model_utility`), so that both stand in one column.
        tags: The recommended setting as `recommended`. Empty if there is none.
        averaged: What the metrics are, if they stand in the columns of single runs: `mean of 3
            seeds`.
    """

    description: str
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    averaged: str = ""


@dataclass(frozen=True)
class TrackedRun:
    """A run, or a start or retain model.

    Attributes:
        id: Id of the record.
        name: Name for people.
        status: How it ended.
        parameters: Settings by name.
        tags: Tags by name.
        points: Metrics by epoch, and metrics under `train/` by optimiser step.
        artefacts: Functions that make the texts of files, by file name.
        started: Milliseconds since 1970. None if it is unknown.
        ended: Milliseconds since 1970. None if it is unknown.
        answers: Function that reads the table of answers. None if no texts are stored.
        answers_of: The evaluations that the table of answers is made of. Empty without a table.
        data: The rows that it unlearns. None if they are unknown.
    """

    id: str
    name: str
    status: Literal["finished", "collapsed", "stopped", "failed"]
    parameters: Mapping[str, str]
    tags: Mapping[str, str]
    points: Sequence[MetricPoint]
    artefacts: Mapping[str, Callable[[], str]]
    started: int | None
    ended: int | None
    answers: Callable[[], AnswerTable] | None = None
    answers_of: str = ""
    data: TrackedData | None = None

    @cached_property
    def digest(self) -> str:
        """Hash of everything that is logged of the run: 16 hexadecimal digits.

        If a place has the run with another digest, its numbers are out of date. Moments of points
        do not count, because a point that is logged again is the same point. Answers count by the
        evaluations that they come from, because reading the texts takes time.
        """
        points = [(point.name, point.value, point.step) for point in self.points]
        described = [self.status, dict(self.parameters), dict(self.tags), points]
        return content_hash([*described, self.name, self.answers_of, self.data])


class Tracker(ABC):
    """Place that the runs of a sweep are logged to. It is made without arguments, then started."""

    @classmethod
    def check(cls) -> None:
        """Check that the tracker can be used here. Called before anything is trained.

        Raises:
            PluginError: It cannot be used, for example because a package is missing. The message
                says what to install.
        """
        return  # most trackers need nothing

    @abstractmethod
    def start(self, sweep: TrackedSweep) -> None:
        """Open the place. If it has a sweep of the same id, go on with it."""

    @abstractmethod
    def log(self, run: TrackedRun) -> bool:
        """Log a run that has ended. It replaces everything that was logged of the run before.

        Returns:
            False if nothing was logged, because the place has the run with the same digest.
        """

    @abstractmethod
    def artefact(self, file: Path) -> None:
        """Attach a file of the sweep, such as its page, in place of an earlier one."""

    def summarize(self, summary: SweepSummary) -> None:
        """Show what the sweep has found. Called at its end, before its files are attached."""
        return  # a tracker may ignore it

    @abstractmethod
    def link(self, run: str | None = None) -> str | None:
        """Return an address that a browser can open, or None if there is none.

        Args:
            run: Id of a logged run. None: the address of the sweep.
        """

    @abstractmethod
    def finish(self, status: Literal["finished", "stopped"]) -> None:
        """Close the place.

        Args:
            status: `stopped` if runs are missing.
        """
