"""Every number of every record, computed in one place: records in, one table out."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from unlearnbench.api.benchmark import SplitKey, split_order, split_percent
from unlearnbench.base.errors import RecordError
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.evaluation.benchmark_schema import VERSIONS, BenchmarkSchema, filled_columns
from unlearnbench.evaluation.precision import distinct_precisions
from unlearnbench.evaluation.word_check import KEY as UNCOUNTED
from unlearnbench.results.epoch_metrics import changed_columns, numbers, references_of
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.rules import schema_of
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.setting_value import NO_SETTING, Labels
from unlearnbench.results.table import Numbers, Table, TableRow, in_order


def table_of(records: Iterable[Record], metrics: MetricChoices | None = None) -> Table:
    """Return the table of some records.

    Args:
        records: In any order.
        metrics: Those that the configuration names now, and their settings. Defaults to those that
            it named when the records were made.

    Raises:
        RecordError: If the records were evaluated by different rules.
    """
    records = tuple(records)
    _refuse_mixed(records)
    schema = schema_of(records, metrics)
    return Table(
        rows=_plain_rows(records, schema, metrics),
        attacked=_attacked_rows(records, schema, metrics),
        schema=schema,
    )


def _plain_rows(
    records: Sequence[Record], schema: BenchmarkSchema, metrics: MetricChoices | None
) -> tuple[TableRow, ...]:
    references = references_of(records)
    results = [
        (record, result, values[result.epoch])
        for record in records
        for values in (numbers(record, references, metrics),)
        for result in record.epochs
    ]
    return _rows(records, results, schema)


def _attacked_rows(
    records: Sequence[Record], schema: BenchmarkSchema, metrics: MetricChoices | None
) -> tuple[TableRow, ...]:
    results: list[tuple[Record, EpochResult, Numbers]] = []
    for record in records:
        # Evaluations under attacks are not computed again by other settings.
        stale = frozenset[str]() if metrics is None else changed_columns(record, metrics)
        for item in record.attacked:
            current = {name: v for name, v in item.metrics.items() if name not in stale}
            results.append((record, item, Numbers.finite(current)))
    return _rows(records, results, schema) if results else ()


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
            labels.add(record.method, settings[record.id])
    # What a retain model alone has, since it was read and not stored, is no column of a table.
    shown = (result.metrics if record.kind == "retain" else of for record, result, of in results)
    columns = filled_columns((dict.fromkeys(schema.plan.own), *shown), schema.plan)
    rows: list[TableRow] = []
    for record, result, values in results:
        is_run = record.kind == "run"
        of_run = settings[record.id] if is_run else NO_SETTING
        rows.append(
            TableRow(
                run_id=record.id,
                kind=record.kind,
                model=record.model,
                forget_fraction=record.forget_fraction,
                method=labels.label(record.method, of_run) if is_run else record.kind,
                family=record.method if is_run else record.kind,
                learning_rate=record.learning_rate,
                seed=record.seed,
                epoch=result.epoch,
                status=record.status,
                metrics=Numbers({name: values[name] for name in columns}),
                schema=schema,
                variant=result.variant,
                setting=of_run,
                uncounted=record.provenance.get(UNCOUNTED, {}),
                at_inference=_acts_at_inference(record),
            )
        )
    return in_order(rows)


def _acts_at_inference(record: Record) -> bool:
    """Whether a record is of a run whose method leaves the weights as they are."""
    return record.kind == "run" and "method" in record.spec and record.learning_rate is None


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
