"""Figures in one line each, as Plotly figures; the first one imports Plotly.

    from unlearnbench import read_records
    from unlearnbench.figures import pareto, trajectories, truth_ratios

    pareto("runs/quickstart")
    records = read_records("runs/quickstart")
    trajectories([record for record in records if record.forget_fraction == 0.1])
    truth_ratios(next(record for record in records if record.method == "npo+nll"))

A table is a sweep's folder, its `results.csv` (the file, or as a data frame), records, or rows. It
may be a part of a sweep, or of several sweeps that were evaluated by the same rules.
"""

from __future__ import annotations

import csv
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from unlearnbench.analysis.meta_evaluation import MetaEvaluation
from unlearnbench.api.benchmark import split_label
from unlearnbench.api.registry import load
from unlearnbench.errors import RecordError
from unlearnbench.reporting.report import build_report
from unlearnbench.results.records import (
    Record,
    StoredEvaluations,
    evaluated_epoch,
    read_records,
)
from unlearnbench.results.table import TableRow, from_csv
from unlearnbench.results.table import table as make_table


class DataFrame(Protocol):
    """Data frame of pandas, polars and others."""

    def to_dict(self, orient: Literal["records"]) -> list[dict[Hashable, Any]]:
        """One mapping of column to value per line."""
        ...


Table = str | Path | Iterable[TableRow] | Iterable[Record] | DataFrame
"""Sources of rows."""


def rows_of(table: Table) -> tuple[TableRow, ...]:
    """Read the rows of a sweep's folder, of a `results.csv` or its data frame, or of records.

    Raises: RecordError for anything else.
    """
    if isinstance(table, str | Path):
        path = Path(table)
        if path.is_dir():
            return build_report(path).rows
        if not path.is_file():
            raise RecordError(f"{path}: no such folder of a sweep, and no results.csv")
        with path.open(encoding="utf-8", newline="") as lines:
            return from_csv(csv.DictReader(lines))
    if hasattr(table, "to_dict"):
        return from_csv(cast(Any, table).to_dict("records"))
    found: tuple[Any, ...] = tuple(cast(Iterable[Any], table))
    if all(isinstance(one, Record) for one in found):
        return make_table(found)
    if all(isinstance(one, TableRow) for one in found):
        return found
    kinds = ", ".join(sorted({type(one).__name__ for one in found}))
    raise RecordError(
        f"a table of {kinds}: give a sweep's folder, its results.csv or data frame, records, or "
        "the rows of a report"
    )


def pareto(table: Table, *, title: str | None = None) -> Any:
    """Trade-off of what is kept against what is forgotten, as a `plotly` Figure.

    One figure: a row of panels per model, a column per split.
    """
    return load("dashboards", "pareto")(rows_of(table), **_set_options(title=title))


def trajectories(
    table: Table, metrics: Sequence[str] | None = None, *, title: str | None = None
) -> Any:
    """Metrics by epoch, as a `plotly` Figure: a row per model and fraction, a column per metric.

    metrics  columns of `results.csv` (default: the headline's two, and two of the forget set)
    """
    return load("dashboards", "trajectories")(
        rows_of(table), **_set_options(metrics=metrics, title=title)
    )


def truth_ratios(record: Record, retain: Record | None = None, epoch: int | None = None) -> Any:
    """The two distributions that Forget Quality compares, with D marked, as a `plotly` Figure.

    record  a run
    retain  the retain model's record (default: the one in the same folder as the run's)
    epoch   of the run (default: its last)

    Raises: RecordError if the epoch or the retain model's record does not exist.
    """
    chosen = evaluated_epoch(record, epoch)
    siblings = _siblings(record)
    goal = retain or next((r for r in siblings if r.kind == "retain"), None)
    if goal is None or not goal.evaluations:
        raise RecordError(
            f"record {record.id}: no retain model of {record.model}, "
            f"{split_label(record.forget_fraction)}, in its folder; give its record as `retain`"
        )
    start = next((r for r in siblings if r.kind == "fine-tuned" and r.evaluations), None)
    return load("dashboards", "truth-ratios")(record, chosen, goal, start)


def paper() -> Any:
    """The CE-U paper's figure of six panels, from its published points, as a `plotly` Figure."""
    return load("dashboards", "paper")()


def meta_evaluation(found: Sequence[MetaEvaluation]) -> Any:
    """Metrics as detectors of knowledge, as a `plotly` Figure: a row of panels per split.

    found  of `unlearnbench.analysis.meta_evaluation.meta_evaluation`
    """
    return load("dashboards", "meta-evaluation")(found)


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as .svg, .png or .pdf (extra `figures`, and a browser), or as .html."""
    load("dashboards", "save")(figure, Path(path))


def _siblings(record: Record) -> list[Record]:
    """The records of the same sweep, model and fraction; none if it was not read from disk."""
    if not isinstance(record.evaluations, StoredEvaluations):
        return []
    place = (record.model, record.forget_fraction, record.profile)
    read = read_records(record.evaluations.folder.parent)
    return [r for r in read if (r.model, r.forget_fraction, r.profile) == place]


def _set_options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
