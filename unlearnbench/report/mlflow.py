"""MLflow as a tracker: a parent run per sweep, a child run per record.

The store is the configured one, MLFLOW_TRACKING_URI's, or SQLite in the sweep's folder. A run that
is logged in part, or with other numbers than the sweep's table has now, is deleted and logged anew:
MLflow appends to the history of a metric, and removes no value from it.
"""

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from unlearnbench.analysis.results import stored_links
from unlearnbench.api.tracker import TrackedRun, TrackedSweep, Tracker
from unlearnbench.base.errors import OutputError, RecordError
from unlearnbench.base.locks import exclusive_lock
from unlearnbench.base.redaction import redact

HOST = "127.0.0.1"
STORE = "mlflow.db"
"""MLflow's store in a sweep's folder, where no other is configured."""
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
ARTIFACTS = "mlartifacts"
BATCH = 1000
"""Most metrics and parameters that MLflow accepts in one request."""
PARAMETERS = ("method", "model", "forget_fraction", "learning_rate", "seed")
"""Columns of the table of runs, beside the best metrics."""
_PAGE = "workflowType=machine_learning"
"""Without it, MLflow 3 opens its pages for language model applications."""
_EXISTS = "RESOURCE_ALREADY_EXISTS"
_BUSY_MILLISECONDS = 60_000
_STATUS = dict(finished="FINISHED", collapsed="FINISHED", failed="FAILED", stopped="KILLED")
_DESCRIPTION = "mlflow.note.content"
"""Tag whose text MLflow shows as the description of a run."""
_DIGEST = "unlearnbench.numbers"
"""Tag of a run: `TrackedRun.digest` of what was logged, by which outdated numbers are found."""


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

        # These log each table and each attempt; a failure is reported once, by the caller. After
        # the import, which sets the levels.
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
            self._client: Any = self._new_client(uri)
            self._experiment = self._experiment_id(uri)
            self._parent = self._parent_run()
            self._view = self._shared_view()
        self._runs: dict[str | None, _LoggedRun] = {}
        for run in self._search(f"tags.`mlflow.parentRunId` = '{self._parent}'"):
            tags = run.data.tags
            logged = _LoggedRun(run.info.run_id, run.info.status, tags.get(_DIGEST))
            self._runs[tags.get("unlearnbench.run_id")] = logged

    def log(self, run: TrackedRun) -> bool:
        from mlflow.entities import Metric, Param

        status = _STATUS[run.status]
        known = self._runs.get(run.id)
        if known is not None:
            if (known.status, known.digest) == (status, run.digest):
                return False
            self._client.delete_run(known.run_id)
        tags = {**run.tags, _DIGEST: run.digest, "mlflow.parentRunId": self._parent}
        created = self._create(run.name, tags, run.started)
        parameters = [Param(name, value) for name, value in run.parameters.items()]
        metrics = [Metric(p.name, p.value, p.moment, p.step) for p in run.points]
        first = BATCH - len(parameters)
        self._client.log_batch(created, metrics=metrics[:first], params=parameters)
        for begin in range(first, len(metrics), BATCH):
            self._client.log_batch(created, metrics=metrics[begin : begin + BATCH])
        for name, text in run.artefacts.items():
            self._client.log_text(created, text(), name)
        # Last, because the status marks the run as complete.
        self._client.set_terminated(created, status, end_time=run.ended)
        self._runs[run.id] = _LoggedRun(created, status, run.digest)
        return True

    def artefact(self, file: Path) -> None:
        self._client.log_artifact(self._parent, str(file))

    def link(self, run: str | None = None) -> str | None:
        page = f"{self._base}#/experiments/{self._experiment}/runs"
        if run is None:
            return f"{page}?viewStateShareKey={self._view}&{_PAGE}"
        return f"{page}/{self._runs[run].run_id}?{_PAGE}"

    def finish(self, status: Literal["finished", "stopped"]) -> None:
        self._client.set_terminated(self._parent, _STATUS[status])

    def _experiment_id(self, uri: str) -> str:
        from mlflow.exceptions import MlflowException

        name = self._sweep.experiment
        known = self._client.get_experiment_by_name(name)
        if known is None:
            local = uri.startswith("sqlite:")
            path = (self._sweep.folder / ARTIFACTS).resolve().as_uri() if local else None
            # Without it, an experiment opens with pages for language model traces.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            try:
                return str(self._client.create_experiment(name, artifact_location=path, tags=kind))
            except MlflowException as error:
                if error.error_code != _EXISTS:
                    raise
            # Another process has created it since, in a store that this one cannot lock.
            known = self._client.get_experiment_by_name(name)
        if known.lifecycle_stage == "deleted":
            self._client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)

    def _parent_run(self) -> str:
        known = self._search(f"tags.`unlearnbench.sweep_id` = '{self._sweep.id}'")
        note = {_DESCRIPTION: self._sweep.description} if self._sweep.description else {}
        if not known:
            tags = {**self._sweep.tags, **note, "unlearnbench.sweep_id": self._sweep.id}
            return self._create(self._sweep.name, tags)
        parent = str(known[0].info.run_id)
        self._client.update_run(parent, status="RUNNING")
        for name, text in note.items():
            self._client.set_tag(parent, name, text)
        return parent

    def _create(self, name: str, tags: dict[str, str], started: int | None = None) -> str:
        part = {"mlflow.source.name": "unlearnbench"}
        created = self._client.create_run(
            self._experiment, run_name=name, tags=tags | part, start_time=started
        )
        return str(created.info.run_id)

    def _search(self, condition: str) -> list[Any]:
        return [*self._client.search_runs([self._experiment], condition, max_results=50_000)]

    def _shared_view(self) -> str:
        """Store the order and columns of the sweep's runs, which a link names; returns the name.

        MLflow keeps such a view as a tag of the experiment. Child runs are hidden without one.
        """
        sweep, name = self._sweep, f"unlearnbench-{self._parent[:12]}"
        view = {
            "searchFilter": f"tags.`mlflow.parentRunId` = '{self._parent}'",
            "orderByKey": f"metrics.`{sweep.best[0]}`",
            "orderByAsc": sweep.ascending,
            "selectedColumns": [
                *(f"metrics.`{metric}`" for metric in sweep.best),
                *(f"params.`{parameter}`" for parameter in PARAMETERS),
                "tags.`status`",
            ],
            # MLflow 3.9 puts nothing in place of what a stored view leaves out.
            **{"runsPinned": [], "runsHidden": [], "runsExpanded": {}},
        }
        tag = f"mlflow.sharedViewState.{name}"
        self._client.set_experiment_tag(self._experiment, tag, json.dumps(view))
        return name


