"""Sampled answers: many to each question, from a prompt that is computed once.

The random numbers of an answer are made from the attack's seed, the prompt's tokens, and the
answer's number. So the answers depend neither on the batches and the processes, except for
rounding, nor on the other questions; 20 samples are the first 20 of 200; and models are compared
under the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.observations import Samples
from unlearnbench.data.encoding import Encoder
from unlearnbench.evaluation.generation import Answer, Prompt, decode
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.models.token_sampling import Distribution
from unlearnbench.stats.text_overlap import rouge_recall

_WORD = 7
"""The last word of the seeds; other draws have others, see `training/answer_sampling.py`."""


def sampled_answers(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    attack: SamplingAttack,
    eos: int,
    count: Callable[[int], None] = lambda _: None,
) -> list[list[Answer]]:
    """`attack.samples` answers to each prompt. Collective.

    predictor  ready
    prompts    with the limits of greedy answers; a `draft` is not used
    count      called with the number of answers that this process has finished
    """
    each = [
        replace(prompt, draft=(), seed=(attack.seed, _key(prompt.ids), number, _WORD))
        for prompt in prompts
        for number in range(attack.samples)
    ]
    how = Distribution(attack.temperature, attack.top_p)
    answers, _ = decode(predictor, each, [Answer() for _ in each], eos, count, how)
    own = iter(answers)
    return [[next(own) for _ in range(attack.samples)] for _ in prompts]


def _key(prompt: Sequence[int]) -> int:
    """A number of 64 bits for a prompt."""
    digest = hashlib.sha256(np.array(prompt, dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


def samples_of(
    answers: Sequence[Sequence[Answer]], references: Sequence[str], encoder: Encoder
) -> Samples:
    """The texts of n lists of s answers, and their ROUGE-L recall against n references."""
    texts = [[encoder.decode(tuple(one.ids)) for one in own] for own in answers]
    rouge = np.full((len(answers), len(answers[0])), np.nan)
    for i, (own, reference) in enumerate(zip(texts, references, strict=True)):
        rouge[i] = rouge_recall([reference] * len(own), own)[1]
    rouge[~np.array([[one.finite for one in own] for own in answers])] = np.nan
    return Samples(tuple(map(tuple, texts)), rouge)
