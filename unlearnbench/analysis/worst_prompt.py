"""The worst of several prompts: for each row, the prompt under which a model knows most."""

from collections.abc import Iterable, Mapping

from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.asked_places import asked_places
from unlearnbench.results.attack_variants import prompt_variants
from unlearnbench.stats.worst_case import worst_case


def worst_prompt(
    schema: BenchmarkSchema,
    column: str,
    variants: Iterable[str],
    by_variant: Mapping[str, Evaluation],
    plain: Evaluation | None,
) -> float | None:
    """Take, row by row, the prompt under which a model knows most, and return their mean.

    Args:
        schema: Benchmark of the evaluations.
        column: Column that attacks are measured by.
        variants: Names of variants. Variants that are no prompts are left out.
        by_variant: The model's evaluations under attacks.
        plain: The model's evaluation without an attack, which tells rows with one question apart.

    Returns:
        None if there are fewer than two prompts, if a prompt was not evaluated, or if it is not
        known which rows were asked.
    """
    prompts = prompt_variants(variants)
    measured = schema.measures.get(column)
    if measured is None or plain is None or len(prompts) < 2:
        return None
    measure, set_name = measured
    if measure.metric.knows is None or set_name not in plain.sets:
        return None
    values_by_prompt: dict[str, dict[int, float]] = {}
    for variant in prompts:
        if variant not in by_variant or set_name not in by_variant[variant].sets:
            return None
        asked = by_variant[variant].sets[set_name]
        values = measure.per_example(asked)
        places = asked_places(plain.sets[set_name], asked)
        if values is None or places is None:
            return None
        values_by_prompt[variant] = dict(zip(places.tolist(), values.tolist(), strict=True))
    return worst_case(values_by_prompt, measure.metric.knows)
