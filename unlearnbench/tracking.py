"""MLflow as a view of the records: a parent run per sweep, a child per record.

Only this module imports mlflow. Tracking happens in a thread of its own, so that a slow server
holds up no training, and whatever goes wrong there costs a warning, never a run: `replay` logs the
records later. A record is found again by its id, so nothing is logged twice.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from pydantic import ValidationError

from unlearnbench.background import Background, Job
from unlearnbench.entries import answers, metrics, milliseconds, params, tags
from unlearnbench.errors import RecordError, UnlearnbenchError
from unlearnbench.execution import TrackingSettings
from unlearnbench.mlflow_store import ENVIRONMENT, STORE, import_mlflow, store_uri
from unlearnbench.plan import PLAN_FILE, content_hash
from unlearnbench.records import Record, read_records
from unlearnbench.settings import SweepConfig

ARTIFACTS = "mlartifacts"
BATCH = 1000
"""Most metrics of one request, by MLflow's rules."""
CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for what is not logged yet."""
_STATUS = dict(finished="FINISHED", collapsed="FINISHED", failed="FAILED", stopped="KILLED")

_logger = logging.getLogger(__name__)


class _Known(NamedTuple):
    """A run that MLflow has."""

    run_id: str
    status: str


class Tracker:
    """Logs a sweep's records to MLflow, in the background, between `with` and its end.

    warn      told once if tracking does not work
    seconds   longest wait at the end
    """

    def __init__(
        self,
        settings: TrackingSettings,
        folder: Path,
        config: SweepConfig,
        *,
        warn: Callable[[str], None] = _logger.warning,
        seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.settings, self.folder, self.config = settings, folder, config
        self.uri = store_uri(settings, folder)
        self.logged = 0
        """Records that were not there before."""
        self._warn, self._seconds = warn, seconds
        self._background: Background | None = None
        self._status = "KILLED"

    def __enter__(self) -> Tracker:
        if self.settings.enabled:
            # Imported here, not in the thread: two threads that import large packages at once can
            # see each other's half-imported modules.
            self._background = Background("mlflow", import_mlflow(), self._give_up)
            self._background.put(self._open)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._background is not None:
            self._put(lambda: self._client.set_terminated(self._parent, self._status))
            self._background.close(self._seconds)

    @property
    def trouble(self) -> str | None:
        """Why nothing is logged any more."""
        return None if self._background is None else self._background.trouble

    def log(self, record: Record) -> None:
        """Log a record as a child run; returns at once."""
        self._put(lambda: self._log(record))

    def log_files(self, files: Iterable[Path], *, complete: bool = True) -> None:
        """Attach the sweep's own files to the parent run; `complete`: no run is missing."""
        kept = [file for file in files if file.is_file()]
        if complete:
            self._status = "FINISHED"
        self._put(lambda: self._attach(self._parent, kept))

    def _put(self, job: Job) -> None:
        if self._background is not None:
            self._background.put(job)

    def _give_up(self, reason: str) -> None:
        self._warn(
            f"MLflow at {self.uri}: {reason[:300]}; no run is lost: records are complete, and "
            f"`unlearnbench track {shlex.quote(str(self.folder))}` logs them later"
        )

    def _open(self) -> None:
        """Find or make the experiment and the parent run, and see which records are logged."""
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(self.uri)
        self._experiment = self._find_experiment()
        # The same sweep is the same parent, from whatever folder or machine it is logged.
        sweep = content_hash([self.config.name, self.config.data.model_dump(mode="json")])
        found = self._search(f"tags.`unlearnbench.sweep_id` = '{sweep}'")
        if found:
            self._parent = str(found[0].info.run_id)
            self._client.update_run(self._parent, status="RUNNING")
        else:
            own = {"unlearnbench.sweep_id": sweep, "mlflow.note.content": self.config.description}
            made = self._client.create_run(self._experiment, run_name=self.config.name, tags=own)
            self._parent = str(made.info.run_id)
        self._known: dict[str, _Known] = {
            run.data.tags.get("unlearnbench.run_id"): _Known(run.info.run_id, run.info.status)
            for run in self._search(f"tags.`mlflow.parentRunId` = '{self._parent}'")
        }
        self._attach(self._parent, [self.folder / PLAN_FILE])

    def _find_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self.settings.experiment or f"unlearnbench-{self.config.data.source}"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            ours = self.uri.startswith("sqlite:")
            place = (self.folder / ARTIFACTS).resolve().as_uri() if ours else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # another sweep may have made it at this moment
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            self._client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _search(self, condition: str) -> list[Any]:
        runs: list[Any] = []
        token: str | None = ""
        while token is not None:
            page = self._client.search_runs(
                [self._experiment], condition, max_results=1000, page_token=token or None
            )
            runs += page
            token = page.token or None
        return runs

    def _log(self, record: Record) -> None:
        known = self._known.pop(record.id, None)
        status = _STATUS[record.status]
        if known is not None and known.status == status:
            self._known[record.id] = known
            return
        if known is not None:  # interrupted while it was logged, or failed and now succeeded
            self._client.delete_run(known.run_id)
        made = self._client.create_run(
            self._experiment,
            run_name=_name(record),
            tags={**tags(record), "mlflow.parentRunId": self._parent},
            start_time=milliseconds(record.provenance.get("started")),
        )
        self._send(made.info.run_id, record)
        end = milliseconds(record.provenance.get("finished"))
        self._client.set_terminated(made.info.run_id, status, end_time=end)
        self._known[record.id] = _Known(made.info.run_id, status)
        self.logged += 1

    def _send(self, run: str, record: Record) -> None:
        from mlflow.entities import Metric, Param

        now = milliseconds(record.provenance.get("finished")) or 0
        values = [Metric(name, value, now, step) for name, value, step in metrics(record)]
        own = [Param(name, value) for name, value in params(record).items()]
        # Both share the limit of one request; parameters are a few dozen.
        first = BATCH - len(own)
        self._client.log_batch(run, metrics=values[:first], params=own)
        for start in range(first, len(values), BATCH):
            self._client.log_batch(run, metrics=values[start : start + BATCH])
        place = self.folder / "records" / record.place
        last = f"epoch-{max(record.evaluations, default=0)}.json.gz"
        self._attach(run, [place / "record.json", place / last])
        if record.evaluations:
            self._client.log_text(run, answers(record), "answers.json")

    def _attach(self, run: str, files: Iterable[Path]) -> None:
        for file in files:
            if file.is_file():
                self._client.log_artifact(run, str(file))


