"""What the numbers of a table are computed by: benchmark, profile and metrics, and their code.

A record stores observations. A number also depends on the rules by which it is computed from
them: on the evaluation profile, on the benchmark with its settings (`data`), on the metrics with
theirs (`evaluation.metrics`), and on the code of all three. `RecordRules.key` is the hash of all
that. Only the metrics of the table's own plan count, so that installing another plug-in changes no
key.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from unlearnbench.api.metric import Metric, Summary
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.base.hashing import content_hash, json_ready
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import (
    BenchmarkSchema,
    benchmark_of_section,
    default_schema,
    recorded_schema,
)
from unlearnbench.results.code_digest import own_code, plugin_code_digest
from unlearnbench.results.records import Record

COMPUTED_BY = "computed_by"
"""Key in the provenance of a leaderboard's line: `RecordRules.code` of its numbers."""
METRICS = "metrics"
"""Key in the provenance of a leaderboard's line: the metrics that were named when its numbers were
computed, and their settings. They may be others than when the record was made."""
OBSERVED_BY = "observed_by"
"""Key in the provenance of a record: digests of the code of metrics that observe, by name."""


def named_metrics(config: Mapping[str, Any]) -> MetricChoices:
    """Return the metrics that a stored configuration names."""
    choices: MetricChoices = config.get("evaluation", {}).get("metrics", NO_CHOICES)
    return choices


def recorded_metrics(record: Record) -> MetricChoices:
    """Return the metrics that the configuration named when the recorded numbers were computed."""
    if METRICS in record.provenance:
        metrics: MetricChoices = record.provenance[METRICS]
        return metrics
    return named_metrics(record.spec if record.kind == "run" else {"evaluation": record.spec})


def record_schema(record: Record, chosen: MetricChoices) -> BenchmarkSchema:
    """Return the benchmark of a record, see `recorded_schema`."""
    section = record.spec.get("data", {})
    has_retain = has_retain_model(record.spec)
    return recorded_schema(section, record.profile, record.benchmark, chosen, has_retain=has_retain)


def has_retain_model(spec: Mapping[str, Any]) -> bool:
    """Return whether the spec of a record names a retain model, or a base to train it from.

    True for a record that does not name its models. It only matters on benchmarks that can do
    without a retain model, see `references_with`.
    """
    model = spec.get("model")
    if not isinstance(model, Mapping):
        return True
    return model.get("base") is not None or bool(model.get("retain"))


@dataclass(frozen=True, eq=False)
class RecordRules:
    """What the numbers of a record are computed by."""

    schema: BenchmarkSchema
    metrics: MetricChoices
    """Metrics that the configuration names, with their settings."""
    key: str
    """Hash of everything that numbers depend on besides the observations. Empty if nothing can be
    computed here, see `obstacle`."""
    code: str = ""
    """Hash of the profile, of the metrics with their settings, and of the code. Unlike `key`, it is
    the same wherever the data are. Empty as `key`."""
    obstacle: str = ""
    """Why nothing can be computed here: the benchmark's plug-in is missing, or this version does
    not know the evaluation profile."""

    @cached_property
    def observing(self) -> Mapping[str, str]:
        """Digests of the code of the metrics that make observations of their own, by their names.

        Their observations are made while a model is at hand. If this code changes, records that
        were made before can be healed only by evaluating the models again.
        """
        return {
            measure.name: _code_of(measure.metric)
            for measure in self.schema.plan.measures
            if measure.metric.observes
        }


def record_rules(
    section: Mapping[str, Any],
    profile: str,
    metrics: MetricChoices,
    stored: BenchmarkSchema | None = None,
    *,
    has_retain: bool = True,
) -> RecordRules:
    """Return the rules of a record.

    Args:
        section: The `data` of its spec.
        profile: Id of its evaluation rules.
        metrics: Metrics that the configuration names, with their settings.
        stored: The schema in the plan of its sweep.
        has_retain: Whether there is a retain model, see `references_with`.

    Raises:
        PluginError: If its benchmark cannot be used here, and no schema is stored.
    """
    schema = recorded_schema(section, profile, stored, metrics, has_retain=has_retain)
    if schema.missing:
        return RecordRules(schema, metrics, "", obstacle=schema.missing)
    try:
        profile_of_id(profile)
    except EvaluationError as error:
        return RecordRules(schema, metrics, "", obstacle=str(error))
    benchmark = benchmark_of_section(section)
    code = content_hash(
        [
            profile,
            metrics,
            plugin_code_digest(type(benchmark)),
            _metrics_of(schema.plan),
            own_code(),
        ]
    )
    key = content_hash([code, benchmark.model_dump(mode="json")])
    return RecordRules(schema, metrics, key, code)


