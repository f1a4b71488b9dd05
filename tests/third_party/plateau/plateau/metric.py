"""First word: whether the most probable token begins the true answer."""

from typing import ClassVar

import numpy as np

from unlearnbench.api.metric import Metric, Reads, Role
from unlearnbench.api.observations import FloatArray, SetEvaluation


class FirstWord(Metric):
    """First word: own work, 2026

    v = [the first token of the answer is the most probable one]
    """

    label: ClassVar[str] = "First word"
    reads: ClassVar[frozenset[Reads]] = frozenset({"tokens"})
    roles: ClassVar[frozenset[Role]] = frozenset({"forget", "retain"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return 0 or 1 for each answer [n], and NaN for an empty answer."""
        hits = seen.tokens.by_answer(seen.tokens.hit, eos=False)
        return np.array([float(hit[0]) if hit.size else np.nan for hit in hits])
