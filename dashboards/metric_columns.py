"""The columns of numbers that a page has, as the metrics behind them declare them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.scorecard import set_title
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import MetricColumn
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
        result = [schema.column(name) for name in names]
        return cls(
            schema,
            tuple(item for item in result if item.name in named),
            tuple(item for item in result if item.name not in named),
        )

    @property
    def all(self) -> tuple[MetricColumn, ...]:
        """The benchmark's own, and the others behind them."""
        return self.own + self.further

    @property
    def compared(self) -> tuple[MetricColumn, ...]:
        """Its own columns with a better end; of one and its logarithm, the logarithm alone."""
        names = {item.name for item in self.own}
        return tuple(c for c in self.own if c.better is not None and f"log10_{c.name}" not in names)

    @property
    def sets(self) -> Mapping[str, str]:
        """The evaluation sets and their titles; those of forget rows first."""
        roles = self.schema.roles
        return {name: set_title(name) for name in sorted(roles, key=lambda n: roles[n] != "forget")}

    @property
    def attacks(self) -> frozenset[str]:
        """Columns of membership inference attacks."""
        result = [
            s for s in self.schema.plan.summaries.values() if isinstance(s, MembershipInference)
        ]
        return frozenset(column.name for item in result for column in item.columns())


def digits(of: MetricColumn, values: Iterable[Any]) -> int:
    """Number of decimals that a column's values are shown with."""
    if of.bounds == (0.0, 1.0):
        return 3
    numbers = [value for value in values if value is not None]
    whole = of.bounds[0] >= 0 and all(float(value).is_integer() for value in numbers)
    return 0 if whole else 2
