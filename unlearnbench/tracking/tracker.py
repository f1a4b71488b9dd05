"""What a sweep tells MLflow while it runs: jobs for a thread, none of which can cost it a run."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from unlearnbench.background import Background, Job
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.execution import TrackingSettings
from unlearnbench.links import Links, write_links
from unlearnbench.mlflow_store import check_store, explained, import_mlflow, store_uri
from unlearnbench.plan import PLAN_FILE
from unlearnbench.records import Record
from unlearnbench.redaction import redact
from unlearnbench.report import build_report
from unlearnbench.settings import SweepConfig
from unlearnbench.tracking.describing import describe_sweep
from unlearnbench.tracking.figures import figures
from unlearnbench.tracking.store import Span, Store
from unlearnbench.tracking.system import monitor

CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for what is not logged yet."""
LINK_SECONDS = 5.0
"""Between two writings of `mlflow.json` while runs come in."""

_logger = logging.getLogger(__name__)


class Tracker:
    """Logs a sweep's records to MLflow, in the background, between `with` and its end.

    warn      told once if tracking does not work
    seconds   longest wait at the end
    span      when the sweep began and ended; None where it is this process: then its machine's
              load is logged, too
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
        """Records that were not there before."""
        self._warn, self._seconds, self._span = warn, seconds, span
        self._background: Background | None = None
        self._expected: tuple[type[Exception], ...] = ()
        self._monitor: Any = None
        self._store: Store | None = None
        self._status = "KILLED"
        self._linked = 0.0

    def __enter__(self) -> Tracker:
        if self.settings.enabled:
            # Imported here, not in the thread: two threads that import large packages at once can
            # see each other's half-imported modules.
            self._expected = import_mlflow()
            self._background = Background("mlflow", (UnlearnbenchError,), self._give_up)
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
            finally:  # where jobs ended early, nobody has told it
                if self._monitor is not None:
                    self._monitor.finish()

    @property
    def trouble(self) -> str | None:
        """Why nothing is logged any more."""
        return None if self._background is None else self._background.trouble

    @property
    def links(self) -> Links | None:
        """Where the sweep and its runs are; None for a store that has no pages of its own."""
        return None if self._store is None else self._store.links

    def log(self, record: Record) -> None:
        """Log a record as a child run; returns at once. Anchors come before what starts there."""
        self._put(lambda: self._log(record))

    def settle(self) -> None:
        """Wait until all that was given is logged, and where it is to be seen is written down."""
        if self._background is not None:
            self._put(self._link)
            self._background.wait(self._seconds)

    def log_files(self, files: Iterable[Path], *, complete: bool = True) -> None:
        """Attach the sweep's own files to the parent run, which is described and gets figures.

        complete  no run is missing
        """
        kept = [file for file in files if file.is_file()]
        if complete:
            self._status = "FINISHED"
        self._put(lambda: self._told.attach(kept))
        self._put(self._conclude)

    def _put(self, job: Job) -> None:
        if self._background is not None:
            self._background.put(lambda: self._in_words(job))

    def _in_words(self, job: Job) -> None:
        """Do `job`; what MLflow and its libraries raise becomes one line of ours."""
        try:
            job()
        except self._expected as error:
            reason = explained(error, self.uri)
            raise UnlearnbenchError(f"MLflow at {redact(self.uri)}: {reason}") from error

    def _give_up(self, reason: str) -> None:
        again = f"`unlearnbench track {shlex.quote(str(self.folder))}` logs them later"
        self._warn(f"{reason}; no run is lost: records are complete, and {again}")

    @property
    def _told(self) -> Store:
        if self._store is None:  # the first job makes it, and no job follows one that failed
            raise RuntimeError("nothing is open")
        return self._store

    def _open(self) -> None:
        span = self._span or (None, None)
        check_store(self.uri)
        try:
            self._store = Store(self.uri, self.folder, self.config, self.settings, span)
        except (ValueError, ImportError) as error:
            # An address, or a variable of MLflow's, that MLflow cannot read.
            reason = explained(error, self.uri)
            raise UnlearnbenchError(f"MLflow at {redact(self.uri)}: {reason}") from error
        self._store.attach([self.folder / PLAN_FILE])
        if self._span is None:
            self._monitor = monitor(self.uri, self._store.parent)

    def _log(self, record: Record) -> None:
        self.logged += self._told.log(record)
        if time.monotonic() - self._linked > LINK_SECONDS:
            self._link()

    def _link(self) -> None:
        links = self._told.links
        if links is not None:
            write_links(links, self.folder)
        self._linked = time.monotonic()

    def _conclude(self) -> None:
        report = build_report(self.folder)
        self._told.describe(describe_sweep(report))
        with figures(report) as drawn:
            self._told.attach(drawn, "figures")

    def _end(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
        self._told.end(self._status)
