"""Observations of the best and of the worst model, to check the bounds of metrics."""

import numpy as np

from unlearnbench.api.observations import AnswerTokens, Samples, SetEvaluation
from unlearnbench.evaluation.made_up_sets import SAMPLES, WORDS, question_columns

_LARGE = 50.0
"""Nats of a token that is next to impossible."""
_DIFFERENCE = 1e-9
"""Added to the losses of paraphrases, because equal ones mean that there are no paraphrases."""


def perfect_set(n: int = 4, *, tokens: int = 200) -> SetEvaluation:
    """Return a set of a model that knows every answer by heart, and gives false ones no weight.

    Args:
        n: Number of questions.
        tokens: Tokens of each answer.
    """
    return _extreme_set(n, tokens, knows=True)


def hopeless_set(n: int = 4, *, tokens: int = 200) -> SetEvaluation:
    """Return a set of a model that knows no answer at all, and finds false ones certain.

    Args:
        n: Number of questions.
        tokens: Tokens of each answer.
    """
    return _extreme_set(n, tokens, knows=False)


def _extreme_set(n: int, tokens: int, *, knows: bool) -> SetEvaluation:
    """Return a set of `n` questions whose every observation is the best or the worst possible."""
    loss = 0.0 if knows else _LARGE
    loss_of_false = _LARGE if knows else 0.0
    total = n * tokens
    lengths = np.full(n, tokens)
    texts = tuple(" ".join(np.roll(WORDS, i)) for i in range(n))
    return SetEvaluation(
        questions=tuple(f"question {i}" for i in range(n)),
        generated=texts if knows else ("",) * n,
        references=texts,
        answer_loss=np.full(n, loss),
        answer_tokens=lengths,
        base_loss=np.full(n, loss + _DIFFERENCE),
        base_tokens=lengths,
        perturbed_loss=np.full((n, 3), loss_of_false),
        perturbed_tokens=np.full((n, 3), tokens),
        rouge1_recall=np.full(n, float(knows)),
        rouge_l_recall=np.full(n, float(knows)),
        token_columns=AnswerTokens(
            lengths=lengths,
            ended=np.ones(n, dtype=np.bool_),
            loss=np.full(total, loss, dtype=np.float32),
            hit=np.full(total, knows),
            tied=np.zeros(total, dtype=np.bool_),
            mean_logprob=np.full(total, -2, dtype=np.float32),
            logprob_variance=np.ones(total, dtype=np.float32),
        ),
        grad_norm=np.full(n, loss),
        start_loss=np.full(n, loss),
        token_entropy=np.full(n, float(knows)),
        samples=Samples(
            tuple((text if knows else "",) * SAMPLES for text in texts),
            np.full((n, SAMPLES), float(knows)),
        ),
        **question_columns(n),
    )
