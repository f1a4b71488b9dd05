"""Answers that a model samples, the same whatever else goes through it at the time.

Every answer has random numbers of its own, one per token, made from its seed words alone; a token
is the one at which the cumulative probability passes the number. So an answer depends neither on
the batch that it is sampled in, nor on how many processes share the work, but for rounding: where
another batch shifts a probability by 1e-7, a token changes once in about as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearnbench.data.batching import fast_batch_tokens, token_budget
from unlearnbench.data.encoding import Encoder, Row
from unlearnbench.errors import ModelError, TrainingError
from unlearnbench.method import Sampling
from unlearnbench.models.forward import predict
from unlearnbench.models.keys import cache_of, fitting_tokens
from unlearnbench.shortage import in_smaller_batches

# Decoding keeps the keys and values of this many batches of tokens.
_CACHED_BATCHES = 4
# The last word of every seed; what else is drawn from a run's seed (`data.draws`) has others.
ALTERNATIVES, SAMPLES = 5, 6


@dataclass(frozen=True)
class Asked:
    """A prompt to answer."""

    prompt: tuple[int, ...]
    seed: tuple[int, ...]
    """Words, none negative, that the answer's random numbers are made from."""


def sample(
    model: Any,
    asked: Sequence[Asked],
    how: Sampling,
    encoder: Encoder,
    pad: int,
    batch_tokens: int | None = None,
) -> list[tuple[int, ...]]:
    """An answer to each of `asked` as token ids; EOS ends one that has not come to its limit.

    The model must be in evaluation mode. An answer ends where `max_new_tokens`, the encoder's
    `max_length` or the model's context does. `batch_tokens` are kept as keys and values at once,
    about; they change no answer.
    """
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = min(encoder.max_length, context or encoder.max_length)
    limits = [min(how.max_new_tokens, longest - len(one.prompt)) for one in asked]
    for one, limit in zip(asked, limits, strict=True):
        if limit < 1:
            raise ModelError(
                f"no answer token fits into {longest} tokens after a prompt of {len(one.prompt)}: "
                f"{encoder.decode(one.prompt)[:60]!r}; raise max_length or shorten the prompt"
            )
    device = next(model.parameters()).device
    budget = batch_tokens or sampled_tokens(model)
    answers: dict[int, tuple[int, ...]] = {}
    lengths = [len(one.prompt) + limit for one, limit in zip(asked, limits, strict=True)]
    for batch in token_budget(lengths, budget):
        said = _decode(
            model,
            [asked[i].prompt for i in batch],
            _uniform([asked[i].seed for i in batch], max(limits[i] for i in batch)).to(device),
            how.temperature,
            encoder.eos,
            pad,
        )
        for i, tokens in zip(batch, said.tolist(), strict=True):
            tokens = tokens[: limits[i]]
            end = tokens.index(encoder.eos) + 1 if encoder.eos in tokens else len(tokens)
            answers[i] = tuple(tokens[:end])
    return [answers[i] for i in range(len(asked))]


def sampled_tokens(model: Any) -> int:
    """Tokens whose keys and values `sample` keeps at once, unless a caller names a number."""
    device = next(model.parameters()).device
    return fitting_tokens(model, _CACHED_BATCHES * fast_batch_tokens(device))


def _uniform(seeds: Sequence[tuple[int, ...]], count: int) -> Tensor:
    """[B, count] numbers in [0, 1), each row's from its seed alone."""
    return torch.from_numpy(np.stack([np.random.default_rng(s).random(count) for s in seeds]))


@torch.no_grad()
def _decode(
    model: Any,
    prompts: Sequence[tuple[int, ...]],
    uniform: Tensor,
    temperature: float,
    eos: int,
    pad: int,
) -> Tensor:
    """[B, at most uniform.shape[1]] tokens; what follows an EOS means nothing."""
    width, device = max(map(len, prompts)), uniform.device
    # Padded on the left, so that all rows go on in the same column.
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    mask = (torch.arange(width, device=device) >= width - lengths.unsqueeze(1)).long()
    cache = cache_of(model, width + uniform.shape[1])
    said: list[Tensor] = []
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for column in uniform.T:
        where = torch.zeros_like(ids, dtype=torch.bool)
        where[:, -1] = True
        logits, _ = predict(
            model,
            where,
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
        )
        tokens = choose(logits, temperature, column)
        said.append(tokens)
        ended |= tokens == eos
        if bool(ended.all()):
            break
        ids = tokens.unsqueeze(1)
        mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    return torch.stack(said, dim=1)


