"""The metric engine: computes all metrics of an evaluation, in the right order.

A benchmark reports two kinds of metrics. A `Measure` gives each of some sets a number of its own,
in the column `<metric>_<set>`. A `Summary` makes its columns from a whole evaluation, and may read
the columns of measures and of other summaries. A `MetricPlan` contains both:

    rouge on forget, retain      →  columns rouge_forget, rouge_retain
    model_utility (a summary)    →  column model_utility, made of rouge_retain and others

`config/metric_plan.py` makes the plan of a benchmark and a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from unlearnbench.api.benchmark import Reference
from unlearnbench.api.metric import (
    EXTRA,
    EvaluatedModel,
    Measure,
    Metric,
    MetricColumn,
    MetricInputs,
    Reads,
    Summary,
    guarded,
    number,
)
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.base.deferred_warnings import warn_once
from unlearnbench.base.errors import PluginError
from unlearnbench.base.hub import Repository


def column_name(measure: Measure, set_name: str) -> str:
    """Return the name of a measure's column, for example `rouge_forget`."""
    return f"{measure.name}_{set_name}"


def columns_of(summary: Summary) -> tuple[MetricColumn, ...]:
    """Return the columns that a summary declares.

    Raises:
        PluginError: The summary's own code fails.
    """
    with guarded(summary, "columns"):
        return tuple(summary.columns())


def _names_of_columns(summary: Summary) -> set[str]:
    return {column.name for column in summary.columns()}


