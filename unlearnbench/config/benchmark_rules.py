"""Rules for what a benchmark declares: its headline, its metrics and its reference models.

They are checked against the plan of its metrics, which says which columns there are. A fault is one
line of text.
"""

from collections.abc import Iterator, Mapping

from unlearnbench.api.benchmark import Benchmark, Reference
from unlearnbench.api.metric_engine import MetricPlan, columns_of
from unlearnbench.base.errors import PluginError, did_you_mean


def check_declarations(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference] | None = None
) -> None:
    """Check a benchmark by all rules.

    Args:
        benchmark: The benchmark with its settings.
        plan: Its metrics.
        references: Models that runs are compared with. Default: all that the benchmark has.

    Raises:
        PluginError: With a line for each fault.
    """
    if references is None:
        references = benchmark.references
    faults = [
        *headline_faults(benchmark, plan, references),
        *reference_faults(benchmark, plan, references),
    ]
    if faults:
        raise PluginError("\n".join(f"benchmark {benchmark.source!r}: {fault}" for fault in faults))


def headline_faults(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference]
) -> Iterator[str]:
    """Yield columns of the headline that no metric has, or whose direction the metric denies."""
    headline = benchmark.headline_with(references)
    columns = {column.name: column for column in plan.columns}
    names = list(headline.columns)
    if headline.forgotten.test:
        names.append(headline.forgotten.test.questions)
    for name in names:
        if name not in columns:
            near = did_you_mean(name, columns) or ";"
            known = ", ".join(sorted(plan.own)) or "none"
            yield f"headline: there is no column {name!r}{near} its metrics have {known}"
    for number in (headline.kept, headline.forgotten):
        column = columns.get(number.column)
        if column is not None and column.better not in (None, number.better):
            written = f"{number.column} has better={number.better!r}"
            yield f"headline: {written}, and the metric says {column.better!r}: write that"


def reference_faults(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference]
) -> Iterator[str]:
    """Yield metrics that the benchmark names although it lacks the models or sets they read."""
    test = benchmark.headline_with(references).forgotten.test
    if test is not None and "retain" not in references:
        yield (
            f"headline: the test of {test.label} compares with the retain model, "
            f"and `references` is {sorted(references)}; add it, or leave it out"
        )
    for name, reason in undefined_metrics(benchmark, plan, references).items():
        if any(column.name in plan.own for column in columns_of(plan.summaries[name])):
            yield f"names metric {name!r}, which needs {reason}; leave it out, or declare that"


def undefined_metrics(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference]
) -> Mapping[str, str]:
    """Return the summaries that have no values here, each with what is missing.

    Returns:
        Texts by summary, such as `the retain model and a set of role holdout`.
    """
    present = set(benchmark.set_roles.values())
    lacks: dict[str, str] = {}
    for name, summary in plan.summaries.items():
        missing = [f"the {model} model" for model in sorted(summary.relative_to - references)]
        missing += [f"a set of role {role}" for role in sorted(summary.roles - present)]
        if missing:
            lacks[name] = " and ".join(missing)
    return lacks
