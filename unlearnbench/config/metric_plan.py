"""All metrics of a benchmark's evaluation: which there are, in which order, and their values."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, get_args

from unlearnbench.api.benchmark import Benchmark, MetricUse, Reference, guarded_call
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    EXTRA,
    ON_REQUEST,
    UNDER_ATTACK,
    EvaluatedModel,
    Measure,
    Metric,
    MetricColumn,
    MetricInputs,
    Reads,
    Role,
    Summary,
    guarded,
    number,
)
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import Offer, load, offers
from unlearnbench.base.deferred_warnings import warn_later, warn_once
from unlearnbench.base.errors import PluginError, did_you_mean
from unlearnbench.config.entries import made, restored

MetricChoices = Mapping[str, Mapping[str, Any]]
"""Metrics that a configuration names (`evaluation.metrics`), and their settings, as JSON."""
NO_CHOICES: MetricChoices = {}

COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_Group = list[tuple[str, Summary | Measure]]
_NO_DEFAULT = "; give each field a default, or the metric no `roles`"


@dataclass(frozen=True, eq=False)
class MetricPlan:
    """The metrics of one benchmark under one profile."""

    measures: tuple[Measure, ...]
    summaries: Mapping[str, Summary]
    """By name."""
    columns: tuple[MetricColumn, ...]
    """Every column of a plain evaluation, in the order of a table."""
    own: frozenset[str]
    """Names of the columns whose metrics the benchmark names itself."""
    faults: tuple[PluginError, ...] = ()
    """Reasons of the metrics that are left out, since they cannot be used."""
    under_attack: tuple[MetricColumn, ...] = ()
    """Columns of metrics that read what only an attack observes: no plain evaluation has them."""

    @cached_property
    def in_order(self) -> tuple[Summary, ...]:
        """The summaries, each after those that it reads."""
        before = {
            name: summary.after & self.summaries.keys() for name, summary in self.summaries.items()
        }
        try:
            return tuple(self.summaries[name] for name in TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = " → ".join(error.args[1])
            raise PluginError(f"metrics that read each other's columns: {circle}") from None

    def of_columns(self, names: Set[str]) -> MetricPlan:
        """The metrics behind some columns alone, and behind those that they are made of."""
        summaries = {
            key: item
            for key, item in self.summaries.items()
            if names & {column.name for column in item.columns()}
        }
        if parts := {part for item in summaries.values() for part in item.parts()} - names:
            return self.of_columns(names | parts)
        measures = tuple(
            replace(measure, sets=sets)
            for measure in self.measures
            if (sets := tuple(on for on in measure.sets if f"{measure.name}_{on}" in names))
        )
        return replace(self, measures=measures, summaries=summaries)

    def without(self, metrics: Set[str]) -> MetricPlan:
        """Return the plan without some metrics, and without the summaries that read them.

        The benchmark's own metrics stay.
        """
        return self._without_columns(self.affected(metrics) - self.own)

    def without_models(self, models: Set[Reference]) -> MetricPlan:
        """Return the plan without the summaries that are relative to one of some models.

        Without the benchmark's own ones, too, and without what is made of their numbers.
        """
        relative = {
            name for name, summary in self.summaries.items() if summary.relative_to & models
        }
        return self._without_columns(self.affected(relative)) if relative else self

    def _without_columns(self, removed: Set[str]) -> MetricPlan:
        measures: list[Measure] = []
        for measure in self.measures:
            sets = tuple(on for on in measure.sets if f"{measure.name}_{on}" not in removed)
            if sets:
                measures.append(replace(measure, sets=sets))
        summaries = {
            name: summary
            for name, summary in self.summaries.items()
            if not removed & {column.name for column in summary.columns()}
        }
        return replace(
            self,
            measures=tuple(measures),
            summaries=summaries,
            columns=tuple(column for column in self.columns if column.name not in removed),
            own=self.own - removed,
            under_attack=tuple(item for item in self.under_attack if item.name not in removed),
        )

    @property
    def extra(self) -> frozenset[Reads]:
        """Observations that are made because one of the metrics reads them."""
        metrics: list[Metric | Summary] = [measure.metric for measure in self.measures]
        metrics += self.summaries.values()
        return EXTRA & {read for metric in metrics for read in metric.reads}

    @property
    def observations(self) -> tuple[Observation, ...]:
        """Observations that the metrics bring along, one of each name."""
        result = {o.name: o for measure in self.measures for o in measure.metric.observes}
        return tuple(result.values())

    def affected(self, metrics: Set[str]) -> frozenset[str]:
        """Columns of some metrics, and of the summaries that read them."""
        names = {name.replace("-", "_") for name in metrics}
        result = {
            f"{measure.name}_{on}"
            for measure in self.measures
            for on in measure.sets
            if measure.name in names
        }
        for name in metrics & self.summaries.keys():
            result |= {column.name for column in self.summaries[name].columns()}
        more = {
            name
            for name, summary in self.summaries.items()
            if summary.after & metrics or result & {*summary.parts()}
        }
        return frozenset(result) if more <= metrics else self.affected(metrics | more)

    def values(
        self,
        sets: Mapping[str, SetEvaluation],
        retain: EvaluatedModel | None = None,
        start: EvaluatedModel | None = None,
    ) -> dict[str, float | None]:
        """The values of a model by column, in the order of `columns`, then of `under_attack`.

        retain, start  the models that it is compared with; may be this model itself

        A column that the evaluation lacks the observations for is None, and so is that of a metric
        that fails, of which a warning says why: the evaluation is not lost. One of `under_attack`
        is left out.
        """
        result: dict[str, float | None] = {}
        for measure in self.measures:
            for name in measure.sets:
                if name in sets:
                    with _kept():
                        result[f"{measure.name}_{name}"] = measure.value(sets[name])
        for summary in self.in_order:
            model = EvaluatedModel(sets, dict(result))
            with _kept():
                result |= computed(summary, MetricInputs(model, retain, start))
        further = (item.name for item in self.under_attack if result.get(item.name) is not None)
        return {
            name: result.get(name) for name in (*(column.name for column in self.columns), *further)
        }


@contextmanager
def _kept() -> Generator[None, None, None]:
    """Turn a metric's failure into a warning."""
    try:
        yield
    except PluginError as error:
        warn_once(str(error))