def computed(summary: Summary, inputs: MetricInputs) -> dict[str, float | None]:
    """Compute the values of a summary, by column.

    Raises:
        PluginError: The summary's own code fails, or breaks its declaration.
    """
    declared = [column.name for column in columns_of(summary)]
    source = f"metric {type(summary).__name__}"
    with guarded(summary, "compute"):
        values = dict(summary.compute(inputs))
    for name in values.keys() - declared:
        raise PluginError(
            f"`compute` of {source} returns {name!r}, which `columns` does not declare: "
            f"{', '.join(declared)}"
        )
    return {
        name: number(value, f"`compute` of {source}, column {name!r},")
        for name, value in values.items()
    }


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
    """Why metrics on offer are left out: they cannot be used."""
    under_attack: tuple[MetricColumn, ...] = ()
    """Columns of metrics that read what only an attack observes: no plain evaluation has them."""

    @cached_property
    def in_order(self) -> tuple[Summary, ...]:
        """The summaries, each after those that it reads."""
        read_by = {
            name: summary.after & self.summaries.keys() for name, summary in self.summaries.items()
        }
        try:
            return tuple(self.summaries[name] for name in TopologicalSorter(read_by).static_order())
        except CycleError as error:
            circle = " → ".join(error.args[1])
            raise PluginError(f"metrics that read each other's columns: {circle}") from None

    @property
    def extra(self) -> frozenset[Reads]:
        """Observations that are made only because one of the metrics reads them."""
        metrics: list[Metric | Summary] = [measure.metric for measure in self.measures]
        metrics += self.summaries.values()
        return EXTRA & {read for metric in metrics for read in metric.reads}

    @property
    def observations(self) -> tuple[Observation, ...]:
        """Observations that the metrics bring along, one of each name."""
        by_name: dict[str, Observation] = {}
        for measure in self.measures:
            for observation in measure.metric.observes:
                by_name[observation.name] = observation
        return tuple(by_name.values())

    @property
    def repositories(self) -> Mapping[tuple[str, str], Repository]:
        """Repositories of the hub that metrics read, by the metric and the setting that names it.

        For example, `("answer-entailment", "model")`.
        """
        by_setting: dict[tuple[str, str], Repository] = {}
        for measure in self.measures:
            for setting, repository in measure.metric.repositories.items():
                by_setting[measure.name.replace("_", "-"), setting] = repository
        return by_setting

    def values(
        self,
        sets: Mapping[str, SetEvaluation],
        retain: EvaluatedModel | None = None,
        start: EvaluatedModel | None = None,
    ) -> dict[str, float | None]:
        """Compute the metrics of a model.

        A metric that fails does not cost the evaluation: its value is None, and a warning says why.

        Args:
            sets: The model's evaluation sets by name. Some may be missing.
            retain: The retain model, which may be this model; None if there is none.
            start: The start model, which may be this model; None if there is none.

        Returns:
            The values by column, first of `columns`, then of `under_attack`. A value of `columns`
            is None if the evaluation lacks its observations. A column of `under_attack` is left out
            then.
        """
        values: dict[str, float | None] = {}
        for measure in self.measures:
            for name in measure.sets:
                if name in sets:
                    with _failure_as_warning():
                        values[column_name(measure, name)] = measure.value(sets[name])
        for summary in self.in_order:
            # A copy, because later summaries add to `values`.
            model = EvaluatedModel(sets, dict(values))
            with _failure_as_warning():
                values |= computed(summary, MetricInputs(model, retain, start))

        ordered = {column.name: values.get(column.name) for column in self.columns}
        for column in self.under_attack:
            if values.get(column.name) is not None:
                ordered[column.name] = values[column.name]
        return ordered

    def affected(self, metrics: Set[str]) -> frozenset[str]:
        """Return the columns of some metrics, and of the summaries that read them.

        A summary that reads such a summary counts, too.
        """
        affected = {*metrics}
        while True:
            columns = self._columns_of_metrics(affected)
            readers = {
                name
                for name, summary in self.summaries.items()
                if summary.after & affected or columns & {*summary.parts()}
            }
            if readers <= affected:
                return frozenset(columns)
            affected |= readers

    def _columns_of_metrics(self, metrics: Set[str]) -> set[str]:
        """Return the names of the columns of some metrics, which may be named with hyphens."""
        names = {name.replace("-", "_") for name in metrics}
        columns: set[str] = set()
        for measure in self.measures:
            if measure.name in names:
                columns.update(column_name(measure, on) for on in measure.sets)
        for name in metrics & self.summaries.keys():
            columns |= _names_of_columns(self.summaries[name])
        return columns

    def of_columns(self, names: Set[str]) -> MetricPlan:
        """Return the plan with only the metrics that some columns need.

        These are the metrics behind the columns, and behind the columns that they are made of.
        """
        needed = {*names}
        while True:
            summaries = {
                key: summary
                for key, summary in self.summaries.items()
                if needed & _names_of_columns(summary)
            }
            parts = {part for summary in summaries.values() for part in summary.parts()}
            if parts <= needed:
                break
            needed |= parts
        measures = self._measures_if(lambda name: name in needed)
        return replace(self, measures=measures, summaries=summaries)

    def without(self, metrics: Set[str]) -> MetricPlan:
        """Return the plan without some metrics, and without the summaries that read them.

        The benchmark's own metrics stay.
        """
        return self._without_columns(self.affected(metrics) - self.own)

    def without_models(self, models: Set[Reference]) -> MetricPlan:
        """Return the plan without the summaries that are relative to one of some models.

        The benchmark's own summaries go, too, and so do summaries that read one that goes.
        """
        relative = {
            name for name, summary in self.summaries.items() if summary.relative_to & models
        }
        return self._without_columns(self.affected(relative)) if relative else self

    def _without_columns(self, removed: Set[str]) -> MetricPlan:
        summaries = {
            name: summary
            for name, summary in self.summaries.items()
            if not removed & _names_of_columns(summary)
        }
        return replace(
            self,
            measures=self._measures_if(lambda name: name not in removed),
            summaries=summaries,
            columns=tuple(column for column in self.columns if column.name not in removed),
            own=self.own - removed,
            under_attack=tuple(
                column for column in self.under_attack if column.name not in removed
            ),
        )

    def _measures_if(self, keeps_column: Callable[[str], bool]) -> tuple[Measure, ...]:
        """Return the measures on those of their sets whose columns are kept."""
        measures: list[Measure] = []
        for measure in self.measures:
            sets = tuple(on for on in measure.sets if keeps_column(column_name(measure, on)))
            if sets:
                measures.append(replace(measure, sets=sets))
        return tuple(measures)


@contextmanager
def _failure_as_warning() -> Generator[None, None, None]:
    """Turn a metric's failure into a warning."""
    try:
        yield
    except PluginError as error:
        warn_once(str(error))
