"""ROUGE-L F1 of the greedy answer."""

from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.stats.text_overlap import rouge_l_f1


class RougeF1(Metric):
    """ROUGE-L F1 of the greedy answer against the true one: Lin 2004, section 3.

    MUSE's KnowMem and VerbMem (Shi et al. 2024, arXiv:2407.06460) are computed without a stemmer,
    and with one in open-unlearning.
    """

    label = "ROUGE-L F1"
    reads = frozenset({"generated"})

    stemmer: bool = Field(
        default=False, description="whether words are compared by their stems (Porter's algorithm)"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return values [n] in [0, 1]."""
        return rouge_l_f1(
            seen.references, seen.generated, stemmer=self.stemmer, word_rule=seen.word_rule
        )
