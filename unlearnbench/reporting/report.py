"""Report of a sweep's folder, written as `results.csv`, `attacks.csv` and `report.html`.

The page is drawn by an entry point of the group `unlearnbench.dashboards`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearnbench.analysis.best_settings import rows_with_valid_start
from unlearnbench.analysis.conclusion import (
    CONCLUSION_FILE,
    Conclusion,
    conclusions,
    conclusions_json,
)
from unlearnbench.analysis.lasting import AttackedPanel, attacked_panels
from unlearnbench.analysis.order_confidence import OrderConfidence, assess_order
from unlearnbench.analysis.selection import read_selection
from unlearnbench.api.attack import Attack
from unlearnbench.api.benchmark import Headline, split_percent
from unlearnbench.api.registry import load
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError, RecordError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.privacy_control import control_warning
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.files.outputs import write_file
from unlearnbench.plan.plan import PLAN_FILE
from unlearnbench.reporting.tracker_links import run_links
from unlearnbench.results.epoch_metrics import named_metrics
from unlearnbench.results.outcomes import WITHOUT_RESULT
from unlearnbench.results.records import Record, planned_records, read_records
from unlearnbench.results.table import (
    ATTACKS,
    TableRow,
    attack_table,
    mixed_versions,
    schema_of,
    table,
    to_csv,
)
from unlearnbench.runtime.deferred_warnings import warn_later
from unlearnbench.runtime.redaction import redact_tree

REPEAT = "no record is lost: `unlearnbench report FOLDER` writes page and table again"
"""Advice if either cannot be written."""


@dataclass(frozen=True)
class Report:
    """Everything that a sweep's page shows."""

    name: str
    description: str
    records: tuple[Record, ...]
    rows: tuple[TableRow, ...]
    attacked: tuple[TableRow, ...] = ()
    """The rows of evaluations under attacks."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration."""
    planned: int | None = None
    """Number of runs in the plan; None without one."""
    unplanned: int = 0
    """Number of records in the folder that are not in the plan, and so not in `rows`."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Address of each run in MLflow by record id, if logged to a server."""
    selection: Mapping[str, Any] | None = None
    """Content of `selection.json`, if a `select` rule has chosen something."""

    @property
    def finished(self) -> int:
        """Number of runs that need no further work: finished, collapsed or stopped."""
        return sum(r.kind == "run" and r.status != "failed" for r in self.records)

    @property
    def failures(self) -> tuple[Record, ...]:
        """Runs that ended in an error."""
        return tuple(r for r in self.records if r.status == "failed")

    @property
    def without_result(self) -> tuple[Record, ...]:
        """Runs that failed or collapsed."""
        return tuple(r for r in self.records if r.kind == "run" and r.status in WITHOUT_RESULT)

    @cached_property
    def schema(self) -> BenchmarkSchema:
        """The benchmark of the records."""
        return next((row.schema for row in self.rows), None) or schema_of(self.records)

    @property
    def headline(self) -> Headline:
        """The two numbers that methods are ranked by."""
        return self.schema.headline

    @cached_property
    def claims(self) -> OrderConfidence:
        """The order of the methods on panels whose start model is valid; reads evaluations."""
        return assess_order(rows_with_valid_start(self.rows), self.records)

    @cached_property
    def lasting(self) -> tuple[AttackedPanel, ...]:
        """The attacked settings of panels whose start model is valid."""
        valid = {(r.model, r.forget_fraction) for r in rows_with_valid_start(self.rows)}
        found = attacked_panels(self.rows, self.attacked, _is_white_box)
        return tuple(one for one in found if (one.model, one.forget_fraction) in valid)

    @cached_property
    def conclusions(self) -> tuple[Conclusion, ...]:
        """Three sentences for each panel with runs."""
        return conclusions(self.rows, self.claims, self.lasting)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Lines on what the numbers do not show: of the benchmark, its metrics and its attacks."""
        controls = (
            control_warning(r.epochs[0].metrics, r.model, r.forget_fraction)
            for r in self.records
            if r.kind == "fine-tuned" and r.epochs
        )
        mixed = mixed_versions(self.records)
        lines = (self.schema.warning, mixed, *_several_starts(self), *controls, *_unobserved(self))
        return tuple(dict.fromkeys(line for line in lines if line))

    @property
    def profile(self) -> str:
        """Name and hash of the evaluation's rules."""
        return next((r.profile for r in self.records if r.epochs), "")


def _is_white_box(name: str) -> bool:
    """True for an installed attack that runs a model without what is put in front of it."""
    try:
        kind: type[Attack] = load("attacks", name)
    except PluginError:
        return False
    return kind.white_box


