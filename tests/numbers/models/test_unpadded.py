"""Attention without padding: what its kernel is given, and that it is tried before it is used."""

import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from unlearnbench.models.row_states import RowReader
from unlearnbench.models.token_row import Row

from ...conftest import build_model_of

Arguments = dict[str, Any]
ROWS = [Row(tuple(range(5, 5 + n)), start) for n, start in ((9, 4), (3, 1), (24, 9), (6, 5))]
SIGNATURE = inspect.signature(varlen.varlen_attn)


def gradients(model: Any, hidden: Tensor) -> dict[str, Tensor]:
    """Gradients of a loss that weighs each token and dimension differently."""
    model.zero_grad()
    (hidden * torch.linspace(-1, 2, hidden.numel()).view_as(hidden).to(hidden)).sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def plain(given: Arguments) -> Tensor:
    """Row by row and head by head, by the definition."""
    query, key, value = given["query"], given["key"], given["value"]
    ends = given["cu_seq_q"].tolist()
    assert query.shape == key.shape
    scale = given["scale"] if given["scale"] is not None else 1 / math.sqrt(query.shape[2])
    heads: list[Tensor] = []
    for head in range(query.shape[1]):
        parts: list[Tensor] = []
        for begin, end in pairwise(ends):
            q, k, v = (tensor[begin:end, head] for tensor in (query, key, value))
            scores = scale * (q @ k.T)
            if given["window_size"] == (-1, 0):
                hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(hidden, -math.inf)
            parts.append(scores.softmax(1) @ v)
        heads.append(torch.cat(parts))
    return torch.stack(heads, dim=1)


def patched(
    monkeypatch: pytest.MonkeyPatch, kernel: Callable[[Arguments], Tensor]
) -> list[Arguments]:
    """Arguments of the kernel, which is one that runs on a CPU in any precision."""
    seen: list[Arguments] = []

    def stand_in(*args: Any, **how: Any) -> Tensor:
        bound = SIGNATURE.bind(*args, **how)
        bound.apply_defaults()
        seen.append(dict(bound.arguments))
        return kernel(seen[-1])

    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    monkeypatch.setattr("unlearnbench.models.row_states.has_varlen_kernel", Mock(return_value=True))
    return seen


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["llama", "phi", "granite", "cohere"])
def test_states_and_gradients_are_those_with_padding(
    kind: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"granite": {"attention_multiplier": 0.7, "logits_scaling": 4.0}}
    model = build_model_of(kind, changes.get(kind, {})).double().train()
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    padded = RowReader(model, pad=0)
    wanted = padded(model, ROWS).hidden
    expected = gradients(model, wanted)
    calls = patched(monkeypatch, plain)
    reader = RowReader(model, pad=0)
    prepared = reader.prepared(model, ROWS)
    calls.clear()
    found = reader.run(model, prepared).hidden
    assert len(calls) == 2
    lengths = [len(row.ids) for row in ROWS]
    for call in calls:
        assert call["query"].shape == (sum(lengths), 4, 8)
        for name in ("cu_seq_q", "cu_seq_k"):
            assert call[name].dtype == torch.int32
            assert call[name].tolist() == np.cumsum([0, *lengths]).tolist()
        assert call["max_q"] == call["max_k"] == max(lengths)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    for name, gradient in gradients(model, found).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-7, atol=1e-9)
    assert len(calls) == (4 if checkpointing else 2)


def not_causal(given: Arguments) -> Tensor:
    return plain({**given, "window_size": (-1, -1)})


def fails(_: Arguments) -> Tensor:
    raise RuntimeError("no kernel image is available for execution on the device")


@pytest.mark.parametrize("kernel", [not_causal, fails])
def test_a_kernel_that_does_something_else_is_not_used(
    kernel: Callable[[Arguments], Tensor], model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = RowReader(model, pad=0)(model, ROWS).hidden
    calls = patched(monkeypatch, kernel)
    reader = RowReader(model, pad=0)
    assert torch.equal(reader(model, ROWS).hidden, wanted)
    tried = len(calls)
    assert tried > 0
    reader(model, ROWS)
    assert len(calls) == tried, "once"
