"""Diversity of the greedy answer's tokens."""

from typing import ClassVar

import numpy as np

from unlearnbench.api.metric import Better, Metric, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation


class TokenEntropy(Metric):
    """−Σ_i f_i log₂ f_i / log₂ n, of the frequencies f_i of a greedy answer's n tokens.

    The tokens are those of the model's tokenizer, without special tokens. The value is 1 if all
    tokens differ, and near 0 for a loop. An answer of fewer than two tokens has 0, although it
    repeats nothing. Long answers have lower values than short ones, because frequent words come
    again.

    Yuan et al. 2025, arXiv:2410.08109; sail-sg/closer-look-LLM-unlearning@b622294:
    metrics/metrics.py, `compute_token_entropy`. That code keeps white space around an answer, which
    is removed here.
    """

    label = "Token entropy"
    reads: ClassVar[frozenset[Reads]] = frozenset({"token_entropy"})
    on_request: ClassVar[frozenset[Role]] = frozenset({"forget", "retain", "general"})
    knows = None

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]; NaN if the tokens were not observed."""
        if seen.token_entropy is None:
            return np.full(len(seen.answer_loss), np.nan)
        return seen.token_entropy

    def better(self, role: Role) -> Better | None:
        """Return `higher` for rows to keep.

        A good refusal of a forget question may repeat words or not, so no end is better there.
        """
        return "higher" if role in ("retain", "general") else None