def computed(summary: Summary, inputs: MetricInputs) -> dict[str, float | None]:
    """The values of a summary. Raises: PluginError where it fails, or breaks its declaration."""
    known, source = [item.name for item in columns_of(summary)], f"metric {type(summary).__name__}"
    with guarded(summary, "compute"):
        values = dict(summary.compute(inputs))
    for name in values.keys() - known:
        raise PluginError(
            f"`compute` of {source} returns {name!r}, which `columns` does not declare: "
            f"{', '.join(known)}"
        )
    return {
        name: number(value, f"`compute` of {source}, column {name!r},")
        for name, value in values.items()
    }


def columns_of(summary: Summary) -> tuple[MetricColumn, ...]:
    """The columns that a summary declares. Raises: PluginError where it fails to."""
    with guarded(summary, "columns"):
        return tuple(summary.columns())


def benchmark_plan(
    profile: Profile,
    benchmark: Benchmark,
    chosen: MetricChoices = NO_CHOICES,
    references: frozenset[Reference] | None = None,
) -> MetricPlan:
    """The metrics of a benchmark under a profile, those registered late included.

    chosen      by the configuration
    references  models that runs are compared with; default: all that the benchmark has. What is
                relative to one of the others is left out.

    Metrics that cannot be used are left out, with a warning. Raises: PluginError for one of the
    benchmark's own metrics, or of the chosen ones.
    """
    if references is None:
        references = benchmark.references
    return _benchmark_plan(profile, benchmark, json.dumps(chosen), references, offers("metrics"))


