"""Logging of a sweep's records by a tracker, while it runs or from its folder."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.selection import SELECTION_FILE
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.registry import load
from unlearnbench.api.tracker import TrackedSweep, Tracker
from unlearnbench.base.canonical_json import content_hash
from unlearnbench.base.errors import RecordError, UnlearnbenchError
from unlearnbench.base.provenance import git_state
from unlearnbench.base.redaction import redact
from unlearnbench.config.entries import earlier_section
from unlearnbench.config.plan import PLAN_FILE
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.report.entries import milliseconds, tracked_run
from unlearnbench.report.links import write_links
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.table import TableRow, table

CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for records that are not logged yet."""
FILES = ("report.html", "results.csv", "attacks.csv", "sweep.log", SELECTION_FILE)
"""Files of a sweep's folder that a replay attaches."""

_logger = logging.getLogger(__name__)
Span = tuple[int | None, int | None]
"""Milliseconds since 1970; None is now."""


class SweepTracker:
    """Context manager that logs a sweep's records in the background.

    warn      called once if tracking fails
    seconds   longest wait at the end
    span      start and end of a finished sweep
    """

    def __init__(
        self,
        settings: TrackingSettings,
        folder: Path,
        config: SweepConfig,
        *,
        warn: Callable[[str], None] = _logger.warning,
        seconds: float = CLOSE_SECONDS,
        span: Span = (None, None),
    ) -> None:
        self.settings, self.folder, self.config = settings, folder, config
        self.logged = 0
        """Number of newly logged records."""
        self.trouble: str | None = None
        """Error that ended tracking."""
        self.address: str | None = None
        """Address of the sweep, once `settle` has written the links."""
        self._warn, self._seconds, self._span = warn, seconds, span
        self._tracker: Tracker | None = None
        self._thread = ThreadPoolExecutor(1, "tracker")
        self._last: Future[None] | None = None
        self._start_rows: list[TableRow] = []
        self._ids: list[str] = []
        self._complete = False

    def __enter__(self) -> SweepTracker:
        if self.settings.enabled:
            # Loaded here, not in the thread: two threads that import large packages at the same
            # time can see each other's half-imported modules.
            self._tracker = load("trackers", self.settings.tracker)()
            sweep = _tracked_sweep(self.settings, self.folder, self.config, self._span)
            self._put(lambda tracker: tracker.start(sweep))
            self._put(lambda tracker: tracker.artefact(self.folder / PLAN_FILE))
        return self

    def __exit__(self, *_: object) -> None:
        self._put(lambda tracker: tracker.finish("finished" if self._complete else "stopped"))
        self._wait()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def log(self, record: Record) -> None:
        """Log a record; returns at once. Start models come before their runs."""
        self._put(lambda tracker: self._log(tracker, record))

    def settle(self) -> None:
        """Wait until all records so far are logged, and write their links."""
        self._put(self._link)
        self._wait()

    def log_files(self, files: Iterable[Path], *, complete: bool = True) -> None:
        """Attach those files of the sweep that exist; `complete`: no run is missing."""
        self._complete = complete
        existing = [file for file in files if file.is_file()]

        def attach(tracker: Tracker) -> None:
            for file in existing:
                tracker.artefact(file)

        self._put(attach)

    def _put(self, job: Callable[[Tracker], None]) -> None:
        """Have a job done after those before it; the first that fails is the last."""
        tracker = self._tracker
        if tracker is None:
            return

        def guarded() -> None:
            if self.trouble is None:
                try:
                    job(tracker)
                except Exception as error:  # a tracker's, whose failure ends no run
                    self._give_up(_reason(error))

        self._last = self._thread.submit(guarded)

    def _wait(self) -> None:
        if self._last is not None and not wait([self._last], self._seconds).done:
            self._give_up(f"not done after {self._seconds:g} s")

    def _give_up(self, reason: str) -> None:
        if self.trouble is None:
            uri = self.settings.uri or ""
            at = f" at {redact(uri)}" if uri else ""
            self.trouble = f"tracking by {self.settings.tracker}{at}: {redact(reason, uri)[:300]}"
            command = f"unlearnbench track {shlex.quote(str(self.folder))}"
            self._warn(
                f"{self.trouble}; no run is lost: records are complete, and `{command}` logs them"
            )

    def _log(self, tracker: Tracker, record: Record) -> None:
        rows = table([record])
        self._start_rows += rows if record.kind == "fine-tuned" else ()
        current = (row for row in (*self._start_rows, *rows) if row.panel == record.panel)
        start = Panel(*record.panel, tuple(current)).start.utility
        self.logged += tracker.log(tracked_run(record, self.folder, self.config.name, start))
        self._ids.append(record.id)

    def _link(self, tracker: Tracker) -> None:
        self.address = tracker.link()
        if self.address is not None:
            write_links(self.folder, self.address, {name: tracker.link(name) for name in self._ids})


