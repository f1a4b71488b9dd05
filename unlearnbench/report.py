"""A sweep's folder becomes `results.csv` and `report.html`.

What draws the page is found by entry point: nothing here knows how a page looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearnbench.bounded import parse_json
from unlearnbench.errors import RecordError
from unlearnbench.front import pareto_front
from unlearnbench.links import read_links
from unlearnbench.outcomes import WITHOUT_RESULT
from unlearnbench.outputs import write_file
from unlearnbench.plan import PLAN_FILE
from unlearnbench.ranking import (
    UTILITY_SHARE,
    Best,
    Setting,
    average_seeds,
    best_per_method,
    start_utility,
)
from unlearnbench.records import Record, read_records
from unlearnbench.redaction import redacted
from unlearnbench.registry import load
from unlearnbench.selection import read_selection
from unlearnbench.table import COLUMNS, METRICS, Row, table, to_csv

__all__ = [
    "COLUMNS",
    "METRICS",
    "UTILITY_SHARE",
    "Best",
    "Report",
    "Row",
    "Setting",
    "average_seeds",
    "best_per_method",
    "build_report",
    "make_report",
    "pareto_front",
    "publish",
    "start_utility",
    "table",
    "to_csv",
    "write_csv",
    "write_report",
]


KEPT = "all records are kept: `unlearnbench report FOLDER` writes page and table again"
"""What there is to do where either cannot be written."""


@dataclass(frozen=True)
class Report:
    """A sweep as its reader sees it."""

    name: str
    description: str
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration."""
    planned: int | None = None
    """Runs of the plan; None without one."""
    strangers: int = 0
    """Finished runs in the folder that the present plan does not name; left out of the rows."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Address of a record's run in MLflow, by record id, where it is logged to a server."""
    selection: Mapping[str, Any] | None = None
    """`selection.json` of a sweep with a `select` rule, once something was chosen."""

    @property
    def finished(self) -> int:
        """Runs that need no further work: finished, or stopped because they collapsed."""
        return sum(r.kind == "run" and r.status != "failed" for r in self.records)

    @property
    def failures(self) -> tuple[Record, ...]:
        """Runs that ended in an error."""
        return tuple(r for r in self.records if r.status == "failed")

    @property
    def without_result(self) -> tuple[Record, ...]:
        """Runs that failed or collapsed."""
        return tuple(r for r in self.records if r.kind == "run" and r.status in WITHOUT_RESULT)

    @property
    def profile(self) -> str:
        """Name and hash of the evaluation's rules."""
        return next((r.profile for r in self.records if r.epochs), "")


def make_report(
    records: Iterable[Record],
    *,
    name: str,
    description: str = "",
    config: Mapping[str, Any] | None = None,
    planned: Iterable[str] | None = None,
    selection: Mapping[str, Any] | None = None,
    links: Mapping[str, str] | None = None,
) -> Report:
    """A report of `records`; where `planned` names run ids, other runs are left out."""
    records = tuple(records)
    ids = None if planned is None else frozenset(planned)
    kept = [r for r in records if r.kind != "run" or ids is None or r.id in ids]
    shown = tuple(r for r in kept if r.kind == "run" or _fits(r, kept))
    return Report(
        name=name,
        description=description,
        records=tuple(sorted(shown, key=lambda r: r.id)),
        rows=table(shown),
        config=config or {},
        planned=None if ids is None else len(ids),
        strangers=len(records) - len(shown),
        links=links or {},
        selection=selection,
    )


def _fits(anchor: Record, records: Iterable[Record]) -> bool:
    """Whether runs of its panel are of its precision, as far as that is known of any.

    One that a folder has kept from before a model's `dtype` was changed stays out.
    """
    here = (anchor.model, anchor.forget_fraction)
    runs = [r for r in records if r.kind == "run" and (r.model, r.forget_fraction) == here]
    precisions = {r.precision for r in runs if r.epochs} - {None}
    return not precisions or anchor.precision in (None, *precisions)


def build_report(folder: str | Path, records: Sequence[Record] | None = None) -> Report:
    """The report of a sweep's folder, finished or not; of `records`, where they are read already.

    Raises: RecordError where the folder holds no record.
    """
    folder = Path(folder)
    records = read_records(folder) if records is None else records
    if not records:
        raise RecordError(
            f"{folder}: no records to report; a report is made from a sweep's folder, "
            "which holds `records/` once its first run is done"
        )
    plan = _plan(folder / PLAN_FILE)
    config: Mapping[str, Any] = plan.get("config", {})
    return make_report(
        records,
        name=plan.get("name", folder.resolve().name),
        description=config.get("description", ""),
        config=config,
        planned=[run["id"] for run in plan["runs"]] if plan else None,
        selection=read_selection(folder),
        links=kept.by_record() if (kept := read_links(folder)) else {},
    )


def _plan(path: Path) -> dict[str, Any]:
    """`plan.json`; empty where there is none, as in a folder of single runs."""
    if not path.is_file():
        return {}
    try:
        plan: dict[str, Any] = redacted(parse_json(path.read_text(encoding="utf-8")))
        _ = plan["name"], plan["config"]["name"], [run["id"] for run in plan["runs"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}: {error}); start the sweep again, which "
            "writes it anew and repeats no finished run"
        ) from None
    return plan


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write the table; see `to_csv`."""
    write_file(path, to_csv(rows), "the table", KEPT)


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page and, beside it, the table; return the page's path.

    Without `out` they are `report.html` and `results.csv` in `folder`.
    """
    return publish(build_report(folder), folder, out)


def publish(report: Report, folder: Path, out: Path | None = None) -> Path:
    """Write what `write_report` writes, of a report that is there already."""
    page = folder / "report.html" if out is None else out
    write_csv(report.rows, folder / "results.csv" if out is None else out.with_suffix(".csv"))
    write_file(page, load("dashboards", "page")(report), "the page", KEPT)
    return page
