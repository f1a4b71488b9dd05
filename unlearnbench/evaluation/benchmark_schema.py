"""The benchmark of records: its sets, metrics and headline, with and without its plug-in.

A record names its benchmark in the `data` section of its spec; one without it is of an earlier
version, and has TOFU's schema. Where the schema is another one, the record's provenance has it, so
that a table and a page can be drawn where the plug-in is not installed: then from the columns as
they are stored, and from the metrics that are installed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unlearnbench.api.benchmark import Benchmark, Headline, MetricUse, Reference
from unlearnbench.api.metric import Measure, Metric, MetricColumn, Role, Summary
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import Offer, load, offers
from unlearnbench.config.benchmark_section import benchmark_named, benchmark_of
from unlearnbench.config.metric_plan import (
    NO_CHOICES,
    MetricChoices,
    MetricPlan,
    columns_of,
    metric_plan,
)
from unlearnbench.config.profiles import TOFU, profile_of_id
from unlearnbench.errors import EvaluationError, PluginError
from unlearnbench.evaluation.columns import column
from unlearnbench.evaluation.headlines import headline_entry, stored_headline
from unlearnbench.evaluation.summary import plan_of

KEY, VERSIONS = "benchmark", "metric_versions"
"""Keys in the provenance of a record."""


@dataclass(frozen=True)
class _Stored:
    """Entry in the provenance of a record of a benchmark with another schema than TOFU's."""

    roles: dict[str, Role]
    references: tuple[Reference, ...]


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
    missing: str = ""
    """Why its plug-in cannot be used here; empty if it can."""

    @property
    def warning(self) -> str:
        """A line on what the plug-in's absence costs; empty if it can be used."""
        if not self.missing:
            return ""
        return (
            f"{self.missing.rstrip('.;')}. Until then its own numbers are shown as stored, and "
            "missing ones are computed for installed metrics alone"
        )

    def column(self, name: str) -> MetricColumn:
        """The column of a name, as `columns.column` of what is not in its plan."""
        return self._columns.get(name) or column(name)

    @cached_property
    def _columns(self) -> Mapping[str, MetricColumn]:
        return {one.name: one for one in self.plan.columns}

    def measure_of(self, name: str) -> tuple[Measure, str] | None:
        """The metric and the set behind a column; None for one of the whole evaluation."""
        return self._measures.get(name)

    @cached_property
    def _measures(self) -> Mapping[str, tuple[Measure, str]]:
        return {f"{one.name}_{on}": (one, on) for one in self.plan.measures for on in one.sets}

    def sets(self, role: Role) -> tuple[str, ...]:
        """The evaluation sets with a role."""
        return tuple(name for name, its in self.roles.items() if its == role)


def schema_entries(
    benchmark: Benchmark, profile: Profile, chosen: MetricChoices = NO_CHOICES
) -> dict[str, Any]:
    """Entries of a record's provenance from which `recorded_schema` reads; none for TOFU's schema.

    With the versions of metrics that are not the first, see `stored_versions`.

    chosen  metrics that the configuration names
    """
    found = headline_entry(benchmark.headline)
    tofu = benchmark_named("tofu")
    if (benchmark.roles, benchmark.references) != (tofu.roles, tofu.references):
        references = sorted(benchmark.references)
        found[KEY] = {"roles": dict(benchmark.roles), "references": references}
    versions = metric_versions(plan_of(profile, benchmark, chosen))
    later = {name: version for name, version in versions.items() if version != 1}
    return found | ({VERSIONS: later} if later else {})


def metric_versions(plan: MetricPlan) -> dict[str, int]:
    """The version of the metric behind each column."""
    versions = {f"{m.name}_{on}": m.metric.version for m in plan.measures for on in m.sets}
    return versions | {
        one.name: summary.version
        for summary in plan.summaries.values()
        for one in summary.columns()
    }


def stored_versions(provenance: Mapping[str, Any]) -> Mapping[str, int]:
    """The versions, by column, of the metrics that a record has numbers of; those that are not 1.

    Empty where they cannot be read.
    """
    stored = provenance.get(VERSIONS)
    if not isinstance(stored, Mapping):
        return {}
    return {str(name): v for name, v in stored.items() if isinstance(v, int)}


