"""ROUGE-L recall of distinct words, over sentences."""

import numpy as np

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import union_recall


class RougeUnion(Metric):
    """ROUGE-L recall as the package `rouge` 1.0.1 has it.

    RWKU is measured with it (Jin et al. 2024, arXiv:2406.10890). It takes the union of the longest
    common subsequences of each two sentences (Lin 2004, section 3.2), and counts distinct words.
    Upper case and punctuation count, and each full stop ends a sentence. Under the profile
    `unlearnbench`, words and sentences are those of all scripts.
    """

    label = "ROUGE-L recall, union"
    reads = frozenset({"generated"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return recalls [n]."""
        pairs = zip(seen.references, seen.generated, strict=True)
        rule = seen.word_rule
        return np.array([union_recall(true, given, word_rule=rule) for true, given in pairs])
