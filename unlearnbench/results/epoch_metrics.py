"""The numbers of a record's epochs: those in it, and those that can be computed from its files.

A retain model's record has no number that is relative to the start model, which is evaluated after
it, and a record may be older than a metric. Such columns are computed from the stored evaluations,
once in a process; a column that is stored is not computed again, unless the configuration has come
to give its metric other settings (`evaluation.metrics`).
"""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices, MetricPlan
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema, recorded_schema
from unlearnbench.evaluation.summary import values_of
from unlearnbench.results.records import EpochResult, Record, StoredEvaluations, StoredFile

Values = Mapping[str, float | None]
References = Mapping[tuple[str, str, SplitKey], Record]
"""Records of start and retain models by kind, model and split."""


class Numbers(dict[str, float | None]):
    """Numbers by column, None where undefined; a column that is not there is undefined, too."""

    def __missing__(self, name: str) -> None:
        return None


def finite(metrics: Values) -> Numbers:
    """The numbers; None for those that are not finite."""
    low, high = -math.inf, math.inf
    return Numbers(
        {n: value if value is None or low < value < high else None for n, value in metrics.items()}
    )


def references_of(records: Iterable[Record]) -> References:
    """The start and retain models among `records`; none where there are two for one place."""
    recordss: dict[tuple[str, str, SplitKey], list[Record]] = {}
    for record in records:
        if record.kind != "run" and not record.attacked:
            location = (record.kind, record.model, record.forget_fraction)
            recordss.setdefault(location, []).append(record)
    return {location: ones[0] for location, ones in recordss.items() if len(ones) == 1}


def numbers(
    record: Record,
    result: EpochResult,
    references: References,
    chosen: MetricChoices | None = None,
) -> Numbers:
    """The numbers of an epoch of `record` by column; None where undefined or not finite.

    Columns that the record lacks are computed from its files, and from those of its start and
    retain model, if they are whole.

    chosen  metrics that the configuration names now; default: those that it named for the record
    """
    before = chosen_of(record)
    now = before if chosen is None else chosen
    schema = record_schema(record, now)
    known = {column.name for column in schema.plan.columns}
    fill = known - result.metrics.keys()
    if record.kind == "retain":
        fill |= {name for name in known if result.metrics.get(name) is None}
    names = before.keys() | now.keys()
    changed = {name for name in names if before.get(name, {}) != now.get(name, {})}
    fill |= schema.plan.affected(changed)
    computed = _computed(record, result, references, schema) if fill else {}
    return finite({**result.metrics, **{name: computed.get(name) for name in fill}})


def chosen_of(record: Record) -> MetricChoices:
    """The metrics that the configuration named when a record was made."""
    return named_metrics(record.spec if record.kind == "run" else {"evaluation": record.spec})


def named_metrics(stored: Mapping[str, Any]) -> MetricChoices:
    """The metrics that a stored configuration names."""
    choices: MetricChoices = stored.get("evaluation", {}).get("metrics", NO_CHOICES)
    return choices


def record_schema(record: Record, chosen: MetricChoices) -> BenchmarkSchema:
    """The benchmark of a record, see `recorded_schema`."""
    section = record.spec.get("data", {})
    return recorded_schema(section, record.profile, record.benchmark, chosen)


def _computed(
    record: Record, result: EpochResult, references: References, schema: BenchmarkSchema
) -> Values:
    """All metrics of an epoch, from the files; empty where they do not give them."""
    location = (record.model, record.forget_fraction)
    others = (references.get((kind, *location)) for kind in ("retain", "fine-tuned"))
    model = _file_of(record, result.epoch)
    retain, start = (None if other is None else _file_of(other, 0) for other in others)
    if model is None:
        return {}
    try:
        forget, headline = schema.sets("forget"), schema.headline.forgotten.name
        return _compute(schema.plan, forget, headline, model, retain, start)
    # Damage is reported where the files are needed; other versions may have other sets and rules.
    except (UnlearnbenchError, OSError, LookupError, ValueError):
        return {}


def _file_of(record: Record, epoch: int) -> StoredFile | None:
    stored = record.evaluations
    return stored.files.get(epoch) if isinstance(stored, StoredEvaluations) else None


@lru_cache(maxsize=4096)
def _compute(
    plan: MetricPlan,
    forget: tuple[str, ...],
    headline: str,
    model: StoredFile,
    retain: StoredFile | None,
    start: StoredFile | None,
) -> Values:
    """All metrics of an evaluation; kept, since several tables are made in a process.

    forget    sets whose questions are compared with the retain model's
    headline  name of the comparison, for error messages
    """
    others = (None if file is None else _reference(file) for file in (retain, start))
    return values_of(plan, forget, headline, model.read(), *others)


@lru_cache(maxsize=8)
def _reference(file: StoredFile) -> Evaluation:
    return file.read()