def recorded_schema(
    spec: Mapping[str, Any],
    provenance: Mapping[str, Any],
    profile: str,
    columns: Iterable[str],
    chosen: MetricChoices = NO_CHOICES,
) -> BenchmarkSchema:
    """The benchmark of a record.

    spec, provenance, profile  the record's
    columns                    that it has, in order
    chosen                     metrics that a configuration names; of those that are not installed
                               here there is no plan

    Raises: ValueError that names what is wrong in the provenance.
    """
    headline, stored = stored_headline(provenance), _stored(provenance)
    section = spec.get("data")
    section = section if isinstance(section, Mapping) else {}
    name = str(section.get("source") or "")
    rules = _profile(profile)
    try:
        found = _installed(name, section)
    except PluginError as error:
        if stored is None:  # of an early version: its sets are not known
            found, missing = benchmark_named("tofu"), str(error)
        else:
            names, on_offer = tuple(columns), offers("metrics")
            plan = _plan_of_columns(tuple(stored.roles.items()), headline, names, on_offer)
            references = frozenset(stored.references)
            return BenchmarkSchema(name, stored.roles, references, headline, plan, str(error))
    else:
        missing = ""
    try:
        plan = plan_of(rules, found, chosen)
    except PluginError:
        plan = plan_of(rules, found)
    return BenchmarkSchema(name, found.roles, found.references, headline, plan, missing)


def default_schema() -> BenchmarkSchema:
    """TOFU's: of tables and records that name none."""
    return recorded_schema({}, {}, TOFU.id, ())


def schema_with(columns: Iterable[str]) -> BenchmarkSchema:
    """The benchmark of a table by its columns: one whose headline is among them, TOFU's if it is.

    TOFU's, too, where no installed benchmark has such a headline.
    """
    there, tofu = {*columns}, default_schema()
    if there.issuperset(tofu.headline.columns):
        return tofu
    for name in sorted({offer.name for offer in offers("benchmarks")}):
        with suppress(PluginError, ValidationError):  # it is broken, or needs settings
            found = benchmark_named(name)
            if there.issuperset(found.headline.columns):
                plan = plan_of(TOFU, found)
                return BenchmarkSchema(name, found.roles, found.references, found.headline, plan)
    return tofu


def _stored(provenance: Mapping[str, Any]) -> _Stored | None:
    if KEY not in provenance:
        return None
    try:
        return TypeAdapter(_Stored).validate_python(provenance[KEY])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (KEY, *first["loc"])))
        raise ValueError(f"{place}: {first['msg']}") from None


def _profile(identity: str) -> Profile:
    """The rules with this id; TOFU's if this version does not know them: labels are the same."""
    try:
        return profile_of_id(identity)
    except EvaluationError:
        return TOFU


def _installed(name: str, section: Mapping[str, Any]) -> Benchmark:
    """The benchmark, with the settings of the section as far as this version takes them.

    Raises: PluginError where it cannot be used here.
    """
    if not name:
        return benchmark_named("tofu")
    load("benchmarks", name)
    with suppress(ValidationError):
        return benchmark_of(section, stored=True)
    try:
        return benchmark_named(name)
    except ValidationError:
        raise PluginError(f"benchmark {name!r} does not take the settings of the records") from None


@lru_cache(maxsize=8)
def _plan_of_columns(
    roles: tuple[tuple[str, Role], ...],
    headline: Headline,
    names: tuple[str, ...],
    on_offer: tuple[Offer, ...],
) -> MetricPlan:
    """A plan without the benchmark: of the metrics for sets with these roles, and of columns.

    A metric that only a benchmark can name is in it if there is a column of it; with which settings
    is not known, so that its columns are among the benchmark's own, which nothing computes. Columns
    are in the order of `names`, others behind them.
    """
    kinds: dict[str, type[Metric | Summary]] = {}
    uses: list[MetricUse] = []
    for name in sorted({offer.name for offer in on_offer}):
        with suppress(PluginError, ValidationError):
            kind: type[Metric | Summary] = load("metrics", name)
            kinds[name] = kind
            if not kind.roles and (use := _use_of(name, kind, dict(roles), {*names})):
                uses.append(use)
    try:
        plan = metric_plan(dict(roles), uses, kinds)
    except PluginError:
        plan = metric_plan(dict(roles), (), kinds)
    unbounded = (-math.inf, math.inf)
    two = (headline.kept, headline.forgotten)
    found = {one.column: MetricColumn(one.column, one.label, one.better, unbounded) for one in two}
    found |= {one.name: one for one in plan.columns}
    order = dict.fromkeys((*(name for name in names if name in found), *found))
    own = plan.own | ({*headline.columns} & {*names})
    return replace(plan, columns=tuple(found[name] for name in order), own=own)


def _use_of(
    name: str, kind: type[Metric | Summary], roles: Mapping[str, Role], names: Set[str]
) -> MetricUse | None:
    """How the columns show that a benchmark has used a metric; None if there is none of it."""
    made = kind()
    if isinstance(made, Summary):
        return MetricUse(name) if names & {one.name for one in columns_of(made)} else None
    sets = tuple(on for on in roles if f"{name.replace('-', '_')}_{on}" in names)
    return MetricUse(name, sets) if sets else None
