"""Which metrics a benchmark's evaluation reports, and in which order of columns.

First come the benchmark's own metrics (`Benchmark.metrics`), with the settings that it gives them.
Then come all other metrics on offer whose roles its sets have, and those that a configuration
chooses (`evaluation.metrics`). Within each of the two parts, the columns of summaries stand before
those of the metrics by set. `api/metric_engine.py` computes the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from unlearnbench.api.benchmark import Benchmark, MetricUse, Reference, guarded_call
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    EXTRA,
    UNDER_ATTACK,
    Measure,
    Metric,
    MetricColumn,
    Reads,
    Role,
    Summary,
)
from unlearnbench.api.metric_engine import MetricPlan, columns_of
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.api.profile import Profile
from unlearnbench.api.registry import Offer, load, offers
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import PluginError, did_you_mean
from unlearnbench.config.entries import made
from unlearnbench.config.stored_values import restored

MetricChoices = Mapping[str, Mapping[str, Any]]
"""Metrics that a configuration names (`evaluation.metrics`), and their settings, as JSON."""
NO_CHOICES: MetricChoices = {}

COLUMN_NAME = re.compile(r"[a-z][a-z0-9_]*")
"""Names that a column may have."""
_NO_DEFAULT = "; give each field a default, or the metric no `roles`"
"""Advice if a metric that every benchmark reports has a setting without a default."""


def benchmark_plan(
    profile: Profile,
    benchmark: Benchmark,
    chosen: MetricChoices = NO_CHOICES,
    references: frozenset[Reference] | None = None,
) -> MetricPlan:
    """Return the metrics of a benchmark under a profile, including those registered late.

    Metrics that cannot be used are left out, with a warning.

    Args:
        profile: Evaluation rules.
        benchmark: The benchmark.
        chosen: Metrics that the configuration names.
        references: Models that runs are compared with. Defaults to all that the benchmark has.
            Summaries that are relative to one of the others are left out.

    Raises:
        PluginError: One of the benchmark's own metrics, or of the chosen ones, cannot be used.
    """
    if references is None:
        references = benchmark.references
    # Metrics on offer are part of the key of the cache.
    return _benchmark_plan(profile, benchmark, json.dumps(chosen), references, offers("metrics"))


class MissingScores(NamedTuple):
    """Scores of a profile that are left out."""

    scores: tuple[str, ...]
    """Names of those that need metrics which nobody has named."""
    needed: tuple[str, ...]
    """Names of these metrics."""
    benchmark: str = ""
    """Name of the benchmark if it has none of the scores that set the profile apart."""

    def warning(self, profile: str, place: str) -> str:
        """Say that the scores are left out; empty if none is.

        Args:
            profile: Name of the profile.
            place: What does not name the metrics: `evaluation.metrics`.
        """
        if self.benchmark:
            return (
                f"profile {profile}: its scores are of TOFU's sets, so it adds none to "
                f"the benchmark {self.benchmark!r}; name single metrics in {place}, such as "
                "token-entropy"
            )
        if not self.scores:
            return ""
        return (
            f"profile {profile}: {' and '.join(self.scores)} are left out, because {place} does "
            f"not name {' and '.join(self.needed)}; name each of these with its `model` to get them"
        )


def missing_scores(
    profile: Profile, benchmark: Benchmark, chosen: MetricChoices = NO_CHOICES
) -> MissingScores:
    """Return the scores of a profile that are left out.

    They need metrics that nobody has named (`MetricUse.if_named`), or sets that the benchmark does
    not have (`Profile.protocol`).

    Args:
        profile: Evaluation rules.
        benchmark: The benchmark.
        chosen: Metrics that are named.
    """
    with guarded_call(benchmark, "metrics"):
        uses = benchmark.metrics(profile)
    needed: dict[str, None] = {}
    scores: list[str] = []
    for use in uses:
        unnamed = [name for name in use.if_named if name not in chosen]
        if unnamed:
            needed |= dict.fromkeys(unnamed)
            scores.append(use.metric)
    # Who names metrics knows that the profile does not bring them along.
    adds_nothing = not chosen and profile.protocol != "tofu"
    if adds_nothing:
        with guarded_call(benchmark, "metrics"):
            adds_nothing = uses == benchmark.metrics(replace(profile, protocol="tofu"))
    name = benchmark.source if adds_nothing else ""
    return MissingScores(tuple(scores), tuple(needed), name)


@lru_cache(maxsize=32)
def _benchmark_plan(
    profile: Profile,
    benchmark: Benchmark,
    chosen: str,
    references: frozenset[Reference],
    on_offer: tuple[Offer, ...],
) -> MetricPlan:
    """Plan the metrics of a benchmark, see `benchmark_plan`.

    Args:
        profile: Evaluation rules.
        benchmark: The benchmark.
        chosen: Metrics that the configuration names, as JSON because a dict cannot be hashed.
        references: Models that runs are compared with.
        on_offer: All metrics that can be loaded now.
    """
    for name, role in benchmark.set_roles.items():
        _check_words(
            f"benchmark {benchmark.source!r}: role of set {name!r}", {role}, get_args(Role)
        )
    with guarded_call(benchmark, "metrics"):
        named = benchmark.metrics(profile)
    chosen_metrics: dict[str, dict[str, Any]] = json.loads(chosen)
    uses: list[MetricUse] = []
    for use in named:
        is_replaced = use.unless is not None and use.unless in references
        if not is_replaced and {*use.if_named} <= chosen_metrics.keys():
            uses.append(use)
    metrics = {use.metric: load("metrics", use.metric) for use in uses}
    faults: list[PluginError] = []
    for name in sorted({offer.name for offer in on_offer} - metrics.keys()):
        try:
            metrics[name] = load("metrics", name)
        except PluginError as error:
            faults.append(error)
    plan = metric_plan(benchmark.set_roles, uses, metrics, faults, chosen_metrics)
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

    Of the others, a metric that applies and cannot be used is left out, and is among the plan's
    faults.

    Args:
        roles: The role of each evaluation set.
        uses: The metrics that the benchmark names.
        metrics: Every metric on offer by name.
        faults: Why further metrics on offer cannot be imported.
        chosen: Metrics that the configuration names.

    Returns:
        Metrics and columns in the order of all tables: the benchmark's own ones first. Columns that
        need an attack are apart. A chosen name that is not among `metrics` is left out here; the
        configuration refuses it before.

    Raises:
        PluginError: One of the benchmark's own metrics, or of the chosen ones, cannot be used.
    """
    own_names = {use.metric for use in uses}
    with_settings = {name for name, settings in chosen.items() if settings}
    for name in sorted(own_names & with_settings):
        raise PluginError(
            f"the benchmark itself reports metric {name!r}, with settings that follow from the "
            "evaluation profile; leave the metric out, or choose another profile"
        )

    planner = _Planner(roles)
    own = _MetricGroup()
    for use in uses:
        own.add(use.metric, planner.planned(use, metrics[use.metric]))

    further = _MetricGroup()
    all_faults = [*faults]
    for name in sorted(metrics.keys() - own_names):
        kind = metrics[name]
        is_chosen = name in chosen
        use = MetricUse(name, settings=restored(kind, chosen.get(name, {})))
        try:
            # `_applies` comes first, because it also checks the declarations of chosen metrics.
            if _applies(name, kind, roles) or is_chosen:
                further.add(name, planner.planned(use, kind, is_chosen=is_chosen))
        except PluginError as error:
            if is_chosen:
                raise
            all_faults.append(error)

    own_columns = own.columns(roles)
    columns = own_columns + further.columns(roles)
    return MetricPlan(
        measures=(*own.measures_by_name(), *further.measures_by_name()),
        summaries=own.summaries | further.summaries,
        columns=tuple(planned.column for planned in columns if not planned.needs_attack),
        own=frozenset(planned.column.name for planned in own_columns if not planned.needs_attack),
        faults=tuple(all_faults),
        under_attack=tuple(planned.column for planned in columns if planned.needs_attack),
    )


