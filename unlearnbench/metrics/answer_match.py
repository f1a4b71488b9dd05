"""Whether the greedy answer is the true one."""

from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import matched_form


class AnswerMatch(Metric):
    """1 where the greedy answer is the true one, or has it in it; upper and lower case are one.

    `exact` as LUME's evaluation has it (Ramakrishna et al. 2025, arXiv:2502.15097), `contains` as
    EDU-RELAT's (Wu et al. 2024, arXiv:2410.15153).
    """

    label = "Answer match"
    reads = frozenset({"generated"})

    rule: Literal["exact", "contains"] = Field(
        default="exact",
        description="whether the true answer must be the whole greedy answer, without outer "
        "blanks, or any part of it",
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] 0 or 1."""
        pairs = zip(seen.references, seen.generated, strict=True)
        rule = seen.word_rule
        texts = [(matched_form(true, rule), matched_form(given, rule)) for true, given in pairs]
        if self.rule == "exact":
            return np.array([float(true == given) for true, given in texts])
        return np.array([float(true in given) for true, given in texts])
