"""The state of a sweep: results and failures so far.

Each event of a sweep, such as the end of a run, comes here once. From here it goes to the display,
to the tracker, and into records.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from unlearnbench.analysis.best_settings import Panel, panels
from unlearnbench.analysis.choice_plan import ChoicePlan
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.config.plan import Plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.report.mlflow import ui_command
from unlearnbench.report.sweep_tracker import SweepTracker
from unlearnbench.report.tracked_runs import chosen_epochs
from unlearnbench.results.finalize import inputs_entry, table_of
from unlearnbench.results.outcomes import RunOutcome, outcome
from unlearnbench.results.records import (
    EpochResult,
    Record,
    planned_records,
    read_record,
    read_records,
    run_record,
    write_record,
)
from unlearnbench.results.remote_copies import Storage
from unlearnbench.results.rules import named_metrics, rules_of
from unlearnbench.results.stored_table import read_table
from unlearnbench.sweep.failure_texts import plain_text, reason_in
from unlearnbench.sweep.progress import Progress, no_result

TABLE = "results.csv"


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
        folder: The sweep's folder.
        total: Number of planned runs.
        ends: Outcomes of the runs with a record, in the plan's order. Records of earlier commands
            are included.
        found: Number of these outcomes that an earlier command recorded.
        report: The page.
        csv: The table.
        mlflow_command: Command that shows the runs in MLflow.
        seconds: Duration of the sweep.
        no_result: Models and splits whose start model cannot show a method's effect, and why.
    """

    folder: Path
    total: int
    ends: tuple[RunOutcome, ...]
    found: int
    report: Path
    csv: Path
    mlflow_command: str
    seconds: float
    no_result: tuple[str, ...] = ()

    def count(self, status: str) -> int:
        """Count the runs that ended with this status."""
        return sum(end.status == status for end in self.ends)

    @property
    def finished(self) -> int:
        """Number of runs that finished."""
        return self.count("finished")

    @property
    def failed(self) -> int:
        """Number of runs that ended in an error."""
        return self.count("failed")


class Failure(NamedTuple):
    """The failure of a trial.

    Attributes:
        reason: The reason in one line.
        text: Everything that Ray says about it, such as a traceback.
    """

    reason: str
    text: str


def last_failure(log: str) -> Failure:
    """Read the last failure from Ray's log of a trial, which may have failed several times."""
    failures = re.split(r"^Failure # \d+ .*\n", plain_text(log), flags=re.MULTILINE)
    text = failures[-1].strip()
    return Failure(reason_in(text), text)