@lru_cache(maxsize=32)
def _benchmark_plan(
    profile: Profile,
    benchmark: Benchmark,
    chosen: str,
    references: frozenset[Reference],
    on_offer: tuple[Offer, ...],
) -> MetricPlan:
    for name, role in benchmark.set_roles.items():
        _check_words(
            f"benchmark {benchmark.source!r}: role of set {name!r}", {role}, get_args(Role)
        )
    with guarded_call(benchmark, "metrics"):
        named = benchmark.metrics(profile)
    uses = [use for use in named if use.unless is None or use.unless not in references]
    metrics = {use.metric: load("metrics", use.metric) for use in uses}
    faults: list[PluginError] = []
    for name in sorted({offer.name for offer in on_offer} - metrics.keys()):
        try:
            metrics[name] = load("metrics", name)
        except PluginError as error:
            faults.append(error)
    plan = metric_plan(benchmark.set_roles, uses, metrics, faults, json.loads(chosen))
    for fault in plan.faults:
        warn_later(str(fault))
    return plan.without_models(benchmark.references - references)


def metric_plan(
    roles: Mapping[str, Role],
    uses: Sequence[MetricUse],
    metrics: Mapping[str, type[Metric | Summary]],
    faults: Sequence[PluginError] = (),
    chosen: MetricChoices = NO_CHOICES,
) -> MetricPlan:
    """Plan a benchmark's own metrics, then all others that are chosen or apply to its sets' roles.

    A summary's columns stand before those of the metrics by set. Of the other metrics, those that
    cannot be used are left out, and are among the plan's faults.

    roles    of its evaluation sets
    uses     the metrics that it names
    metrics  by name, every metric on offer
    faults   of metrics on offer that cannot be imported
    chosen   by the configuration

    Raises: PluginError for one of the benchmark's own metrics, or of the chosen ones.
    """
    named = {use.metric for use in uses}
    for name in sorted(named & {key for key, settings in chosen.items() if settings}):
        raise PluginError(
            f"the benchmark itself reports metric {name!r}, with settings that follow from the "
            "evaluation profile; leave the metric out, or choose another profile"
        )
    taken: set[str] = set()
    part = [(use.metric, _planned(use, metrics[use.metric], roles, taken)) for use in uses]
    further: _Group = []
    broken = list(faults)
    for name in sorted(metrics.keys() - named):
        use = MetricUse(name, settings=restored(metrics[name], chosen.get(name, {})))
        try:
            if _applies(name, metrics[name], roles) or name in chosen:
                metric = _planned(use, metrics[name], roles, taken, is_chosen=name in chosen)
                further.append((name, metric))
        except PluginError as error:
            if name in chosen:
                raise
            broken.append(error)
    named_columns, other_columns = [*_in_table(part, roles)], [*_in_table(further, roles)]
    every = named_columns + other_columns
    return MetricPlan(
        measures=(*_measures(part), *_measures(further)),
        summaries={name: item for name, item in part + further if isinstance(item, Summary)},
        columns=tuple(column for column, reads in every if not reads & UNDER_ATTACK),
        own=frozenset(c.name for c, reads in named_columns if not reads & UNDER_ATTACK),
        faults=tuple(broken),
        under_attack=tuple(column for column, reads in every if reads & UNDER_ATTACK),
    )


def _planned(
    use: MetricUse,
    kind: type[Metric | Summary],
    roles: Mapping[str, Role],
    taken: set[str],
    *,
    is_chosen: bool = False,
) -> Summary | Measure:
    """A metric as a benchmark uses it, whose columns are now `taken`."""
    with plugin_code(f"metric {use.metric!r}", source_file(kind)):
        metric = made(kind, use.settings, f"metric {use.metric!r}", if_missing=_NO_DEFAULT)
        if is_chosen:
            _check_sets(use.metric, metric, roles)
        if isinstance(metric, Summary):
            _take_names(use.metric, columns_of(metric), taken)
            return metric
        _check_words(f"metric {use.metric!r}: sets (names of `roles`)", {*use.sets}, (*roles,))
        on = metric.roles or ON_REQUEST
        sets = use.sets or tuple(name for name, role in roles.items() if role in on)
        measure = Measure(use.name or use.metric.replace("-", "_"), metric, sets)
        _take_names(use.metric, [measure.column(name, roles[name]) for name in sets], taken)
        return measure