def mixed_code(records: Iterable[Record]) -> str:
    """Return a sentence if numbers of a leaderboard's lines were computed by different code.

    Lines of earlier versions do not say by what. Without such lines, the sentence is empty.
    """
    counts = Counter(
        str(record.provenance.get(COMPUTED_BY, "an earlier version"))
        for record in records
        if record.epochs or record.attacked
    )
    if len(counts) < 2:
        return ""
    listed = ", ".join(f"{count} by {code}" for code, count in sorted(counts.items()))
    return (
        "the numbers of these records were computed by different code, or with different settings "
        f"of metrics ({listed}), so they may not compare; export all sweeps again by one version"
    )


@dataclass(frozen=True, eq=False)
class Rules:
    """What all numbers of a table are computed by."""

    schema: BenchmarkSchema
    """The benchmark that most records name. Rows are labelled and ranked by it."""
    metrics: MetricChoices | None
    """Metrics that the configuration names now. None: those that it named for each record."""
    _by_sections: dict[tuple[str, str, str, bool], RecordRules] = field(
        default_factory=dict[tuple[str, str, str, bool], RecordRules], init=False, repr=False
    )
    """By profile, by the sections of a record that decide, and whether it has a retain model."""

    def of(self, record: Record) -> RecordRules:
        """Return the rules of a record, see `record_rules`."""
        metrics = recorded_metrics(record) if self.metrics is None else self.metrics
        section = record.spec.get("data", {})
        has_retain = has_retain_model(record.spec)
        sections = record.profile, _as_json(section), _as_json(metrics), has_retain
        if sections not in self._by_sections:
            self._by_sections[sections] = record_rules(
                section, record.profile, metrics, record.benchmark, has_retain=has_retain
            )
        return self._by_sections[sections]


def rules_of(records: Sequence[Record], metrics: MetricChoices | None = None) -> Rules:
    """Return the rules of some records.

    Args:
        records: At best those of one sweep. Without any, the benchmark is TOFU.
        metrics: Those that the configuration names now, and their settings. Defaults to those that
            it named when the records were made.

    Raises:
        RecordError: If the benchmarks of evaluated records are ranked by different numbers.
    """
    return Rules(_schema_of(records, metrics), metrics)


def _schema_of(records: Sequence[Record], metrics: MetricChoices | None) -> BenchmarkSchema:
    if not records:
        return default_schema()
    evaluated = [record for record in records if record.epochs]
    by_section: dict[tuple[str, bool], list[Record]] = defaultdict(list)
    for record in sorted(evaluated or records, key=lambda record: record.id):
        section = _as_json(record.spec.get("data", {}))
        by_section[section, has_retain_model(record.spec)].append(record)
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
    most = max(by_section, key=lambda of: (of[0] != "{}", len(by_section[of])))
    schema = schemas[by_section[most][0].id]
    # Runs that train nothing have a single evaluation, and do not tell the unit of their sweep.
    by_steps = any(record.unit is Unit.STEP for record in records)
    return replace(schema, unit=Unit.STEP) if by_steps else schema


def _metrics_of(plan: MetricPlan) -> list[list[Any]]:
    """Return name, version, code and sets of every metric of a plan."""
    metrics: list[list[Any]] = []
    for measure in plan.measures:
        metric = measure.metric
        metrics.append([measure.name, metric.version, _code_of(metric), measure.sets])
    for name, summary in plan.summaries.items():
        metrics.append([name, summary.version, _code_of(summary)])
    return metrics


def _code_of(metric: Metric | Summary) -> str:
    return plugin_code_digest(type(metric))


def _as_json(value: Any) -> str:
    return json.dumps(json_ready(value), sort_keys=True)


def observed_by_entry(rules: RecordRules) -> dict[str, Any]:
    """Return the entry of a new record's provenance on metrics that observe, if there are any."""
    observing = rules.observing
    return {OBSERVED_BY: observing} if observing else {}
