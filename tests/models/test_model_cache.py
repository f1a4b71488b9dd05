"""A model that is put back to its start weights is the one that loading gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from unlearnbench.config.schema import ModelSettings
from unlearnbench.errors import ModelError
from unlearnbench.models import model_cache as warm
from unlearnbench.models.loading import Source, load_model
from unlearnbench.models.model_cache import ModelCache

SETTINGS = ModelSettings(name="small", base="hub/small")


def saved(folder: Path, seed: int, *, tied: bool = True, width: int = 16) -> Source:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=width,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return Source(str(folder))


def spoil(model: Any) -> None:
    """Leave a model as a run does: other weights, gradients, frozen ones, evaluation mode."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
            parameter.requires_grad_(False)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    model.eval()


def same(one: Any, other: Any) -> bool:
    mine, its = one.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(mine[k], its[k]) for k in mine)


@pytest.mark.parametrize("tied", [True, False])
def test_a_spoilt_model_is_put_back_without_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, tied: bool
) -> None:
    source, other = saved(tmp_path / "a", 1, tied=tied), saved(tmp_path / "b", 2, tied=tied)
    cache = ModelCache()
    model = cache.acquire(source, SETTINGS)
    spoil(model)
    cache.release(model, source, SETTINGS)
    truth = load_model(source, SETTINGS, train=True)
    another = load_model(other, SETTINGS, train=True)
    monkeypatch.setattr(warm, "load_model", None)
    again = cache.acquire(source, SETTINGS)
    assert again is model
    assert same(again, truth)
    assert again.training
    assert all(p.requires_grad and p.grad is None for p in again.parameters())
    cache.release(again, source, SETTINGS)
    assert same(cache.acquire(other, SETTINGS), another), (
        "weights of another model, same architecture"
    )
    assert cache.restored == 2


def test_a_model_is_handed_out_once(tmp_path: Path) -> None:
    source, cache = saved(tmp_path / "a", 1), ModelCache()
    model = cache.acquire(source, SETTINGS)
    cache.release(model, source, SETTINGS)
    assert cache.acquire(source, SETTINGS) is model
    assert cache.acquire(source, SETTINGS) is not model


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "bfloat16"}, {"attention": "eager"}, {"gradient_checkpointing": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_another_kind_of_model_is_loaded(tmp_path: Path, changes: dict[str, Any]) -> None:
    source, cache = saved(tmp_path / "a", 1), ModelCache()
    cache.release(cache.acquire(source, SETTINGS), source, SETTINGS)
    other = SETTINGS.model_copy(update=changes)
    assert same(cache.acquire(source, other), load_model(source, other, train=True))
    assert cache.restored == 0


def test_weights_that_have_become_incomplete_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source, cache = saved(tmp_path / "a", 1), ModelCache()
    cache.release(cache.acquire(source, SETTINGS), source, SETTINGS)
    file = tmp_path / "a" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 missing: model\.norm\.weight"):
        cache.acquire(source, SETTINGS)
    assert cache.restored == 0


def test_a_model_of_a_hub_is_put_back_from_its_cache(
    tmp_path: Path, fake_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = saved(tmp_path / "small", 1)
    fake_hub.add("models/hub/small", tmp_path / "small")
    truth, source, cache = load_model(local, SETTINGS), Source("hub/small"), ModelCache()
    cache.release(load_model(local, SETTINGS, train=True), source, SETTINGS)
    monkeypatch.setattr(warm, "load_model", None)
    again = cache.acquire(source, SETTINGS)
    assert same(again, truth)
    assert cache.restored == 1
