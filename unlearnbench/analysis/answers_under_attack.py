"""Answers under attacks, question by question: sampled leaks, and the worst prompt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.lasting import attack_of
from unlearnbench.api.attack import Attack, PromptAttack
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.registry import load
from unlearnbench.base.errors import PluginError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.stats.sampled_scores import leak_at_k, mean_bound
from unlearnbench.stats.worst_case import worst_case

LEAK, BOUND = "leak_at_k", "leak_at_k_bound"
"""The metric, and the column of its bound."""
THRESHOLD, ALPHA = 0.8, 0.01
"""Defaults of both metrics."""


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
    """Compute leak@k of a model's sampled answers to the forget questions; None without any."""
    metric = next(
        (measure.metric for measure in schema.plan.measures if measure.name == LEAK), None
    )
    threshold = float(getattr(metric, "threshold", THRESHOLD))
    alpha = float(getattr(schema.plan.summaries.get("sampling-bounds"), "alpha", ALPHA))
    for variant, evaluation in by_variant.items():
        part = evaluation.sets.get(next(iter(schema.sets("forget")), ""))
        if part is None or part.samples is None:
            continue
        scores = part.sampled_scores()  # [n, s]
        scores = scores[~np.isnan(scores).any(axis=1)]
        count, samples = scores.shape
        ks = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
        leaks = [min(1.0, float(leak_at_k(scores, threshold, k).mean())) for k in ks if count]
        bounds = tuple(mean_bound(leak, count, alpha) for leak in leaks)
        return LeakCurve(variant, tuple(ks), tuple(leaks), bounds, samples, threshold, alpha)
    return None


def prompts(variants: Iterable[str]) -> list[str]:
    """List the variants that are prompts."""
    result: list[str] = []
    for variant in variants:
        kind = attack_class(attack_of(variant))
        if kind is not None and issubclass(kind, PromptAttack):
            result.append(variant)
    return result


def worst_prompt(
    schema: BenchmarkSchema,
    column: str,
    variants: Iterable[str],
    by_variant: Mapping[str, Evaluation],
) -> float | None:
    """Take, question by question, the prompt under which a model knows most, and their mean.

    column  that attacks are measured by

    None of fewer than two prompts, and where one was not evaluated.
    """
    wanted, measured = prompts(variants), schema.measures.get(column)
    if measured is None or measured[0].metric.knows is None or len(wanted) < 2:
        return None
    measure, name = measured
    result: dict[str, dict[str, float]] = {}
    for variant in wanted:
        part = by_variant[variant].sets.get(name) if variant in by_variant else None
        values = None if part is None else measure.per_example(part)
        if part is None or values is None:
            return None
        result[variant] = dict(zip(part.questions, values.tolist(), strict=True))
    return worst_case(result, measure.metric.knows or "higher")


def attack_class(name: str) -> type[Attack] | None:
    """The class of an attack; None where it is not installed."""
    try:
        result: type[Attack] = load("attacks", name)
    except PluginError:
        return None
    return result
