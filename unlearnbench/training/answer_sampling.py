"""Sampling answers of a model, in training and before it.

The random numbers of an answer are made from a seed of its own, so it is the same whatever batch it
is sampled in. See `models/token_sampling.py`.
"""

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Sampling
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.base.out_of_memory import retry_with_fewer_tokens
from unlearnbench.models.batching import fast_batch_tokens, token_budget
from unlearnbench.models.device import max_cached_tokens
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.forward import predict
from unlearnbench.models.limits import max_context
from unlearnbench.models.token_row import Row
from unlearnbench.models.token_sampling import Distribution, choose, uniform_numbers

_CACHED_BATCHES = 4
"""Tokens whose keys and values sampling stores, in batches of the fastest size."""
# The last word of the seeds of answers. Other draws from a run's seed (`models/epoch_order.py`)
# have other words.
ALTERNATIVES = 5
SAMPLES = 6


@dataclass(frozen=True)
class SeededPrompt:
    """A prompt to answer."""

    prompt: tuple[int, ...]
    """Ids of the tokens."""
    seed: tuple[int, ...]
    """Numbers from 0 on, from which the random numbers of the answer are made."""


def sample(
    model: Any,
    prompts: Sequence[SeededPrompt],
    sampling: Sampling,
    encoder: Encoder,
    pad: int,
    batch_tokens: int | None = None,
) -> list[tuple[int, ...]]:
    """Sample an answer to each prompt.

    An answer ends at the first of three limits: `max_new_tokens`, the encoder's `max_length`, and
    the model's context.

    Args:
        model: The model, in evaluation mode.
        prompts: The prompts.
        sampling: Temperature and number of tokens.
        encoder: Tells which tokens end an answer.
        pad: Id of the padding token.
        batch_tokens: Approximate number of tokens whose keys and values are stored at once. There
            are fewer if memory runs out. The number changes no answer.

    Returns:
        The token ids of each answer. The token that ends the answer is included if it was reached.

    Raises:
        ModelError: A prompt is so long that no token of an answer fits.
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

    def sampled(most_tokens: int) -> list[tuple[int, ...]]:
        distribution = Distribution(sampling.temperature)
        answers: dict[int, tuple[int, ...]] = {}
        for batch in token_budget(lengths, most_tokens):
            ids = [prompts[i].prompt for i in batch]
            uniform = _uniform([prompts[i].seed for i in batch], max(limits[i] for i in batch))
            decoded = _decode(model, ids, uniform.to(device), distribution, encoder.stops, pad)
            for i, tokens in zip(batch, decoded.tolist(), strict=True):
                answers[i] = _up_to_end(tokens[: limits[i]], encoder)
        return [answers[i] for i in range(len(prompts))]

    default = max_cached_tokens(model, _CACHED_BATCHES * fast_batch_tokens(device))
    answers, _ = retry_with_fewer_tokens(sampled, batch_tokens or default)
    return answers


def _up_to_end(tokens: Sequence[int], encoder: Encoder) -> tuple[int, ...]:
    """Cut tokens after the first that ends an answer, or after the text that ends a turn."""
    for count, token in enumerate(tokens, 1):
        if token in encoder.stops:
            return tuple(tokens[:count])
        if encoder.end_text and encoder.end_text in encoder.decode(tuple(tokens[:count])):
            return tuple(tokens[:count])
    return tuple(tokens)


def _uniform(seeds: Sequence[tuple[int, ...]], count: int) -> Tensor:
    """Return numbers in [0, 1) [B, count], of which each row depends on its own seed only."""
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
    """Sample tokens until all answers have ended.

    Args:
        model: The model.
        prompts: Token ids of B prompts.
        uniform: Random numbers in [0, 1) [B, T], one for each token of an answer.
        distribution: How logits become probabilities.
        stops: Ids of the tokens that end an answer.
        pad: Id of the padding token.

    Returns:
        Token ids [B, at most T]. Tokens after one of `stops` have no meaning.
    """
    # An evaluation imports this module, too, and imports transformers later, in less time.
    from transformers import DynamicCache

    device = uniform.device
    width = max(map(len, prompts))
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
        is_last = torch.zeros_like(ids, dtype=torch.bool)
        is_last[:, -1] = True
        # A state has no positions of earlier tokens, so its mask has the width of the new tokens.
        attention_mask = mask[:, -ids.shape[1] :] if cache_name == _STATE else mask
        logits, _ = predict(
            model,
            is_last,
            input_ids=ids,
            attention_mask=attention_mask,
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
"""Name of the cache argument of models that have a state in place of keys and values."""


def _cache_argument(model: Any) -> str | None:
    """Return the name of the model's argument for a cache; None if it has none.

    The signature has to be read, because models ignore arguments that they do not know. Mamba would
    ignore `past_key_values`, and read each new token as the first token of a text.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    arguments = inspect.signature(base.forward).parameters
    return next((name for name in ("past_key_values", _STATE) if name in arguments), None)


