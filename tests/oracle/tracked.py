"""What MLflow has of each record (docs/reference/mlflow.md)."""

from __future__ import annotations

import re

from tests.oracle.means import Setting
from tests.oracle.places import Judge, judge_of
from tests.oracle.read import Record
from tests.oracle.rows import Row, Rows

P_VALUE = "forget_quality"
"""Column of the p-value of a headline with a test."""


def tracked_metrics(rows: Rows, record: Record) -> dict[tuple[str, int], float]:
    """Return the metrics of a record's models by name and epoch.

    A number of one evaluation set is `<set>/<metric>`, and one under an attack is
    `under.<variant>/<column>`. `best/…` is of the run's best epoch, by the rule of every table.
    Undefined numbers are left out.
    """
    sets = rows.benchmark.columns_by_set(rows.folder.chosen_metrics)
    of_record = [row for row in rows.all if row.record.id == record.id]
    metrics: dict[tuple[str, int], float] = {}
    for row in of_record:
        for column, value in row.values.items():
            if value is not None:
                metrics[_name(row, column, sets.get(column)), row.epoch] = value
    if record.kind == "run":
        judge = judge_of(rows, record.panel)
        metrics |= _best(judge, [row for row in of_record if not row.variant])
    return metrics


def _name(row: Row, column: str, of_set: str | None) -> str:
    if row.variant:
        # MLflow refuses an @ in names.
        group = re.sub(r"[^A-Za-z0-9_.-]", "-", row.variant.replace("@", "."))
        return f"under.{group}/{column}"
    if of_set is None:
        return column
    return f"{of_set}/{column.removesuffix(f'_{of_set}')}"


def _best(judge: Judge, rows: list[Row]) -> dict[tuple[str, int], float]:
    """Return the numbers of a run's best epoch; nothing if no epoch keeps enough."""
    if judge.fault or judge.least_kept is None or not judge.start_kept:
        return {}
    epochs = [Setting("", row.epoch, (row,)) for row in rows]
    best = judge.best(epochs, judge.least_kept)
    if best is None:
        return {}
    headline = judge.headline
    columns = [headline.kept, headline.forgotten, *([P_VALUE] if headline.has_test else [])]
    metrics = {("best/epoch", best.epoch): float(best.epoch)}
    for column in columns:
        value = best.mean(column)
        if value is not None:
            metrics[f"best/{column}", best.epoch] = value
    kept = best.mean(headline.kept)
    if kept is not None:
        metrics["best/utility_kept", best.epoch] = kept / judge.start_kept
    return metrics
