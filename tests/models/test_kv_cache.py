"""Memory for keys and values: how much of it is taken, and that it is taken once."""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

from unlearnbench.api.method import Sampling
from unlearnbench.data.encoding import TEMPLATES, Encoder
from unlearnbench.models.kv_cache import (
    _cached_values_per_token,  # pyright: ignore[reportPrivateUsage]
    allocate_cache,
    max_cached_tokens,
)
from unlearnbench.training import answer_sampling as sampling
from unlearnbench.training.answer_sampling import SeededPrompt, sample

GIB = 2**30


def on_gpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, **free: Any) -> Any:
    """A model of Llama-2-7B's sizes on a GPU: no weights, no memory of its own."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32
    )
    weight = SimpleNamespace(device=torch.device("cuda"), dtype=dtype, ndim=2, numel=lambda: 0)
    memory: dict[str, Any] = {
        "mem_get_info": (0, 0),
        "memory_reserved": 0,
        "memory_allocated": 0,
    } | free
    for name, value in memory.items():
        monkeypatch.setattr(torch.cuda, name, Mock(return_value=value))
    # Not the device's autocast, which a build without CUDA refuses.
    monkeypatch.setattr("unlearnbench.models.kv_cache.product_dtype", attrgetter("dtype"))
    return SimpleNamespace(config=config, parameters=lambda: iter([weight]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_take_most_of_the_free_memory(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that torch keeps and nobody uses are free."""
    model = on_gpu(
        monkeypatch,
        dtype,
        mem_get_info=(6 * GIB, 0),
        memory_reserved=9 * GIB,
        memory_allocated=5 * GIB,
    )
    each = 2 * 32 * 4096 * dtype.itemsize
    assert max_cached_tokens(model, 10**9) == int(0.7 * 10 * GIB / each)
    assert max_cached_tokens(model, 300) == 300
    full = on_gpu(monkeypatch, dtype)
    assert max_cached_tokens(full, 300) == 1


def test_samples_of_a_7b_model_fit(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches fit 70 % of 50 free GiB; in bf16 they are no larger than is fast."""
    most: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = on_gpu(monkeypatch, dtype, mem_get_info=(50 * GIB, 0))
        sizes: list[int] = []

        def decode(_: Any, prompts: Any, uniform: Any, *__: Any, sizes: list[int] = sizes) -> Any:
            sizes.append(len(prompts) * (max(map(len, prompts)) + uniform.shape[1]))
            return torch.zeros(len(prompts), 1, dtype=torch.long)

        monkeypatch.setattr(sampling, "_decode", decode)
        numbers = SimpleNamespace(to=Mock(return_value=torch.zeros(1, 200)), shape=(1, 200))
        monkeypatch.setattr(sampling, "_uniform", Mock(return_value=numbers))
        prompts = [SeededPrompt(tuple(range(60)), (i,)) for i in range(1000)]
        sample(
            model, prompts, Sampling(1, 1.0, 200), Encoder(tokenizer, TEMPLATES["plain"], 500), 0
        )
        assert sum(sizes) == 1000 * 260
        most[dtype] = max(sizes) * 2 * 32 * 4096 * dtype.itemsize / GIB
    assert 30 < most[torch.float32] <= 35
    assert 30 < most[torch.bfloat16] <= 32


def test_the_cache_is_the_librarys_and_is_never_moved(model: Any) -> None:
    ids = torch.arange(3, 15).view(2, 6)
    given: dict[str, list[torch.Tensor]] = {}
    caches: dict[str, Any] = {"own": allocate_cache(model, 9)}
    caches["library"] = DynamicCache(config=model.config)
    for name, cache in caches.items():
        places: set[int] = set()
        for part in (ids[:, :4], ids[:, 4:5], ids[:, 5:]):
            with torch.no_grad():
                found = model(input_ids=part, past_key_values=cache, use_cache=True)
            given.setdefault(name, []).append(found.logits)
            places |= {layer.keys.data_ptr() for layer in cache.layers}
        assert cache.get_seq_length() == 6
        assert (len(places) == len(cache.layers)) == (name == "own")
    torch.testing.assert_close(given["own"], given["library"], rtol=0, atol=1e-6)


def test_under_autocast_keys_take_half_and_give_the_same(model: Any) -> None:
    """Rotated keys leave the model in float32; attention would convert them each time."""
    ids = torch.arange(3, 15).view(2, 6)
    logits: list[torch.Tensor] = []
    for cache in (allocate_cache(model, 6), DynamicCache(config=model.config)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            model(input_ids=ids[:, :5], past_key_values=cache, use_cache=True)
            logits.append(model(input_ids=ids[:, 5:], past_key_values=cache, use_cache=True).logits)
    assert torch.equal(*logits)
    made: Any = allocate_cache(model, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, past_key_values=made, use_cache=True)
    stored = [tensor for layer in made.layers for tensor in (layer.keys, layer.values)]
    assert {tensor.dtype for tensor in stored} == {torch.bfloat16}


def test_heads_that_share_keys_are_counted_once() -> None:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=8,
    )
    cache: Any = allocate_cache(model := LlamaForCausalLM(config), 1)
    with torch.no_grad():
        model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(t.numel() for layer in cache.layers for t in (layer.keys, layer.values))
    assert held == _cached_values_per_token(config)
