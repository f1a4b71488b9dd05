"""What MLflow has of each record (docs/reference/mlflow.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.oracle.attackers import is_choice, is_trial
from tests.oracle.lasting import MEMORISATION
from tests.oracle.means import Setting
from tests.oracle.places import Judge, judge_of
from tests.oracle.read import Record
from tests.oracle.rows import Row, Rows

P_VALUE = "forget_quality"
"""Column of the p-value of a headline with a test."""
SCORES = "forgotten", "private", "kept"
"""Columns of the scores of a model."""


def tracked_metrics(
    rows: Rows, record: Record, chosen_epochs: Mapping[str, int] | None
) -> dict[tuple[str, int], float]:
    """Return the metrics of a record's models by name and epoch.

    A number of one evaluation set is `<set>/<metric>`, and one under an attack is
    `under.<variant>/<column>`. What is kept and what is forgotten by the headline are there once
    more, as `at_a_glance/utility` and `at_a_glance/forgetting`. `best/…` is of the run's best
    epoch, by the rule of every table, and its step is 0. In a sweep with `select` or `tune` it is
    of the chosen epoch, and only runs that report a choice have it. Undefined numbers are left out,
    and so are those of the rows on which a search chooses its attacker. Of each of its attackers,
    only two numbers are there: what the attack is measured by, and what is kept by the headline.

    Args:
        rows: Of the folder.
        record: One of its records.
        chosen_epochs: By run that reports a choice, its epoch; None in a sweep without choices.
    """
    sets = rows.benchmark.columns_by_set(rows.folder.chosen_metrics)
    of_record = [row for row in rows.all if row.record.id == record.id]
    metrics: dict[tuple[str, int], float] = {}
    of_attackers = {_measured(rows, of_record), rows.benchmark.headline.kept}
    for row in of_record:
        if is_choice(row.variant):
            continue
        for column, value in row.values.items():
            is_logged = not is_trial(row.variant) or column in of_attackers
            if value is not None and is_logged:
                metrics[_name(row, column, sets.get(column)), row.epoch] = value
    judge = judge_of(rows, record.panel)
    for row in of_record:
        if not row.variant:
            metrics |= _glance(judge, row)
    if record.kind == "run":
        plain = [row for row in of_record if not row.variant]
        if chosen_epochs is None:
            best = _best(judge, plain)
        else:
            epoch = chosen_epochs.get(record.id)
            best = next((row for row in plain if row.epoch == epoch), None)
        if best is not None:
            unit = "step" if rows.folder.config.get("steps") else "epoch"
            metrics |= _numbers_of_best(judge, best, unit)
    return metrics


def _measured(rows: Rows, of_record: list[Row]) -> str:
    """Return the memorisation number of a record: the first one with and without attacks.

    A start or retain model under an attack is a record that has no plain numbers.
    """
    (forget, *_) = [name for name, role in rows.benchmark.roles.items() if role == "forget"]
    attacked = [row for row in of_record if row.variant]
    plain = [row for row in of_record if not row.variant] or attacked
    for metric in MEMORISATION:
        column = f"{metric}_{forget}"
        if all(any(row.get(column) is not None for row in part) for part in (plain, attacked)):
            return column
    return rows.benchmark.headline.forgotten


def _name(row: Row, column: str, of_set: str | None) -> str:
    if row.variant:
        # MLflow refuses an @ in names.
        group = re.sub(r"[^A-Za-z0-9_.-]", "-", row.variant.replace("@", "."))
        return f"under.{group}/{column}"
    if of_set is None:
        return column
    return f"{of_set}/{column.removesuffix(f'_{of_set}')}"


def _best(judge: Judge, rows: list[Row]) -> Row | None:
    """Return a run's row of its best epoch; None if no epoch keeps enough."""
    if judge.fault or judge.least_kept is None:
        return None
    # A failed run is tried again, and says nothing yet.
    epochs = [Setting("", row.epoch, (row,)) for row in rows if row.record.status != "failed"]
    best = judge.best(epochs, judge.least_kept)
    return None if best is None else best.rows[0]


def _numbers_of_best(judge: Judge, row: Row, unit: str) -> dict[tuple[str, int], float]:
    headline = judge.headline
    columns = [headline.kept, headline.forgotten, *([P_VALUE] if headline.has_test else [])]
    columns += SCORES
    metrics = {(f"best/{unit}", 0): float(row.epoch)}
    for column in columns:
        value = row.get(column)
        if value is not None:
            metrics[f"best/{column}", 0] = value
    kept = row.get(headline.kept)
    if kept is not None and judge.start_kept:
        metrics["best/utility_kept", 0] = kept / judge.start_kept
    return metrics


def _glance(judge: Judge, row: Row) -> dict[tuple[str, int], float]:
    columns = {"utility": judge.headline.kept, "forgetting": judge.headline.forgotten}
    values = {name: row.get(column) for name, column in columns.items()}
    return {
        (f"at_a_glance/{name}", row.epoch): value
        for name, value in values.items()
        if value is not None
    }