def _name(record: Record) -> str:
    """`ce-u · tiny · forget 0.1 · lr 2e-05 · seed 0`."""
    rate = [] if record.learning_rate is None else [f"lr {record.learning_rate:g}"]
    place = [record.method, record.model, f"forget {record.forget_fraction:g}"]
    return " · ".join([*place, *rate, f"seed {record.seed}"])


def replay(folder: Path, uri: str | None = None) -> int:
    """Log every record of a sweep's folder that is not logged yet; returns how many that were.

    Raises: UnlearnbenchError where the store or server does not take them.
    """
    config = _config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": uri or config.tracking.uri}
    )
    messages: list[str] = []
    records = read_records(folder)
    with Tracker(settings, folder, config, warn=messages.append, seconds=3600.0) as tracker:
        for record in records:
            tracker.log(record)
        tracker.log_files([folder / "report.html", folder / "results.csv"])
    if messages:
        raise UnlearnbenchError(
            f"MLflow at {tracker.uri}: {tracker.trouble}; start it, or give --uri"
        )
    return tracker.logged


def _config(folder: Path) -> SweepConfig:
    path = folder / PLAN_FILE
    try:
        held: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return SweepConfig.model_validate_json(json.dumps(held["config"]))
    except FileNotFoundError:
        raise RecordError(f"{folder}: no {PLAN_FILE} in it, so it is no sweep's folder") from None
    except (ValidationError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}); start the sweep again: it writes it anew "
            "and keeps finished runs"
        ) from None


def ui_command(folder: Path) -> str:
    """What to type to see a sweep in MLflow."""
    place, here = folder.resolve(), Path.cwd()
    told = place.relative_to(here) if place.is_relative_to(here) else place
    return f"unlearnbench ui {shlex.quote(str(told))}"


def open_ui(folder: Path, host: str = "127.0.0.1", port: int = 5000) -> int:
    """Serve MLflow's pages of a sweep until interrupted; returns the server's exit code.

    Raises: UnlearnbenchError where the sweep is tracked by a server, which has pages of its own.
    """
    uri = store_uri(_config(folder).tracking, folder)
    if uri.startswith(("http:", "https:", "databricks")):
        raise UnlearnbenchError(f"{folder} is tracked by the server {uri}: open that in a browser")
    if not (folder / STORE).is_file() and uri.startswith("sqlite:") and STORE in uri:
        raise RecordError(
            f"{folder / STORE} does not exist; `unlearnbench track {shlex.quote(str(folder))}` "
            "makes it from the records"
        )
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    try:
        return subprocess.run(command, check=False, env=ENVIRONMENT | os.environ).returncode
    except KeyboardInterrupt:
        return 0
