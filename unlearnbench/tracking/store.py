"""One sweep in one MLflow: its experiment, its parent run and its children, each found again.

What is there whole is left as it is; what is there in part, or by an older schema, is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.entries import (
    answers,
    first_line,
    metrics,
    milliseconds,
    params,
    source_tags,
    tags,
)
from unlearnbench.execution import TrackingSettings
from unlearnbench.links import Links, server_of
from unlearnbench.plan import content_hash
from unlearnbench.provenance import git_state
from unlearnbench.ranking import start_utility
from unlearnbench.records import Record
from unlearnbench.redaction import redact
from unlearnbench.settings import SweepConfig
from unlearnbench.table import Row, table
from unlearnbench.tracking.datasets import inputs_of, inputs_of_sweep, read_data
from unlearnbench.tracking.describing import describe_run

ARTIFACTS = "mlartifacts"
BATCH = 1000
"""Most metrics of one request, by MLflow's rules."""
SCHEMA = "2"
"""Of the names in MLFLOW.md; a run that was logged by another is logged anew."""
NOTE = "mlflow.note.content"
_STATUS = dict(finished="FINISHED", collapsed="FINISHED", failed="FAILED", stopped="KILLED")
_TABLES = '[{"path": "answers.json", "type": "table"}]'
"""What MLflow's own `log_table` says of a table."""

_TEXTS = (".json", ".log", ".html", ".csv")

Span = tuple[int | None, int | None]
"""Milliseconds since 1970; None is now."""


class Known(NamedTuple):
    """A run that MLflow has."""

    run_id: str
    status: str
    schema: str


def sweep_id(config: SweepConfig) -> str:
    """The same sweep is the same parent, from whatever folder or machine it is logged."""
    return content_hash([config.name, config.data.model_dump(mode="json")])


def experiment_name(settings: TrackingSettings, config: SweepConfig) -> str:
    """The setting, else the benchmark's: runs on other data do not compare."""
    return settings.experiment or f"unlearnbench-{config.data.source}"


class Store:
    """A sweep's place in MLflow; made at once, and searched for what is logged already."""

    def __init__(
        self,
        uri: str,
        folder: Path,
        config: SweepConfig,
        settings: TrackingSettings,
        span: Span = (None, None),
    ) -> None:
        """`span` is when the sweep began and ended, where that was not now."""
        from mlflow import MlflowClient

        self.uri, self.folder, self.config, self._span = uri, folder, config, span
        self._client: Any = MlflowClient(uri)
        self.experiment = self._experiment(experiment_name(settings, config))
        self.parent = self._parent()
        self._data = read_data(folder, config)
        self._client.log_inputs(self.parent, datasets=inputs_of_sweep(self._data))
        self._anchors: list[Row] = []
        self._known = {
            run.data.tags.get("unlearnbench.run_id"): Known(
                run.info.run_id, run.info.status, run.data.tags.get("unlearnbench.schema", "1")
            )
            for run in self._search(f"tags.`mlflow.parentRunId` = '{self.parent}'")
        }

    @property
    def links(self) -> Links | None:
        """Where the runs are; None for a store without pages of its own."""
        server = server_of(self.uri)
        if server is None:
            return None
        runs = {record: known.run_id for record, known in self._known.items()}
        return Links(server, self.experiment, self.parent, runs)

    def log(self, record: Record) -> bool:
        """Log a record as a child run, unless it is there; whether it was not."""
        rows = table([record])
        self._anchors += rows if record.kind == "fine-tuned" else ()
        known = self._known.get(record.id)
        status = _STATUS[record.status]
        if known is not None and known[1:] == (status, SCHEMA):
            return False
        if known is not None:  # interrupted while it was logged, or failed and now succeeded
            self._client.delete_run(known.run_id)
        start = start_utility([*self._anchors, *rows], record.model, record.forget_fraction)
        own = {"mlflow.parentRunId": self.parent, NOTE: describe_run(record, start)}
        if record.evaluations:
            own["mlflow.loggedArtifacts"] = _TABLES
        made = self._client.create_run(
            self.experiment,
            run_name=_name(record),
            tags={**tags(record, self.config.name), **own, "unlearnbench.schema": SCHEMA},
            start_time=milliseconds(record.provenance.get("started")),
        )
        self._send(made.info.run_id, record, start)
        # Last, because it says that the run is there whole.
        end = milliseconds(record.provenance.get("finished"))
        self._client.set_terminated(made.info.run_id, status, end_time=end)
        self._known[record.id] = Known(made.info.run_id, status, SCHEMA)
        return True

    def attach(self, files: Iterable[Path], place: str | None = None) -> None:
        """Give the parent run files of the sweep's; those that are not there are left out."""
        self._attach(self.parent, files, place)

    def describe(self, note: str) -> None:
        """Say what became of the sweep, unless a person has written something else there."""
        held = self._client.get_run(self.parent).data.tags
        mine = held.get("unlearnbench.note")
        if NOTE in held and mine not in (None, content_hash(held[NOTE])):
            return
        self._client.set_tag(self.parent, NOTE, note)
        self._client.set_tag(self.parent, "unlearnbench.note", content_hash(note))

    def end(self, status: str) -> None:
        """No more is logged for now."""
        self._client.set_terminated(self.parent, status, end_time=self._span[1])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            ours = self.uri.startswith("sqlite:")
            place = (self.folder / ARTIFACTS).resolve().as_uri() if ours else None
            # What pages an experiment opens with; without it, those for language model traces.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            try:
                made = self._client.create_experiment(name, artifact_location=place, tags=kind)
                return str(made)
            except MlflowException:  # another sweep may have made it at this moment
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
            made = self._client.create_run(
                self.experiment, run_name=self.config.name, tags=own, start_time=self._span[0]
            )
            return str(made.info.run_id)
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
        # Both share the limit of one request; parameters are a few dozen.
        first = BATCH - len(own)
        self._client.log_batch(run, metrics=values[:first], params=own)
        for begin in range(first, len(values), BATCH):
            self._client.log_batch(run, metrics=values[begin : begin + BATCH])
        if inputs := inputs_of(record, self._data):
            self._client.log_inputs(run, datasets=inputs)
        place = self.folder / "records" / record.place
        last = f"epoch-{max(record.evaluations, default=0)}.json.gz"
        self._attach(run, [place / "record.json", place / last])
        if record.evaluations:
            self._client.log_text(run, answers(record), "answers.json")
        if first_line(record.error):
            self._client.log_text(run, str(record.error), "error.txt")

    def _attach(self, run: str, files: Iterable[Path], place: str | None = None) -> None:
        for file in files:
            if not file.is_file():
                continue
            text = file.read_text("utf-8", "replace") if file.suffix in _TEXTS else ""
            if (clean := redact(text)) != text:  # written by a version that kept secrets
                self._client.log_text(run, clean, f"{place}/{file.name}" if place else file.name)
            else:
                self._client.log_artifact(run, str(file), place)


def _name(record: Record) -> str:
    """`ce-u · tiny · forget 0.1 · lr 2e-05 · seed 0`."""
    rate = [] if record.learning_rate is None else [f"lr {record.learning_rate:g}"]
    place = [record.method, record.model, f"forget {record.forget_fraction:g}"]
    return " · ".join([*place, *rate, f"seed {record.seed}"])
