"""The worst of several prompts: for each question, the prompt under which most comes back."""

import math
from collections.abc import Hashable, Mapping
from typing import Literal, TypeVar

import numpy as np

_Row = TypeVar("_Row", bound=Hashable)


def worst_case(
    by_variant: Mapping[str, Mapping[_Row, float]], knows: Literal["higher", "lower"] = "higher"
) -> float | None:
    """Return the mean over rows of the value of the variant under which the model knows most.

    Args:
        by_variant: By variant, a metric's value for each row that is evaluated under it. A row that
            only some variants have (not each row has a paraphrase) takes the worst of those.
        knows: End of the metric's scale at which a model knows the answer, `Metric.knows`.

    Returns:
        None if a value is NaN, or if there is no row.

    A maximum over more variants is never smaller, also of a model that never knew: compare it with
    the retain model's over the same variants. Patil, Hase and Bansal 2024 (arXiv:2309.17410) count
    a fact as deleted if no attack of a set recovers it: this maximum for values of 0 and 1.
    """
    values: dict[_Row, list[float]] = {}
    for of_variant in by_variant.values():
        for row, value in of_variant.items():
            values.setdefault(row, []).append(value)
    if not values or any(math.isnan(value) for item in values.values() for value in item):
        return None
    worst = max if knows == "higher" else min
    return float(np.mean([worst(item) for item in values.values()]))