class SweepState:
    """Results and failures so far. Each event goes to the display, the tracker and the records.

    Attributes:
        folder: The sweep's folder.
        progress: The display.
        tracker: The tracker, such as MLflow.
        storage: Copies of records elsewhere.
        slots: Number of concurrent runs.
        failed: Reason of each failed run, by id.
        seconds: Training and evaluation time of each finished run, by id.
        references: Records of the plan's start and retain models.
    """

    def __init__(
        self, folder: Path, progress: Progress, tracker: SweepTracker, storage: Storage
    ) -> None:
        self.folder = folder
        self.progress = progress
        self.tracker = tracker
        self.storage = storage
        self.slots = 1
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.references: tuple[Record, ...] = ()
        self._metrics: MetricChoices | None = None
        """Metrics that the configuration names. None until a plan is known."""
        self._outcomes: dict[str, RunOutcome] = {}
        """Outcomes of tracked records by id."""
        self._epochs: defaultdict[str, dict[int, EpochResult]] = defaultdict(dict)
        """Results that runs have reported, by run and epoch."""
        self._tracked: set[str] = set()
        """Ids of the records that this command has tracked."""
        self._ended: set[str] = set()
        """Ids of the runs that this command has recorded."""

    @property
    def ended_runs(self) -> int:
        """Number of runs that have ended in this command."""
        return len(self._ended)

    def track_finished(
        self, plan: Plan, unfinished: Collection[str] = ("failed",), *, new_runs: bool = True
    ) -> set[str]:
        """Track the finished records of a plan that are not tracked yet.

        Args:
            plan: The runs, and the start and retain models, that the sweep's tables show now.
            unfinished: Statuses of records whose runs are run again.
            new_runs: Whether to track runs that were not tracked before. False while runs are at
                work: they are tracked when they end.

        Returns:
            The ids of all finished records in the folder.
        """
        self.storage.share(self.folder / "records")
        # Records of earlier commands are tracked, too. The last command may have been killed
        # between a record and its tracking.
        finished = [
            record for record in read_records(self.folder) if record.status not in unfinished
        ]
        planned = planned_records(finished, {run.id for run in plan.runs}, plan.references)
        self._metrics = named_metrics(plan.config.model_dump(mode="json"))
        self.references = tuple(record for record in planned if record.kind != "run")

        outdated_panels = self.tracker.compare_with(self.references)
        chosen_otherwise = self.tracker.choose(_chosen_epochs(plan, planned, self.folder))
        # Runs are compared with start and retain models, which therefore come first.
        for record in sorted(planned, key=lambda record: record.kind == "run"):
            is_new = record.id not in self._tracked
            if is_new and record.kind == "run" and not new_runs:
                continue
            is_outdated = record.panel in outdated_panels or record.id in chosen_otherwise
            if is_new or is_outdated:
                self._track(record)
        self.seconds |= {record.id: record.seconds for record in finished}
        return {record.id for record in finished}

    def _track(self, record: Record) -> None:
        self._outcomes[record.id] = outcome(record)
        self._tracked.add(record.id)
        self.tracker.log(record)

    def read_references(self, plan: Plan) -> None:
        """Read the records of start and retain models that exist by now, without tracking them."""
        records_folder = self.folder / "records"
        self.storage.share(records_folder)
        self._metrics = named_metrics(plan.config.model_dump(mode="json"))
        if plan.references is None:
            records = [record for record in read_records(self.folder) if record.status != "failed"]
        else:
            # The records of runs, of which there may be thousands, are not read.
            folders = [records_folder / record_id for record_id in plan.references]
            records = [read_record(folder) for folder in folders if folder.is_dir()]
        self.references = tuple(record for record in records if record.kind != "run")

    def start_panels(self) -> tuple[Panel, ...]:
        """Return the panels of the start and retain models, without any run.

        There are none if the records do not fit each other. No run ends for this reason, and the
        report says so at the end.
        """
        with suppress(RecordError):
            return panels(table_of(self.references, self._metrics).rows)
        return ()

    def epoch_ended(self, run: RunSpec, result: EpochResult, seconds: float) -> None:
        """Note an evaluated epoch.

        Args:
            run: The run.
            result: Its result.
            seconds: Seconds that the worker took since the last result.
        """
        self._epochs[run.id][result.epoch] = result
        # A resumed run repeats its earlier results. Their time was spent before.
        is_new = result.training_seconds + result.evaluation_seconds <= seconds + 0.1
        if is_new:
            self.progress.epoch(run, result, seconds)

    def run_ended(self, run: RunSpec, failures: str | None = None) -> Record:
        """Take up the record that a run has written, or record its failure.

        Args:
            run: The run.
            failures: Ray's log of the failures that ended the run. None: it has written a record.
        """
        record = None
        if failures is None:
            try:
                record = read_record(self.folder / "records" / run.id)
            except RecordError as error:
                failures = str(error)
        if record is None:
            record = self._failed_record(run, failures or "")
        self._add(run, record)
        return record

    def _failed_record(self, run: RunSpec, failures: str) -> Record:
        """Return the record of a failed run, with the results that it reported before."""
        failure = last_failure(failures)
        self.failed[run.id] = failure.reason
        text = f"{failure.reason}\n\n{failure.text}"
        epochs = tuple(self._epochs[run.id].values())
        return self._with_inputs(run_record(run, status="failed", epochs=epochs, error=text))

    def run_stopped(self, run: RunSpec, record: Record | None) -> Record:
        """Record a run that a scheduler stopped.

        Args:
            run: The run.
            record: The record that was built from the run's stored state. None: there was no state,
                and the record gets the results that the run reported.
        """
        from unlearnbench.runs.checkpoints import remove_state  # it imports torch

        if record is None:
            epochs = tuple(self._epochs[run.id].values())
            record = self._with_inputs(run_record(run, status="stopped", epochs=epochs))
        self._add(run, record)
        remove_state(self.folder, run.id, self.storage)
        return record

    def _with_inputs(self, record: Record) -> Record:
        """Return a record of reported results that says by which rules they were computed."""
        rules = rules_of([record]).of(record)
        entry = inputs_entry(rules.key, record, self.references)
        return replace(record, provenance={**record.provenance, **entry})

    def _add(self, run: RunSpec, record: Record) -> None:
        """Write a record unless its run has done so, then track and display it."""
        try:
            write_record(record, self.folder)
        except RecordError as error:
            # A fault of the driver's disk must not end the other runs.
            self.progress.warn(str(error))
        self._track(record)
        self._ended.add(run.id)
        reason = self._outcomes[run.id].reason
        if record.status == "failed":
            self.progress.failed(run, reason)
            return
        last = record.epochs[-1] if record.epochs else None
        status = "ended early" if record.ended else record.status
        self.progress.ended(run, last, status, reason)

    def result(
        self, runs: Sequence[RunSpec], page: Path, panels: Sequence[Panel], seconds: float
    ) -> SweepResult:
        """Return the result of the sweep, at its end.

        Args:
            runs: The runs of the plan.
            page: The page.
            panels: The panels of the table.
            seconds: Duration of the sweep.
        """
        recorded = [run.id for run in runs if run.id in self._outcomes]
        return SweepResult(
            folder=self.folder,
            total=len(runs),
            ends=tuple(self._outcomes[run_id] for run_id in recorded),
            found=sum(run_id not in self._ended for run_id in recorded),
            report=page,
            csv=page.with_name(TABLE),
            mlflow_command=ui_command(self.folder, tracked=self.tracker.settings.enabled),
            seconds=seconds,
            no_result=no_result(panels),
        )


def _chosen_epochs(plan: Plan, records: Sequence[Record], folder: Path) -> dict[str, int] | None:
    """Return the chosen epoch of each run that reports a choice. None: the sweep has no rule."""
    if plan.config.select is None:
        return None
    document = plan.to_json()
    # If the records do not fit each other, the report says so at the end.
    with suppress(RecordError):
        results = Results.of(
            records,
            name=plan.config.name,
            known=read_table(folder),
            config=document["config"],
            choice_plan=ChoicePlan.read(document),
        )
        return chosen_epochs(results)
    return {}