@contextmanager
def _only_process_in(uri: str) -> Generator[None, None, None]:
    """Let one process of this project at a time start with a SQLite store.

    A file system without locks is no reason to refuse, because most stores have one user.
    """
    _, is_sqlite, path = uri.partition("sqlite:///")
    store = Path(path.partition("?")[0])
    with ExitStack() as held:
        if is_sqlite and store.parent.is_dir():
            with suppress(OutputError, OSError):
                held.enter_context(exclusive_lock(store.with_name(f".{store.name}.lock")))
        yield


def store_uri(uri: str | None, folder: Path) -> str:
    """Address of the store: the setting, MLFLOW_TRACKING_URI, or SQLite in the sweep's folder."""
    default = f"sqlite:///{(folder / STORE).resolve()}"
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or default


def _base(uri: str, folder: Path) -> str:
    """Part of a link before #: server, store, or nothing for the one in the folder."""
    if uri == f"sqlite:///{(folder / STORE).resolve()}":
        return ""
    parts = urlsplit(redact(uri))
    if parts.scheme not in ("http", "https"):
        return redact(uri)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/"


def _shared_by_processes(connection: Any, _: Any) -> None:
    """Do not let SQLite wait for the disk at each of the eight commits of a record.

    After a power cut, runs can be logged again from the records. SQLite waits for other processes
    instead, longer than its five seconds: several sweeps may write to one store.
    """
    if type(connection).__module__.startswith("sqlite3"):
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}")


def ui_command(folder: Path, *, tracked: bool = True) -> str:
    """Command that shows a sweep in MLflow, where one that was not tracked is logged first."""
    path, current = folder.resolve(), Path.cwd()
    short = shlex.quote(str(path.relative_to(current) if path.is_relative_to(current) else path))
    show = f"unlearnbench ui {short}"
    return show if tracked else f"unlearnbench track {short} && {show}"


def show_in_mlflow(folder: Path, port: int, show: Callable[[str], None]) -> None:
    """Show the address of a sweep's runs; serve a local store on loopback, until Ctrl-C.

    Raises: RecordError if the sweep is not logged.
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
    uri = store or f"sqlite:///{(folder / STORE).resolve()}"
    # Without ten worker processes for jobs that never come.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--uvicorn-opts", "--log-level critical"]
    os.execve(sys.executable, command, environment)
