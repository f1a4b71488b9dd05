"""Made-up observations, to try metrics on before any training. They are always the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import AnswerTokens, Samples, SetEvaluation
from unlearnbench.stats.token_entropy import token_entropy

WORDS = ("the", "author", "was", "born", "in", "a", "small", "town", "and", "writes", "novels")
SAMPLES = 20
"""Sampled answers to each question, as many as by default."""


def made_up_set(
    knows: float = 0.5, *, n: int = 6, seed: int = 0, empty: bool = False, samples: int = SAMPLES
) -> SetEvaluation:
    """Return a set of questions with three perturbed answers each.

    Every other answer was cut before its EOS.

    Args:
        knows: How well the model does, between 0 and 1.
        n: Number of questions.
        seed: Of the random numbers.
        empty: Whether the first answer has no token except EOS.
        samples: Sampled answers to each question.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 13, n)
    ended = np.arange(n) % 2 == 0
    if empty:
        lengths[0] = 1
    total = int(lengths.sum())
    loss = rng.exponential(0.1 + 3 * (1 - knows), total).astype(np.float32)
    tokens = AnswerTokens(
        lengths=lengths,
        ended=ended,
        loss=loss,
        hit=rng.random(total) < knows,
        tied=np.zeros(total, dtype=np.bool_),
        mean_logprob=(-1 - rng.random(total)).astype(np.float32),
        logprob_variance=(1 + rng.random(total)).astype(np.float32),
    )
    means = np.array([part.mean(dtype=np.float64) for part in tokens.by_answer(loss, eos=True)])
    references = [" ".join(words) for words in rng.choice(WORDS, (n, 9)).tolist()]
    wrong_answers = [" ".join(words) for words in rng.choice(WORDS, (n, 5)).tolist()]
    is_known = rng.random(n) < knows
    generated: list[str] = []
    for known, reference, wrong in zip(is_known, references, wrong_answers, strict=True):
        generated.append(reference if known else wrong)
    rouge = np.clip(knows + rng.uniform(-0.2, 0.2, n), 0, 1)
    drawn = rng.choice(WORDS, (n, samples, 4)).tolist()
    return SetEvaluation(
        questions=tuple(f"question {i}" for i in range(n)),
        generated=tuple(generated),
        references=tuple(references),
        answer_loss=means,
        answer_tokens=lengths,
        base_loss=means + rng.uniform(0, 0.2, n),
        base_tokens=lengths,
        perturbed_loss=1.5 + rng.random((n, 3)),
        perturbed_tokens=np.repeat(lengths[:, None], 3, axis=1),
        rouge1_recall=rouge,
        rouge_l_recall=rouge * 0.9,
        token_columns=tokens,
        grad_norm=means * rng.uniform(2, 3, n),
        start_loss=rng.exponential(1, n),
        token_entropy=np.array([token_entropy(text.split()) for text in generated]),
        samples=Samples(
            tuple(tuple(map(" ".join, answers)) for answers in drawn),
            np.clip(knows + rng.uniform(-0.4, 0.4, (n, samples)), 0, 1),
        ),
        **question_columns(n),
    )


def question_columns(n: int) -> dict[str, Any]:
    """Return the columns of a set that do not depend on the model: options and labels."""
    labels = tuple((f"half {i % 2}",) for i in range(n))
    return {"options": (WORDS[:4],) * n, "answer_index": np.arange(n) % 4, "labels": labels}


def observed(evaluated: SetEvaluation, observations: Sequence[Observation]) -> SetEvaluation:
    """Return the set with further observations, of made-up logits that give its tokens' losses.

    An observation depends only on the token's loss, and is NaN where the loss is.
    """
    if not observations:
        return evaluated
    import torch

    loss = torch.tensor(evaluated.tokens.loss)
    logits = torch.linspace(-2, 2, 1 << 12).repeat(len(loss), 1)
    # The label has id 0. Its logit is chosen so that its probability is exp(−loss).
    probability = loss.nan_to_num().neg().exp().clamp(1e-6, 1 - 1e-6)
    logits[:, 0] = logits[:, 1:].logsumexp(1) + probability.logit()
    labels = torch.zeros(len(loss), dtype=torch.long)
    columns: dict[str, Any] = {}
    for observation in observations:
        values = observation.per_token(logits, labels).float()
        columns[observation.name] = values.masked_fill(loss.isnan(), torch.nan).numpy()
    return replace(evaluated, token_columns=replace(evaluated.tokens, observed=columns))


class MadeUpModels(NamedTuple):
    """The sets of three models by name."""

    run: dict[str, SetEvaluation]
    retain: dict[str, SetEvaluation]
    start: dict[str, SetEvaluation]


def made_up_models(
    names: Mapping[str, object], observations: Sequence[Observation] = (), samples: int = SAMPLES
) -> MadeUpModels:
    """Return evaluations of a run's model, of its retain model and of its start model.

    Args:
        names: Names of the sets, as keys.
        observations: Further observations that the sets have.
        samples: Sampled answers to each question.
    """

    def sets(knows: float) -> dict[str, SetEvaluation]:
        return {
            name: observed(made_up_set(knows, seed=seed, samples=samples), observations)
            for seed, name in enumerate(names)
        }

    return MadeUpModels(run=sets(0.5), retain=sets(0.3), start=sets(0.9))
