"""Greedy or sampled answers to many prompts at once, by speculative decoding.

`decode` finishes answers. It deals them out to the processes, or to the threads of one process,
each of which decodes its own in a `Decoding`; that module explains how. The answers are those of
decoding one token at a time, in fewer steps.

Sampling differs only in how a token is chosen: by its logits and by a random number that belongs to
the answer and the place, see `models/token_sampling.py`. So drafts serve for samples, too.

An answer ends at its first stop: EOS, what ends a turn by the chat template, or another id at which
the model's `generation_config` stops.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.base.distributed import world_size
from unlearnbench.base.out_of_memory import map_over_ranks
from unlearnbench.evaluation.answers import Answer, Prompt, Stops
from unlearnbench.evaluation.decoding import Decoding, GrowingText
from unlearnbench.evaluation.predictor import Keys, Predictor
from unlearnbench.evaluation.side_by_side import (
    counting_in_this_thread,
    map_side_by_side,
    predictors_side_by_side,
)
from unlearnbench.models.generation_settings import LogitRules
from unlearnbench.models.token_sampling import Distribution

_SEED_WORD = 7
"""Last word of the seeds of sampled answers.

Other random draws have other last words, see `training/answer_sampling.py`.
"""
_FEWEST_SIDE_BY_SIDE = 64
"""Fewest answers that are decoded at once in each of several threads.

Each thread reads all weights in each step. With fewer answers, reading them would take longer than
the products with them.
"""


def decode(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    answers: Sequence[Answer],
    eos: int | Stops,
    count: Callable[[int], None] = lambda _: None,
    distribution: Distribution | None = None,
    kept: Mapping[int, Keys] | None = None,
    rules: LogitRules | None = None,
) -> tuple[list[Answer], int]:
    """Decode answers to their ends. Collective.

    Args:
        predictor: The model, ready.
        prompts: The prompt of each answer.
        answers: Answers as far as they are decoded. They are not changed.
        eos: The token that ends an answer, or everything that ends one.
        count: Is called with the number of answers that this process has finished.
        distribution: The distribution to sample from. None: the most probable token is chosen.
        kept: By index of an answer, keys and values of the first tokens of its text. The text's
            last token is never among them.
        rules: Change the logits of greedy answers.

    Returns:
        The finished answers, and the number of steps that all processes took together.
    """
    stops = eos if isinstance(eos, Stops) else Stops(frozenset((eos,)))
    kept = kept or {}
    unfinished = [i for i, answer in enumerate(answers) if answer.unfinished(prompts[i].limit)]
    predictors = _predictors(predictor, [prompts[i] for i in unfinished])
    slot_tokens = predictor.slot_tokens // len(predictors)
    counted = counting_in_this_thread(count)

    def decode_lot(of_thread: Predictor, lot: list[int]) -> tuple[int, list[Answer]]:
        texts: list[GrowingText] = []
        for i in lot:
            copied = replace(answers[i], ids=[*answers[i].ids])
            texts.append(GrowingText(prompts[i], copied, of_thread.own_keys(kept.get(i, {}))))
        decoding = Decoding(of_thread, texts, stops, counted, distribution, rules, slot_tokens)
        decoding.run()
        return decoding.step_count, [text.answer for text in texts]

    lots = _lots(
        unfinished,
        prompts,
        world_size() * len(predictors),
        shares_prompts=distribution is not None,
    )
    results = map_over_ranks(
        partial(decode_lot, predictor),
        lots,
        lambda _, own_lots: map_side_by_side(predictors, decode_lot, own_lots),
    )
    counted(0)
    finished = [*answers]
    step_count = 0
    for lot, (lot_steps, lot_answers) in zip(lots, results, strict=True):
        step_count += lot_steps
        for i, answer in zip(lot, lot_answers, strict=True):
            finished[i] = answer
    return finished, step_count


def _predictors(predictor: Predictor, prompts: Sequence[Prompt]) -> tuple[Predictor, ...]:
    """Return the predictors of the threads that decode side by side.

    Args:
        predictor: The model, ready.
        prompts: The prompts of all unfinished answers.
    """
    if not prompts:
        return (predictor,)
    longest = max(len(prompt.ids) + prompt.limit for prompt in prompts)
    decoded_at_once = min(predictor.slot_tokens // longest, len(prompts))
    predictors = predictors_side_by_side(predictor)
    has_enough = decoded_at_once >= _FEWEST_SIDE_BY_SIDE * len(predictors)
    return predictors if has_enough else (predictor,)


def _lots(
    unfinished: Sequence[int], prompts: Sequence[Prompt], lot_count: int, *, shares_prompts: bool
) -> list[list[int]]:
    """Deal the unfinished answers out to processes, or to threads.

    Args:
        unfinished: Indices of the unfinished answers.
        prompts: The prompt of each answer.
        lot_count: Number of processes or threads.
        shares_prompts: Whether answers to the same prompt stay together.

    Returns:
        For each process or thread that gets any answers, their indices. The answers that may
        become longest come first, so that no long one is left to decode alone at the end.
    """
    longest_first = sorted(unfinished, key=lambda i: -len(prompts[i].ids) - prompts[i].limit)
    groups: dict[object, list[int]] = {}
    for i in longest_first:
        key = prompts[i].ids if shares_prompts else i
        groups.setdefault(key, []).append(i)
    lots: list[list[int]] = []
    for number in range(lot_count):
        groups_of_lot = [*groups.values()][number::lot_count]
        lots.append([i for group in groups_of_lot for i in group])
    return [lot for lot in lots if lot]


def sampled_answers(
    predictor: Predictor,
    prompts: Sequence[Prompt],
    attack: SamplingAttack,
    eos: int | Stops,
) -> list[list[Answer]]:
    """Sample `attack.samples` answers to each prompt.

    The attack `sampling` asks whether a model that no longer says the forgotten answer as its most
    probable one still says it in one of many random ones. All processes have to call this function.

    The random numbers of an answer are made from the attack's seed, the prompt's tokens and the
    answer's number. So an answer depends, except for rounding, neither on batches and processes nor
    on the other questions. The first 20 of 200 samples are those of an attack with 20 samples, and
    models are compared under the same numbers.

    Args:
        predictor: The model, ready.
        prompts: The prompts. A sampled answer has the limit of the prompt's greedy answer. Their
            `draft`, which is a guess of the greedy answer, is not used.
        attack: Number of samples (at least 1), distribution and seed.
        eos: The token that ends an answer, or everything that ends one.

    Returns:
        By prompt, in the order of `prompts`: its answers, in the order of their numbers.
    """
    prompts_of_samples: list[Prompt] = []
    for prompt in prompts:
        key = _key(prompt.ids)
        for number in range(attack.samples):
            seed = (attack.seed, key, number, _SEED_WORD)
            prompts_of_samples.append(replace(prompt, draft=(), seed=seed))
    distribution = Distribution(attack.temperature, attack.top_p)
    empty = [Answer() for _ in prompts_of_samples]
    answers, _ = decode(predictor, prompts_of_samples, empty, eos, distribution=distribution)
    begins = range(0, len(answers), attack.samples)
    return [answers[begin : begin + attack.samples] for begin in begins]


def _key(prompt: Sequence[int]) -> int:
    """Return a number of 64 bits that stands for the tokens of a prompt."""
    digest = hashlib.sha256(np.array(prompt, dtype=np.int64).tobytes())
    return int.from_bytes(digest.digest()[:8], "little")
