"""MLflow as a tracker: a parent run for each sweep, and a child run for each record.

The store is the configured one, that of MLFLOW_TRACKING_URI, or SQLite in the sweep's folder. A run
that was logged only in part, or with other numbers than the sweep's table has now, is deleted and
logged again, because MLflow can only append to the history of a metric.

A reviewer reads the answers of a run on its page `answers.html`, and compares them with those of
other runs by its table `answers.json`. The data set of a run names the rows that it unlearns. The
conclusion is the description of the sweep's run.
"""

import getpass
import json
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from unlearnbench.analysis.results import stored_links
from unlearnbench.api.tracker import (
    AnswerTable,
    SweepSummary,
    TrackedData,
    TrackedRun,
    TrackedSweep,
    Tracker,
)
from unlearnbench.base.errors import OutputError, RecordError
from unlearnbench.base.locks import exclusive_lock
from unlearnbench.base.redaction import redact
from unlearnbench.report.answer_page import answer_page
from unlearnbench.report.mlflow_store import (
    ARTIFACTS,
    STORE,
    correct_artifact_addresses,
    folder_store,
    store_uri,
)
from unlearnbench.report.mlflow_views import Best, flat_view, grouped_view

HOST = "127.0.0.1"
ENVIRONMENT = {
    # MLflow's defaults wait seven times two minutes, or as long as the server demands.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",  # must be an integer
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Standard output is for results; MLflow would print two lines for each run.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
BATCH = 1000
"""Most metrics and parameters that MLflow accepts in one request."""
_PAGE = "workflowType=machine_learning"
"""Query of links. Without it, MLflow 3 opens its pages for language model applications."""
_EXISTS = "RESOURCE_ALREADY_EXISTS"
"""Error code of MLflow if another process has created an experiment first."""
_BUSY_MILLISECONDS = 60_000
"""Longest wait for another process that writes to a SQLite store."""
_STATUS = {
    "finished": "FINISHED",
    "collapsed": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
}
"""MLflow's status of a run, by the record's status."""
_DESCRIPTION = "mlflow.note.content"
"""Tag whose text MLflow shows as the description of a run."""
_SUMMARY_TAGS = ("recommended",)
"""Tags of `SweepSummary`."""
_DIGEST = "unlearnbench.numbers"
"""Tag of a run: `TrackedRun.digest` of what was logged. Outdated runs are found by it."""
_SWEEP = "unlearnbench.sweep_id"
"""Tag of a sweep's run and of its child runs. A view shows them together by it."""
_PARENT = "mlflow.parentRunId"
ANSWERS = "answers.json"
"""Artifact with the answers of a run as a table, which MLflow compares with those of other runs."""
ANSWER_PAGE = "answers.html"
"""Artifact with the same answers as a page, because MLflow cuts the cells of a table."""
_TABLES = "mlflow.loggedArtifacts"
"""Tag that lists the tables of a run for MLflow's comparison of tables."""
CONFIGURATION = "config.yaml"


class _LoggedRun(NamedTuple):
    """A run in MLflow."""

    run_id: str
    status: str
    digest: str | None
    """None if an earlier version of this package has logged the run."""


class MlflowTracker(Tracker):
    """The runs of a sweep in an experiment of MLflow."""

    def __init__(self) -> None:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        # These loggers report each table and each attempt, but the caller reports a failure once.
        # The import of MLflow sets the levels, so they are changed after it.
        for name in ("alembic", "mlflow", "urllib3.connectionpool"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if not event.contains(Engine, "connect", _shared_by_processes):
            event.listen(Engine, "connect", _shared_by_processes)
        self._new_client: Any = MlflowClient

    def start(self, sweep: TrackedSweep) -> None:
        uri = store_uri(sweep.uri, sweep.folder)
        self._base = _base(uri, sweep.folder)
        self._sweep = sweep
        # The first client of a new store creates its tables by a series of migrations, which fail
        # if two processes carry them out at once.
        with _only_process_in(uri):
            if uri == folder_store(sweep.folder):
                correct_artifact_addresses(sweep.folder)
            self._client: Any = self._new_client(uri)
            self._experiment = self._experiment_id(uri)
            self._parent = self._parent_run()
            self._view = self._shared_view()
        self._runs: dict[str | None, _LoggedRun] = {}
        for run in self._search(f"tags.`{_PARENT}` = '{self._parent}'"):
            tags = run.data.tags
            logged = _LoggedRun(run.info.run_id, run.info.status, tags.get(_DIGEST))
            self._runs[tags.get("unlearnbench.run_id")] = logged

    def log(self, run: TrackedRun) -> bool:
        from mlflow.entities import Metric, Param

        status = _STATUS[run.status]
        logged = self._runs.get(run.id)
        if logged is not None:
            if (logged.status, logged.digest) == (status, run.digest):
                return False
            self._client.delete_run(logged.run_id)
        answers = None if run.answers is None else run.answers()
        if answers is not None and not answers.rows:
            answers = None
        tags = {
            **run.tags,
            **_origin(run.tags.get("git_commit")),
            _DIGEST: run.digest,
            _SWEEP: self._sweep.id,
            _PARENT: self._parent,
        }
        if answers is not None:
            tags[_TABLES] = json.dumps([{"path": ANSWERS, "type": "table"}])
        created = self._create(run.name, tags, run.started)
        parameters = [Param(name, value) for name, value in run.parameters.items()]
        metrics = [
            Metric(point.name, point.value, point.moment, point.step) for point in run.points
        ]
        # The first request has the parameters, too.
        first_count = BATCH - len(parameters)
        self._client.log_batch(created, metrics=metrics[:first_count], params=parameters)
        for begin in range(first_count, len(metrics), BATCH):
            self._client.log_batch(created, metrics=metrics[begin : begin + BATCH])
        for name, text in run.artefacts.items():
            self._client.log_text(created, text(), name)
        if answers is not None:
            self._client.log_text(created, _table(answers), ANSWERS)
            self._client.log_text(created, answer_page(run.name, answers), ANSWER_PAGE)
        if run.data is not None:
            self._log_data(created, [run.data])
        # Last, because the status marks the run as complete.
        self._client.set_terminated(created, status, end_time=run.ended)
        self._runs[run.id] = _LoggedRun(created, status, run.digest)
        return True

    def artefact(self, file: Path) -> None:
        self._client.log_artifact(self._parent, str(file))

    def summarize(self, summary: SweepSummary) -> None:
        from mlflow.entities import Metric, RunTag

        now = round(time.time() * 1000)
        metrics = [Metric(name, value, now, 0) for name, value in summary.metrics.items()]
        # An earlier command may have recommended a setting that is not the best one any more, so
        # tags that this summary lacks become empty.
        texts = {
            **dict.fromkeys(_SUMMARY_TAGS, ""),
            _DESCRIPTION: summary.description,
            **summary.tags,
        }
        tags = [RunTag(name, text) for name, text in texts.items()]
        self._client.log_batch(self._parent, metrics=metrics, tags=tags)
        self._client.update_run(self._parent, name=self._sweep.title(summary.averaged))

    def link(self, run: str | None = None) -> str | None:
        page = f"{self._base}#/experiments/{self._experiment}/runs"
        if run is None:
            return f"{page}?viewStateShareKey={self._view}&{_PAGE}"
        return f"{page}/{self._runs[run].run_id}?{_PAGE}"

    def finish(self, status: Literal["finished", "stopped"]) -> None:
        self._client.set_terminated(self._parent, _STATUS[status])

    def _experiment_id(self, uri: str) -> str:
        """Return the id of the sweep's experiment, which is created or restored if necessary."""
        from mlflow.exceptions import MlflowException

        name = self._sweep.experiment
        known = self._client.get_experiment_by_name(name)
        if known is None:
            is_local = uri.startswith("sqlite:")
            location = (self._sweep.folder / ARTIFACTS).resolve().as_uri() if is_local else None
            # Without this tag, an experiment opens with pages for language model traces.
            tags = {"mlflow.experimentKind": "custom_model_development"}
            try:
                created = self._client.create_experiment(
                    name, artifact_location=location, tags=tags
                )
                return str(created)
            except MlflowException as error:
                if error.error_code != _EXISTS:
                    raise
            # Another process created it in the meantime, in a store that this one cannot lock.
            known = self._client.get_experiment_by_name(name)
        if known.lifecycle_stage == "deleted":
            self._client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def _parent_run(self) -> str:
        """Return the id of the sweep's own run, which is created if the store does not have it."""
        sweep = self._sweep
        known = self._search(f"tags.`{_SWEEP}` = '{sweep.id}' and tags.kind = 'sweep'")
        if known:
            parent = str(known[0].info.run_id)
            self._client.update_run(parent, status="RUNNING")
        else:
            tags = {"kind": "sweep", **sweep.tags}
            if sweep.description:
                tags[_DESCRIPTION] = sweep.description
            tags |= _origin(sweep.tags.get("git_commit"))
            tags[_SWEEP] = sweep.id
            parent = self._create(sweep.title(), tags)
            self._log_data(parent, sweep.data)
        if sweep.configuration:
            self._client.log_text(parent, sweep.configuration, CONFIGURATION)
        return parent

    def _create(self, name: str, tags: dict[str, str], started: int | None = None) -> str:
        """Create a run, and return its id in MLflow."""
        created = self._client.create_run(
            self._experiment, run_name=name, tags=tags, start_time=started
        )
        return str(created.info.run_id)

    def _log_data(self, run: str, data: Sequence[TrackedData]) -> None:
        """Log the rows of a run as MLflow's data sets: by name and hash, without their texts."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        context = InputTag("mlflow.data.context", "unlearning")
        inputs: list[Any] = []
        for rows in data:
            dataset = Dataset(
                name=rows.name,
                digest=rows.digest,
                source_type="unlearnbench",
                source=json.dumps({"benchmark": rows.source}),
            )
            inputs.append(DatasetInput(dataset, [context]))
        if inputs:
            self._client.log_inputs(run, inputs)

    def _search(self, condition: str) -> list[Any]:
        """Find the runs of the experiment that fulfil a condition."""
        return [*self._client.search_runs([self._experiment], condition, max_results=50_000)]

    def _shared_view(self) -> str:
        """Store the views of the sweep's runs.

        Returns:
            Name of the view that the sweep's link opens.
        """
        sweep = self._sweep
        name = f"unlearnbench-{self._parent[:12]}"
        best = Best(sweep.best, sweep.ascending)
        created = round(time.time() * 1000)
        views = {
            name: flat_view(sweep.id, best),
            f"{name}-by-method": grouped_view(sweep.name, sweep.id, best, created),
        }
        for view, state in views.items():
            tag = f"mlflow.sharedViewState.{view}"
            self._client.set_experiment_tag(self._experiment, tag, state)
        return name


def _origin(commit: str | None) -> dict[str, str]:
    """Return MLflow's own tags for who ran something, and from which source."""
    tags = {"mlflow.source.name": "unlearnbench", "mlflow.source.type": "LOCAL"}
    # A container may run as a user who has no name.
    with suppress(OSError, KeyError, ImportError):
        tags["mlflow.user"] = getpass.getuser()
    if commit:
        tags["mlflow.source.git.commit"] = commit
    return tags


def _table(answers: AnswerTable) -> str:
    """Write a table in the form that MLflow reads: columns, and rows as lists."""
    document = {"columns": list(answers.columns), "data": [list(row) for row in answers.rows]}
    return json.dumps(document, ensure_ascii=False)


@contextmanager
def _only_process_in(uri: str) -> Generator[None, None, None]:
    """Let only one process of this project at a time open a SQLite store.

    If the file system has no locks, nothing is locked, because most stores have only one user.
    """
    _, is_sqlite, path = uri.partition("sqlite:///")
    store = Path(path.partition("?")[0])
    with ExitStack() as held:
        if is_sqlite and store.parent.is_dir():
            with suppress(OutputError, OSError):
                held.enter_context(exclusive_lock(store.with_name(f".{store.name}.lock")))
        yield


def _base(uri: str, folder: Path) -> str:
    """Return the part of a link before the #: a server, a store, or nothing for the folder's store.

    Passwords in the address are removed.
    """
    if uri == folder_store(folder):
        return ""
    parts = urlsplit(redact(uri))
    if parts.scheme not in ("http", "https"):
        return redact(uri)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"


def _shared_by_processes(connection: Any, _: Any) -> None:
    """Let SQLite wait for other processes, but not for the disk.

    A record needs eight commits. After a power cut, runs can be logged again from the records, so a
    commit need not wait until the disk has it. Several sweeps may write to one store, and SQLite's
    default of five seconds is too short for that.
    """
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")


def ui_command(folder: Path, *, tracked: bool = True) -> str:
    """Return the command that shows a sweep in MLflow.

    Args:
        folder: The sweep's folder.
        tracked: Whether the sweep was logged. If not, the command logs it first.
    """
    path = folder.resolve()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    quoted = shlex.quote(str(path))
    show = f"unlearnbench ui {quoted}"
    return show if tracked else f"unlearnbench track {quoted} && {show}"


def show_in_mlflow(folder: Path, port: int, show: Callable[[str], None]) -> None:
    """Show the address of a sweep's runs. A local store is served on loopback until Ctrl-C.

    Args:
        folder: The sweep's folder.
        port: Port of the server for a local store.
        show: Prints a line.

    Raises:
        RecordError: If the sweep is not logged.
    """
    link = stored_links(folder).get("sweep")
    store, _, view = (link or "").partition("#")
    if link is None or not (store or (folder / STORE).is_file()):
        advice = f"`unlearnbench track {shlex.quote(str(folder))}` logs it from the records"
        raise RecordError(f"{folder} is not logged; {advice}")
    if store.startswith("http"):
        show(link)
        return
    show(f"http://{HOST}:{port}/#{view}  (Ctrl-C ends it)")
    uri = store or folder_store(folder)
    if not store:
        correct_artifact_addresses(folder)
    # MLflow would start ten worker processes for jobs that never come.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level critical"]
    os.execve(sys.executable, command, environment)