def choose(logits: Tensor, temperature: float, uniform: Tensor) -> Tensor:
    """[B] token of each row of `logits` [B, V] that its number in `uniform` [B] stands for."""
    # float64: the sum over 128k probabilities would lose most digits of the small ones.
    probabilities = (logits.double() / temperature).softmax(1)
    if torch.are_deterministic_algorithms_enabled():  # `cumsum` is that on CPUs alone
        probabilities, uniform = probabilities.cpu(), uniform.cpu()
    cumulative = probabilities.cumsum(1)
    passed = cumulative > (uniform.double().unsqueeze(1) * cumulative[:, -1:])
    return passed.int().argmax(1).to(logits.device)  # the first one


@dataclass(frozen=True)
class Sampled:
    """The policy's answers to one question."""

    rows: tuple[Row, ...]
    texts: tuple[str, ...]
    rewards: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Sampler:
    """Has the policy answer forget questions, and its method judge the answers."""

    questions: Sequence[str]
    truths: Sequence[str]
    """The answers to forget, question by question."""
    encoder: Encoder
    how: Sampling
    reward: Callable[[str, str], float]
    """See `Method.reward`."""
    seed: int
    pad: int
    skipped: int = 0
    """First answer tokens that the loss does not see."""
    batch_tokens: int | None = None
    token_rewards: Callable[[str, Sequence[str], str], Sequence[float]] | None = None
    """See `Method.token_rewards`; None where the loss reads no scores of samples."""

    def __call__(self, model: Any, indices: Sequence[int], step: int) -> dict[int, Sampled]:
        """`how.count` answers to each question of `indices`, the same for the same weights.

        step  the optimiser step that they are for; another one has other random numbers
        """
        prompts = [self.encoder.prompt(self.questions[i]) for i in indices]
        asked = [
            Asked(prompt, (self.seed, step, index, number, SAMPLES))
            for index, prompt in zip(indices, prompts, strict=True)
            for number in range(self.how.count)
        ]
        training = model.training
        model.eval()
        answers, _ = in_smaller_batches(
            lambda tokens: sample(model, asked, self.how, self.encoder, self.pad, tokens),
            self.batch_tokens or sampled_tokens(model),
        )
        said = iter(answers)
        model.train(training)
        found: dict[int, Sampled] = {}
        for index, prompt in zip(indices, prompts, strict=True):
            rows = answer_rows(prompt, [next(said) for _ in range(self.how.count)])
            texts = tuple(self.encoder.reference(row) for row in rows)
            truth = self.truths[index]
            rewards = tuple(float(self.reward(text, truth)) for text in texts)
            if self.token_rewards is not None:
                rows = [
                    self._scored(row, text, truth) for row, text in zip(rows, texts, strict=True)
                ]
            seen = tuple(self.encoder.labelled(r).without_first(self.skipped) for r in rows)
            found[index] = Sampled(seen, texts, rewards)
        return found

    def _scored(self, row: Row, text: str, truth: str) -> Row:
        """A sampled row with the score of each of its tokens."""
        tokens = [str(self.encoder.tokenizer.decode([token])) for token in row.ids[row.start :]]
        found = self.token_rewards(text, tokens, truth) if self.token_rewards else ()
        scores = tuple(float(score) for score in found)
        if len(scores) != row.scored or not all(0 <= score <= 1 for score in scores):
            told = ", ".join(f"{score:g}" for score in scores[:8])
            raise TrainingError(
                f"token_rewards of the sample {text[:60]!r} returned {len(scores)} numbers "
                f"({told}{', …' if len(scores) > 8 else ''}); wanted is one from 0 (unlearn) to 1 "
                f"(learn) for each of its {row.scored} tokens"
            )
        return replace(row, scores=scores)


def answer_rows(prompt: tuple[int, ...], answers: Sequence[tuple[int, ...]]) -> list[Row]:
    """A row for each answer, exactly as it was said: one without EOS gets none."""
    return [Row(prompt + answer, len(prompt)) for answer in answers]
