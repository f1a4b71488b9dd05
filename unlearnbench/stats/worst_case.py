"""The worst of several prompts: for each question the one that gets most of it back. Pure."""

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np


def worst_case(
    by_variant: Mapping[str, Mapping[str, float]], knows: Literal["higher", "lower"] = "higher"
) -> float | None:
    """Mean over questions of the value of the variant under which the model knows most.

    by_variant  a metric's value for each question that is evaluated under a variant; a question
                that only some have (not each has a paraphrase) takes the worst of those
    knows       end of the metric's scale at which a model knows the answer, `Metric.knows`

    None where a value is NaN, or there is no question.

    A maximum over more variants is never smaller, also of a model that never knew: compare it with
    the retain model's over the same variants. Patil, Hase and Bansal 2024 (arXiv:2309.17410) count
    a fact as deleted if no attack of a set recovers it: this maximum for values of 0 and 1.
    """
    values: dict[str, list[float]] = {}
    for of_variant in by_variant.values():
        for question, value in of_variant.items():
            values.setdefault(question, []).append(value)
    if not values or any(math.isnan(value) for item in values.values() for value in item):
        return None
    worst = max if knows == "higher" else min
    return float(np.mean([worst(item) for item in values.values()]))
