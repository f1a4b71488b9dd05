"""Whether the true option is the likeliest."""

from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, IntArray, SetEvaluation

Per = Literal["token", "option", "character", "byte"]


class ChoiceAccuracy(Metric):
    """1 where the true answer is the likeliest of its options, else 0.

    Of a multiple choice (`Question.answer_index`), `per: option` is lm-evaluation-harness's `acc`,
    `character` its `acc_norm` and `byte` its `acc_bytes`: of equal options the first is chosen.
    Other rows have wrong answers in no certain order, EOS scored with each: 1/k where the true one
    is one of the k likeliest.

    Source: EleutherAI/lm-evaluation-harness@4e7e0d4:lm_eval/api/task.py.
    """

    label = "Choice accuracy"
    reads = frozenset({"perturbed"})

    per: Per = Field(
        default="token",
        description="what the log-probability of an option is divided by: its number of tokens, "
        "nothing, its number of characters, or its number of bytes; the last two "
        "apply only to multiple choice",
    )

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        """[n] in [0, 1]; NaN where the size of an option is not known."""
        means, tokens, present = seen.scored_answers
        loss = means if self.per == "token" else _per(self.per, means, tokens, seen)
        least = loss.min(axis=1, where=present, initial=np.inf)  # [n]
        likeliest = present & (loss == least[:, None])
        if seen.answer_index is None:
            accuracy = likeliest[:, 0] / np.maximum(likeliest.sum(axis=1), 1)
        else:
            # Column 1 + j is option j in front of the answer, and option j + 1 behind it.
            earlier = np.arange(loss.shape[1] - 1) < seen.answer_index[:, None]
            first = ~(likeliest[:, 1:] & earlier).any(axis=1)
            accuracy = (likeliest[:, 0] & first).astype(float)
        result: FloatArray = np.where(np.isnan(least), np.nan, accuracy)
        return result


def _per(per: Per, means: FloatArray, tokens: IntArray, seen: SetEvaluation) -> FloatArray:
    """[n, 1 + k] losses of the answer and the others, divided by another size."""
    sums = np.where(tokens > 0, means * tokens, np.nan)
    if per == "option":
        return sums
    sizes = np.full(sums.shape, np.nan)
    if seen.answer_index is not None:
        for i, (options, answer) in enumerate(zip(seen.options, seen.answer_index, strict=True)):
            ordered = (options[answer], *options[:answer], *options[answer + 1 :])
            size = [len(text.encode() if per == "byte" else text) for text in ordered]
            sizes[i, : len(size)] = size
    result: FloatArray = sums / sizes
    return result
