"""The table that every page, plot and CSV is drawn from: one row per run and evaluated epoch.

The start model (kind `fine-tuned`) and the retain model are rows like any other. Files are read for
columns alone that a record lacks, see `epoch_metrics`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.api.benchmark import Headline, SplitKey, split_order, split_percent
from unlearnbench.base.errors import RecordError
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.evaluation.benchmark_schema import (
    VERSIONS,
    BenchmarkSchema,
    default_schema,
    filled_columns,
)
from unlearnbench.evaluation.precision import distinct_precisions
from unlearnbench.evaluation.word_check import KEY as UNCOUNTED
from unlearnbench.results.epoch_metrics import (
    Numbers,
    changed_columns,
    chosen_of,
    finite,
    numbers,
    record_schema,
    references_of,
)
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.run_settings import RunSettings, run_settings

FIRST = ("method", "model", "forget_fraction", "learning_rate", "seed", "epoch")
LAST = ("kind", "status", "run_id", "hyperparameters")
"""The columns of `results.csv` around those of the metrics."""
VARIANT = "variant"
"""The column of `attacks.csv` after those of `FIRST`."""
ATTACKS = "attacks.csv"
"""The table of evaluations under attacks, beside `results.csv`."""
KINDS = ("fine-tuned", "retain", "run")


@dataclass(frozen=True)
class TableRow:
    """One run, start model or retain model after one epoch."""

    run_id: str
    kind: str
    """`run`, `fine-tuned` or `retain`."""
    model: str
    forget_fraction: SplitKey
    """The fraction of the rows to forget, or the name of the split."""
    method: str
    """Label; names the hyperparameters in which the sweep's settings of the method differ."""
    family: str
    """Label without hyper-parameters: what settings of one method have in common."""
    hyperparameters: Mapping[str, Any]
    """Hyperparameters, retain term, and other settings in which runs differ; see `RunSettings`."""
    learning_rate: float | None
    seed: int
    epoch: int
    status: str
    metrics: Mapping[str, float | None]
    """The table's columns, see `filled_columns`; None where undefined or not finite."""
    schema: BenchmarkSchema = field(default_factory=default_schema, compare=False, repr=False)
    """Schema of the benchmark."""
    variant: str = ""
    """Attack and point (`relearning@13`) in the table of evaluations under attacks."""
    setting_id: str = ""
    """Hash of all that the numbers of a run depend on, except its seed; see `RunSettings.id`."""
    uncounted: Mapping[str, float] = field(
        default_factory=dict[str, float], compare=False, repr=False
    )
    """Share of true answers by set whose words the profile does not count, see `word_check`."""

    @property
    def headline(self) -> Headline:
        """The two numbers that the benchmark is ranked by."""
        return self.schema.headline

    @property
    def panel(self) -> tuple[str, SplitKey]:
        """Model and split."""
        return self.model, self.forget_fraction

    @property
    def setting(self) -> tuple[Any, ...]:
        """Values that all seeds and epochs of a setting share, in sorting order."""
        rate = -math.inf if self.learning_rate is None else self.learning_rate
        kind = KINDS.index(self.kind)
        split = split_order(self.forget_fraction)
        return self.model, split, kind, self.family, self.method, rate, self.setting_id

    @property
    def kept(self) -> float | None:
        """The number of what is kept, by the headline."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """The number of what is forgotten, by the headline."""
        return self.metrics.get(self.headline.forgotten.column)


def table(records: Iterable[Record], chosen: MetricChoices | None = None) -> tuple[TableRow, ...]:
    """One row per record and evaluated epoch, in an order that only their content decides.

    chosen  metrics that the configuration names now; default: those that it named for each record

    Raises: RecordError where records were evaluated by different rules.
    """
    records = tuple(records)
    _refuse_mixed(records)
    references = references_of(records)
    results = [
        (record, result, values[result.epoch])
        for record in records
        for values in (numbers(record, references, chosen),)
        for result in record.epochs
    ]
    return _rows(records, results, schema_of(records, chosen))


def attack_table(
    records: Iterable[Record], chosen: MetricChoices | None = None
) -> tuple[TableRow, ...]:
    """One row per record, epoch and variant: the evaluations under attacks, in a like order.

    They are no part of `table`, so that nothing ranks a model by them. What is relative to the
    retain model or the start model is relative to that model under the same attack. Metrics that
    have other settings since have no number here.

    Raises: RecordError as `table`.
    """
    records = tuple(records)
    results: list[tuple[Record, EpochResult, Numbers]] = []
    for record in records:
        # Evaluations under attacks are not computed again by other settings.
        stale = frozenset[str]() if chosen is None else changed_columns(record, chosen)
        for item in record.attacked:
            current = {name: v for name, v in item.metrics.items() if name not in stale}
            results.append((record, item, finite(current)))
    if not results:
        return ()
    _refuse_mixed(records)
    return _rows(records, results, schema_of(records, chosen))


def _rows(
    records: Sequence[Record],
    results: Sequence[tuple[Record, EpochResult, Numbers]],
    schema: BenchmarkSchema,
) -> tuple[TableRow, ...]:
    """The rows of some results in their order, with the columns that are worth showing.

    records  of the table, also those without a result: labels depend on all of them
    """
    settings, labels = run_settings(records), Labels()
    for record in records:
        if record.kind == "run":
            labels.add_values(record.method, settings[record.id].hyperparameters)
    # What a retain model alone has, since it was read and not stored, is no column of a table.
    shown = (result.metrics if record.kind == "retain" else of for record, result, of in results)
    columns = filled_columns((dict.fromkeys(schema.plan.own), *shown), schema.plan)
    rows: list[TableRow] = []
    for record, result, values in results:
        is_run = record.kind == "run"
        of_run = settings[record.id] if is_run else RunSettings("", {})
        rows.append(
            TableRow(
                run_id=record.id,
                kind=record.kind,
                model=record.model,
                forget_fraction=record.forget_fraction,
                method=labels.label(record.method, of_run.hyperparameters)
                if is_run
                else record.kind,
                family=record.method if is_run else record.kind,
                hyperparameters=of_run.hyperparameters,
                learning_rate=record.learning_rate,
                seed=record.seed,
                epoch=result.epoch,
                status=record.status,
                metrics=Numbers({name: values[name] for name in columns}),
                schema=schema,
                variant=result.variant,
                setting_id=of_run.id,
                uncounted=record.provenance.get(UNCOUNTED, {}),
            )
        )
    return tuple(sorted(rows, key=lambda row: (*_place(row), _order_of(row.variant))))


def _place(row: TableRow) -> tuple[Any, ...]:
    return (*row.setting, row.seed, row.epoch, row.run_id)


def _order_of(variant: str) -> tuple[str, bool, float, str]:
    """Sort key of variants: points that are numbers by size."""
    name, _, point = variant.partition("@")
    try:
        return name, False, float(point), point
    except ValueError:
        return name, True, 0.0, point


def schema_of(records: Sequence[Record], metrics: MetricChoices | None = None) -> BenchmarkSchema:
    """The benchmark of the records of one table: the one that most of them name.

    metrics  that the configuration names now; default: those that it named for the records

    Raises: RecordError where evaluated ones are ranked by different numbers.
    """
    if not records:
        return default_schema()
    by_section: dict[str, list[Record]] = defaultdict(list)
    for record in sorted((r for r in records if r.epochs), key=lambda r: r.id) or records:
        section = json_ready(record.spec.get("data", {}))
        by_section[json.dumps(section, sort_keys=True)].append(record)
    schemas = {
        same[0].id: record_schema(same[0], chosen_of(same[0]) if metrics is None else metrics)
        for same in by_section.values()
    }
    if len({schema.headline for schema in schemas.values()}) > 1:
        listed = ", ".join(
            f"{' and '.join(schema.headline.columns[:2])} (record {id_})"
            for id_, schema in schemas.items()
        )
        raise RecordError(
            f"records of benchmarks that are ranked by different numbers do not compare: {listed}; "
            "report them from separate folders"
        )
    most = max(by_section, key=lambda section: (section != "{}", len(by_section[section])))
    return schemas[by_section[most][0].id]


def mixed_versions(records: Iterable[Record]) -> str:
    """A line about the metrics of which the records have numbers of several versions; else ""."""
    evaluated = [record for record in records if record.epochs]
    stored = {record.id: record.provenance.get(VERSIONS, {}) for record in evaluated}
    mixed: list[str] = []
    for name in sorted({name for versions in stored.values() for name in versions}):
        having = (record.id for record in evaluated if name in record.epochs[-1].metrics)
        versions = sorted({stored[id_].get(name, 1) for id_ in having})
        if len(versions) > 1:
            mixed.append(f"{name} ({' and '.join(map(str, versions))})")
    if not mixed:
        return ""
    return (
        f"numbers of different versions of a metric do not compare: {', '.join(mixed)}; evaluate "
        "again, in a new folder, to have one version"
    )


def _refuse_mixed(records: Sequence[Record]) -> None:
    evaluated = sorted((r for r in records if r.epochs), key=lambda r: r.id)
    by_profile = {r.profile: r.id for r in reversed(evaluated)}
    if len(by_profile) > 1:
        listed = ", ".join(f"{p} (record {i})" for p, i in sorted(by_profile.items()))
        raise RecordError(
            f"records of different evaluation rules do not compare: {listed}; "
            "report them from separate folders"
        )
    panels: dict[tuple[str, SplitKey], dict[str | None, str]] = defaultdict(dict)
    for record in reversed(evaluated):
        panels[record.panel][record.precision] = record.id
    for (model, split), result in sorted(panels.items(), key=_panel_order):
        if distinct_precisions(result):
            listed = ", ".join(f"{p} (record {i})" for p, i in result.items())
            raise RecordError(
                f"{model}, {split_percent(split)}: records of different precisions do not "
                f"compare: {listed}; report them from separate folders, or as models of two names"
            )


def _panel_order(item: tuple[tuple[str, SplitKey], Any]) -> tuple[Any, ...]:
    return item[0][0], split_order(item[0][1])


class Labels:
    """Labels of methods, with the hyperparameters in which their settings differ.

    Settings with different hyperparameters have different labels.
    """

    def __init__(self) -> None:
        self._settings: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self._labels: dict[str, dict[str, str]] = {}
        """By family and the hyperparameters as JSON; made when a label of the family is needed."""

    def add_values(self, family: str, hyperparameters: Mapping[str, Any]) -> None:
        """Take the values of one setting into account; `family` as in `label`."""
        self._settings[family].setdefault(_as_json(hyperparameters), hyperparameters)
        self._labels.pop(family, None)

    def label(self, family: str, hyperparameters: Mapping[str, Any]) -> str:
        """Label of a method, from its label without hyperparameters."""
        if family not in self._labels:
            self._labels[family] = _labels_of(family, self._settings[family])
        return self._labels[family].get(_as_json(hyperparameters), family)


def _labels_of(family: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the label of each setting of a family; keys as in `settings`."""
    names = sorted({name for setting in settings.values() for name in setting})
    # A hyperparameter that was added later is stored only if it differs from its default.
    differing = [
        name
        for name in names
        if len({_as_json(setting.get(name, _ABSENT)) for setting in settings.values()}) > 1
    ]

    def label(setting: Mapping[str, Any], text: Callable[[Any], str]) -> str:
        values = [f"{name}={text(setting[name])}" for name in differing if name in setting]
        return f"{family} ({', '.join(values)})" if values else family

    labels = {key: label(setting, _short) for key, setting in settings.items()}
    if len({*labels.values()}) < len(labels):
        # Values may look alike: 0.12345671 and 0.12345672, or the number 1 and the text "1".
        labels = {key: label(setting, _as_json) for key, setting in settings.items()}
    return labels


_ABSENT: list[Any] = []
"""Equals no hyperparameter, since these are numbers, texts, true or false."""


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def to_csv(rows: Iterable[TableRow]) -> str:
    """The table as CSV: equal rows give equal bytes, every float reads back exactly.

    Rows under attacks have their variant after the epoch.
    """
    rows = tuple(rows)
    plan = rows[0].schema.plan if rows else None
    columns = filled_columns((row.metrics for row in rows), plan)
    attacked = any(row.variant for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*FIRST, *((VARIANT,) if attacked else ()), *columns, *LAST))
    for row in rows:
        settings = json.dumps(json_ready(row.hyperparameters), sort_keys=True)
        writer.writerow(
            (
                row.method,
                row.model,
                *(row.forget_fraction, row.learning_rate, row.seed, row.epoch),
                *((row.variant,) if attacked else ()),
                *map(row.metrics.get, columns),
                row.kind,
                row.status,
                row.run_id,
                settings if row.hyperparameters else "",
            )
        )
    return text.getvalue()
