"""Rules of a benchmark's declarations, on its metrics. A fault is one line."""

from collections.abc import Iterator, Mapping

from unlearnbench.api.benchmark import Benchmark, Reference
from unlearnbench.api.metric_engine import MetricPlan, columns_of
from unlearnbench.base.errors import PluginError, did_you_mean


def check_declarations(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference] | None = None
) -> None:
    """Raise PluginError with a line for each fault.

    Args:
        benchmark: With its settings.
        plan: Its metrics.
        references: Models that runs are compared with. Defaults to all that the benchmark has.
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
    """Yield columns of the headline that no metric has, or that are better at the other end."""
    headline = benchmark.headline_with(references)
    columns = {item.name: item for item in plan.columns}
    test = headline.forgotten.test
    names = [*headline.columns, *([test.questions] if test else [])]
    for name in names:
        if name not in columns:
            near = did_you_mean(name, columns) or ";"
            known = ", ".join(sorted(plan.own)) or "none"
            yield f"headline: there is no column {name!r}{near} its metrics have {known}"
    for item in (headline.kept, headline.forgotten):
        column = columns.get(item.column)
        if column is not None and column.better not in (None, item.better):
            written = f"{item.column} has better={item.better!r}"
            yield f"headline: {written}, and the metric says {column.better!r}: write that"


def reference_faults(
    benchmark: Benchmark, plan: MetricPlan, references: frozenset[Reference]
) -> Iterator[str]:
    """Yield metrics that the benchmark names, and that read what it does not have."""
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
    """The summaries that have no values here, and what each lacks."""
    present, lacks = {*benchmark.set_roles.values()}, dict[str, str]()
    for name, summary in plan.summaries.items():
        missing = [f"the {model} model" for model in sorted(summary.relative_to - references)]
        missing += [f"a set of role {role}" for role in sorted(summary.roles - present)]
        if missing:
            lacks[name] = " and ".join(missing)
    return lacks
