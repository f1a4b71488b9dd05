"""Repetition: the share of a generated answer that says something new."""

from collections.abc import Sequence

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import plain_words

_GRAM = 4


class Repetition(Metric):
    """Distinct 4-grams of words as a share of all: 1 for fluent text, near 0 for a loop.

    An answer of fewer than four words has one gram, all of it; an empty answer has the value 0.
    Li et al. 2016, arXiv:1510.03055 (distinct-n), with n = 4.
    """

    label = "Distinct 4-grams"
    reads = frozenset({"generated"})
    roles = frozenset({"forget", "retain"})
    knows = None

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]."""
        rule = seen.word_rule
        return np.array([self._distinct(plain_words(text, rule)) for text in seen.generated])

    @staticmethod
    def _distinct(words: Sequence[str]) -> float:
        if not words:
            return 0.0
        count = max(len(words) - _GRAM + 1, 1)
        return len({tuple(words[i : i + _GRAM]) for i in range(count)}) / count
