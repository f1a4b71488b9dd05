"""The benchmark of records: its sets, metrics and headline, with and without its plug-in.

A record names its benchmark in the `data` section of its spec; one without it has TOFU's schema.
The plan of a sweep stores the columns as they are, so that tables and pages can be drawn where the
plug-in is not installed. Plans of 0.2 do not have them, and need the plug-in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unlearnbench.api.benchmark import Benchmark, Headline, Reference
from unlearnbench.api.metric import Measure, MetricColumn, Role
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import Offer, load, offers
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.base.hashing import decode_floats, json_ready
from unlearnbench.config.entries import benchmark_named, benchmark_of
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices, MetricPlan
from unlearnbench.config.profiles import TOFU, profile_of_id
from unlearnbench.evaluation.summary import plan_of

KEY = "benchmark"
"""Key in `plan.json`."""
VERSIONS = "metric_versions"
"""Key in the provenance of a record."""


@dataclass(frozen=True)
class StoredBenchmark:
    """The entry in `plan.json`: what tables and pages need to know of a benchmark."""

    name: str
    roles: dict[str, Role]
    references: tuple[Reference, ...]
    headline: Headline
    columns: tuple[MetricColumn, ...]
    under_attack: tuple[MetricColumn, ...]
    own: tuple[str, ...]
    """Names of the columns whose metrics the benchmark names itself."""

    @classmethod
    def of(cls, benchmark: Benchmark, profile: Profile, chosen: MetricChoices) -> StoredBenchmark:
        """The entry of a benchmark under a profile, with the metrics that a configuration names."""
        plan = plan_of(profile, benchmark, chosen)
        return cls(
            benchmark.source,
            dict(benchmark.roles),
            tuple(sorted(benchmark.references)),
            benchmark.headline,
            plan.columns,
            plan.under_attack,
            tuple(sorted(plan.own)),
        )

    def to_json(self) -> dict[str, Any]:
        """Every field; infinite bounds as `decode_floats` reads them."""
        ready: dict[str, Any] = json_ready(asdict(self), lambda number: {"$float": repr(number)})
        return ready

    @classmethod
    def read(cls, plan: Path) -> StoredBenchmark | None:
        """Read the entry from a sweep's plan; None where there is none to read."""
        try:
            document = json.loads(plan.read_text(encoding="utf-8"), object_hook=decode_floats)
            return TypeAdapter(cls).validate_python(document[KEY])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


@dataclass(frozen=True, eq=False)
class BenchmarkSchema:
    """Sets, metrics and headline of the benchmark of some records."""

    name: str
    """Empty where the records do not name it."""
    roles: Mapping[str, Role]
    """The evaluation sets in the order of a table, and what each is for."""
    references: frozenset[Reference]
    """Models that exist besides those of the runs."""
    headline: Headline
    plan: MetricPlan
    """Without its plug-in: the columns alone, of which nothing is computed."""
    missing: str = ""
    """Why its plug-in cannot be used here; empty if it can."""

    @property
    def warning(self) -> str:
        """A line on what the plug-in's absence costs; empty if it can be used."""
        line = f"{self.missing.rstrip('.;')}. Until then its numbers are shown as stored"
        return line if self.missing else ""

    def column(self, name: str) -> MetricColumn:
        """The column of a name; of one that is not in its plan, its name in words."""
        return self.columns.get(name) or unknown_column(name)

    @cached_property
    def columns(self) -> Mapping[str, MetricColumn]:
        """All columns of its plan by name."""
        return {column.name: column for column in (*self.plan.columns, *self.plan.under_attack)}

    @cached_property
    def measures(self) -> Mapping[str, tuple[Measure, str]]:
        """By column the metric and the set behind it, of those that are of one set."""
        return {
            f"{measure.name}_{on}": (measure, on)
            for measure in self.plan.measures
            for on in measure.sets
        }

    def sets(self, role: Role) -> tuple[str, ...]:
        """The evaluation sets with a role."""
        return tuple(name for name, its in self.roles.items() if its == role)