def _measures(group: _Group) -> Iterator[Measure]:
    """Metrics by set; those of one name, which a column may have several of, are together."""
    measures = [metric for _, metric in group if isinstance(metric, Measure)]
    names = [measure.name for measure in measures]
    yield from sorted(measures, key=lambda measure: names.index(measure.name))


def _in_table(
    group: _Group, roles: Mapping[str, Role]
) -> Iterator[tuple[MetricColumn, Set[Reads]]]:
    """Columns in the order of a table, each with the observations that its metric reads."""
    for _, metric in group:
        if isinstance(metric, Summary):
            yield from ((column, metric.reads) for column in columns_of(metric))
    for _, same in itertools.groupby(_measures(group), key=lambda measure: measure.name):
        measures = [*same]
        for (name, role), measure in itertools.product(roles.items(), measures):
            if name in measure.sets:
                yield measure.column(name, role), measure.metric.reads


def _applies(name: str, kind: type[Metric | Summary], roles: Mapping[str, Role]) -> bool:
    """True if every benchmark with sets of these roles reports the metric.

    Raises: PluginError for roles, or observations to read, that there are not.
    """
    part, present = {*kind.roles}, {*roles.values()}
    of_sets = issubclass(kind, Metric)
    _check_words(f"metric {name!r}: roles", part, get_args(Role))
    known = get_args(Reads) if of_sets else sorted(EXTRA | UNDER_ATTACK)
    _check_words(f"metric {name!r}: reads", kind.reads, known)
    if of_sets and not isinstance(getattr(kind, "label", None), str):
        raise PluginError(f'metric {name!r} has no label; add `label = "{kind.__name__}"`')
    return bool(part & present) if of_sets else bool(part) and part <= present


def _check_words(source: str, words: Iterable[str], known: Sequence[str]) -> None:
    for word in sorted({*words} - {*known}):
        near = did_you_mean(word, known) or ";"
        raise PluginError(f"{source} has {word!r}{near} known: {', '.join(known)}")


def _check_sets(name: str, metric: Metric | Summary, roles: Mapping[str, Role]) -> None:
    """Raise PluginError where a benchmark lacks sets that a chosen metric reads."""
    present, on = {*roles.values()}, metric.roles
    missing: Set[str]
    if isinstance(metric, MembershipInference):
        missing = {metric.members, metric.others} - roles.keys()
    elif isinstance(metric, Summary):
        missing = on - present
    else:
        on = on or ON_REQUEST
        missing = frozenset() if on & present else on
    if missing:
        raise PluginError(
            f"metric {name!r} reads a {' and a '.join(sorted(missing))} set, which this benchmark "
            f"does not have: its sets are {', '.join(roles)}; leave the metric out"
        )


def _take_names(metric: str, columns: Sequence[MetricColumn], taken: set[str]) -> None:
    """Add columns to those that are `taken`.

    Raises: PluginError for a name that is taken already, or that no file could have.
    """
    names = [column.name for column in columns]
    for i, name in enumerate(names):
        if not COLUMN_NAME.fullmatch(name):
            raise PluginError(
                f"metric {metric!r}: its column is called {name!r}; use small letters, digits and "
                "underscores, a letter first (a metric has its file's name)"
            )
        if name in taken or name in names[:i]:
            raise PluginError(f"metric {metric!r}: there is a column {name!r} already; rename it")
    taken.update(names)
