"""Tracker that logs a running sweep to MLflow in the background."""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from unlearnbench.api.registry import load, names
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.plan.plan import PLAN_FILE
from unlearnbench.reporting.report import Report, build_report
from unlearnbench.reporting.tracker_links import Links, write_links
from unlearnbench.results.records import Record
from unlearnbench.tracking.background_jobs import BackgroundJobs, Job
from unlearnbench.tracking.mlflow.connection import (
    check_store,
    import_mlflow,
    store_error,
    store_uri,
)
from unlearnbench.tracking.mlflow.descriptions import describe_sweep
from unlearnbench.tracking.mlflow.store import MlflowStore, Span

CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for records that are not logged yet."""
LINK_SECONDS = 5.0
"""Least time between two updates of `mlflow.json`."""
MONITOR_SECONDS = 15.0
"""Time between two samples of the load; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL overrides it."""
FIGURES = ("pareto", "trajectories")
"""Dashboards that draw a Plotly figure from a table alone."""

_logger = logging.getLogger(__name__)


class SweepTracker:
    """Context manager that logs a sweep's records to MLflow in the background.

    warn      called once if tracking fails
    seconds   longest wait at the end
    span      start and end of a finished sweep; None for a running one, for which the load of
              this machine is logged, too
    """

    def __init__(
        self,
        settings: TrackingSettings,
        folder: Path,
        config: SweepConfig,
        *,
        warn: Callable[[str], None] = _logger.warning,
        seconds: float = CLOSE_SECONDS,
        span: Span | None = None,
    ) -> None:
        self.settings, self.folder, self.config = settings, folder, config
        self.uri = store_uri(settings, folder)
        self.logged = 0
        """Number of newly logged records."""
        self._warn, self._seconds, self._span = warn, seconds, span
        self._background: BackgroundJobs | None = None
        self._expected: tuple[type[Exception], ...] = ()
        self._monitor: Any = None
        self._store: MlflowStore | None = None
        self._status = "KILLED"
        self._linked = 0.0

    def __enter__(self) -> SweepTracker:
        if self.settings.enabled:
            # Imported here, not in the thread: two threads that import large packages at the same
            # time can see each other's half-imported modules.
            self._expected = import_mlflow()
            self._background = BackgroundJobs("mlflow", (UnlearnbenchError,), self._give_up)
            self._put(self._open)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._background is not None:
            self._put(self._end)
            try:
                self._background.close(self._seconds)
            finally:  # after a failure, `_end` did not run
                if self._monitor is not None:
                    self._monitor.finish()

    @property
    def trouble(self) -> str | None:
        """Error that ended tracking; None without one."""
        return None if self._background is None else self._background.trouble

    @property
    def links(self) -> Links | None:
        """Links to the sweep and its runs; None for a store without a server."""
        return None if self._store is None else self._store.links

    def log(self, record: Record) -> None:
        """Log a record as a child run; returns at once. Start models come before their runs."""
        self._put(lambda: self._log(record))

    def settle(self) -> None:
        """Wait until all records so far are logged and their links are written."""
        if self._background is not None:
            self._put(self._link)
            self._background.wait(self._seconds)

    def log_files(self, files: Iterable[Path], *, complete: bool = True) -> None:
        """Attach files of the sweep, a description and figures to the parent run.

        complete  True if no run is missing
        """
        existing = [file for file in files if file.is_file()]
        if complete:
            self._status = "FINISHED"
        self._put(lambda: self._opened.attach(existing))
        self._put(self._conclude)

    def _put(self, job: Job) -> None:
        def explained() -> None:
            try:
                job()
            except self._expected as error:
                raise store_error(error, self.uri) from error

        if self._background is not None:
            self._background.put(explained)

    def _give_up(self, reason: str) -> None:
        command = f"unlearnbench track {shlex.quote(str(self.folder))}"
        self._warn(f"{reason}; no run is lost: records are complete, and `{command}` logs them")

    @property
    def _opened(self) -> MlflowStore:
        if self._store is None:  # the first job opens it, and no job follows one that failed
            raise RuntimeError("the store is not open")
        return self._store

    def _open(self) -> None:
        span = self._span or (None, None)
        check_store(self.uri)
        try:
            self._store = MlflowStore(self.uri, self.folder, self.config, self.settings, span)
        except (ValueError, ImportError) as error:
            # MLflow cannot parse the address, or one of its environment variables.
            raise store_error(error, self.uri) from error
        self._store.attach([self.folder / PLAN_FILE])
        if self._span is None:
            self._monitor = _monitor(self.uri, self._store.parent)

    def _log(self, record: Record) -> None:
        self.logged += self._opened.log(record)
        if time.monotonic() - self._linked > LINK_SECONDS:
            self._link()

    def _link(self) -> None:
        links = self._opened.links
        if links is not None:
            write_links(links, self.folder)
        self._linked = time.monotonic()

    def _conclude(self) -> None:
        report = build_report(self.folder)
        self._opened.describe(describe_sweep(report))
        with TemporaryDirectory(prefix="unlearnbench-") as folder:
            self._opened.attach(_figures(report, Path(folder)), "figures")

    def _end(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
        self._opened.end(self._status)


def _figures(report: Report, folder: Path) -> Iterator[Path]:
    """Write each figure as a page into `folder`.

    The pages contain Plotly, because MLflow shows them in a frame that may not load anything; an
    image would need a browser here.
    """
    if not any(row.kind == "run" for row in report.rows):
        return
    for name in (one for one in FIGURES if one in names("dashboards")):
        path = folder / f"{name}.html"
        figure = load("dashboards", name)(report.rows)
        figure.update_layout(width=None)  # as wide as the frame
        page = figure.to_html(include_plotlyjs=True, config={"responsive": True})
        path.write_text(page, encoding="utf-8")
        yield path


def _monitor(uri: str, run: str) -> Any:
    """Start MLflow's monitor of this machine's load, to be ended with `finish()`.

    None if its libraries are missing, or MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING switches it off.
    MLflow starts it by itself for runs of its fluent API only, which belong to one thread. Runs are
    in Ray's workers, maybe on other machines; their load is in their records.
    """
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "").lower() == "false":
        return None
    try:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
    except ImportError:
        return None
    make: Any = SystemMetricsMonitor
    started = make(run, sampling_interval=MONITOR_SECONDS, resume_logging=True, tracking_uri=uri)
    started.start()
    return started