@dataclass(frozen=True)
class SampledAnswers:
    """The policy's answers to one question."""

    rows: tuple[Row, ...]
    """Prompt and answer, as the loss reads them."""
    texts: tuple[str, ...]
    """Texts of the answers."""
    rewards: tuple[float, ...]
    """Rewards of the answers, see `Method.reward`."""


@dataclass(frozen=True, eq=False)
class Sampler:
    """Samples the policy's answers to forget questions, with rewards from the method."""

    questions: Sequence[Question]
    encoder: Encoder
    how: Sampling
    reward: Callable[[str, str], float]
    """See `Method.reward`."""
    seed: int
    pad: int
    skipped: int = 0
    """Number of first tokens of an answer that the loss ignores."""
    token_rewards: Callable[[str, Sequence[str], str], Sequence[float]] | None = None
    """See `Method.token_rewards`; None if the loss reads no scores of samples."""

    def __call__(self, model: Any, indices: Sequence[int], step: int) -> dict[int, SampledAnswers]:
        """Sample `how.count` answers to each of some questions.

        The same weights give the same answers.

        Args:
            model: The policy. Its mode is restored.
            indices: Indices of the questions.
            step: Number of steps before this one. Each step has other random numbers.

        Returns:
            The answers by the index of the question.
        """
        prompts = [self.encoder.prompt(self.questions[i]) for i in indices]
        seeded = [
            SeededPrompt(prompt, (self.seed, step, index, number, SAMPLES))
            for index, prompt in zip(indices, prompts, strict=True)
            for number in range(self.how.count)
        ]
        was_training = model.training
        model.eval()
        answers = iter(sample(model, seeded, self.how, self.encoder, self.pad))
        model.train(was_training)
        answers_by_index: dict[int, SampledAnswers] = {}
        for index, prompt in zip(indices, prompts, strict=True):
            rows = answer_rows(prompt, [next(answers) for _ in range(self.how.count)])
            answers_by_index[index] = self._rewarded(rows, self.questions[index])
        return answers_by_index

    def _rewarded(self, rows: Sequence[Row], question: Question) -> SampledAnswers:
        """Reward the answers to a question, and hide the tokens that the loss ignores."""
        truth = question.answer
        texts = tuple(self.encoder.reference(row, question) for row in rows)
        rewards = tuple(float(self.reward(text, truth)) for text in texts)
        if self.token_rewards is not None:
            rows = [self._scored(row, text, truth) for row, text in zip(rows, texts, strict=True)]
        labelled = (self.encoder.labelled(row, question) for row in rows)
        in_loss = tuple(row.without_first(self.skipped) for row in labelled)
        return SampledAnswers(in_loss, texts, rewards)

    def _scored(self, row: Row, text: str, truth: str) -> Row:
        """Add the score of each token to a sampled row.

        Raises:
            TrainingError: The method returned another number of scores, or a score outside 0 to 1.
        """
        tokens = [str(self.encoder.tokenizer.decode([token])) for token in row.ids[row.start :]]
        token_rewards = self.token_rewards(text, tokens, truth) if self.token_rewards else ()
        scores = tuple(float(score) for score in token_rewards)
        if len(scores) != row.scored or not all(0 <= score <= 1 for score in scores):
            listed = ", ".join(f"{score:g}" for score in scores[:8])
            raise TrainingError(
                f"token_rewards of the sample {text[:60]!r} returned {len(scores)} numbers "
                f"({listed}{', …' if len(scores) > 8 else ''}); expected one from 0 (unlearn) to 1 "
                f"(learn) for each of its {row.scored} tokens"
            )
        return replace(row, scores=scores)


def answer_rows(prompt: tuple[int, ...], answers: Sequence[tuple[int, ...]]) -> list[Row]:
    """Return a row for each answer, exactly as it was sampled. No EOS is added."""
    return [Row(prompt + answer, len(prompt)) for answer in answers]
