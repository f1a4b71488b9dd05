"""The numbers that attacks are measured by: before an attack and under it.

A *variant* is an attack at one of its points, for example `relearning@13`. A *greedy* answer takes
the most probable token at each place; a *sampled* answer draws its tokens.

An attack that trains changes greedy answers, so the same metric measures both: extraction strength,
for example. An attack that only samples leaves greedy answers and losses as they are, so that their
metrics cannot move. It is measured by a metric of its samples, and before the attack by the metric
of the greedy answer on the same scale (`Metric.greedy`): expected best ROUGE-L of k samples, and
ROUGE-L.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unlearnbench.api.metric import MetricColumn
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.attack_variants import leaves_greedy
from unlearnbench.results.greedy_counterparts import greedy_measures
from unlearnbench.results.table import TableRow

MEMORIZATION = (
    "extraction_strength",
    "exact_memorization",
    "probability",
    "rouge",
    "paraphrased_probability",
    "choice_accuracy",
    "option_probability",
)
"""Metrics of the forget set that attacks are measured by: the first one with a number. Extraction
strength is the most faithful one of Dorna et al. 2025, arXiv:2506.12618, table 2."""


@dataclass(frozen=True)
class Yardstick:
    """The numbers that a variant is measured by: before the attack, and under it."""

    before: MetricColumn
    """Column of the number without an attack, or at the attack's first point."""
    after: MetricColumn
    """Column of the number under the attack. The same as `before`, unless the attack only
    samples."""

    @property
    def sign(self) -> float:
        """−1 if a smaller number means that more is memorised, otherwise 1.

        The columns are of a forget set. If higher is better there, it is better because less is
        memorised, so a model that has memorised more has a smaller number.
        """
        return -1.0 if self.after.better == "higher" else 1.0

    @property
    def is_of_samples(self) -> bool:
        """Whether sampled answers are compared with greedy ones."""
        return self.before != self.after


def yardstick(
    schema: BenchmarkSchema, column: str, variant: str, attacked: Sequence[TableRow]
) -> Yardstick | None:
    """Return the numbers that a variant is measured by.

    Args:
        schema: Benchmark of the rows.
        column: Column that attacks are measured by, except attacks that only sample.
        variant: Name of the variant, for example `relearning@13`.
        attacked: Rows under attacks.

    Returns:
        None if the attack can move no number.
    """
    rows = [row for row in attacked if row.variant == variant]
    if not leaves_greedy(variant, rows):
        metric = schema.column(column)
        return Yardstick(metric, metric)
    for column_of_samples, (measure, set_name) in greedy_measures(schema).items():
        if _has_number(rows, column_of_samples):
            greedy = measure.column(set_name, "forget")
            return Yardstick(before=greedy, after=schema.column(column_of_samples))
    return None


def memorization_column(rows: Sequence[TableRow], attacked: Sequence[TableRow]) -> str | None:
    """Return the column that attacks are measured by.

    It is the first one of `MEMORIZATION` on the first forget set that has numbers with and without
    attacks, or else the headline number of what is forgotten. If all attacks only sample, it is the
    greedy answers' column that samples are compared with.

    Args:
        rows: Rows of plain evaluations.
        attacked: Rows under attacks.

    Returns:
        None if no attacked row has a number of what is forgotten.
    """
    if not attacked:
        return None
    schema = attacked[0].schema
    variants = sorted({row.variant for row in attacked})
    if all(leaves_greedy(variant, attacked) for variant in variants):
        for variant in variants:
            measured = yardstick(schema, "", variant, attacked)
            if measured is not None:
                return measured.before.name
    for column in _candidate_columns(schema):
        if _has_number(rows, column) and _has_number(attacked, column):
            return column
    return None


def _candidate_columns(schema: BenchmarkSchema) -> list[str]:
    """List the columns that may measure attacks, the most telling one first."""
    columns: list[str] = []
    for set_name in schema.sets("forget")[:1]:
        columns += [f"{metric}_{set_name}" for metric in MEMORIZATION]
    return [*columns, schema.headline.forgotten.column]


def _has_number(rows: Iterable[TableRow], column: str) -> bool:
    """Whether a row has a number in a column."""
    return any(row.metrics.get(column) is not None for row in rows)
