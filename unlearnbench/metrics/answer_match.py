"""Whether the greedy answer is the true one."""

from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import matched_form


class AnswerMatch(Metric):
    """1 if the greedy answer is the true answer, or contains it, and 0 if not.

    Upper and lower case are not distinguished. `exact` is the rule of LUME's evaluation
    (Ramakrishna et al. 2025, arXiv:2502.15097), and `contains` that of EDU-RELAT (Wu et al. 2024,
    arXiv:2410.15153).
    """

    label = "Answer match"
    reads = frozenset({"generated"})

    rule: Literal["exact", "contains"] = Field(
        default="exact",
        description="whether the true answer must be the whole greedy answer, without outer "
        "blanks, or any part of it",
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return 0 or 1 for each row, [n]."""
        matches: list[float] = []
        for reference, generated in zip(seen.references, seen.generated, strict=True):
            true = matched_form(reference, seen.word_rule)
            given = matched_form(generated, seen.word_rule)
            is_match = true == given if self.rule == "exact" else true in given
            matches.append(float(is_match))
        return np.array(matches)
