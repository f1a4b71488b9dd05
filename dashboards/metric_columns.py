"""The columns of a page, as the metrics that compute them declare them."""

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
    """The columns of a report's rows that have a number."""

    schema: BenchmarkSchema
    own: tuple[MetricColumn, ...]
    """Columns that the benchmark names itself."""
    further: tuple[MetricColumn, ...]
    """All other columns with a number in any row."""

    @classmethod
    def of(cls, rows: Sequence[TableRow], schema: BenchmarkSchema) -> PageColumns:
        """Find the columns with a number."""
        metrics_of_rows = (row.metrics for row in rows)
        names = filled_columns(metrics_of_rows, schema.plan)
        own: list[MetricColumn] = []
        further: list[MetricColumn] = []
        for name in names:
            column = schema.column(name)
            if column.name in schema.plan.own:
                own.append(column)
            else:
                further.append(column)
        return cls(schema, tuple(own), tuple(further))

    @property
    def all(self) -> tuple[MetricColumn, ...]:
        """The benchmark's own columns, followed by all others."""
        return self.own + self.further

    @property
    def compared(self) -> tuple[MetricColumn, ...]:
        """The benchmark's own columns by which models are compared.

        Such a column has a better end. A column whose logarithm is a column too, such as
        `forget_quality` with `log10_forget_quality`, is left out.
        """
        names = {column.name for column in self.own}
        compared: list[MetricColumn] = []
        for column in self.own:
            has_logarithm = f"log10_{column.name}" in names
            if column.better is not None and not has_logarithm:
                compared.append(column)
        return tuple(compared)

    @property
    def sets(self) -> Mapping[str, str]:
        """Titles of the evaluation sets by name. Sets of forget rows come first."""
        roles = self.schema.roles
        forget_first = sorted(roles, key=lambda name: roles[name] != "forget")
        return {name: set_title(name) for name in forget_first}

    @property
    def attacks(self) -> frozenset[str]:
        """Names of the columns of membership inference attacks."""
        names: set[str] = set()
        for summary in self.schema.plan.summaries.values():
            if isinstance(summary, MembershipInference):
                names.update(column.name for column in summary.columns())
        return frozenset(names)


def digits(column: MetricColumn, values: Iterable[Any]) -> int:
    """Return the number of decimals that a column's values are shown with.

    Scores from 0 to 1 have three decimals, counts none, and all other numbers two.
    """
    if column.bounds == (0.0, 1.0):
        return 3
    lowest, _ = column.bounds
    is_whole = all(float(value).is_integer() for value in values if value is not None)
    return 0 if lowest >= 0 and is_whole else 2
