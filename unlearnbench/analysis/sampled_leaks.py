"""What sampled answers leak: leak@k by the number of answers, and its bounds.

leak@k is the probability that at least one of k sampled answers to a forget question *leaks*: its
ROUGE-L recall of the true answer reaches a threshold. The number is a mean over questions. Its
upper bound holds with probability 1 − alpha over questions. Samples are made by attacks, so only
rows under attacks have these numbers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.analysis.settings import Setting, average_seeds
from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.table import TableRow
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound

LEAK = "leak_at_k"
"""Name of the metric. Its column has the name of the set at the end: `leak_at_k_forget`."""
BOUND = "leak_at_k_bound"
"""Column of its upper bound."""
BOUNDS = "sampling-bounds"
"""The metric that has the bound."""
BOUNDED_SET = "forget"
"""Name of the set that `sampling-bounds` is about."""
THRESHOLD = 0.8
"""Default threshold of both metrics."""
ALPHA = 0.01
"""Default of `sampling-bounds`: probability with which a bound may be exceeded."""


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
    rows_with_samples = [row for row in attacked if row.metrics.get(column) is not None]
    sampling_variants = {row.variant for row in rows_with_samples}
    first = next((variant for variant in variants if variant in sampling_variants), None)
    # By run and epoch, which names a plain row and the row of the same model under the attack.
    sampled = {(row.run_id, row.epoch): row for row in rows_with_samples if row.variant == first}
    means: dict[Any, MeanLeak] = {}
    for row in sampled.values():
        leak = row.metrics[column]
        if row.kind != "run" and leak is not None:
            means[row.kind] = MeanLeak(leak, row.metrics.get(bound))
    for setting in settings:
        sampled_rows: list[TableRow] = []
        for row in setting.rows:
            sampled_row = sampled.get((row.run_id, row.epoch))
            if sampled_row is not None:
                sampled_rows.append(sampled_row)
        lacks_seeds = len(sampled_rows) < len(setting.rows)
        if setting.why_not or lacks_seeds:
            continue
        # The rows are seeds of one setting, so there is one average.
        (average,) = average_seeds(sampled_rows)
        leak = average.metrics[column]
        if leak is not None:
            means[setting.key] = MeanLeak(leak, average.metrics.get(bound))
    return means


@dataclass(frozen=True)
class LeakCurve:
    """The probability that one of k sampled answers leaks, mean over questions."""

    variant: str
    """The attack that sampled."""
    ks: tuple[int, ...]
    """1, 2, 4 …, up to `samples`."""
    leaks: tuple[float, ...]
    """leak@k for each of `ks`; empty if no question has scores of all of its samples."""
    bounds: tuple[float, ...]
    """Upper bounds of `leaks`, each with probability 1 − alpha."""
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
        scores = evaluated.sampled_scores()  # [n, s]: ROUGE-L recall by question and sample
        is_complete = ~np.isnan(scores).any(axis=1)
        scores = scores[is_complete]
        question_count, samples = scores.shape
        # The powers of 2 up to the number of samples.
        ks = [2**i for i in range(samples.bit_length())]
        leaks: list[float] = []
        if question_count:
            # Rounding may lift a probability slightly above 1.
            leaks = [min(1.0, float(leak_at_k(scores, threshold, k).mean())) for k in ks]
        bounds = tuple(mean_bound(leak, question_count, alpha) for leak in leaks)
        return LeakCurve(variant, tuple(ks), tuple(leaks), bounds, samples, threshold, alpha)
    return None
