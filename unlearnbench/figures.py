"""Figures in one line each, as Plotly figures; Plotly is imported when the first is asked for.

    from unlearnbench.figures import pareto, trajectories, truth_ratios
    from unlearnbench.report import build_report

    report = build_report(Path("runs/quickstart"))
    pareto(report.rows)
    trajectories([row for row in report.rows if row.forget_fraction == 0.1])
    truth_ratios(next(r for r in report.records if r.method == "npo+nll"))

A table may be a part of a sweep, or of several sweeps that were evaluated by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from unlearnbench.errors import RecordError
from unlearnbench.records import Record, StoredEvaluations, read_records
from unlearnbench.registry import load
from unlearnbench.table import Row


def pareto(table: Iterable[Row], *, title: str | None = None) -> Any:
    """Model Utility against log10 Forget Quality, epoch by epoch, as a `plotly` Figure.

    One figure: a row of panels per model, a column per forget fraction.
    """
    return load("dashboards", "pareto")(tuple(table), **_given(title=title))


def trajectories(
    table: Iterable[Row], metrics: Sequence[str] | None = None, *, title: str | None = None
) -> Any:
    """Metrics by epoch, as a `plotly` Figure: a row per model and fraction, a column per metric.

    metrics  columns of `results.csv` (default: utility, Forget Quality, and two of the forget set)
    """
    return load("dashboards", "trajectories")(tuple(table), **_given(metrics=metrics, title=title))


def truth_ratios(record: Record, retain: Record | None = None, epoch: int | None = None) -> Any:
    """The two distributions that Forget Quality compares, with D marked, as a `plotly` Figure.

    record  a run
    retain  the retain model's record (default: the one beside the run's on disk)
    epoch   of the run (default: its last)

    Raises: RecordError where the epoch or the retain model's record is not to be found.
    """
    epochs = sorted(record.evaluations)
    chosen = epochs[-1] if epoch is None and epochs else epoch
    if chosen not in epochs:
        raise RecordError(
            f"record {record.id}: epoch {chosen} has no evaluation, only {epochs}; name one of them"
        )
    beside = _beside(record)
    goal = retain or next((r for r in beside if r.kind == "retain"), None)
    if goal is None or not goal.evaluations:
        raise RecordError(
            f"record {record.id}: no retain model of {record.model}, forget fraction "
            f"{record.forget_fraction:g}, stands beside it; give its record as `retain`"
        )
    start = next((r for r in beside if r.kind == "fine-tuned" and r.evaluations), None)
    return load("dashboards", "truth-ratios")(record, chosen, goal, start)


def paper() -> Any:
    """The CE-U paper's figure of six panels, from its published points, as a `plotly` Figure."""
    return load("dashboards", "paper")()


def save(figure: Any, path: str | Path) -> None:
    """Write a figure as .svg, .png or .pdf (extra `figures`, and a browser), or as .html."""
    load("dashboards", "save")(figure, Path(path))


def _beside(record: Record) -> list[Record]:
    """The records of the same sweep, model and fraction; none where it was not read from disk."""
    if not isinstance(record.evaluations, StoredEvaluations):
        return []
    place = (record.model, record.forget_fraction, record.profile)
    read = read_records(record.evaluations.folder.parent)
    return [r for r in read if (r.model, r.forget_fraction, r.profile) == place]


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
