"""Logging of a sweep's records by a tracker, while it runs or from its folder."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from operator import methodcaller
from pathlib import Path
from typing import Any

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.conclusion import CONCLUSION_FILE
from unlearnbench.analysis.results import LINKS_FILE, Results
from unlearnbench.analysis.selection import SELECTION_FILE
from unlearnbench.api.benchmark import Headline, split_label
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.registry import load
from unlearnbench.api.tracker import MetricPoint, TrackedRun, TrackedSweep, Tracker
from unlearnbench.base.atomic import write_text
from unlearnbench.base.errors import RecordError, UnlearnbenchError
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.provenance import git_state
from unlearnbench.base.redaction import redact
from unlearnbench.config.entries import earlier_section
from unlearnbench.config.plan import PLAN_FILE
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.epoch_metrics import (
    changed_columns,
    numbers,
    references_of,
)
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record
from unlearnbench.results.rules import named_metrics, schema_of
from unlearnbench.results.run_settings import free_name
from unlearnbench.results.table import TableRow

LONGEST = 500
"""Most characters of a parameter or tag that every store accepts."""
_Point = tuple[str, float | None, int]
"""Name, value, step."""


def tracked_run(record: Record, folder: Path, sweep: str, panel: Panel) -> TrackedRun:
    """Make the run of a record.

    folder  of the sweep
    sweep   its name
    panel   the rows of the record and of its start model, by which its best epoch is found

    Undefined and infinite values are left out, because stores do not accept them.
    """
    spec, made = record.spec, record.provenance
    location = {
        name: getattr(record, name)
        for name in ("method", "model", "forget_fraction", "learning_rate", "seed")
    } | {"epochs": spec.get("epochs")}
    parameters = location | _parameters(spec, location)
    tags = location | {
        "sweep": sweep,
        "kind": record.kind,
        "status": record.status,
        "profile": record.profile,
        "evaluation_precision": record.precision,
        "data": spec.get("data_fingerprint") or made.get("data"),
        "device": made.get("device"),
        "error": (record.error or "").strip().partition("\n")[0] or None,
        "git_commit": (made.get("git") or {}).get("commit"),
        "unlearnbench.run_id": record.id,
    }
    started, ended = (milliseconds(made.get(name)) for name in ("started", "finished"))
    points = [*_by_epoch(record), *_under(record), *_best(record, panel), *_by_step(record)]
    file = folder / "records" / record.place / "record.json"
    return TrackedRun(
        id=record.id,
        name=_name(record),
        status=record.status,
        parameters=_texts(parameters),
        tags=_texts(tags),
        points=[
            MetricPoint(name, value, step, ended or 0)
            for name, value, step in points
            if value is not None and math.isfinite(value)
        ],
        artefacts={file.name: lambda: redact(file.read_text("utf-8"))} if file.is_file() else {},
        started=started,
        ended=ended,
    )


def _parameters(spec: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name, without two settings of one name.

    Args:
        spec: Of a record.
        taken: Parameters of other names.
    """
    model: Mapping[str, Any] = spec.get("model") or {}
    method: Mapping[str, Any] = spec.get("method") or {}
    retain: Mapping[str, Any] = method.get("retain") or {}
    # Section, key in the section, name of the parameter, value.
    settings = [
        *(("model", key, key, model.get(key)) for key in ("base", "dtype")),
        *(("model.lora", k, f"lora_{k}", v) for k, v in (model.get("lora") or {}).items()),
        *(("training", k, k, v) for k, v in (spec.get("training") or {}).items()),
        *(("method", k, k, v) for k, v in (method.get("hyperparameters") or {}).items()),
        *(("retain", k, f"retain_{k}", v) for k, v in retain.items()),
    ]
    parameters: dict[str, Any] = {}
    for section, key, name, value in settings:
        free = free_name(name, {*taken, *parameters}, section, key)
        parameters[free] = value
    return parameters