def _reason(error: BaseException) -> str:
    """First line of the error that a chain begins with: of a server's, `Connection refused`."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _tracked_sweep(
    settings: TrackingSettings, folder: Path, config: SweepConfig, span: Span
) -> TrackedSweep:
    tags = {"sweep": config.name, "kind": "sweep"}
    if commit := (git_state() or {}).get("commit"):
        tags["git_commit"] = commit
    # A benchmark that is not installed has no headline to order the runs by.
    headline: Headline | None = getattr(config.data, "headline", None)
    best = [headline.forgotten.column, headline.kept.column] if headline else []
    return TrackedSweep(
        id=content_hash([config.name, earlier_section(config.data)]),
        name=config.name,
        experiment=settings.experiment or f"unlearnbench-{config.data.source}",
        folder=folder,
        uri=settings.uri,
        tags=tags,
        best=[f"best/{name}" for name in (*best, "utility_kept", "epoch")],
        ascending=headline is not None and headline.forgotten.better == "lower",
        started=span[0],
        ended=span[1],
    )


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay."""

    store: str
    """Its address, or without one the tracker's name."""
    logged: int
    """Number of newly logged records."""
    records: int
    """Number of all records."""
    address: str | None
    """Address of the sweep on a server; None for a store without one."""


def replay(folder: Path, uri: str | None = None) -> ReplayResult:
    """Log every record of a sweep's folder that is not logged yet.

    Runs that an interrupted replay logged in part are replaced, and the sweep's own files as well.

    uri   of the store (default: as in the sweep's configuration)
    Raises: RecordError for a folder that is not a sweep's; UnlearnbenchError if the tracker fails.
    """
    config = sweep_config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": config.tracking.uri if uri is None else uri}
    )
    records = read_records(folder)
    starts, ends = (
        [moment for record in records if (moment := milliseconds(record.provenance.get(key)))]
        for key in ("started", "finished")
    )
    span = min(starts, default=None), max(ends, default=None)
    messages: list[str] = []
    with SweepTracker(
        settings, folder, config, warn=messages.append, seconds=3600.0, span=span
    ) as tracker:
        for record in sorted(records, key=lambda r: r.kind == "run"):  # start models first
            tracker.log(record)
        tracker.settle()
        tracker.log_files([folder / name for name in FILES])
    if tracker.trouble:
        raise UnlearnbenchError(f"{tracker.trouble}; start it, or give --uri")
    address = tracker.address if (tracker.address or "").startswith("http") else None
    store = redact(settings.uri or settings.tracker)
    return ReplayResult(store, tracker.logged, len(records), address)


def sweep_config(folder: Path) -> SweepConfig:
    """Read the configuration in `plan.json`.

    Raises: RecordError.
    """
    path = folder / PLAN_FILE
    try:
        plan: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return SweepConfig.model_validate_json(json.dumps(plan["config"]))
    except FileNotFoundError:
        raise RecordError(f"{folder} is not a sweep folder: no {PLAN_FILE} in it") from None
    except (ValueError, KeyError, TypeError) as error:
        reason = type(error).__name__
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"config.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise RecordError(
            f"{path}: damaged, or of a plug-in that is not given: {reason}; give the plug-in with "
            "--plugin, or start the sweep again, which rewrites it and repeats no finished run"
        ) from None
