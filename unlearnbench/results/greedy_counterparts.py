"""The metrics of greedy answers that metrics of sampled answers are compared with.

Sampled answers exist only under an attack, so their metrics have no number before it. The number
before the attack is the greedy answer's on the same scale: expected best ROUGE-L of k samples is
compared with the ROUGE-L of the greedy answer. This metric is the counterpart (`Metric.greedy`).
"""

from pydantic import ValidationError

from unlearnbench.api.metric import UNDER_ATTACK, Measure, Metric
from unlearnbench.api.registry import load
from unlearnbench.base.errors import PluginError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema

MeasureOnSet = tuple[Measure, str]
"""A metric, and the evaluation set that a column computes it on."""


def greedy_measures(schema: BenchmarkSchema) -> dict[str, MeasureOnSet]:
    """Return the counterpart of each column of sampled answers, on the first forget set.

    The counterpart may be a metric that the benchmark does not report. It is then computed from
    the observations.

    Returns:
        Metric and set by column: ROUGE on `forget` for `expected_best_forget`. A column is missing
        if its counterpart is not installed, or needs settings.
    """
    forget_sets = schema.sets("forget")[:1]
    counterparts: dict[str, MeasureOnSet] = {}
    for measure in schema.plan.measures:
        is_of_samples = not UNDER_ATTACK.isdisjoint(measure.metric.reads)
        if not measure.metric.greedy or not is_of_samples:
            continue
        counterpart = _counterpart(measure)
        if counterpart is None:
            continue
        for set_name in forget_sets:
            if set_name in measure.sets:
                reported = _reported(schema, type(counterpart.metric), set_name)
                column = f"{measure.name}_{set_name}"
                counterparts[column] = reported or counterpart, set_name
    return counterparts


def _counterpart(measure: Measure) -> Measure | None:
    """Make the greedy answers' metric for the sets of a metric of samples.

    Returns:
        The metric, or None if it is not installed or needs settings.
    """
    name = measure.metric.greedy
    try:
        kind: type[Metric] = load("metrics", name)
        return Measure(name.replace("-", "_"), kind(), measure.sets)
    except (PluginError, ValidationError):
        return None


def _reported(schema: BenchmarkSchema, kind: type[Metric], set_name: str) -> Measure | None:
    """Return the benchmark's own metric of a kind on a set, which may have other settings."""
    for measure in schema.plan.measures:
        if type(measure.metric) is kind and set_name in measure.sets:
            return measure
    return None


def measure_of(schema: BenchmarkSchema, column: str) -> MeasureOnSet | None:
    """Return metric and set of a column, also of a counterpart that the benchmark does not report.

    Args:
        schema: Schema of the benchmark.
        column: Name of the column: `rouge_forget`.

    Returns:
        Metric and set, or None if the column is computed in another way.
    """
    if column in schema.measures:
        return schema.measures[column]
    for measure, set_name in greedy_measures(schema).values():
        if measure.column(set_name, "forget").name == column:
            return measure, set_name
    return None