def version_entry(
    benchmark: Benchmark, profile: Profile, chosen: MetricChoices = NO_CHOICES
) -> dict[str, Any]:
    """Entry of a record's provenance: versions other than 1, by column, of its metrics.

    chosen  metrics that the configuration names
    """
    plan = plan_of(profile, benchmark, chosen)
    versions = {f"{m.name}_{on}": m.metric.version for m in plan.measures for on in m.sets}
    for summary in plan.summaries.values():
        versions |= {column.name: summary.version for column in summary.columns()}
    later = {name: version for name, version in versions.items() if version != 1}
    return {VERSIONS: later} if later else {}


def recorded_schema(
    section: Mapping[str, Any],
    profile: str,
    stored: StoredBenchmark | None = None,
    chosen: MetricChoices = NO_CHOICES,
) -> BenchmarkSchema:
    """The benchmark of a record.

    section  the `data` of its spec
    profile  its evaluation rules
    stored   the entry in the plan of its sweep
    chosen   metrics that a configuration names; of those that are not installed here there is no
             plan

    Raises: PluginError where the plug-in cannot be used, and the plan has no entry.
    """
    rules, name = _profile(profile), str(section.get("source") or "")
    try:
        on_offer = offers("benchmarks")
        benchmark = _made(name or "tofu", json.dumps(json_ready(section)), on_offer)
    except PluginError as error:
        if stored is None or stored.name != name:
            raise
        plan = MetricPlan(
            (), {}, stored.columns, frozenset(stored.own), under_attack=stored.under_attack
        )
        references = frozenset(stored.references)
        return BenchmarkSchema(name, stored.roles, references, stored.headline, plan, str(error))
    try:
        plan = plan_of(rules, benchmark, chosen)
    except PluginError:
        plan = plan_of(rules, benchmark)
    return BenchmarkSchema(name, benchmark.roles, benchmark.references, benchmark.headline, plan)


def default_schema() -> BenchmarkSchema:
    """TOFU's: of tables and records that name none."""
    return recorded_schema({}, TOFU.id)


def _profile(identity: str) -> Profile:
    """The rules with this id; TOFU's if this version does not know them: labels are the same."""
    try:
        return profile_of_id(identity)
    except EvaluationError:
        return TOFU


@lru_cache(maxsize=64)
def _made(name: str, text: str, on_offer: tuple[Offer, ...]) -> Benchmark:
    """The benchmark with the settings of the section.

    Raises: PluginError where it cannot be used here.
    """
    del on_offer  # a key of the cache
    load("benchmarks", name)
    try:
        return benchmark_of({**json.loads(text), "source": name}, stored=True)
    except ValidationError:
        raise PluginError(f"benchmark {name!r} does not take the settings of the records") from None


def default_headline() -> Headline:
    """TOFU's."""
    return benchmark_named("tofu").headline


def unknown_column(name: str) -> MetricColumn:
    """A column that no plan has: its name in words, without direction and bounds."""
    words = name.replace("_", " ")
    return MetricColumn(name, words[:1].upper() + words[1:], None, (-math.inf, math.inf))


def filled_columns(
    metrics: Iterable[Mapping[str, float | None]], plan: MetricPlan | None = None
) -> tuple[str, ...]:
    """The columns worth showing: those with a number in any row, and the benchmark's own.

    Those of the plan come first, others behind them by name. Without rows they are the
    benchmark's own.

    plan  the benchmark's; TOFU's if not given
    """
    plan = plan or plan_of(TOFU)
    rows = list(metrics) or [dict.fromkeys(plan.own)]
    names = {name for keys in {tuple(row) for row in rows} for name in keys}
    shown = names & plan.own
    empty = names - shown
    for row in rows:
        if filled := [name for name in empty if row.get(name) is not None]:
            shown.update(filled)
            empty.difference_update(filled)
    known = dict.fromkeys(column.name for column in (*plan.columns, *plan.under_attack))
    return (*(name for name in known if name in shown), *sorted(shown - known.keys()))