class _PlannedColumn(NamedTuple):
    """A column, and the observations that its metric reads."""

    column: MetricColumn
    reads: Set[Reads]

    @property
    def needs_attack(self) -> bool:
        """Whether a plain evaluation lacks observations of the metric."""
        return bool(self.reads & UNDER_ATTACK)


@dataclass
class _MetricGroup:
    """Metrics whose columns stand together in a table."""

    summaries: dict[str, Summary] = field(default_factory=dict[str, Summary])
    """Summaries by the name of their plug-in."""
    measures: list[Measure] = field(default_factory=list[Measure])

    def add(self, name: str, metric: Summary | Sequence[Measure]) -> None:
        """Add a metric, with the name of its plug-in."""
        if isinstance(metric, Summary):
            self.summaries[name] = metric
        else:
            self.measures += metric

    def measures_by_name(self) -> list[Measure]:
        """Return the measures, with those of one name one after the other.

        A name may belong to several measures, because a benchmark may compute a metric by other
        settings on some of its sets.
        """
        return [measure for same_name in self._by_name().values() for measure in same_name]

    def _by_name(self) -> dict[str, list[Measure]]:
        """Group the measures by name, in the order in which the names came first."""
        by_name: dict[str, list[Measure]] = {}
        for measure in self.measures:
            by_name.setdefault(measure.name, []).append(measure)
        return by_name

    def columns(self, roles: Mapping[str, Role]) -> list[_PlannedColumn]:
        """Return all columns in the order of a table.

        Args:
            roles: The role of each evaluation set, in the order of a table.
        """
        planned: list[_PlannedColumn] = []
        for summary in self.summaries.values():
            planned += [_PlannedColumn(column, summary.reads) for column in columns_of(summary)]
        for same_name in self._by_name().values():
            for set_name, role in roles.items():
                for measure in same_name:
                    if set_name in measure.sets:
                        column = measure.column(set_name, role)
                        planned.append(_PlannedColumn(column, measure.metric.reads))
        return planned


