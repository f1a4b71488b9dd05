"""What the numbers of a table are computed by: benchmark, profile and metrics of its records."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from unlearnbench.base.errors import RecordError
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.evaluation.benchmark_schema import (
    BenchmarkSchema,
    default_schema,
    recorded_schema,
)
from unlearnbench.results.records import Record


def named_metrics(config: Mapping[str, Any]) -> MetricChoices:
    """Return the metrics that a stored configuration names."""
    choices: MetricChoices = config.get("evaluation", {}).get("metrics", NO_CHOICES)
    return choices


def recorded_metrics(record: Record) -> MetricChoices:
    """Return the metrics that the configuration named when a record was made."""
    return named_metrics(record.spec if record.kind == "run" else {"evaluation": record.spec})


def record_schema(record: Record, chosen: MetricChoices) -> BenchmarkSchema:
    """Return the benchmark of a record, see `recorded_schema`."""
    section = record.spec.get("data", {})
    return recorded_schema(section, record.profile, record.benchmark, chosen)


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
    schemas: dict[str, BenchmarkSchema] = {}
    for first, *_ in by_section.values():
        chosen = recorded_metrics(first) if metrics is None else metrics
        schemas[first.id] = record_schema(first, chosen)
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
