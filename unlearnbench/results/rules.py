"""What the numbers of a table are computed by: benchmark, profile and metrics, and their code.

A record stores observations. The numbers that are computed from them also depend on rules: on the
evaluation profile, on the benchmark and its settings (`data`), on the metrics and their settings
(`evaluation.metrics`), and on the code of all three. `RecordRules.key` is a hash of all these. It
covers only the metrics that the table reports, so that installing another plug-in changes no key.

A *profile* is a named set of rules of evaluation, and its id contains a hash: `tofu@1a2b`. A
*schema* (`BenchmarkSchema`) says which columns a benchmark has, and which two of them rank methods
(the *headline*). A *section* is the section `data` of a configuration, which names the benchmark
and has its settings. A *summary* is a metric that is computed from other metrics.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

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
"""Key in the provenance of a leaderboard's line: the metrics, with their settings, that the
configuration named when the line's numbers were computed. They may differ from the metrics that it
named when the record was made."""
OBSERVED_BY = "observed_by"
"""Key in the provenance of a record: code digests, by name, of metrics with own observations."""


def named_metrics(config: Mapping[str, Any]) -> MetricChoices:
    """Return the metrics that a stored configuration names."""
    choices: MetricChoices = config.get("evaluation", {}).get("metrics", NO_CHOICES)
    return choices


def recorded_metrics(record: Record) -> MetricChoices:
    """Return the metrics that the configuration named when the recorded numbers were computed."""
    if METRICS in record.provenance:
        metrics: MetricChoices = record.provenance[METRICS]
        return metrics
    if record.kind == "run":
        return named_metrics(record.spec)
    # The spec of a start or retain model has `metrics` at the top, not under `evaluation`.
    return named_metrics({"evaluation": record.spec})


def record_schema(record: Record, chosen: MetricChoices) -> BenchmarkSchema:
    """Return the benchmark of a record, see `recorded_schema`."""
    section = record.spec.get("data", {})
    has_retain = has_retain_model(record.spec)
    return recorded_schema(section, record.profile, record.benchmark, chosen, has_retain=has_retain)


def has_retain_model(spec: Mapping[str, Any]) -> bool:
    """Whether the spec of a record names a retain model, or a base model to train one from.

    A record that does not name its models counts as one with a retain model. The answer only
    matters on benchmarks that can do without a retain model, see `references_with`.
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
    """Hash of everything except observations that the numbers depend on. Empty if numbers cannot be
    computed here, see `obstacle`."""
    code: str = ""
    """Hash of the profile, of the metrics with their settings, and of the code. Unlike `key`, it
    does not depend on where the data are stored. Empty if `key` is empty."""
    obstacle: str = ""
    """Why numbers cannot be computed here: the benchmark's plug-in is missing, or this version does
    not know the evaluation profile. Empty if they can be computed."""

    @cached_property
    def observing(self) -> Mapping[str, str]:
        """Code digests, by name, of the metrics that make observations of their own.

        These observations need the model. If their code changes, older records can be brought up
        to date only by evaluating the models again.
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
        section: Section `data` of the record's spec.
        profile: Id of the record's evaluation profile.
        metrics: Metrics that the configuration names, with their settings.
        stored: Schema in the plan of the record's sweep. None if there is no plan.
        has_retain: Whether there is a retain model, see `references_with`.

    Raises:
        PluginError: If the benchmark cannot be used here, and no schema is stored.
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
    """Return a warning if numbers of a leaderboard's lines were computed by different code.

    Lines of earlier versions do not state their code, and count as computed by one other code.

    Returns:
        A sentence, or an empty text if all lines have the same code.
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
    """Schema of the benchmark that most records name. Rows are labelled and ranked by it."""
    metrics: MetricChoices | None
    """Metrics that the configuration names now. If None, each record is computed by the metrics
    that its configuration named when it was made."""
    _cache: dict["_RulesKey", RecordRules] = field(
        default_factory=dict["_RulesKey", RecordRules], init=False, repr=False
    )
    """Rules of the records that were asked for."""

    def of(self, record: Record) -> RecordRules:
        """Return the rules of a record, see `record_rules`."""
        metrics = recorded_metrics(record) if self.metrics is None else self.metrics
        section = record.spec.get("data", {})
        has_retain = has_retain_model(record.spec)
        key = _RulesKey(record.profile, _as_json(section), _as_json(metrics), has_retain)
        if key not in self._cache:
            self._cache[key] = record_rules(
                section, record.profile, metrics, record.benchmark, has_retain=has_retain
            )
        return self._cache[key]


