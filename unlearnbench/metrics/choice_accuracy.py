"""Accuracy of multiple choice: is the true answer the likeliest of its options?"""

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, IntArray, SetEvaluation


class ChoiceAccuracy(Metric):
    """1 where the true answer is the likeliest of its options, 1/k where it is one of k, else 0.

    Likeliest by log-probability per token, or by their sum. lm-evaluation-harness's `acc` takes the
    sum, its `acc_norm` divides it by the option's length in characters; its options have no end,
    while here EOS is scored as in every answer, and of equal options it takes the first.

    Source: EleutherAI/lm-evaluation-harness@0004883:lm_eval/api/task.py.
    """

    label = "Choice accuracy"
    reads = frozenset({"perturbed"})

    normalised: bool = Field(
        default=True, description="compare log-probabilities per token; false: their sums"
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]; a sum is NaN where a log has no numbers of tokens."""
        part, faults, present = seen.answer_loss, seen.perturbed_loss, seen.perturbed
        if not self.normalised:
            part = _sums(part, seen.answer_tokens)
            faults = _sums(faults, seen.perturbed_tokens)
        least = faults.min(axis=1, where=present, initial=np.inf)  # [n]
        ties = (faults == part[:, None]).sum(axis=1, where=present)
        accuracy = np.where(part <= least, 1 / (1 + ties), 0.0)
        return np.where(np.isnan(part) | np.isnan(least), np.nan, accuracy)


def _sums(means: FloatArray, tokens: IntArray) -> FloatArray:
    return np.where(tokens > 0, means * tokens, np.nan)
