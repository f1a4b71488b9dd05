"""What sampled answers leak: leak@k by the number of answers, and its bounds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.analysis.settings import Setting, average_seeds
from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound

LEAK, BOUND = "leak_at_k", "leak_at_k_bound"
"""Name of the metric, and of the column of its bound."""
BOUNDS = "sampling-bounds"
"""The metric that has the bound."""
BOUNDED_SET = "forget"
"""Name of the set that `sampling-bounds` is about."""
THRESHOLD, ALPHA = 0.8, 0.01
"""Defaults of both metrics."""


def leak_columns(schema: BenchmarkSchema) -> tuple[str, str]:
    """Return the column of leak@k and the column of its bound, each empty if there is none.

    Both metrics have a `k` and a `threshold` of their own. If these differ, the bound is of another
    probability, and is not shown beside this one.
    """
    forget_set = next(iter(schema.sets("forget")), "")
    column = f"{LEAK}_{forget_set}"
    if column not in schema.measures:
        return "", ""
    measure, _ = schema.measures[column]
    bounds = schema.plan.summaries.get(BOUNDS)
    has_same_settings = all(
        getattr(measure.metric, name, None) == getattr(bounds, name, None)
        for name in ("k", "threshold")
    )
    has_bound = forget_set == BOUNDED_SET and has_same_settings
    return column, BOUND if has_bound else ""


class MeanLeak(NamedTuple):
    """What a model or setting leaks."""

    leak: float
    """leak@k, mean over seeds."""
    bound: float | None
    """Upper bound, mean over seeds; None if it is not known."""


def mean_leaks(
    schema: BenchmarkSchema,
    attacked: Iterable[TableRow],
    variants: Iterable[str],
    settings: Iterable[Setting],
) -> dict[Any, MeanLeak]:
    """Return what settings of one panel leak, and the start and retain model.

    Args:
        schema: Benchmark of the table.
        attacked: The panel's rows under attacks.
        variants: The panel's variants, in the table's order. If several sample, the first one
            counts for all models.
        settings: Settings of the panel, with their plain rows.

    Returns:
        Means by `Setting.key`, and by `fine-tuned` and `retain`. A setting has no mean if one of
        its seeds was not sampled.
    """
    column, bound = leak_columns(schema)
    with_samples = [row for row in attacked if row.metrics.get(column) is not None]
    sampling = {row.variant for row in with_samples}
    first = next((variant for variant in variants if variant in sampling), None)
    sampled = {(row.run_id, row.epoch): row for row in with_samples if row.variant == first}
    means: dict[Any, MeanLeak] = {}
    for row in sampled.values():
        leak = row.metrics[column]
        if row.kind != "run" and leak is not None:
            means[row.kind] = MeanLeak(leak, row.metrics.get(bound))
    for setting in settings:
        of_seeds = [sampled.get((row.run_id, row.epoch)) for row in setting.rows]
        under = [row for row in of_seeds if row is not None]
        if setting.why_not or len(under) < len(of_seeds):
            continue
        (mean,) = average_seeds(under)
        leak = mean.metrics[column]
        if leak is not None:
            means[setting.key] = MeanLeak(leak, mean.metrics.get(bound))
    return means


@dataclass(frozen=True)
class LeakCurve:
    """The probability that one of k sampled answers leaks, mean over questions."""

    variant: str
    ks: tuple[int, ...]
    """1, 2, 4 …"""
    leaks: tuple[float, ...]
    bounds: tuple[float, ...]
    """Upper bounds, each with probability 1 − alpha."""
    samples: int
    """Sampled answers to each question."""
    threshold: float
    """Least ROUGE-L recall of a leak."""
    alpha: float


def leak_curve(schema: BenchmarkSchema, by_variant: Mapping[str, Evaluation]) -> LeakCurve | None:
    """Compute leak@k of a model's sampled answers to the forget questions.

    Args:
        schema: Benchmark of the evaluations.
        by_variant: Evaluations under attacks. The first one with sampled answers counts.

    Returns:
        None if no evaluation has sampled answers.
    """
    metric = next(
        (measure.metric for measure in schema.plan.measures if measure.name == LEAK), None
    )
    threshold = float(getattr(metric, "threshold", THRESHOLD))
    alpha = float(getattr(schema.plan.summaries.get(BOUNDS), "alpha", ALPHA))
    forget_set = next(iter(schema.sets("forget")), "")
    for variant, evaluation in by_variant.items():
        evaluated = evaluation.sets.get(forget_set)
        if evaluated is None or evaluated.samples is None:
            continue
        scores = evaluated.sampled_scores()  # [n, s]
        scores = scores[~np.isnan(scores).any(axis=1)]
        question_count, samples = scores.shape
        ks = [2**i for i in range(samples.bit_length())]
        leaks: list[float] = []
        if question_count:
            # Rounding may lift a probability slightly above 1.
            leaks = [min(1.0, float(leak_at_k(scores, threshold, k).mean())) for k in ks]
        bounds = tuple(mean_bound(leak, question_count, alpha) for leak in leaks)
        return LeakCurve(variant, tuple(ks), tuple(leaks), bounds, samples, threshold, alpha)
    return None
