"""The benchmark of records: its sets, metrics and headline, with and without its plug-in.

A record names its benchmark in the `data` section of its spec. A record that names none has TOFU's
schema. The plan of a sweep stores the columns as they are, so that tables and pages can be drawn
even if the plug-in is not installed. Plans of version 0.2 have no columns, and need the plug-in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from unlearnbench.api.benchmark import Benchmark, Headline, Reference, references_with
from unlearnbench.api.metric import Measure, MetricColumn, Role
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import Offer, load, offers
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.base.hashing import decode_floats, json_ready
from unlearnbench.config.entries import benchmark_named, benchmark_of
from unlearnbench.config.metric_plan import NO_CHOICES, MetricChoices
from unlearnbench.config.profiles import TOFU, profile_of_id
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.summary import plan_of

KEY = "benchmark"
"""Key in `plan.json`."""


@dataclass(frozen=True, eq=False)
class BenchmarkSchema:
    """Sets, metrics and headline of the benchmark of some records."""

    name: str
    """Empty if the records do not name it."""
    roles: Mapping[str, Role]
    """The evaluation sets in the order of a table, and the role of each."""
    references: frozenset[Reference]
    """Models that exist besides those of the runs."""
    headline: Headline
    plan: MetricPlan
    """The columns, and how they are computed. If the plug-in is `missing`, the plan has only the
    columns, and nothing can be computed."""
    missing: str = ""
    """Why the benchmark's plug-in cannot be used here; empty if it can."""
    unusable: tuple[str, ...] = ()
    """Names of metrics that the configuration names and that cannot be used here."""
    could_have_retain: bool = False
    """Whether there is no retain model, and a base model would give one."""
    absent: frozenset[Role] = frozenset()
    """Roles of sets that the benchmark can have, and for which its settings give no rows."""
    unit: Unit = Unit.EPOCH
    """Unit of the moments at which the sweep evaluates, which are the field `epoch` of records."""

    @classmethod
    def of(
        cls,
        benchmark: Benchmark,
        profile: Profile,
        chosen: MetricChoices,
        *,
        references: frozenset[Reference] | None = None,
        name: str | None = None,
        unusable: tuple[str, ...] = (),
    ) -> BenchmarkSchema:
        """Return the schema of a benchmark under a profile.

        Args:
            benchmark: The benchmark's plug-in.
            profile: Evaluation rules.
            chosen: Metrics that a configuration names, with their settings.
            references: Models that runs are compared with. Defaults to all that the benchmark has.
            name: Name of the benchmark in records. Defaults to the name of its plug-in.
            unusable: Further metrics that the configuration names, which cannot be used.

        Raises:
            PluginError: A metric does not take its settings.
        """
        if references is None:
            references = benchmark.references
        plan = plan_of(profile, benchmark, chosen, references)
        if unusable:
            # Such a metric may be on offer with other settings than the configuration's, which it
            # no longer takes. Numbers by other settings would be wrong.
            plan = plan.without(frozenset(unusable))
        return cls(
            benchmark.source if name is None else name,
            benchmark.set_roles,
            frozenset(references),
            benchmark.headline_with(references),
            plan,
            unusable=unusable,
            could_have_retain="retain" in benchmark.references - references,
            absent=frozenset(benchmark.roles.values()) - {*benchmark.set_roles.values()},
        )

    @property
    def has_retain(self) -> bool:
        """Whether runs are compared with a retain model."""
        return "retain" in self.references

    @property
    def warning(self) -> str:
        """A line on what the missing plug-in prevents; empty if the plug-in can be used."""
        if not self.missing:
            return ""
        return f"{self.missing.rstrip('.;')}. Until then its numbers are shown as stored"

    def column(self, name: str) -> MetricColumn:
        """Return the column with a name. If the plan has none, its label is the name in words."""
        return self.columns.get(name) or unknown_column(name)

    @cached_property
    def columns(self) -> Mapping[str, MetricColumn]:
        """All columns of the plan by name."""
        return {column.name: column for column in (*self.plan.columns, *self.plan.under_attack)}

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names of the columns that can be computed here."""
        names = set(self.measures)
        for summary in self.plan.summaries.values():
            names.update(column.name for column in summary.columns())
        return frozenset(names)

    @cached_property
    def measures(self) -> Mapping[str, tuple[Measure, str]]:
        """The metric and the set of each column, except for columns of summaries.

        For example, `rouge_forget` has the metric `rouge` and the set `forget`.
        """
        by_column: dict[str, tuple[Measure, str]] = {}
        for measure in self.plan.measures:
            for set_name in measure.sets:
                by_column[f"{measure.name}_{set_name}"] = (measure, set_name)
        return by_column

    def sets(self, role: Role) -> tuple[str, ...]:
        """Return the names of the evaluation sets with a role."""
        return tuple(name for name, set_role in self.roles.items() if set_role == role)

    def to_json(self) -> dict[str, Any]:
        """Return what tables and pages need to know, for `plan.json` and `table.json`.

        Infinite bounds are written as `decode_floats` reads them.
        """
        entry: dict[str, Any] = {
            "name": self.name,
            "roles": dict(self.roles),
            "references": sorted(self.references),
            "headline": asdict(self.headline),
            "columns": [asdict(column) for column in self.plan.columns],
            "under_attack": [asdict(column) for column in self.plan.under_attack],
            # Names of the columns whose metrics the benchmark names itself.
            "own": sorted(self.plan.own),
        }
        if self.could_have_retain:
            entry["could_have_retain"] = True
        if self.absent:
            entry["absent"] = sorted(self.absent)
        if self.unit is not Unit.EPOCH:
            entry["unit"] = self.unit
        ready: dict[str, Any] = json_ready(entry, lambda number: {"$float": repr(number)})
        return ready

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> BenchmarkSchema:
        """Return the schema in a file. Its columns cannot be computed.

        Args:
            entry: What `to_json` returned, read with `decode_floats`.

        Raises:
            ValueError: A part has another form.
            KeyError: A part is missing.
        """
        columns = _read_as(tuple[MetricColumn, ...], entry["columns"])
        under_attack = _read_as(tuple[MetricColumn, ...], entry["under_attack"])
        own = _read_as(frozenset[str], entry["own"])
        return cls(
            name=_read_as(str, entry["name"]),
            roles=_read_as(dict[str, Role], entry["roles"]),
            references=_read_as(frozenset[Reference], entry["references"]),
            headline=_read_as(Headline, entry["headline"]),
            plan=MetricPlan((), {}, columns, own, under_attack=under_attack),
            could_have_retain=_read_as(bool, entry.get("could_have_retain", False)),
            absent=_read_as(frozenset[Role], entry.get("absent", ())),
            unit=Unit(entry.get("unit", Unit.EPOCH)),
        )

    @classmethod
    def read(cls, plan: Path) -> BenchmarkSchema | None:
        """Read the schema in a sweep's plan; None if there is none to read."""
        try:
            document = json.loads(plan.read_text(encoding="utf-8"), object_hook=decode_floats)
            return cls.from_json(document[KEY])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None


