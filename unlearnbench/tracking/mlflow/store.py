"""Store of one sweep in MLflow: its experiment, parent run and child runs, found or created.

Complete runs stay as they are; incomplete ones, and those of an older schema, are replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import start_utility
from unlearnbench.api.benchmark import Headline, split_label
from unlearnbench.config.benchmark_section import earlier_section
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.tofu_log import write_log
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.reporting.tracker_links import Links, server_of
from unlearnbench.results.records import Record, evaluation_name
from unlearnbench.results.table import TableRow, table
from unlearnbench.runtime.provenance import git_state
from unlearnbench.runtime.redaction import redact
from unlearnbench.tracking.mlflow.dataset_inputs import inputs_of, inputs_of_sweep, read_data
from unlearnbench.tracking.mlflow.descriptions import describe_run
from unlearnbench.tracking.mlflow.metric_points import metrics, milliseconds
from unlearnbench.tracking.mlflow.run_entries import (
    answer_table,
    first_line,
    params,
    source_tags,
    tags,
)
from unlearnbench.tracking.mlflow.runs_view import share_view

ARTIFACTS = "mlartifacts"
BATCH = 1000
"""Most metrics that MLflow accepts in one request."""
SCHEMA = "2"
"""Version of the names in docs/reference/mlflow.md; runs of another version are replaced."""
NOTE = "mlflow.note.content"
_STATUS = dict(finished="FINISHED", collapsed="FINISHED", failed="FAILED", stopped="KILLED")
_TABLES = '[{"path": "answers.json", "type": "table"}]'
"""Tag that MLflow's `log_table` sets for a table."""

_TEXTS = (".json", ".log", ".html", ".csv")

Span = tuple[int | None, int | None]
"""Milliseconds since 1970; None is now."""


class LoggedRun(NamedTuple):
    """A run that is already in MLflow."""

    run_id: str
    status: str
    schema: str


def sweep_id(config: SweepConfig) -> str:
    """Id of a sweep, which is the same from every folder and machine."""
    return content_hash([config.name, earlier_section(config.data)])


def experiment_name(settings: TrackingSettings, config: SweepConfig) -> str:
    """Name of the experiment: the setting, or the benchmark's, as other data do not compare."""
    return settings.experiment or f"unlearnbench-{config.data.source}"