def _name(record: Record) -> str:
    """`ce-u · tiny · forget 0.1 · lr 2e-05 · seed 0`; `retain under relearning · tiny · …`."""
    rate = [] if record.learning_rate is None else [f"lr {record.learning_rate:g}"]
    under = {item.variant.partition("@")[0] for item in record.attacked if not record.epochs}
    method = " under ".join([record.method, *sorted(under)])
    location = [method, record.model, split_label(record.forget_fraction)]
    return " · ".join([*location, *rate, f"seed {record.seed}"])


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _cut(_text(value)) for name, value in values.items() if value is not None}


def _cut(text: str) -> str:
    """Cut a text that stores refuse; texts that differ only behind the cut stay different."""
    if len(text) <= LONGEST:
        return text
    digest = content_hash(text)[:8]
    return f"{text[: LONGEST - len(digest) - 2]}… {digest}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float) and 1e-12 <= abs(value) < 1:
        # MLflow compares parameters as text: 0.00002 sorts before 0.0001, but 2e-05 after it.
        return f"{Decimal(repr(value)):f}"
    return str(value)


def metric_name(name: str, known: Mapping[str, MetricColumn], sets: Iterable[str] = ()) -> str:
    """Rename `rouge_forget` to `forget/rouge`, because MLflow groups by the part before a slash.

    known  columns by name
    sets   names that other columns of a set end with, as those of a metric not installed here
    """
    ends = [item for item in sets if name.endswith(f"_{item}")]
    of_set = known[name].set if name in known else max(ends, key=len, default="")
    return f"{of_set}/{name.removesuffix(f'_{of_set}')}" if of_set else name


def _by_epoch(record: Record) -> Iterator[_Point]:
    known = schema_of([record]).columns
    columns = {name for epoch in record.epochs for name in epoch.metrics}
    sets = {known[name].set for name in columns & known.keys()} - {""}
    for epoch in record.epochs:
        k = epoch.epoch
        for column, value in epoch.metrics.items():
            yield metric_name(column, known, sets), value, k
        yield "system/training_seconds", epoch.training_seconds, k
        yield "system/evaluation_seconds", epoch.evaluation_seconds, k
    if record.epochs:
        last = record.epochs[-1].epoch
        for name in ("peak_memory_mib", "estimated_memory_mib"):
            yield f"system/{name}", record.provenance.get(name), last


def _under(record: Record) -> Iterator[_Point]:
    """Metrics under attacks: `under.relearning.13/rouge_forget`, apart from all plain ones.

    Without characters that MLflow refuses in names, such as the @ of a variant.
    """
    for item in record.attacked:
        group = re.sub(r"[^\w.-]", "-", item.variant.replace("@", "."))
        for column, value in item.metrics.items():
            yield f"under.{group}/{column}", value, item.epoch


def _best(record: Record, panel: Panel) -> Iterator[_Point]:
    """Metrics of a run's best epoch, by the rule of every table; nothing where none is good."""
    best = next((item.setting for item in panel.best if item.setting), None)
    if record.kind != "run" or best is None:
        return
    k = best.epoch
    yield "best/epoch", float(k), k
    test = best.headline.forgotten.test
    for name in (*best.headline.columns[:2], *((test.p_value,) if test else ())):
        yield f"best/{name}", best.metrics.get(name), k
    if best.kept is not None and panel.start.utility:
        yield "best/utility_kept", best.kept / panel.start.utility, k


def _by_step(record: Record) -> Iterator[_Point]:
    for step in record.steps:
        part = {"loss": step.loss, "grad_norm": step.grad_norm, "learning_rate": step.learning_rate}
        terms = {f"loss_{term}": value for term, value in step.terms.items()}
        for name, value in (
            part | {"epoch": float(step.epoch)} | terms | dict(step.reported)
        ).items():
            yield f"train/{name}", value, step.step


def milliseconds(moment: Any) -> int | None:
    """Convert an ISO date to milliseconds since 1970; None if it is not one."""
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except (TypeError, ValueError):
        return None


CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for records that are not logged yet."""
FILES = "report.html", "results.csv", "attacks.csv", "sweep.log", SELECTION_FILE, CONCLUSION_FILE
"""Files of a sweep's folder that are attached at its end."""

_logger = logging.getLogger(__name__)


