"""Greedy decoding in batches: rows that have finished leave, padding changes nothing.

Rows of different lengths are padded on the right and the gap is masked, with each row's own
positions, so that a row's answer does not depend on which rows it shares a batch with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unlearnbench.data.batching import token_budget
from unlearnbench.evaluation.scoring import last_token, padded, select
from unlearnbench.models.forward import predict


def greedy(
    model: Any,
    starts: Sequence[Sequence[int]],
    limits: Sequence[int],
    *,
    eos: int,
    pad: int,
    batch_tokens: int,
) -> list[tuple[int, ...]]:
    """Continue each of `starts` with its most probable tokens, up to EOS or its limit.

    starts  ids to go on from, prompt included
    limits  new tokens allowed for each
    Returns the new ids of each, without EOS.
    """
    answers: list[list[int]] = [[] for _ in starts]
    todo = [i for i, limit in enumerate(limits) if limit > 0]
    lengths = [len(starts[i]) + limits[i] for i in todo]
    with torch.inference_mode():
        for batch in token_budget(lengths, 4 * batch_tokens):
            chosen = [todo[i] for i in batch]
            _decode(model, starts, limits, chosen, answers, eos, pad)
    return [tuple(answer) for answer in answers]


def _decode(
    model: Any,
    starts: Sequence[Sequence[int]],
    limits: Sequence[int],
    rows: list[int],
    answers: list[list[int]],
    eos: int,
    pad: int,
) -> None:
    device = next(model.parameters()).device
    ids, attention = padded([starts[i] for i in rows], pad, device)
    positions = attention.sum(1)
    logits, _, cache = predict(
        model, last_token(attention), input_ids=ids, attention_mask=attention, use_cache=True
    )
    while True:
        tokens = logits.argmax(dim=1)
        going: list[int] = []
        for place, (row, token) in enumerate(zip(rows, tokens.tolist(), strict=True)):
            if token != eos:
                answers[row].append(token)
                if len(answers[row]) < limits[row]:
                    going.append(place)
        if not going:
            return
        if len(going) < len(rows):
            index = torch.tensor(going, device=device)
            rows = [rows[place] for place in going]
            tokens, attention, positions = tokens[index], attention[index], positions[index]
            cache = select(cache, index)
        attention = torch.cat([attention, attention.new_ones(len(rows), 1)], dim=1)
        logits, _, cache = predict(
            model,
            torch.ones(len(rows), 1, dtype=torch.bool, device=device),
            input_ids=tokens.unsqueeze(1),
            attention_mask=attention,
            position_ids=positions.unsqueeze(1),
            past_key_values=cache,
            use_cache=True,
        )
        positions = positions + 1
