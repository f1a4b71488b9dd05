"""What a sweep runs, what it has done, and what it returns; Ray is left to `sweep.py`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from unlearnbench.errors import RecordError, StorageError
from unlearnbench.notices import notice
from unlearnbench.outcomes import Outcome, outcome
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.progress import Progress
from unlearnbench.provenance import provenance
from unlearnbench.records import (
    EpochResult,
    Record,
    read_record,
    read_records,
    run_record,
    write_record,
)
from unlearnbench.run_state import remove_state
from unlearnbench.settings import SweepConfig
from unlearnbench.spent import Devices, Spent
from unlearnbench.storage import Storage
from unlearnbench.tracking import Tracker, ui_command

TABLE = "results.csv"


class Task(Protocol):
    """Something that runs wait for: a model to prepare, an anchor to evaluate."""

    @property
    def id(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def after(self) -> tuple[str, ...]: ...

    @property
    def done(self) -> bool: ...


def _nothing_left(_run: RunSpec, _config: SweepConfig, _folder: Path) -> None:
    return None


@dataclass(frozen=True)
class Runtime:
    """The stages that a sweep drives; Ray carries `execute` and `run_epochs` to its workers."""

    plan: Callable[[SweepConfig], Plan]
    tasks: Callable[[SweepConfig, Sequence[RunSpec], Path], Sequence[Task]]
    execute: Callable[[Any, SweepConfig, Path], float]
    """Does a task, unless it is done; returns the seconds of work."""
    run_epochs: Callable[[RunSpec, SweepConfig, Path], Iterator[EpochResult]]
    """Yields after each evaluated epoch, and writes the record before it ends."""
    report: Callable[[Path], Path]
    """Writes page and table of a folder; returns the page."""
    steps: Callable[[Any, Path], tuple[int, int] | None] = lambda _task, _folder: None
    """Steps done and in all of a task under way, where they are known."""
    stopped: Callable[[RunSpec, SweepConfig, Path], Record | None] = _nothing_left
    """The record of a run that was stopped, of what it left; None where it left nothing."""


@dataclass(frozen=True)
class SweepResult:
    """A sweep at its end."""

    folder: Path
    total: int
    ends: tuple[Outcome, ...]
    """Of the runs with a record, those of earlier commands included; in the plan's order."""
    report: Path
    csv: Path
    mlflow_command: str
    seconds: Mapping[str, float]
    """Wall time by phase; adds up to the whole."""
    busy: Mapping[str, float]
    """Share of the time that each device trained or evaluated, since Ray was there."""
    no_result: tuple[str, ...] = ()
    """Models and forget fractions whose start model shows nothing about methods, and why."""

    def count(self, status: str) -> int:
        """Runs that ended with this status."""
        return sum(end.status == status for end in self.ends)

    @property
    def finished(self) -> int:
        """Runs that came to their end."""
        return self.count("finished")

    @property
    def failed(self) -> int:
        """Runs that ended in an error."""
        return self.count("failed")


def default_runtime() -> Runtime:
    """The stages of this package."""
    from unlearnbench import running, tasks, trained
    from unlearnbench.report import write_report

    return Runtime(
        plan=_planned,
        tasks=tasks.preparation_tasks,
        execute=tasks.execute_task,
        run_epochs=running.run_epochs,
        report=write_report,
        steps=tasks.task_steps,
        stopped=trained.stopped_record,
    )


def _planned(config: SweepConfig) -> Plan:
    """The plan of `config`. Raises: TrainingError where a run does not fit this machine's GPU."""
    from unlearnbench.device import device_memory
    from unlearnbench.inputs import plan_sweep
    from unlearnbench.preflight import check_plan

    plan, benchmark = plan_sweep(config)
    if config.ray.address is None:  # a cluster's workers look at their own
        records = plan.folder / "records"
        left = tuple(run for run in plan.runs if not (records / run.id).is_dir())
        for line in check_plan(replace(plan, runs=left), benchmark, device_memory()):
            notice(line)
    return plan


def provisional_record(
    run: RunSpec,
    status: Literal["failed", "stopped"],
    epochs: Sequence[EpochResult],
    error: str | None,
) -> Record:
    """What is kept of a run that failed for good, or left nothing when it was stopped."""
    from unlearnbench.evaluation.precision import precision_of_spec
    from unlearnbench.evaluation.profiles import profile_of

    # Its worker had the device, and is gone.
    possible = {precision_of_spec(run.to_json(), device) for device in ("cpu", "cuda")}
    return run_record(
        run,
        status=status,
        precision=possible.pop() if len(possible) == 1 else None,
        profile=profile_of(run.evaluation).id,
        epochs=tuple(epochs),
        provenance=provenance(data=run.data_fingerprint),
        error=error,
    )


