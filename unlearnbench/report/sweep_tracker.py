"""Logging of a sweep's records by a tracker, while it runs or from its folder.

Both log the same numbers, because both take them from the table. While the sweep runs, a record is
logged as soon as it exists. Its numbers then come from a table of this record and of the start and
retain models that it is compared with. If such a model is evaluated later, the records are logged
again.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import yaml

from unlearnbench.analysis.conclusion import CONCLUSION_FILE
from unlearnbench.analysis.results import LINKS_FILE, Results
from unlearnbench.analysis.selection import SELECTION_FILE
from unlearnbench.analysis.settings import PanelKey
from unlearnbench.analysis.wording import without_retain_model
from unlearnbench.api.benchmark import Headline, split_text
from unlearnbench.api.registry import load
from unlearnbench.api.tracker import TrackedData, TrackedSweep, Tracker
from unlearnbench.base.atomic import write_text
from unlearnbench.base.errors import PluginError, RecordError, UnlearnbenchError
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.provenance import git_state
from unlearnbench.base.redaction import redact
from unlearnbench.config.entries import earlier_section
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.report.answer_table import AnswerTables
from unlearnbench.report.report import INTERACTIVE, PICTURE
from unlearnbench.report.sweep_summary import summary_of
from unlearnbench.report.tracked_runs import (
    RowsByRun,
    RowsOfRun,
    SweepFacts,
    chosen_epochs,
    tracked_run,
)
from unlearnbench.results.finalize import finalize
from unlearnbench.results.records import Record
from unlearnbench.results.rules import named_metrics, rules_of
from unlearnbench.results.stored_table import NOTHING_STORED, read_table

CLOSE_SECONDS = 60.0
"""Longest wait at the end of a sweep for records that are not logged yet."""
FILES = (
    "report.html",
    PICTURE,
    INTERACTIVE,
    "results.csv",
    "attacks.csv",
    "sweep.log",
    "gpu_sharing.json",
    SELECTION_FILE,
    CONCLUSION_FILE,
)
"""Files of a sweep's folder that are attached at its end."""

_logger = logging.getLogger(__name__)