@cache
def _reader(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _read_as(form: Any, value: Any) -> Any:
    """Return a value from a file in the form of a type.

    Raises:
        ValueError: The value has another form.
    """
    return _reader(form).validate_python(value)


def recorded_schema(
    section: Mapping[str, Any],
    profile: str,
    stored: BenchmarkSchema | None = None,
    chosen: MetricChoices = NO_CHOICES,
    *,
    has_retain: bool = True,
) -> BenchmarkSchema:
    """Return the schema of a record's benchmark.

    Args:
        section: The section `data` of the record's spec.
        profile: Id of its evaluation rules.
        stored: The schema in the plan of its sweep, if there is one.
        chosen: Metrics that a configuration names. Those that cannot be used here are named in
            `unusable`, and have no columns.
        has_retain: Whether there is a retain model, see `references_with`.

    Raises:
        PluginError: The benchmark's plug-in cannot be used, and no schema is stored.
    """
    rules = _profile(profile)
    name = str(section.get("source") or "")
    try:
        benchmark = benchmark_of_section(section)
    except PluginError as error:
        if stored is None or stored.name != name:
            raise
        return replace(stored, missing=str(error))
    references = references_with(benchmark, has_retain=has_retain)
    on_offer = {offer.name for offer in offers("metrics")}
    try:
        schema = BenchmarkSchema.of(benchmark, rules, chosen, references=references, name=name)
        return replace(schema, unusable=tuple(sorted(chosen.keys() - on_offer)))
    except PluginError:
        # At least one metric does not take its settings. Each is tried to find out which.
        usable = {
            metric: settings
            for metric, settings in chosen.items()
            if metric in on_offer and _is_usable(metric, settings, rules, benchmark)
        }
    unusable = tuple(sorted(chosen.keys() - usable.keys()))
    return BenchmarkSchema.of(
        benchmark, rules, usable, references=references, name=name, unusable=unusable
    )


def _is_usable(
    metric: str, settings: Mapping[str, Any], profile: Profile, benchmark: Benchmark
) -> bool:
    try:
        plan_of(profile, benchmark, {metric: settings})
    except PluginError:
        return False
    return True


def benchmark_of_section(section: Mapping[str, Any]) -> Benchmark:
    """Return the benchmark with the settings of a record's `data`; TOFU if it names none.

    Raises:
        PluginError: The benchmark cannot be used here.
    """
    name = str(section.get("source") or "tofu")
    return _benchmark(name, json.dumps(json_ready(section)), offers("benchmarks"))


def default_schema() -> BenchmarkSchema:
    """Return TOFU's schema, for tables and records that name no benchmark."""
    return recorded_schema({}, TOFU.id)


def _profile(identity: str) -> Profile:
    """Return the rules with an id.

    If this version does not know them, the result is TOFU's, by which columns have the same labels.
    """
    try:
        return profile_of_id(identity)
    except EvaluationError:
        return TOFU


@lru_cache(maxsize=64)
def _benchmark(name: str, section: str, on_offer: tuple[Offer, ...]) -> Benchmark:
    """Return a benchmark with the settings of a record.

    Args:
        name: Name of the benchmark.
        section: The section `data` as JSON, so that it can be a key of the cache.
        on_offer: The benchmarks that can be loaded. If they change, nothing in the cache is valid.

    Raises:
        PluginError: The benchmark cannot be used here.
    """
    del on_offer  # only a key of the cache
    load("benchmarks", name)
    try:
        return benchmark_of({**json.loads(section), "source": name}, stored=True)
    except ValidationError:
        raise PluginError(f"benchmark {name!r} does not take the settings of the records") from None


def default_headline() -> Headline:
    """Return TOFU's headline, for tables that name no benchmark."""
    return benchmark_named("tofu").headline


def unknown_column(name: str) -> MetricColumn:
    """Return a column that no plan has, with its name in words, without direction and bounds."""
    words = name.replace("_", " ")
    return MetricColumn(name, words[:1].upper() + words[1:], None, (-math.inf, math.inf))


def filled_columns(
    metrics: Iterable[Mapping[str, float | None]], plan: MetricPlan | None = None
) -> tuple[str, ...]:
    """Return the columns worth showing: the benchmark's own, and those with a number in any row.

    Args:
        metrics: Rows of numbers by column. Without rows, all of the benchmark's own columns count.
        plan: The benchmark's metrics. Defaults to TOFU's.

    Returns:
        The columns of the plan in its order, then all others by name.
    """
    plan = plan or plan_of(TOFU)
    rows = list(metrics) or [dict.fromkeys(plan.own)]
    # Most rows of a table have the same columns, so distinct headings are few.
    headings = {tuple(row) for row in rows}
    names = {name for heading in headings for name in heading}
    shown = names & plan.own
    without_number = names - shown
    for row in rows:
        filled = [name for name in without_number if row.get(name) is not None]
        if filled:
            shown.update(filled)
            without_number.difference_update(filled)
    planned = dict.fromkeys(column.name for column in (*plan.columns, *plan.under_attack))
    in_order = [name for name in planned if name in shown]
    return (*in_order, *sorted(shown - planned.keys()))
