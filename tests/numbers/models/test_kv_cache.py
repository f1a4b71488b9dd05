"""Memory for keys and values: how much of it is taken, and that it is taken once."""

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from unlearnbench.models.kv_cache import (
    allocate_cache,
)


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