class SweepTracker:
    """Context manager that logs a sweep's records in the background."""

    def __init__(
        self,
        settings: TrackingSettings,
        folder: Path,
        config: SweepConfig,
        *,
        warn: Callable[[str], None] = _logger.warning,
        seconds: float = CLOSE_SECONDS,
        opens_later: bool = False,
    ) -> None:
        """Note what is logged, and where. Nothing is opened yet.

        Args:
            settings: Settings of the tracker.
            folder: The sweep's folder.
            config: The sweep's configuration.
            warn: Called once if tracking fails.
            seconds: Longest wait at the end.
            opens_later: Whether the caller calls `open`. If not, the context begins with it.
        """
        self.settings = settings
        self.folder = folder
        self.config = config
        self.references: Sequence[Record] = ()
        """Start and retain models that the records are compared with, see `compare_with`."""
        self.chosen: Mapping[str, int] | None = None if config.select is None else {}
        """The chosen epoch of each run that reports a choice; None for a sweep without a rule."""
        self.logged = 0
        """Number of records that were logged newly or again."""
        self.trouble: str | None = None
        """Error that ended tracking."""
        self.address: str | None = None
        """Address of the sweep, once `settle` has written the links."""
        self._facts = SweepFacts.of(config, folder)
        self._answers = AnswerTables()
        self._known = NOTHING_STORED
        self._ids: dict[str, None] = {}
        self._metrics = named_metrics(config.model_dump(mode="json"))
        self._warn = warn
        self._seconds = seconds
        self._opens_later = opens_later
        self._tracker: Tracker | None = None
        self._waiting: list[Callable[[Tracker], None]] = []
        """Jobs from before the tracker was loaded."""
        self._thread = ThreadPoolExecutor(1, "tracker")
        self._last: Future[None] | None = None
        self._complete = False

    @property
    def ids(self) -> list[str]:
        """Ids of all records, logged newly or before."""
        return [*self._ids]

    def __enter__(self) -> SweepTracker:
        if not self._opens_later:
            self.open()
        return self

    def open(self) -> None:
        """Load the tracker, unless that was done before, and begin with the jobs so far.

        Loading takes a second, in which a sweep lets its workers import.
        """
        if self._tracker is not None or not self.settings.enabled:
            return
        # Loaded here, not in the thread: two threads that import large packages at the same time
        # can see each other's half-imported modules.
        self._tracker = load("trackers", self.settings.tracker)()
        sweep = _tracked_sweep(self.settings, self.folder, self.config)
        waiting = self._waiting
        self._waiting = []
        self._put(lambda tracker: tracker.start(sweep))
        self._put(self._read_known)
        self._put(lambda tracker: tracker.artefact(self.folder / PLAN_FILE))
        for job in waiting:
            self._put(job)

    def __exit__(self, *_: object) -> None:
        self._put(lambda tracker: tracker.finish("finished" if self._complete else "stopped"))
        self._wait()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def compare_with(self, references: Iterable[Record]) -> set[PanelKey]:
        """Set the start and retain models that records are compared with from now on.

        Returns:
            The models and splits of which a reference is new or gone. What was logged of them has
            numbers that are out of date, or lacks numbers.
        """
        before = {record.id: record.panel for record in self.references}
        self.references = tuple(references)
        now = {record.id: record.panel for record in self.references}
        return {panel for _, panel in before.items() ^ now.items()}

    def choose(self, chosen: Mapping[str, int] | None) -> set[str]:
        """Set what `select` or `tune` has chosen, as `chosen_epochs` returns it.

        Returns:
            The ids of the runs that are chosen now and were not before, or the other way round.
        """
        before = self.chosen or {}
        self.chosen = chosen
        return {run_id for run_id, _ in before.items() ^ (chosen or {}).items()}

    def log(self, record: Record) -> None:
        """Log a record. Returns at once."""
        references = self.references
        chosen = self.chosen

        def job(tracker: Tracker) -> None:
            compared = [
                reference
                for reference in references
                if reference.panel == record.panel and reference.id != record.id
            ]
            records = [*compared, record]
            table = finalize(records, rules_of(records, self._metrics), self._known)
            self._log(tracker, record, RowsByRun(table, chosen).of(record), references)

        self._put(job)

    def log_results(self, results: Results) -> None:
        """Log the records of a whole sweep. Returns at once."""
        self.choose(chosen_epochs(results))
        rows = RowsByRun(results.table, self.chosen)
        references = tuple(record for record in results.records if record.kind != "run")
        # Runs are compared with start and retain models, which come first for readers of a log.
        for record in sorted(results.records, key=lambda record: record.kind == "run"):
            job = partial(self._log, record=record, rows=rows.of(record), references=references)
            self._put(job)

    def summarize(self, results: Results) -> None:
        """Show what the sweep has found. Returns at once."""

        def job(tracker: Tracker) -> None:
            tracker.summarize(summary_of(results, _description(self.config)))

        self._put(job)

    def settle(self) -> None:
        """Wait until all records so far are logged, and write their links."""
        self.open()
        self._put(self._link)
        self._wait()

    def log_files(self, files: Iterable[Path], *, complete: bool = True) -> None:
        """Attach the files of the sweep that exist.

        Args:
            files: Paths. Missing files are left out.
            complete: Whether every planned run has ended.
        """
        self._complete = complete
        for file in files:
            if file.is_file():
                self._put(methodcaller("artefact", file))

    def _put(self, job: Callable[[Tracker], None]) -> None:
        """Let the thread do a job after all earlier ones. After a failure, jobs are dropped."""
        tracker = self._tracker
        if tracker is None:
            if self.settings.enabled:
                self._waiting.append(job)
            return

        def guarded() -> None:
            if self.trouble is not None:
                return
            try:
                job(tracker)
            except Exception as error:
                # A tracker may raise anything, and its failure must not end a run.
                self._give_up(_reason(error))

        self._last = self._thread.submit(guarded)

    def _wait(self) -> None:
        """Wait until the last job is done, or give up."""
        if self._last is None:
            return
        if not wait([self._last], self._seconds).done:
            self._give_up(f"not done after {self._seconds:g} s")

    def _give_up(self, reason: str) -> None:
        """End tracking with one warning. Further calls do nothing."""
        if self.trouble is not None:
            return
        uri = self.settings.uri or ""
        place = f" at {redact(uri)}" if uri else ""
        first_line = redact(reason, uri).partition("\n")[0][:300]
        self.trouble = f"tracking by {self.settings.tracker}{place}: {first_line}"
        command = f"unlearnbench track {shlex.quote(str(self.folder))}"
        self._warn(
            f"{self.trouble}; no run is lost: records are complete, and `{command}` logs them"
        )

    def _read_known(self, _: Tracker) -> None:
        """Read the table that earlier commands stored, so that no number is computed again."""
        self._known = read_table(self.folder)

    def _log(
        self, tracker: Tracker, record: Record, rows: RowsOfRun, references: Iterable[Record]
    ) -> None:
        """Log a record with its rows of a table."""
        run = tracked_run(record, rows, self._facts, references, self._answers)
        is_new = tracker.log(run)
        self.logged += is_new
        self._ids[record.id] = None

    def _link(self, tracker: Tracker) -> None:
        """Write the addresses of the sweep and of its runs, if the tracker has any."""
        self.address = tracker.link()
        if self.address is None:
            return
        links = {
            "sweep": self.address,
            "runs": {run_id: tracker.link(run_id) for run_id in self.ids},
        }
        write_text(self.folder / LINKS_FILE, json.dumps(links, indent=1) + "\n")


def _reason(error: BaseException) -> str:
    """Return the message of the first error in a chain.

    The last one of an unreachable server is about retries, and the first one says `Connection
    refused`.
    """
    first = error
    while True:
        earlier = first.__cause__ or first.__context__
        if earlier is None:
            return str(first).strip() or type(first).__name__
        first = earlier


