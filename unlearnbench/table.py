"""The table that every page, plot and CSV is drawn from: one row per run and evaluated epoch.

Pure. Anchors (the fine-tuned and the retain model) are rows like any other, told by `kind`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.errors import RecordError
from unlearnbench.evaluation.precision import several
from unlearnbench.evaluation.result import SetName
from unlearnbench.outputs import spreadsheet_cell
from unlearnbench.plan import json_ready
from unlearnbench.records import Record

SET_ORDER: tuple[SetName, ...] = ("retain", "real_authors", "world_facts", "forget")
SET_METRICS = tuple(f"{m}_{s}" for m in ("rouge", "probability", "truth_ratio") for s in SET_ORDER)
METRICS = (
    *("model_utility", "forget_quality", "log10_forget_quality", "ks_statistic", "ks_n"),
    *SET_METRICS,
)
COLUMNS = (
    *("method", "model", "forget_fraction", "learning_rate", "seed", "epoch"),
    *METRICS,
    *("kind", "status", "run_id", "hyperparameters"),
)
KINDS = ("fine-tuned", "retain", "run")


@dataclass(frozen=True)
class Row:
    """One run, or one anchor, after one epoch."""

    run_id: str
    kind: str
    """`run`, `fine-tuned` or `retain`."""
    model: str
    forget_fraction: float
    method: str
    """Label; names the hyper-parameters in which the sweep's settings of the method differ."""
    family: str
    """Label without hyper-parameters: what settings of one method have in common."""
    hyperparameters: Mapping[str, Any]
    learning_rate: float | None
    seed: int
    epoch: int
    status: str
    metrics: Mapping[str, float | None]
    """All of `METRICS`; None where undefined or not finite."""

    @property
    def setting(self) -> tuple[Any, ...]:
        """What is the same for all seeds and epochs, in sorting order."""
        rate = -math.inf if self.learning_rate is None else self.learning_rate
        kind = KINDS.index(self.kind)
        return self.model, self.forget_fraction, kind, self.family, self.method, rate


def table(records: Iterable[Record]) -> tuple[Row, ...]:
    """One row per record and evaluated epoch, in an order that only their content decides.

    Raises: RecordError where records were evaluated by different rules.
    """
    records = tuple(records)
    _refuse_mixed(records)
    labels = Labels(records)
    rows = [
        Row(
            run_id=record.id,
            kind=record.kind,
            model=record.model,
            forget_fraction=record.forget_fraction,
            method=labels.of(record),
            family=record.method if record.kind == "run" else record.kind,
            hyperparameters=hyperparameters_of(record),
            learning_rate=record.learning_rate,
            seed=record.seed,
            epoch=result.epoch,
            status=record.status,
            metrics={name: _number(result.metrics.get(name)) for name in METRICS},
        )
        for record in records
        for result in record.epochs
    ]
    return tuple(sorted(rows, key=lambda r: (*r.setting, r.seed, r.epoch, r.run_id)))


def _refuse_mixed(records: Sequence[Record]) -> None:
    evaluated = sorted((r for r in records if r.epochs), key=lambda r: r.id)
    by_profile = {r.profile: r.id for r in reversed(evaluated)}
    if len(by_profile) > 1:
        listed = ", ".join(f"{p} (record {i})" for p, i in sorted(by_profile.items()))
        raise RecordError(
            f"records of different evaluation rules do not compare: {listed}; "
            "report them from separate folders"
        )
    panels: dict[tuple[str, float], dict[str | None, str]] = defaultdict(dict)
    for record in reversed(evaluated):
        panels[record.model, record.forget_fraction][record.precision] = record.id
    for (model, fraction), found in sorted(panels.items()):
        if several(found):
            listed = ", ".join(f"{p} (record {i})" for p, i in found.items())
            raise RecordError(
                f"{model}, forget {100 * fraction:g} %: records of different precisions do not "
                f"compare: {listed}; report them from separate folders, or as models of two names"
            )


def hyperparameters_of(record: Record) -> dict[str, Any]:
    """The method's hyper-parameters and its retain term, as one flat mapping."""
    method = record.spec.get("method")
    if record.kind != "run" or not isinstance(method, Mapping):
        return {}
    found = dict(method.get("hyperparameters") or {})
    if retain := method.get("retain"):
        found |= {"retain": retain["term"], "retain_weight": retain["weight"]}
    return found


class Labels:
    """A record's method, with the hyper-parameters that tell its settings apart."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take the values that this record has into account."""
        for name, value in hyperparameters_of(record).items():
            self._values[record.method][name].add(json.dumps(value))

    def of(self, record: Record) -> str:
        """As tables and plots call it."""
        label = record.method if record.kind == "run" else record.kind
        return self.label(label, hyperparameters_of(record))

    def label(self, family: str, hyperparameters: Mapping[str, Any]) -> str:
        """The same, of a method by its label without hyper-parameters."""
        telling = [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in sorted(hyperparameters.items())
            if len(self._values[family][name]) > 1
        ]
        return f"{family} ({', '.join(telling)})" if telling else family


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def to_csv(rows: Iterable[Row]) -> str:
    """The table as CSV: equal rows give equal bytes, every float reads back exactly.

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        told = (
            json.dumps(json_ready(row.hyperparameters), sort_keys=True)
            if row.hyperparameters
            else ""
        )
        values = [
            *(row.method, row.model, row.forget_fraction, row.learning_rate, row.seed, row.epoch),
            *(row.metrics[name] for name in METRICS),
            *(row.kind, row.status, row.run_id, told),
        ]
        writer.writerow(
            "" if v is None else repr(v) if isinstance(v, float) else spreadsheet_cell(v)
            for v in values
        )
    return text.getvalue()


def from_csv(lines: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows from what `to_csv` wrote, read back by a CSV reader or as a data frame's records.

    A setting's family, which has no column, is its label without hyper-parameters.
    Raises: RecordError that names a missing column, or the line of a value that is none.
    """
    found: list[Row] = []
    for number, line in enumerate(lines, start=1):
        missing = [name for name in COLUMNS if name not in line]
        if missing:
            raise RecordError(
                f"no column {missing[0]!r}: a table as `results.csv` is wanted, with all of its "
                "columns"
            )
        told = {name: None if _is_blank(line[name]) else line[name] for name in COLUMNS}
        try:
            found.append(_row_of(told))
        except (TypeError, ValueError) as error:
            raise RecordError(f"line {number} is not one of `results.csv`: {error}") from None
    return tuple(found)


def _is_blank(value: Any) -> bool:
    """Nothing, as CSV (empty text) and data frames (NaN) write it."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def _row_of(told: Mapping[str, Any]) -> Row:
    kind, label = str(told["kind"]), str(told["method"])
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is none of {', '.join(KINDS)}")
    rate, hyperparameters = told["learning_rate"], told["hyperparameters"]
    return Row(
        run_id=str(told["run_id"]),
        kind=kind,
        model=str(told["model"]),
        forget_fraction=float(told["forget_fraction"]),
        method=label,
        family=label.partition(" (")[0] if kind == "run" else kind,
        hyperparameters={} if hyperparameters is None else json.loads(hyperparameters),
        learning_rate=None if rate is None else float(rate),
        seed=int(told["seed"]),
        epoch=int(told["epoch"]),
        status=str(told["status"]),
        metrics={n: _number(None if told[n] is None else float(told[n])) for n in METRICS},
    )
