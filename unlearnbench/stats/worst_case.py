"""The worst of several prompts: for each question the one that gets most of it back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from unlearnbench.stats import FloatArray


@dataclass(frozen=True, eq=False)
class WorstCase:
    """The largest memorisation of n questions over several variants."""

    questions: tuple[str, ...]
    """Each question that a variant has, in the order of the first variant that has it."""
    values: FloatArray
    """[n] NaN where one of the question's values is undefined."""
    variants: tuple[str, ...]
    """[n] name of the variant with the value, the first of equal ones; "" where it is NaN."""
    mean: float | None
    """Over questions; None where a value is NaN, or there is no question."""


def worst_case(
    by_variant: Mapping[str, Mapping[str, float]], knows: Literal["higher", "lower"] = "higher"
) -> WorstCase:
    """For each question the value of the variant under which the model knows most, and their mean.

    by_variant  a metric's value for each question that is evaluated under a variant; a question
                that only some have (not each has a paraphrase) takes the worst of those
    knows       end of the metric's scale at which a model knows the answer, `Metric.knows`

    A maximum over more variants is never smaller, also of a model that never knew: compare it with
    the retain model's over the same variants. Patil, Hase and Bansal 2024 (arXiv:2309.17410) count
    a fact as deleted if no attack of a set recovers it: this maximum for values of 0 and 1.
    """
    names = tuple(by_variant)
    questions = tuple(dict.fromkeys(q for values in by_variant.values() for q in values))
    sign = 1.0 if knows == "higher" else -1.0
    missing = -np.inf  # never the largest; a question is in at least one variant
    oriented = np.array(
        [[sign * by_variant[name].get(q, sign * missing) for q in questions] for name in names]
    ).reshape(len(names), len(questions))
    largest = oriented.max(axis=0)  # NaN where one is
    undefined = np.isnan(largest)
    chosen = (oriented == largest).argmax(axis=0)
    pairs = zip(chosen.tolist(), undefined.tolist(), strict=True)
    mean = None if undefined.any() or not questions else float(sign * largest.mean())
    variants = tuple("" if unknown else names[i] for i, unknown in pairs)
    return WorstCase(questions, sign * largest, variants, mean)
