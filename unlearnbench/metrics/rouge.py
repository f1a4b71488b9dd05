"""ROUGE-L recall of the greedy answer."""

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, SetEvaluation


class Rouge(Metric):
    """ROUGE-L recall with the Porter stemmer of the greedy answer against the true one.

    Lin 2004; Maini et al. 2024, arXiv:2401.06121, section 2.2.1.
    """

    label = "ROUGE-L"
    reads = frozenset({"rouge"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """Return recalls [n]."""
        return seen.rouge_l_recall
