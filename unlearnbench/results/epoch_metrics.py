"""The metrics of a record's epochs: those in it, and those that can be computed from its files.

An earlier version has stored fewer columns, and a retain model's record none that is relative to
the start model, which is evaluated after it. Such columns are computed from the stored evaluations
when they are read; nothing is stored, and a record that has a column is not computed again, unless
the configuration has come to give its metric other settings (`evaluation.metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices, MetricPlan
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema, recorded_schema
from unlearnbench.evaluation.summary import values_of
from unlearnbench.evaluation.tofu_log import FILES
from unlearnbench.results.records import EpochResult, Record, StoredEvaluations

Values = Mapping[str, float | None]
References = Mapping[tuple[str, str, SplitKey], Record]
"""Records of start and retain models by kind, model and split."""


class Numbers(dict[str, float | None]):
    """Numbers by column, None where undefined; a column that is not there is undefined, too."""

    def __missing__(self, name: str) -> None:
        return None


def finite(metrics: Values, columns: Sequence[str]) -> Numbers:
    """The numbers of `columns`; None for those that are not finite."""
    get, low, high = metrics.get, -math.inf, math.inf
    return Numbers(
        {
            name: value if (value := get(name)) is None or low < value < high else None
            for name in columns
        }
    )


def references_of(records: Iterable[Record]) -> References:
    """The start and retain models among `records`; none where there are two for one place."""
    found: dict[tuple[str, str, SplitKey], list[Record]] = {}
    for record in records:
        if record.kind != "run" and not record.attacked:
            place = (record.kind, record.model, record.forget_fraction)
            found.setdefault(place, []).append(record)
    return {place: ones[0] for place, ones in found.items() if len(ones) == 1}


def metrics_of(
    record: Record,
    result: EpochResult,
    references: References,
    columns: Sequence[str],
    chosen: MetricChoices | None = None,
) -> Values:
    """The `columns` of an epoch of `record`; None where undefined or not finite.

    A column that the record lacks is computed when it is read for the first time: from the files of
    the record and of its start and retain model, if they are whole.

    chosen  metrics that the configuration names now; default: those that it named for the record
    """
    now = chosen_of(record) if chosen is None else chosen
    stored = finite(result.metrics, columns)
    fill = {*columns}.difference(result.metrics)
    if record.kind == "retain":
        fill |= {name for name in columns if stored[name] is None}
    if changed := _changed(chosen_of(record), now):
        fill |= _schema(record, result, now).plan.affected(changed) & {*columns}
    fill_in = partial(computed, record, result, references, now)
    return _Filled(stored, fill, fill_in) if fill else stored


def chosen_of(record: Record) -> MetricChoices:
    """The metrics that the configuration named when a record was made."""
    return named_metrics(record.spec if record.kind == "run" else {"evaluation": record.spec})


def named_metrics(stored: Mapping[str, Any]) -> MetricChoices:
    """The metrics that a stored configuration names; none in those of earlier versions."""
    settings = stored.get("evaluation")
    found = settings.get("metrics") if isinstance(settings, Mapping) else None
    return found if isinstance(found, Mapping) else NO_CHOICES


def _changed(before: MetricChoices, now: MetricChoices) -> frozenset[str]:
    """Metrics with other settings."""
    names = before.keys() | now.keys()
    return frozenset(name for name in names if before.get(name, {}) != now.get(name, {}))


def computed(
    record: Record,
    result: EpochResult,
    references: References,
    chosen: MetricChoices = NO_CHOICES,
) -> Values:
    """All metrics of an epoch, from the files; empty where they do not give them."""
    place = (record.model, record.forget_fraction)
    others = (references.get((kind, *place)) for kind in ("retain", "fine-tuned"))
    own = _file_of(record, result.epoch)
    retain, start = (None if one is None else _file_of(one, 0) for one in others)
    if own is None:
        return {}
    try:
        schema = _schema(record, result, chosen)
        sets = FILES if not schema.name else ()
        forget, what = schema.sets("forget"), schema.headline.forgotten.name
        found = _compute(schema.plan, forget, what, tuple(sets), own, retain, start)
    # Damage is reported where the files are needed; other versions may have other sets and rules.
    except (UnlearnbenchError, OSError, LookupError, ValueError):
        return {}
    if not schema.missing:
        return found
    # With which settings the benchmark uses its own metrics is not known here.
    return {name: value for name, value in found.items() if name not in schema.plan.own}


def _schema(record: Record, result: EpochResult, chosen: MetricChoices) -> BenchmarkSchema:
    columns = result.metrics
    return recorded_schema(record.spec, record.provenance, record.profile, columns, chosen)


class _Filled(Mapping[str, float | None]):
    """Stored numbers, and those to fill in."""

    def __init__(self, stored: Numbers, fill: set[str], compute: Callable[[], Values]) -> None:
        self._stored, self._fill, self._compute = stored, fill, compute

    @cached_property
    def _computed(self) -> Numbers:
        return finite(self._compute(), [*self._fill])

    def __getitem__(self, name: str) -> float | None:
        return self._computed[name] if name in self._fill else self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class _File(NamedTuple):
    """An evaluation on disk."""

    folder: Path
    epoch: int
    digest: str
    precision: str | None

    def read(self) -> Evaluation:
        return StoredEvaluations(self.folder, {self.epoch: self.digest}, self.precision)[self.epoch]


def _file_of(record: Record, epoch: int) -> _File | None:
    stored = record.evaluations
    if not isinstance(stored, StoredEvaluations) or epoch not in stored:
        return None
    return _File(stored.folder, epoch, stored.digests[epoch], stored.precision)


@lru_cache(maxsize=4096)
def _compute(
    plan: MetricPlan,
    forget: tuple[str, ...],
    what: str,
    needed: tuple[str, ...],
    own: _File,
    retain: _File | None,
    start: _File | None,
) -> Values:
    """All metrics of an evaluation; kept for a page that is drawn again and again.

    forget  sets whose questions are to be the retain model's; what: compares them
    needed  sets without which there are none: a record that names no benchmark may be of any
    """
    evaluation = own.read()
    if not {*needed} <= evaluation.sets.keys():
        return {}
    retained, started = (None if file is None else _reference(file) for file in (retain, start))
    return values_of(plan, forget, what, evaluation, retained, started)


@lru_cache(maxsize=8)
def _reference(file: _File) -> Evaluation:
    return file.read()