class MlflowStore:
    """A sweep's runs in MLflow; opens or creates the parent run and finds logged child runs."""

    def __init__(
        self,
        uri: str,
        folder: Path,
        config: SweepConfig,
        settings: TrackingSettings,
        span: Span = (None, None),
    ) -> None:
        """`span`: start and end of a finished sweep."""
        from mlflow import MlflowClient

        self.uri, self.folder, self.config, self._span = uri, folder, config, span
        self._client: Any = MlflowClient(uri)
        self.experiment = self._experiment(experiment_name(settings, config))
        self.parent = self._parent()
        # A benchmark that is not installed has no headline to order the runs by.
        headline: Headline | None = getattr(config.data, "headline", None)
        self.view: str | None = None
        if headline is not None:
            self.view = share_view(self._client, self.experiment, self.parent, headline)
        self._data = read_data(folder, config)
        self._client.log_inputs(self.parent, datasets=inputs_of_sweep(self._data))
        self._start_rows: list[TableRow] = []
        self._logged = {
            run.data.tags.get("unlearnbench.run_id"): LoggedRun(
                run.info.run_id, run.info.status, run.data.tags.get("unlearnbench.schema", "1")
            )
            for run in self._search(f"tags.`mlflow.parentRunId` = '{self.parent}'")
        }

    @property
    def links(self) -> Links | None:
        """Links to the runs; None for a store without a server."""
        server = server_of(self.uri)
        if server is None:
            return None
        runs = {record: logged.run_id for record, logged in self._logged.items()}
        return Links(server, self.experiment, self.parent, runs, self.view)

    def log(self, record: Record) -> bool:
        """Log a record as a child run; False if it is already there."""
        rows = table([record])
        self._start_rows += rows if record.kind == "fine-tuned" else ()
        logged = self._logged.get(record.id)
        status = _STATUS[record.status]
        if logged is not None and logged[1:] == (status, SCHEMA):
            return False
        if logged is not None:  # interrupted while it was logged, or failed and now succeeded
            self._client.delete_run(logged.run_id)
        start = start_utility([*self._start_rows, *rows], record.model, record.forget_fraction)
        own = {"mlflow.parentRunId": self.parent, NOTE: describe_run(record, start)}
        if record.evaluations:
            own["mlflow.loggedArtifacts"] = _TABLES
        created = self._client.create_run(
            self.experiment,
            run_name=_name(record),
            tags={**tags(record, self.config.name), **own, "unlearnbench.schema": SCHEMA},
            start_time=milliseconds(record.provenance.get("started")),
        )
        self._send(created.info.run_id, record, start)
        # Last, because the status marks the run as complete.
        end = milliseconds(record.provenance.get("finished"))
        self._client.set_terminated(created.info.run_id, status, end_time=end)
        self._logged[record.id] = LoggedRun(created.info.run_id, status, SCHEMA)
        return True

    def attach(
        self, files: Iterable[Path], place: str | None = None, run: str | None = None
    ) -> None:
        """Attach files to a run (default: the parent), without secrets; skip missing ones."""
        run = run or self.parent
        for file in files:
            if not file.is_file():
                continue
            text = file.read_text("utf-8", "replace") if file.suffix in _TEXTS else ""
            if (clean := redact(text)) != text:  # written by a version that stored secrets
                self._client.log_text(run, clean, f"{place}/{file.name}" if place else file.name)
            else:
                self._client.log_artifact(run, str(file), place)

    def describe(self, note: str) -> None:
        """Set the sweep's description, unless a user has edited it."""
        present = self._client.get_run(self.parent).data.tags
        written = present.get("unlearnbench.note")
        if NOTE in present and written not in (None, content_hash(present[NOTE])):
            return
        self._client.set_tag(self.parent, NOTE, note)
        self._client.set_tag(self.parent, "unlearnbench.note", content_hash(note))

    def end(self, status: str) -> None:
        """Set the final status of the sweep."""
        self._client.set_terminated(self.parent, status, end_time=self._span[1])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            local = self.uri.startswith("sqlite:")
            place = (self.folder / ARTIFACTS).resolve().as_uri() if local else None
            # Without it, an experiment opens with pages for language model traces.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            try:
                created = self._client.create_experiment(name, artifact_location=place, tags=kind)
                return str(created)
            except MlflowException:  # another sweep may have created it at the same time
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _parent(self) -> str:
        own = {"sweep": self.config.name, "kind": "sweep", "unlearnbench.schema": SCHEMA}
        own |= source_tags((git_state() or {}).get("commit"))
        found = self._search(f"tags.`unlearnbench.sweep_id` = '{sweep_id(self.config)}'")
        if not found:
            own |= {"unlearnbench.sweep_id": sweep_id(self.config)}
            created = self._client.create_run(
                self.experiment, run_name=self.config.name, tags=own, start_time=self._span[0]
            )
            return str(created.info.run_id)
        parent = str(found[0].info.run_id)
        self._client.update_run(parent, status="RUNNING")
        for name, value in own.items():
            if found[0].data.tags.get(name) != value:
                self._client.set_tag(parent, name, value)
        return parent

    def _search(self, condition: str) -> list[Any]:
        runs: list[Any] = []
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs(
                [self.experiment], condition, max_results=1000, page_token=token or None
            )
            runs += page
            token = page.token or None
        return runs

    def _send(self, run: str, record: Record, start: float | None) -> None:
        from mlflow.entities import Metric, Param

        values = [
            Metric(one.name, one.value, one.moment, one.step) for one in metrics(record, start)
        ]
        own = [Param(name, value) for name, value in params(record).items()]
        # Metrics and parameters share the limit of one request; parameters are a few dozen.
        first = BATCH - len(own)
        self._client.log_batch(run, metrics=values[:first], params=own)
        for begin in range(first, len(values), BATCH):
            self._client.log_batch(run, metrics=values[begin : begin + BATCH])
        if inputs := inputs_of(record, self._data):
            self._client.log_inputs(run, datasets=inputs)
        place = self.folder / "records" / record.place
        self.attach([place / "record.json"], run=run)
        if record.evaluations:
            self._attach_log(record, place, run)
            self._client.log_text(run, answer_table(record), "answers.json")
        if first_line(record.error):
            self._client.log_text(run, str(record.error), "error.txt")

    def _attach_log(self, record: Record, place: Path, run: str) -> None:
        """Attach the last evaluation: as TOFU's log, or as stored where it has other sets."""
        last = max(record.evaluations)
        with TemporaryDirectory() as folder:
            log = Path(folder) / f"epoch-{last}.json.gz"
            try:
                write_log(record.evaluations[last], log)
            except EvaluationError:
                log = place / evaluation_name(last)
            self.attach([log], run=run)


def _name(record: Record) -> str:
    """`ce-u · tiny · forget 0.1 · lr 2e-05 · seed 0`; `retain under relearning · tiny · …`."""
    rate = [] if record.learning_rate is None else [f"lr {record.learning_rate:g}"]
    under = {one.variant.partition("@")[0] for one in record.attacked if not record.epochs}
    method = " under ".join([record.method, *sorted(under)])
    place = [method, record.model, split_label(record.forget_fraction)]
    return " · ".join([*place, *rate, f"seed {record.seed}"])