def last_failure(text: str) -> tuple[str, str]:
    """Ray's log of a trial's failures → the last one in a line, and in full."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    full = re.split(r"^Failure # \d+ .*\n", plain, flags=re.MULTILINE)[-1].strip()
    if re.match(r"The actor (died|is dead|is temporarily unavailable)", full):
        return "its process died: killed, or out of memory", full
    lines = [line for line in full.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no message"
    # A worker that was pre-empted says so as Ray does.
    return re.sub(r"^(?:\w+\.)+(?:RayActorError: |(?=\w+(?::|$)))", "", last), full


class Ledger:
    """What was done and what became of it: told to progress, to MLflow, to the records."""

    def __init__(
        self, folder: Path, progress: Progress, tracker: Tracker, storage: Storage
    ) -> None:
        self.folder, self.progress, self.tracker = folder, progress, tracker
        self.storage = storage
        self.spent = Spent()
        self.failed: dict[str, str] = {}
        """Reason by run."""
        self._ends: dict[str, Outcome] = {}
        """How each run ended, by id."""
        self.seconds: dict[str, float] = {}
        """Of training and evaluation, by run that was finished before."""
        self.reached_epochs = 0
        """Epochs that this command has seen for the first time."""
        self._epochs: dict[str, dict[int, EpochResult]] = {}
        self._logged: set[str] = set()

    def track_finished(self, unfinished: Collection[str] = ("failed",)) -> set[str]:
        """Log finished records that were not logged yet; returns the ids of all of them.

        unfinished  what status a record has that its run is to be done again
        """
        self.storage.share(self.folder / "records")
        # All are given: the last command may have been killed between a record and its logging.
        finished = [r for r in read_records(self.folder) if r.status not in unfinished]
        for record in sorted(finished, key=lambda r: r.kind == "run"):  # anchors first
            if record.id not in self._logged:
                self._note(record)
        self._logged |= {record.id for record in finished}
        self.seconds |= {record.id: record.seconds for record in finished}
        return {record.id for record in finished}

    def prepared(self, task: Task, seconds: float, devices: Devices) -> None:
        """A task is done, after so many seconds of work."""
        self.spent.add("preparing", seconds, devices)
        self.progress.prepared(task.label, seconds)

    def under_way(self, tasks: Iterable[Task], runtime: Runtime) -> None:
        """Preparation goes on; say how far it is."""
        self.progress.under_way({task.label: runtime.steps(task, self.folder) for task in tasks})

    def began(self, run: RunSpec) -> None:
        """A run has been given to a worker."""
        self.progress.began(run)

    def reached(self, run: RunSpec, result: EpochResult, seconds: float, devices: Devices) -> None:
        """A run has evaluated an epoch; `seconds` is what the step took on its worker."""
        known = self._epochs.setdefault(run.id, {})
        self.reached_epochs += result.epoch not in known
        known[result.epoch] = result
        # An interrupted run repeats the results that it goes on from; their time was spent before.
        if result.training_seconds + result.evaluation_seconds <= seconds + 0.1:
            self.spent.add("training", result.training_seconds, devices)
            self.spent.add("evaluating", result.evaluation_seconds, devices)
            self.progress.epoch(run, result, seconds)

    def ended(self, run: RunSpec) -> Record:
        """A run has written its record; which is returned, as by the next two."""
        place = self.folder / "records" / run.id
        try:
            self.storage.fetch(place)
            record = read_record(place)
        except (RecordError, StorageError) as error:  # the next command may find it
            return self.gave_up(run, str(error))
        self._tell(run, record)
        return record

    def stopped(self, run: RunSpec, left: Record | None) -> Record:
        """A search gave a run up, which `left` this."""
        epochs = [*self._epochs.get(run.id, {}).values()]
        record = left or provisional_record(run, "stopped", epochs, None)
        self._keep(record)
        remove_state(self.folder, run.id, self.storage)
        self._tell(run, record)
        return record

    def _tell(self, run: RunSpec, record: Record) -> None:
        self._note(record)
        last = record.epochs[-1] if record.epochs else None
        status = "ended early" if record.ended else record.status
        self.progress.ended(run, last, status, self._ends[run.id].reason)

    def _note(self, record: Record) -> None:
        """There is a record; an anchor's end is of no interest."""
        self._ends[record.id] = outcome(record)
        self.tracker.log(record)
        self.progress.recorded(record)

    def _keep(self, record: Record) -> None:
        try:
            write_record(record, self.folder)
        except RecordError as error:  # a full disk must not end the runs that may still fit
            self.progress.warn(str(error))

    def retried(self, run: RunSpec, failures: str) -> None:
        """A run failed and gets another try."""
        self.progress.retrying(run, last_failure(failures)[0])

    def gave_up(self, run: RunSpec, failures: str) -> Record:
        """A run failed for good."""
        reason, full = last_failure(failures)
        self.failed[run.id] = reason
        epochs = list(self._epochs.get(run.id, {}).values())
        record = provisional_record(run, "failed", epochs, f"{reason}\n\n{full}")
        self._keep(record)
        self._note(record)
        self.progress.failed(run, reason)
        return record

    def result(
        self, runs: Sequence[RunSpec], page: Path, seconds: Mapping[str, float]
    ) -> SweepResult:
        """The sweep of `runs` at its end."""
        return SweepResult(
            folder=self.folder,
            total=len(runs),
            ends=tuple(self._ends[run.id] for run in runs if run.id in self._ends),
            report=page,
            csv=page.with_name(TABLE),
            mlflow_command=ui_command(self.folder),
            seconds=seconds,
            busy=self.spent.by_device(),
            no_result=self.progress.no_result(),
        )
