"""Metrics of a record as MLflow's metric points, by epoch and by optimizer step; without mlflow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Setting, average_seeds, best_of
from unlearnbench.api.metric import MetricColumn
from unlearnbench.evaluation.columns import known_columns
from unlearnbench.results.records import Record
from unlearnbench.results.table import table


class MetricPoint(NamedTuple):
    """One point of a metric."""

    name: str
    value: float
    step: int
    moment: int
    """Milliseconds since 1970."""


def best_epoch(record: Record, start: float | None) -> Setting | None:
    """A run's best epoch by the rule of `best_per_method`; None if none keeps the utility.

    start  what the fine-tuned model keeps, by the headline (Model Utility)
    """
    if record.kind != "run" or start is None:
        return None
    return best_of(average_seeds(table([record])), UTILITY_SHARE * start)


def metrics(record: Record, start: float | None = None) -> list[MetricPoint]:
    """Metric points by epoch, and under `train/` by optimizer step; `start` as in `best_epoch`.

    Undefined and infinite values are left out, because stores do not accept them.
    """
    moments = _moments(record)

    def moment(epoch: int) -> int:
        """The end of an epoch; for one without evaluation, that of the next evaluated one."""
        later = [moments[k] for k in sorted(moments) if k >= epoch]
        return later[0] if later else max(moments.values())

    found = [*_by_epoch(record), *_under(record), *_best(record, start), *_by_step(record)]
    return [
        MetricPoint(name, value, step, moment(epoch))
        for name, value, step, epoch in found
        if value is not None and math.isfinite(value)
    ]


_Point = tuple[str, float | None, int, int]
"""Name, value, step, epoch."""


def metric_name(name: str, known: Mapping[str, MetricColumn], sets: Iterable[str] = ()) -> str:
    """Rename `rouge_forget` to `forget/rouge`, because MLflow groups by the part before a slash.

    known  columns by name
    sets   names that other columns of a set end with, as those of a metric not installed here
    """
    ends = [one for one in sets if name.endswith(f"_{one}")]
    of_set = known[name].set if name in known else max(ends, key=len, default="")
    return f"{of_set}/{name.removesuffix(f'_{of_set}')}" if of_set else name


def _by_epoch(record: Record) -> Iterator[_Point]:
    known = known_columns()
    columns = {name for one in record.epochs for name in one.metrics}
    sets = {known[name].set for name in columns & known.keys()} - {""}
    for one in record.epochs:
        k = one.epoch
        for column, value in one.metrics.items():
            yield metric_name(column, known, sets), value, k, k
        yield "system/training_seconds", one.training_seconds, k, k
        yield "system/evaluation_seconds", one.evaluation_seconds, k, k
    if record.epochs:
        last = record.epochs[-1].epoch
        for name in ("peak_memory_mib", "estimated_memory_mib"):
            yield f"system/{name}", record.provenance.get(name), last, last


def _under(record: Record) -> Iterator[_Point]:
    """Metrics under attacks: `under.relearning.13/rouge_forget`, apart from all plain ones.

    Without characters that MLflow refuses in names, such as the @ of a variant.
    """
    for one in record.attacked:
        group = re.sub(r"[^\w.-]", "-", one.variant.replace("@", "."))
        for column, value in one.metrics.items():
            yield f"under.{group}/{column}", value, one.epoch, one.epoch


def _best(record: Record, start: float | None) -> Iterator[_Point]:
    best = best_epoch(record, start)
    if best is None:
        return
    k = best.epoch
    yield "best/epoch", float(k), k, k
    test = best.headline.forgotten.test
    for name in (*best.headline.columns[:2], *((test.p_value,) if test else ())):
        yield f"best/{name}", best.metrics.get(name), k, k
    if best.kept is not None and start:
        yield "best/utility_kept", best.kept / start, k, k


def _by_step(record: Record) -> Iterator[_Point]:
    for one in record.steps:
        own = {"loss": one.loss, "grad_norm": one.grad_norm, "learning_rate": one.learning_rate}
        terms = {f"loss_{term}": value for term, value in one.terms.items()}
        for name, value in (own | {"epoch": float(one.epoch)} | terms | dict(one.reported)).items():
            yield f"train/{name}", value, one.step, one.epoch


def _moments(record: Record) -> dict[int, int]:
    """End of each evaluated epoch: of the run, less the seconds of later epochs.

    Time between epochs, such as an interruption, is not included.
    """
    end = milliseconds(record.provenance.get("finished")) or 0
    found = {0: milliseconds(record.provenance.get("started")) or 0}
    for one in reversed(record.epochs):
        found[one.epoch] = end
        end -= round(1000 * (one.training_seconds + one.evaluation_seconds))
    return found


def milliseconds(moment: Any) -> int | None:
    """Convert an ISO date to milliseconds since 1970; None if it is not one."""
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