class SweepTracker:
    """Context manager that logs a sweep's records in the background.

    warn      called once if tracking fails
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
        self.logged = 0
        """Number of newly logged records."""
        self.trouble: str | None = None
        """Error that ended tracking."""
        self.address: str | None = None
        """Address of the sweep, once `settle` has written the links."""
        self.ids: list[str] = []
        """Ids of all records, logged newly or before."""
        self._warn, self._seconds = warn, seconds
        self._tracker: Tracker | None = None
        self._thread = ThreadPoolExecutor(1, "tracker")
        self._last: Future[None] | None = None
        self._start_rows: list[TableRow] = []
        self._complete = False

    def __enter__(self) -> SweepTracker:
        if self.settings.enabled:
            # Loaded here, not in the thread: two threads that import large packages at the same
            # time can see each other's half-imported modules.
            self._tracker = load("trackers", self.settings.tracker)()
            sweep = _tracked_sweep(self.settings, self.folder, self.config)
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
        for file in filter(Path.is_file, files):
            self._put(methodcaller("artefact", file))

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
            reason = redact(reason, uri).partition("\n")[0][:300]
            self.trouble = f"tracking by {self.settings.tracker}{at}: {reason}"
            command = f"unlearnbench track {shlex.quote(str(self.folder))}"
            self._warn(
                f"{self.trouble}; no run is lost: records are complete, and `{command}` logs them"
            )

    def _log(self, tracker: Tracker, record: Record) -> None:
        rows = table_of([record]).rows
        self._start_rows += rows if record.kind == "fine-tuned" else ()
        current = (row for row in (*self._start_rows, *rows) if row.panel == record.panel)
        panel = Panel(*record.panel, tuple(current))
        self.logged += tracker.log(tracked_run(record, self.folder, self.config.name, panel))
        self.ids.append(record.id)

    def _link(self, tracker: Tracker) -> None:
        self.address = tracker.link()
        if self.address is not None:
            links = {"sweep": self.address, "runs": {name: tracker.link(name) for name in self.ids}}
            write_text(self.folder / LINKS_FILE, json.dumps(links, indent=1) + "\n")


def _reason(error: BaseException) -> str:
    """The error that a chain begins with: of a server's, `Connection refused`."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return str(error).strip() or type(error).__name__


def _tracked_sweep(settings: TrackingSettings, folder: Path, config: SweepConfig) -> TrackedSweep:
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
    )


def replay(folder: Path, uri: str | None = None) -> SweepTracker:
    """Log every planned record of a sweep's folder that is not logged yet, as tables show it now.

    Runs that an interrupted replay logged in part are replaced, and the sweep's own files as well.

    uri   of the store (default: as in the sweep's configuration)
    Raises: RecordError for a folder that is not a sweep's; UnlearnbenchError if the tracker fails.
    """
    config = sweep_config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": config.tracking.uri if uri is None else uri}
    )
    messages: list[str] = []
    results = Results.read(folder)
    references, chosen = references_of(results.records), named_metrics(results.config)
    with SweepTracker(settings, folder, config, warn=messages.append, seconds=3600.0) as tracker:
        for record in sorted(results.records, key=lambda r: r.kind == "run"):  # starts first
            values, stale = numbers(record, references, chosen), changed_columns(record, chosen)
            epochs = [replace(item, metrics=values[item.epoch]) for item in record.epochs]
            attacked = [
                replace(item, metrics={k: v for k, v in item.metrics.items() if k not in stale})
                for item in record.attacked
            ]
            tracker.log(replace(record, epochs=(*epochs,), attacked=(*attacked,)))
        tracker.settle()
        ended = sum(r.kind == "run" and r.status != "failed" for r in results.records)
        complete = results.planned is not None and ended >= results.planned
        tracker.log_files([folder / name for name in FILES], complete=complete)
    if tracker.trouble:
        raise UnlearnbenchError(f"{tracker.trouble}; start it, or give --uri")
    return tracker


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
        raise RecordError(
            f"{path}: damaged, or of a plug-in that is not given: {' '.join(str(error).split())}; "
            "give the plug-in with --plugin, or start the sweep again, which rewrites it and "
            "repeats no finished run"
        ) from None
