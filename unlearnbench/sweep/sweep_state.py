"""The state of a sweep: results and failures so far, passed on to display, tracker and records."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

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
    """The result of a sweep."""

    folder: Path
    total: int
    ends: tuple[RunOutcome, ...]
    """Outcomes of the runs with a record, earlier commands' too, in the plan's order."""
    found: int
    """Number of these that an earlier command has recorded."""
    report: Path
    csv: Path
    mlflow_command: str
    seconds: float
    no_result: tuple[str, ...] = ()
    """Models and splits whose start model cannot show a method's effect, and why."""

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


def last_failure(text: str) -> tuple[str, str]:
    """The last failure in Ray's log of a trial: its reason in one line, and its full text."""
    full = re.split(r"^Failure # \d+ .*\n", plain_text(text), flags=re.MULTILINE)[-1].strip()
    return reason_in(full), full


class SweepState:
    """Results and failures so far; each event goes to the display, the tracker and the records."""

    def __init__(
        self, folder: Path, progress: Progress, tracker: SweepTracker, storage: Storage
    ) -> None:
        self.folder, self.progress, self.tracker = folder, progress, tracker
        self.storage = storage
        self.slots = 1
        """Number of concurrent runs."""
        self.failed: dict[str, str] = {}
        """Reason by run."""
        self.seconds: dict[str, float] = {}
        """Training and evaluation time, by finished run."""
        self.references: tuple[Record, ...] = ()
        """Start and retain models of the plan that are recorded."""
        self._metrics: MetricChoices | None = None
        """Metrics that the configuration names; None before `track_finished`."""
        self._outcomes: dict[str, RunOutcome] = {}
        self._epochs: defaultdict[str, dict[int, EpochResult]] = defaultdict(dict)
        self._tracked: set[str] = set()
        """Ids of the records that this command has tracked."""
        self._ended: set[str] = set()
        """Runs that this command has recorded."""

    def track_finished(self, plan: Plan, unfinished: Collection[str] = ("failed",)) -> set[str]:
        """Track the plan's finished records that are not tracked yet.

        Args:
            plan: What the sweep's tables show now: its runs, and the start and retain models.
            unfinished: Statuses of records whose runs are run again.

        Returns:
            The ids of all finished records in the folder.
        """
        self.storage.share(self.folder / "records")
        # All of them: the last command may have been killed between a record and its tracking.
        finished = [r for r in read_records(self.folder) if r.status not in unfinished]
        planned = planned_records(finished, {run.id for run in plan.runs}, plan.references)
        self._metrics = named_metrics(plan.config.model_dump(mode="json"))
        self.references = tuple(record for record in planned if record.kind != "run")
        outdated = self.tracker.compare_with(self.references)
        chosen_otherwise = self.tracker.choose(_chosen_epochs(plan, planned, self.folder))
        for record in sorted(planned, key=lambda r: r.kind == "run"):  # references first
            is_new = record.id not in self._tracked
            if is_new or record.panel in outdated or record.id in chosen_otherwise:
                self._track(record)
        self.seconds |= {record.id: record.seconds for record in finished}
        return {record.id for record in finished}

    def _track(self, record: Record) -> None:
        self._outcomes[record.id] = outcome(record)
        self._tracked.add(record.id)
        self.tracker.log(record)

    def read_references(self, plan: Plan) -> None:
        """Take up the start and retain models that are recorded by now, and track nothing."""
        records = self.folder / "records"
        self.storage.share(records)
        self._metrics = named_metrics(plan.config.model_dump(mode="json"))
        if plan.references is None:
            recorded = [r for r in read_records(self.folder) if r.status != "failed"]
        else:
            # Without the records of runs, of which there may be thousands.
            folders = [records / id_ for id_ in plan.references]
            recorded = [read_record(folder) for folder in folders if folder.is_dir()]
        self.references = tuple(record for record in recorded if record.kind != "run")

    def start_panels(self) -> tuple[Panel, ...]:
        """Return the panels of the start and retain models, without any run.

        None if these do not compare, which ends no run: the report says so, at the end.
        """
        with suppress(RecordError):
            return panels(table_of(self.references, self._metrics).rows)
        return ()

    def epoch_ended(self, run: RunSpec, result: EpochResult, seconds: float) -> None:
        """Note an evaluated epoch; `seconds`: duration of the step on its worker."""
        self._epochs[run.id][result.epoch] = result
        # A resumed run repeats its earlier results, whose time was spent before this step.
        if result.training_seconds + result.evaluation_seconds <= seconds + 0.1:
            self.progress.epoch(run, result, seconds)

    def run_ended(self, run: RunSpec, failures: str | None = None) -> Record:
        """Take up the record of a run, here by now, or record the `failures` that ended it."""
        record = None
        if failures is None:
            try:
                record = read_record(self.folder / "records" / run.id)
            except RecordError as error:
                failures = str(error)
        if record is None:
            self.failed[run.id], full = last_failure(failures or "")
            text = f"{self.failed[run.id]}\n\n{full}"
            epochs = tuple(self._epochs[run.id].values())
            record = run_record(run, status="failed", epochs=epochs, error=text)
            record = self._with_inputs(record)
        self._add(run, record)
        return record

    def run_stopped(self, run: RunSpec, record: Record | None) -> Record:
        """Record a run that a scheduler stopped; `record`: built from its saved state."""
        from unlearnbench.runs.checkpoints import remove_state  # it imports torch

        if record is None:
            epochs = tuple(self._epochs[run.id].values())
            record = self._with_inputs(run_record(run, status="stopped", epochs=epochs))
        self._add(run, record)
        remove_state(self.folder, run.id, self.storage)
        return record

    def _with_inputs(self, record: Record) -> Record:
        """Let a record of numbers that were reported in this command say how they were computed."""
        rules = rules_of([record]).of(record)
        entry = inputs_entry(rules.key, record, self.references)
        return replace(record, provenance={**record.provenance, **entry})

    def _add(self, run: RunSpec, record: Record) -> None:
        """Write a record unless its run has done so; track and display it."""
        try:
            write_record(record, self.folder)
        except RecordError as error:  # the disk's fault must not end the other runs here
            self.progress.warn(str(error))
        self._track(record)
        self._ended.add(run.id)
        reason = self._outcomes[run.id].reason
        if record.status == "failed":
            self.progress.failed(run, reason)
        else:
            last = record.epochs[-1] if record.epochs else None
            self.progress.ended(run, last, "ended early" if record.ended else record.status, reason)

    def result(
        self, runs: Sequence[RunSpec], page: Path, panels: Sequence[Panel], seconds: float
    ) -> SweepResult:
        """The result of the sweep of `runs`, at its end."""
        return SweepResult(
            folder=self.folder,
            total=len(runs),
            ends=tuple(self._outcomes[run.id] for run in runs if run.id in self._outcomes),
            found=sum(run.id in self._outcomes.keys() - self._ended for run in runs),
            report=page,
            csv=page.with_name(TABLE),
            mlflow_command=ui_command(self.folder, tracked=self.tracker.settings.enabled),
            seconds=seconds,
            no_result=no_result(panels),
        )


def _chosen_epochs(plan: Plan, records: Sequence[Record], folder: Path) -> dict[str, int] | None:
    """Return the chosen epoch of each run that reports a choice; None without a rule."""
    if plan.config.select is None:
        return None
    document = plan.to_json()
    with suppress(RecordError):  # the report says so, at the end
        results = Results.of(
            records,
            name=plan.config.name,
            known=read_table(folder),
            config=document["config"],
            choice_plan=ChoicePlan.read(document),
        )
        return chosen_epochs(results)
    return {}