class _Planner:
    """Makes one metric after the other, and refuses a metric whose column another one has."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.roles = roles
        self.taken: set[str] = set()
        """Names of the columns of the metrics that were planned so far."""

    def planned(
        self, use: MetricUse, kind: type[Metric | Summary], *, is_chosen: bool = False
    ) -> Summary | list[Measure]:
        """Return a metric as a benchmark uses it.

        Args:
            use: Name, settings and sets of the metric.
            kind: The metric's class.
            is_chosen: Whether a configuration names the metric, so that its sets have to exist.

        Raises:
            PluginError: The metric cannot be used. Its columns are free then.
        """
        with plugin_code(f"metric {use.metric!r}", source_file(kind)):
            metric = made(kind, use.settings, f"metric {use.metric!r}", if_missing=_NO_DEFAULT)
            if is_chosen:
                _check_sets(use.metric, metric, self.roles)
            if isinstance(metric, Summary):
                self._take_names(use.metric, columns_of(metric))
                return metric
            measures = self._measures(use, metric)
            columns = [
                measure.column(name, self.roles[name])
                for measure in measures
                for name in measure.sets
            ]
            self._take_names(use.metric, columns)
            return measures

    def _measures(self, use: MetricUse, metric: Metric) -> list[Measure]:
        """Return a metric with its sets: those that the use names, or all that have its roles.

        There are several measures if the metric is another one for some roles (`Metric.for_role`).

        Raises:
            PluginError: The benchmark has no set of this name.
        """
        _check_words(f"metric {use.metric!r}: sets (names of `roles`)", {*use.sets}, [*self.roles])
        sets = use.sets
        if not sets:
            wanted_roles = metric.roles or metric.on_request
            sets = tuple(name for name, role in self.roles.items() if role in wanted_roles)
        name_of_columns = use.name or use.metric.replace("-", "_")
        by_metric: list[tuple[Metric, list[str]]] = []
        for name in sets:
            on_set = metric.for_role(self.roles[name])
            same_metric = [names for other, names in by_metric if other == on_set]
            if same_metric:
                same_metric[0].append(name)
            else:
                by_metric.append((on_set, [name]))
        return [Measure(name_of_columns, on_set, tuple(names)) for on_set, names in by_metric]

    def _take_names(self, metric: str, columns: Sequence[MetricColumn]) -> None:
        """Add columns to those that are taken.

        Raises:
            PluginError: A name is taken already, or no column may have it.
        """
        names = [column.name for column in columns]
        for i, name in enumerate(names):
            if not COLUMN_NAME.fullmatch(name):
                raise PluginError(
                    f"metric {metric!r}: its column is called {name!r}; use small letters, digits "
                    "and underscores, a letter first (a metric has its file's name)"
                )
            if name in self.taken or name in names[:i]:
                raise PluginError(
                    f"metric {metric!r}: there is a column {name!r} already; rename it"
                )
        self.taken.update(names)


def _applies(name: str, kind: type[Metric | Summary], roles: Mapping[str, Role]) -> bool:
    """Whether every benchmark with sets of these roles reports the metric.

    A metric by set needs one set with one of its roles, and a summary needs sets of all its roles.

    Raises:
        PluginError: The metric declares a role or an observation that does not exist, or no label.
    """
    wanted = {*kind.roles}
    present = {*roles.values()}
    _check_words(f"metric {name!r}: roles", wanted, get_args(Role))
    if not issubclass(kind, Metric):
        _check_words(f"metric {name!r}: reads", kind.reads, sorted(EXTRA | UNDER_ATTACK))
        return bool(wanted) and wanted <= present
    _check_words(f"metric {name!r}: reads", kind.reads, get_args(Reads))
    if not isinstance(getattr(kind, "label", None), str):
        raise PluginError(f'metric {name!r} has no label; add `label = "{kind.__name__}"`')
    return bool(wanted & present)


def _check_words(source: str, words: Iterable[str], known: Sequence[str]) -> None:
    """Check that a plug-in declares only words that exist.

    Args:
        source: The place of the words, for the message: `metric 'rouge': reads`.
        words: The words, such as names of roles or of observations.
        known: All words that are allowed.

    Raises:
        PluginError: A word is not known.
    """
    for word in sorted({*words} - {*known}):
        near = did_you_mean(word, known) or ";"
        raise PluginError(f"{source} has {word!r}{near} known: {', '.join(known)}")


def _check_sets(name: str, metric: Metric | Summary, roles: Mapping[str, Role]) -> None:
    """Raise PluginError if a benchmark lacks sets that a chosen metric reads."""
    missing = _missing_sets(metric, roles)
    if missing:
        raise PluginError(
            f"metric {name!r} reads a {' and a '.join(sorted(missing))} set, which this benchmark "
            f"does not have: its sets are {', '.join(roles)}; leave the metric out"
        )


def _missing_sets(metric: Metric | Summary, roles: Mapping[str, Role]) -> Set[str]:
    """Return the names or roles of the sets that a metric needs and a benchmark lacks.

    Membership inference names two sets. A summary needs sets of all its roles, and another metric
    a set with one of its roles.
    """
    present = {*roles.values()}
    if isinstance(metric, MembershipInference):
        return {metric.members, metric.others} - roles.keys()
    if isinstance(metric, Summary):
        return metric.roles - present
    wanted = metric.roles or metric.on_request
    return frozenset() if wanted & present else wanted
