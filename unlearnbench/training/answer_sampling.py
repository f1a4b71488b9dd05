"""The policy's sampled answers, the same in every batch: see `models/token_sampling.py`."""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Sampling
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.base.out_of_memory import retry_with_fewer_tokens
from unlearnbench.models.batching import fast_batch_tokens, token_budget
from unlearnbench.models.device import max_cached_tokens
from unlearnbench.models.encoding import Encoder, Row
from unlearnbench.models.forward import predict
from unlearnbench.models.limits import max_context
from unlearnbench.models.token_sampling import Distribution, choose, uniform_numbers

# Batches of tokens whose keys and values sampling stores.
_CACHED_BATCHES = 4
# The last word of every seed; other draws from a run's seed (`models/epoch_order.py`) have others.
ALTERNATIVES, SAMPLES = 5, 6


@dataclass(frozen=True)
class SeededPrompt:
    """A prompt to answer."""

    prompt: tuple[int, ...]
    seed: tuple[int, ...]
    """Non-negative words that the answer's random numbers are made from."""


def sample(
    model: Any,
    prompts: Sequence[SeededPrompt],
    sampling: Sampling,
    encoder: Encoder,
    pad: int,
    batch_tokens: int | None = None,
) -> list[tuple[int, ...]]:
    """An answer to each of `prompts` as token ids, with its end unless it has reached its limit.

    The model must be in evaluation mode. An answer's limit is the first of `max_new_tokens`, the
    encoder's `max_length` and the model's context. `batch_tokens` keys and values are stored at
    once, approximately, and fewer where memory runs out; the number changes no answer.
    """
    context = max_context(model)
    longest = min(encoder.max_length, context or encoder.max_length)
    limits = [min(sampling.max_new_tokens, longest - len(prompt.prompt)) for prompt in prompts]
    for prompt, limit in zip(prompts, limits, strict=True):
        if limit < 1:
            raise ModelError(
                f"no answer token fits into {longest} tokens after a prompt of "
                f"{len(prompt.prompt)}: {encoder.decode(prompt.prompt)[:60]!r}; "
                "raise max_length or shorten the prompt"
            )
    device = next(model.parameters()).device
    lengths = [len(prompt.prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]

    def sampled(budget: int) -> list[tuple[int, ...]]:
        answers: dict[int, tuple[int, ...]] = {}
        for batch in token_budget(lengths, budget):
            ids = [prompts[i].prompt for i in batch]
            uniform = _uniform([prompts[i].seed for i in batch], max(limits[i] for i in batch))
            of = Distribution(sampling.temperature)
            decode = _decode(model, ids, uniform.to(device), of, encoder.stops, pad)
            for i, tokens in zip(batch, decode.tolist(), strict=True):
                answers[i] = _up_to_end(tokens[: limits[i]], encoder)
        return [answers[i] for i in range(len(prompts))]

    most = max_cached_tokens(model, _CACHED_BATCHES * fast_batch_tokens(device))
    return retry_with_fewer_tokens(sampled, batch_tokens or most)[0]


def _up_to_end(tokens: Sequence[int], encoder: Encoder) -> tuple[int, ...]:
    """The tokens up to the first stop, which is included, or up to the text that ends a turn."""
    stops, text = encoder.stops, encoder.end_text
    for count, token in enumerate(tokens, 1):
        if token in stops or (text and text in encoder.decode(tuple(tokens[:count]))):
            return tuple(tokens[:count])
    return tuple(tokens)


def _uniform(seeds: Sequence[tuple[int, ...]], count: int) -> Tensor:
    """[B, count] numbers in [0, 1), each row from its seed alone."""
    return torch.from_numpy(np.stack([uniform_numbers(seed, count) for seed in seeds]))


@torch.no_grad()
def _decode(
    model: Any,
    prompts: Sequence[tuple[int, ...]],
    uniform: Tensor,
    distribution: Distribution,
    stops: Collection[int],
    pad: int,
) -> Tensor:
    """[B, at most uniform.shape[1]] tokens; those after one of `stops` have no meaning."""
    width, device = max(map(len, prompts)), uniform.device
    # Padded on the left, so that all rows continue in the same column.
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    mask = (torch.arange(width, device=device) >= width - lengths.unsqueeze(1)).long()
    cache_name = _cache_argument(model)
    cached = {} if cache_name is None else {cache_name: DynamicCache(config=model.config)}
    sampled: list[Tensor] = []
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    ends = torch.tensor(sorted(stops), device=device)
    for column in uniform.T:
        where = torch.zeros_like(ids, dtype=torch.bool)
        where[:, -1] = True
        # A state has no place for padding that was read before: its mask has the new tokens' width.
        seen = mask[:, -ids.shape[1] :] if cache_name == _STATE else mask
        logits, _ = predict(
            model,
            where,
            input_ids=ids,
            attention_mask=seen,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            use_cache=cache_name is not None,
            **cached,
        )
        tokens = choose(logits, distribution, column)
        sampled.append(tokens)
        ended |= torch.isin(tokens, ends)
        if bool(ended.all()):
            break
        new = tokens.unsqueeze(1)
        # Without a cache the whole text is read again.
        ids = torch.cat([ids, new], dim=1) if cache_name is None else new
        mask = torch.cat([mask, torch.ones_like(new)], dim=1)
    return torch.stack(sampled, dim=1)


_STATE = "cache_params"
"""Argument for the cache of a model that has a state in place of keys and values."""


def _cache_argument(model: Any) -> str | None:
    """Name of the model's argument for a cache; None if it has none.

    Mamba ignores `past_key_values`, as any argument that it does not know, and would read each new
    token as the first of a text.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    arguments = inspect.signature(base.forward).parameters
    return next((name for name in ("past_key_values", _STATE) if name in arguments), None)


@dataclass(frozen=True)
class SampledAnswers:
    """The policy's answers to one question."""

    rows: tuple[Row, ...]
    texts: tuple[str, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Samples the policy's answers to forget questions, with rewards from its method."""

    questions: Sequence[Question]
    encoder: Encoder
    how: Sampling
    reward: Callable[[str, str], float]
    """See `Method.reward`."""
    seed: int
    pad: int
    skipped: int = 0
    """Number of first answer tokens that the loss does not see."""
    token_rewards: Callable[[str, Sequence[str], str], Sequence[float]] | None = None
    """See `Method.token_rewards`; None where the loss reads no scores of samples."""

    def __call__(self, model: Any, indices: Sequence[int], step: int) -> dict[int, SampledAnswers]:
        """`how.count` answers to each question of `indices`, the same for the same weights.

        step  the optimiser step; each has other random numbers
        """
        prompts = [self.encoder.prompt(self.questions[i]) for i in indices]
        seeded = [
            SeededPrompt(prompt, (self.seed, step, index, number, SAMPLES))
            for index, prompt in zip(indices, prompts, strict=True)
            for number in range(self.how.count)
        ]
        training = model.training
        model.eval()
        each = iter(sample(model, seeded, self.how, self.encoder, self.pad))
        model.train(training)
        answerss: dict[int, SampledAnswers] = {}
        for index, prompt in zip(indices, prompts, strict=True):
            rows = answer_rows(prompt, [next(each) for _ in range(self.how.count)])
            question = self.questions[index]
            texts, truth = tuple(self.encoder.reference(r, question) for r in rows), question.answer
            rewards = tuple(float(self.reward(text, truth)) for text in texts)
            if self.token_rewards is not None:
                rows = [
                    self._scored(row, text, truth) for row, text in zip(rows, texts, strict=True)
                ]
            labelled = (self.encoder.labelled(row, question) for row in rows)
            seen = tuple(row.without_first(self.skipped) for row in labelled)
            answerss[index] = SampledAnswers(seen, texts, rewards)
        return answerss

    def _scored(self, row: Row, text: str, truth: str) -> Row:
        """A sampled row with the score of each of its tokens."""
        tokens = [str(self.encoder.tokenizer.decode([token])) for token in row.ids[row.start :]]
        result = self.token_rewards(text, tokens, truth) if self.token_rewards else ()
        scores = tuple(float(score) for score in result)
        if len(scores) != row.scored or not all(0 <= score <= 1 for score in scores):
            listed = ", ".join(f"{score:g}" for score in scores[:8])
            raise TrainingError(
                f"token_rewards of the sample {text[:60]!r} returned {len(scores)} numbers "
                f"({listed}{', …' if len(scores) > 8 else ''}); expected one from 0 (unlearn) to 1 "
                f"(learn) for each of its {row.scored} tokens"
            )
        return replace(row, scores=scores)


def answer_rows(prompt: tuple[int, ...], answers: Sequence[tuple[int, ...]]) -> list[Row]:
    """A row for each answer, exactly as sampled: none gets an EOS added."""
    return [Row(prompt + answer, len(prompt)) for answer in answers]
