"""The columns of numbers that a page has, as the metrics behind them declare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import Measure, MetricColumn, Role
from unlearnbench.config.metric_plan import MetricPlan
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema, filled_columns
from unlearnbench.results.table import TableRow


@dataclass(frozen=True)
class PageColumns:
    """The columns of a report's rows."""

    schema: BenchmarkSchema
    own: tuple[MetricColumn, ...]
    """Those that the benchmark names itself."""
    further: tuple[MetricColumn, ...]
    """All others with a number in any row."""

    @classmethod
    def of(cls, rows: Sequence[TableRow], schema: BenchmarkSchema) -> PageColumns:
        """Find the columns with a number."""
        named = schema.plan.own
        names = filled_columns((row.metrics for row in rows), schema.plan)
        found = [schema.column(name) for name in names]
        return cls(
            schema,
            tuple(one for one in found if one.name in named),
            tuple(one for one in found if one.name not in named),
        )

    @property
    def plan(self) -> MetricPlan:
        """The benchmark's metrics."""
        return self.schema.plan

    @property
    def all(self) -> tuple[MetricColumn, ...]:
        """The benchmark's own, and the others behind them."""
        return self.own + self.further

    @property
    def compared(self) -> tuple[MetricColumn, ...]:
        """Its own columns with a better end; of one and its logarithm, the logarithm alone."""
        names = {one.name for one in self.own}
        return tuple(c for c in self.own if c.better is not None and f"log10_{c.name}" not in names)

    @property
    def sets(self) -> Mapping[str, str]:
        """The evaluation sets and their titles; those of forget rows first."""
        roles = self.schema.roles
        return {name: set_title(name) for name in sorted(roles, key=lambda n: roles[n] != "forget")}

    def measures(self, among: Iterable[MetricColumn]) -> Mapping[str, Mapping[str, str]]:
        """Columns of metrics by set: the metric's name → set → column."""
        there = {one.name for one in among}
        found: dict[str, dict[str, str]] = {}
        for measure in self.plan.measures:
            for name in measure.sets:
                if (where := f"{measure.name}_{name}") in there:
                    found.setdefault(measure.name, {})[name] = where
        order = {name: place for place, name in enumerate(self.sets)}
        return {
            name: dict(sorted(by_set.items(), key=lambda pair: order[pair[0]]))
            for name, by_set in found.items()
        }

    def label(self, measure: str) -> str:
        """Name of a metric for people, without a set."""
        return next(one.metric.label for one in self.plan.measures if one.name == measure)

    def measure(self, name: str, on: str) -> Measure | None:
        """The metric behind a column of a set."""
        return next(
            (one for one in self.plan.measures if one.name == name and on in one.sets), None
        )

    @property
    def attacks(self) -> frozenset[str]:
        """Columns of membership inference attacks."""
        found = [s for s in self.plan.summaries.values() if isinstance(s, MembershipInference)]
        return frozenset(column.name for one in found for column in one.columns())


def set_title(name: str) -> str:
    """Name an evaluation set in a sentence: `forget set`, `real authors`."""
    return f"{name} set" if name in get_args(Role) else name.replace("_", " ")


def digits(of: MetricColumn, values: Iterable[Any]) -> int:
    """Number of decimals that a column's values are shown with."""
    if of.bounds == (0.0, 1.0):
        return 3
    numbers = [value for value in values if value is not None]
    whole = of.bounds[0] >= 0 and all(float(value).is_integer() for value in numbers)
    return 0 if whole else 2