class _RulesKey(NamedTuple):
    """What tells the rules of two records of one table apart."""

    profile: str
    data: str
    """Section `data` of the record's spec, as JSON."""
    metrics: str
    """Metrics with their settings, as JSON."""
    has_retain: bool


def rules_of(records: Sequence[Record], metrics: MetricChoices | None = None) -> Rules:
    """Return the rules of some records.

    Args:
        records: Usually of one sweep. If there are none, the benchmark is TOFU.
        metrics: Metrics that the configuration names now, with their settings. If None, each record
            is computed by the metrics that its configuration named when it was made.

    Raises:
        RecordError: If the benchmarks of evaluated records are ranked by different numbers.
    """
    return Rules(_schema_of(records, metrics), metrics)


class _Section(NamedTuple):
    """What the schema of a record depends on, besides the metrics."""

    data: str
    """Section `data` of its spec, as JSON."""
    has_retain: bool


def _schema_of(records: Sequence[Record], metrics: MetricChoices | None) -> BenchmarkSchema:
    """Return the schema of the section that most records have, see `rules_of`."""
    if not records:
        return default_schema()
    evaluated = [record for record in records if record.epochs]
    by_section: dict[_Section, list[Record]] = defaultdict(list)
    for record in sorted(evaluated or records, key=lambda record: record.id):
        data = _as_json(record.spec.get("data", {}))
        by_section[_Section(data, has_retain_model(record.spec))].append(record)

    schema_of_section: dict[_Section, BenchmarkSchema] = {}
    schema_of_first_record: dict[str, BenchmarkSchema] = {}
    for section, records_of_section in by_section.items():
        first = records_of_section[0]
        chosen = recorded_metrics(first) if metrics is None else metrics
        schema = record_schema(first, chosen)
        schema_of_section[section] = schema
        schema_of_first_record[first.id] = schema
    _check_headlines(schema_of_first_record)

    # Records without a section `data` decide only if no other record has one.
    most_frequent = max(
        by_section, key=lambda section: (section.data != "{}", len(by_section[section]))
    )
    schema = schema_of_section[most_frequent]
    # Runs that train nothing have a single evaluation, from which the unit cannot be told.
    by_steps = any(record.unit is Unit.STEP for record in records)
    return replace(schema, unit=Unit.STEP) if by_steps else schema


def _check_headlines(schemas: Mapping[str, BenchmarkSchema]) -> None:
    """Check that all benchmarks are ranked by the same two numbers.

    Args:
        schemas: Schemas by the id of a record that has them.

    Raises:
        RecordError: If they are not.
    """
    if len({schema.headline for schema in schemas.values()}) > 1:
        listed = ", ".join(
            f"{' and '.join(schema.headline.columns[:2])} (record {id_})"
            for id_, schema in schemas.items()
        )
        raise RecordError(
            f"records of benchmarks that are ranked by different numbers do not compare: {listed}; "
            "report them from separate folders"
        )


def _metrics_of(plan: MetricPlan) -> list[list[Any]]:
    """Return name, version, code and sets of every metric of a plan, as input of a hash."""
    metrics: list[list[Any]] = []
    for measure in plan.measures:
        metric = measure.metric
        metrics.append([measure.name, metric.version, _code_of(metric), measure.sets])
    for name, summary in plan.summaries.items():
        metrics.append([name, summary.version, _code_of(summary)])
    return metrics


def _code_of(metric: Metric | Summary) -> str:
    """Return a digest of the source code of a metric's class."""
    return plugin_code_digest(type(metric))


def _as_json(value: Any) -> str:
    """Return a text that is equal for equal settings, whatever the order of their keys."""
    return json.dumps(json_ready(value), sort_keys=True)


def observed_by_entry(rules: RecordRules) -> dict[str, Any]:
    """Return the provenance entry of a new record on metrics with observations of their own.

    The entry is empty if there are no such metrics.
    """
    observing = rules.observing
    return {OBSERVED_BY: observing} if observing else {}
