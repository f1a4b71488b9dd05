"""Whether the true option is the likeliest."""

from typing import Literal

import numpy as np
from pydantic import Field

from unlearnbench.api.metric import Metric
from unlearnbench.api.observations import FloatArray, IntArray, SetEvaluation

Per = Literal["token", "option", "character", "byte"]


class ChoiceAccuracy(Metric):
    """1 if the true answer is the likeliest of its options, and 0 if not.

    In a multiple choice (`Question.answer_index`), `per: option` is lm-evaluation-harness's `acc`,
    `character` its `acc_norm` and `byte` its `acc_bytes`. The first of equally likely options is
    chosen. The wrong answers of other rows have no certain order, and EOS is scored with each
    answer. If the true answer is one of k likeliest answers there, the value is 1/k.

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
        """Return values [n] in [0, 1]; NaN if the size of an option is not known."""
        means, tokens, present = seen.scored_answers
        loss = means if self.per == "token" else _per(self.per, means, tokens, seen)
        least = loss.min(axis=1, where=present, initial=np.inf)  # [n]
        likeliest = present & (loss == least[:, None])
        if seen.answer_index is None:
            accuracy = likeliest[:, 0] / np.maximum(likeliest.sum(axis=1), 1)
        else:
            # Column 0 is the answer. Column 1 + j is option j before the answer, and option j + 1
            # after it.
            earlier = np.arange(loss.shape[1] - 1) < seen.answer_index[:, None]
            first = ~(likeliest[:, 1:] & earlier).any(axis=1)
            accuracy = (likeliest[:, 0] & first).astype(float)
        result: FloatArray = np.where(np.isnan(least), np.nan, accuracy)
        return result


def _per(per: Per, means: FloatArray, tokens: IntArray, seen: SetEvaluation) -> FloatArray:
    """Divide the losses of all options by a size other than the number of tokens.

    Args:
        per: The size.
        means: Losses per token of the answer and the k other options, [n, 1 + k].
        tokens: Numbers of tokens, [n, 1 + k].
        seen: The evaluation, with the texts of the options.

    Returns:
        Losses [n, 1 + k]; NaN if a size is not known.
    """
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
