"""How probable a model finds each answer, with every question's prompt computed once.

A question comes with several answers (the true one, a paraphrase, perturbed ones). Their common
prefix goes through the model once and its key-value cache serves all of them; only answer positions
reach the output layer. The pass over the true answer also says how much of it greedy decoding would
have produced, so that generation need not replay it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unlearnbench.data.batching import token_budget
from unlearnbench.data.encoding import Row
from unlearnbench.models.forward import predict


@dataclass(frozen=True)
class Score:
    """One answer under the model."""

    loss: float
    """Mean negative log-likelihood of its tokens, EOS included, in nats."""
    tokens: int
    agreed: int
    """Leading answer tokens that greedy decoding would have produced."""
    instead: int
    """What it would have produced after those; EOS or padding where it agreed to the end."""


@dataclass(frozen=True)
class _Suffix:
    """What follows the common prefix in one row."""

    question: int
    """Place of its question in the batch."""
    row: Row
    prefix: int


def score(
    model: Any, questions: Sequence[Sequence[Row]], pad: int, batch_tokens: int
) -> list[list[Score]]:
    """Score every row; `questions` holds, for each question, its rows with a common prompt."""
    distinct = [list(dict.fromkeys(rows)) for rows in questions]
    prefixes = [_common_prefix(rows) for rows in distinct]
    scores: list[dict[Row, Score]] = [{} for _ in questions]
    lengths = [
        prefix + sum(len(row.ids) - prefix for row in rows)
        for prefix, rows in zip(prefixes, distinct, strict=True)
    ]
    with torch.inference_mode():
        for batch in token_budget(lengths, 4 * batch_tokens):
            suffixes = [
                _Suffix(i, row, prefixes[q]) for i, q in enumerate(batch) for row in distinct[q]
            ]
            for suffix, result in _score_batch(model, suffixes, pad, batch_tokens):
                scores[batch[suffix.question]][suffix.row] = result
    return [[found[row] for row in rows] for found, rows in zip(scores, questions, strict=True)]


def _common_prefix(rows: Sequence[Row]) -> int:
    """Tokens that all rows share before the first one that is scored in any."""
    limit = min(row.start for row in rows)
    first = rows[0].ids
    for i in range(limit):
        if any(row.ids[i] != first[i] for row in rows):
            return max(i, 1)
    return limit


def _score_batch(
    model: Any, suffixes: Sequence[_Suffix], pad: int, batch_tokens: int
) -> Iterator[tuple[_Suffix, Score]]:
    """Compute the prefixes of a batch of questions, then what follows them."""
    device = next(model.parameters()).device
    heads = {s.question: s.row.ids[: s.prefix] for s in suffixes}  # in order of the batch
    ids, attention = padded([*heads.values()], pad, device)
    first_logits, _, cache = predict(
        model, last_token(attention), input_ids=ids, attention_mask=attention, use_cache=True
    )
    widths = [len(s.row.ids) - s.prefix for s in suffixes]
    for chosen in token_budget(widths, batch_tokens):
        rows = [suffixes[i] for i in chosen]
        yield from zip(
            rows, _score_suffixes(model, rows, first_logits, cache, attention, pad), strict=True
        )


def _score_suffixes(
    model: Any,
    suffixes: Sequence[_Suffix],
    first_logits: Tensor,
    cache: Any,
    attention: Tensor,
    pad: int,
) -> list[Score]:
    """Scores of rows whose prefixes are in `cache` already."""
    device = attention.device
    index = torch.tensor([suffix.question for suffix in suffixes], device=device)
    # A last token predicts nothing that is scored, so it stays out of the input.
    inputs = [suffix.row.ids[suffix.prefix : -1] for suffix in suffixes]
    logits = first_logits[index]  # [S, V]: what follows the prefix
    later, owners = logits[:0], index[:0]
    if any(inputs):
        ids, mask = padded([tokens or (pad,) for tokens in inputs], pad, device)
        lengths = attention.sum(1)[index]
        where = mask.bool() & torch.tensor([bool(t) for t in inputs], device=device).unsqueeze(1)
        later, _, _ = predict(
            model,
            where,
            input_ids=ids,
            attention_mask=torch.cat([attention[index], mask], dim=1),
            position_ids=lengths.unsqueeze(1) + torch.arange(ids.shape[1], device=device),
            past_key_values=select(cache, index),
            use_cache=True,
        )
        owners = where.nonzero()[:, 0]
    # Row by row: the prediction after the prefix, then those after each token of the suffix.
    order = torch.argsort(
        torch.cat([torch.arange(len(suffixes), device=device), owners]), stable=True
    )
    logits = torch.cat([logits, later])
    labels = [token for s in suffixes for token in s.row.ids[s.prefix :]]
    target = torch.empty(len(labels), dtype=torch.long, device=device)
    target[order] = torch.tensor(labels, device=device)
    losses = torch.logsumexp(logits, 1) - logits.gather(1, target.unsqueeze(1)).squeeze(1)
    greedy = logits.argmax(dim=1)[order].tolist()
    losses = losses[order].double().cpu()
    return _collect(suffixes, losses, greedy)


def _collect(suffixes: Sequence[_Suffix], losses: Tensor, greedy: Sequence[int]) -> list[Score]:
    results, begin = [], 0
    for suffix in suffixes:
        row = suffix.row
        end = begin + len(row.ids) - suffix.prefix
        begin += row.start - suffix.prefix  # tokens after the common prefix that are not scored
        answer, said = row.ids[row.start :], greedy[begin:end]
        agreed = next((i for i, t in enumerate(answer) if t != said[i]), len(answer))
        instead = said[agreed] if agreed < len(answer) else answer[-1]
        results.append(Score(float(losses[begin:end].mean()), len(answer), agreed, instead))
        begin = end
    return results


def select(cache: Any, index: Tensor) -> Any:
    """The rows `index` of a key-value cache, repeats allowed; the cache itself stays as it is."""
    chosen = copy.copy(cache)
    chosen.layers = [copy.copy(layer) for layer in cache.layers]
    chosen.batch_select_indices(index)
    return chosen


def last_token(attention: Tensor) -> Tensor:
    """[B, T] bool: each row's last token before its padding."""
    last = torch.zeros_like(attention, dtype=torch.bool)
    last[torch.arange(len(attention)), attention.sum(1) - 1] = True
    return last


def padded(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [B, T], padded on the right."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask = (torch.arange(width, device=device) < lengths.unsqueeze(1)).long()
    return ids, mask
