"""Share of the greedy answer that is not repeated."""

from collections.abc import Sequence

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import plain_words

_GRAM = 4
_LONGEST_WORD = 30
"""Number of characters of the longest word that is one unit. Among 18,736 texts (of TOFU, and
answers to it), no answer has a longer run of characters without a blank."""


class Repetition(Metric):
    """Distinct 4-grams of words as a share of all: 1 for fluent text, near 0 for a loop.

    A word of more than 30 characters counts as its characters. Otherwise a loop without blanks
    (`ayayayay…`) would be one word, and one word repeats nothing. The same holds for scripts
    without blanks if words end at blanks.

    An answer of fewer than four words has one gram, all of it. An empty answer has the value 0, and
    so has an answer without words, such as `!!!!!!!!` by Unicode's rule of words.
    Li et al. 2016, arXiv:1510.03055 (distinct-n), with n = 4.
    """

    version = 2
    label = "Distinct 4-grams"
    reads = frozenset({"generated"})
    roles = frozenset({"forget", "retain"})
    knows = None

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        shares: list[float] = []
        for text in seen.generated:
            words = plain_words(text, seen.word_rule)
            shares.append(_distinct(_units(words)))
        return np.array(shares)


def _units(words: Sequence[str]) -> list[str]:
    """Return the words in their order, and the characters of each that is longer than a word."""
    units: list[str] = []
    for word in words:
        if len(word) > _LONGEST_WORD:
            units.extend(word)
        else:
            units.append(word)
    return units


def _distinct(units: Sequence[str]) -> float:
    """Return distinct 4-grams as a share of all."""
    if not units:
        return 0.0
    count = max(len(units) - _GRAM + 1, 1)
    grams = {tuple(units[i : i + _GRAM]) for i in range(count)}
    return len(grams) / count