def _tracked_sweep(settings: TrackingSettings, folder: Path, config: SweepConfig) -> TrackedSweep:
    """Describe a sweep for its tracker.

    The sweep's plan, which has no secrets, was written before.
    """
    plan = _read_plan(folder)
    headline = _headline(config)
    best = [
        f"best/{column}" for column in (*_ranked_columns(headline), "utility_kept", config.unit)
    ]
    return TrackedSweep(
        id=content_hash([config.name, earlier_section(config.data)]),
        name=config.name,
        experiment=settings.experiment or f"unlearnbench-{config.data.source}",
        folder=folder,
        uri=settings.uri,
        tags=_sweep_tags(config),
        best=best,
        ascending=headline is not None and headline.forgotten.better == "lower",
        description=_description(config),
        configuration=_configuration(plan),
        data=_data_of(plan, config, folder),
    )


def _headline(config: SweepConfig) -> Headline | None:
    """Return the headline that runs are ordered by; None if the benchmark is not installed."""
    headline: Headline | None = getattr(config, "headline", None)
    return headline


def _ranked_columns(headline: Headline | None) -> list[str]:
    """Return the columns of a headline, beginning with the one that tables are sorted by."""
    return [] if headline is None else [headline.forgotten.column, headline.kept.column]


def _sweep_tags(config: SweepConfig) -> dict[str, str]:
    """Return the tags of the sweep's own run."""
    tags = {"sweep": config.name, "kind": "sweep"}
    commit = (git_state() or {}).get("commit")
    if commit:
        tags["git_commit"] = commit
    return tags


def _configuration(plan: Mapping[str, Any]) -> str:
    """Write a plan's configuration as YAML for readers, with all methods resolved into settings."""
    text = yaml.safe_dump(plan.get("config", {}), sort_keys=False, allow_unicode=True)
    return f"# The resolved configuration, with all defaults.\n{text}"


def _data_of(plan: Mapping[str, Any], config: SweepConfig, folder: Path) -> list[TrackedData]:
    """Describe the rows of a sweep's splits."""
    fingerprints: Mapping[str, str] = plan.get("data", {})
    facts = SweepFacts.of(config, folder)
    return [
        facts.data(split, fingerprints[split_text(split)])
        for split in config.split_keys
        if split_text(split) in fingerprints
    ]


def _description(config: SweepConfig) -> str:
    """Say what the sweep is about, and what is unknown without a retain model."""
    if _headline(config) is None:
        return ""
    try:
        schema = BenchmarkSchema.of(
            config.data,
            profile_of(config.evaluation),
            config.evaluation.metrics,
            references=config.references,
        )
    except PluginError:
        # The plug-in of a metric was given to the sweep, but not to this command.
        return config.description
    sentences = [config.description, without_retain_model(schema)]
    return " ".join(sentence for sentence in sentences if sentence)


def replay(folder: Path, uri: str | None = None) -> SweepTracker:
    """Log every planned record of a sweep's folder whose numbers a store does not have.

    A run in the store is replaced if an interrupted command logged only a part of it, or if its
    numbers are not those of the table. The sweep's own files are replaced as well.

    Args:
        folder: The sweep's folder.
        uri: Address of the store. Defaults to the address in the sweep's configuration.

    Raises:
        RecordError: If the folder is not a sweep's.
        UnlearnbenchError: If the tracker fails.
    """
    config = sweep_config(folder)
    settings = config.tracking.model_copy(
        update={"enabled": True, "uri": config.tracking.uri if uri is None else uri}
    )
    messages: list[str] = []
    results = Results.read(folder)
    with SweepTracker(settings, folder, config, warn=messages.append, seconds=3600.0) as tracker:
        tracker.log_results(results)
        tracker.settle()
        tracker.summarize(results)
        runs = [record for record in results.records if record.kind == "run"]
        ended = sum(record.status != "failed" for record in runs)
        complete = results.planned is not None and ended >= results.planned
        tracker.log_files([folder / name for name in FILES], complete=complete)
    if tracker.trouble:
        raise UnlearnbenchError(f"{tracker.trouble}; start it, or give --uri")
    return tracker


def _read_plan(folder: Path) -> Mapping[str, Any]:
    plan: Mapping[str, Any] = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    return plan


def sweep_config(folder: Path) -> SweepConfig:
    """Read the configuration in `plan.json`.

    Raises:
        RecordError: If the folder has no plan, or if the plan cannot be read here.
    """
    path = folder / PLAN_FILE
    try:
        plan = _read_plan(folder)
        return SweepConfig.model_validate_json(json.dumps(plan["config"]))
    except FileNotFoundError:
        raise RecordError(f"{folder} is not a sweep folder: no {PLAN_FILE} in it") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged, or of a plug-in that is not given: {' '.join(str(error).split())}; "
            "give the plug-in with --plugin, or start the sweep again, which rewrites it and "
            "repeats no finished run"
        ) from None