def _several_starts(report: Report) -> Iterator[str]:
    """A line for each model and split with several start models, as folders of 0.2 may have."""
    starts = (r for r in report.records if r.kind == "fine-tuned" and r.epochs)
    for (model, split), count in Counter((r.model, r.forget_fraction) for r in starts).items():
        if count > 1:
            place = f"{model}, {split_percent(split)}"
            yield f"{place}: {count} start models in one table; start the sweep again to keep one"


def _unobserved(report: Report) -> Iterator[str]:
    """A line for each chosen metric that reads observations which records do not have."""
    for name, settings in named_metrics(report.config).items():
        try:
            plan = plan_of(TOFU, None, {name: settings})
        except PluginError:  # it is not installed here
            continue
        if not plan.extra:
            continue
        columns = report.schema.plan.affected({name})
        every = {row.run_id for row in report.rows}
        known = {r.run_id for r in report.rows for c in columns if r.metrics.get(c) is not None}
        if ids := every - known:
            yield (
                f"{name}: not known of {len(ids)} of {len(every)} records ({min(ids)} for one), "
                f"which lack the observation it reads ({', '.join(plan.extra)}), as evaluations "
                "do that are older than evaluation.metrics; to make it, delete their folders in "
                "records/ and start the sweep again, or give the sweep another name"
            )


def make_report(
    records: Iterable[Record],
    *,
    name: str,
    description: str = "",
    config: Mapping[str, Any] | None = None,
    planned: Iterable[str] | None = None,
    references: Collection[str] | None = None,
    selection: Mapping[str, Any] | None = None,
    links: Mapping[str, str] | None = None,
) -> Report:
    """Make a report of `records`; of those in the plan alone, if the ids `planned` are given."""
    records = tuple(records)
    ids = None if planned is None else frozenset(planned)
    shown = records if ids is None else planned_records(records, ids, references)
    chosen = None if config is None else named_metrics(config)
    return Report(
        name=name,
        description=description,
        records=tuple(sorted(shown, key=lambda r: r.id)),
        rows=table(shown, chosen),
        attacked=attack_table(shown, chosen),
        config=config or {},
        planned=None if ids is None else len(ids),
        unplanned=len(records) - len(shown),
        links=links or {},
        selection=selection,
    )


def build_report(folder: str | Path) -> Report:
    """Build the report of a sweep's folder, finished or not.

    Raises: RecordError if the folder has no record.
    """
    folder = Path(folder)
    records = read_records(folder)
    if not records:
        raise RecordError(
            f"{folder}: no records to report; give a sweep's folder, which contains `records/` "
            "once its first run has ended"
        )
    plan = _plan(folder / PLAN_FILE)
    config: Mapping[str, Any] = plan.get("config", {})
    return make_report(
        records,
        name=plan.get("name", folder.resolve().name),
        description=config.get("description", ""),
        config=config,
        planned=[run["id"] for run in plan["runs"]] if plan else None,
        references=plan.get("references"),
        selection=read_selection(folder),
        links=run_links(folder),
    )


def _plan(path: Path) -> dict[str, Any]:
    """Read `plan.json`; empty without one, as in a folder of single runs."""
    if not path.is_file():
        return {}
    try:
        plan: dict[str, Any] = redact_tree(json.loads(path.read_text(encoding="utf-8")))
        _ = plan["name"], plan["config"]["name"], [run["id"] for run in plan["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}: {error}); start the sweep again, which "
            "rewrites it and repeats no finished run"
        ) from None
    return plan


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write page and tables of a sweep's folder; return the page's path.

    out  path of the page (default: `report.html` in `folder`, with `results.csv`); the table is
         written beside it as `.csv`, and that of attacks, if there were any, as `.attacks.csv`
         (default: `attacks.csv`)
    """
    report = build_report(folder)
    for line in _unobserved(report):
        warn_later(line)
    return publish(report, folder, out)


def publish(report: Report, folder: Path, out: Path | None = None) -> Path:
    """Write a report as `write_report` does."""
    page = folder / "report.html" if out is None else out
    table_file = folder / "results.csv" if out is None else out.with_suffix(".csv")
    write_file(table_file, to_csv(report.rows), "the table", REPEAT)
    if report.attacked:
        attacks = folder / ATTACKS if out is None else out.with_suffix(f".{ATTACKS}")
        write_file(attacks, to_csv(report.attacked), "the table of attacks", REPEAT)
    write_file(page, load("dashboards", "page")(report), "the page", REPEAT)
    if out is None:
        text = conclusions_json(report.conclusions)
        write_file(folder / CONCLUSION_FILE, text, "the conclusions", REPEAT)
    return page
