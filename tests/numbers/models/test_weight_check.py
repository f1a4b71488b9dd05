"""A model folder that is not whole is refused by name; whole ones of every architecture load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.models.loading import check_weights, load_model
from unlearnbench.models.source import Source

SETTINGS = ModelSettings(name="m", base="x")
Weights = dict[str, torch.Tensor]
Change = Callable[[Weights], object]


@pytest.fixture
def folder(tmp_path: Path, build: Any, tokenizer: Any) -> Path:
    """A Llama whose output layer is not tied to its embeddings."""
    build("llama", {}).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder: Path, **changes: Any) -> Any:
    return load_model(Source(str(folder)), SETTINGS.model_copy(update=changes))


def change_weights(folder: Path, change: Change) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})


def test_whole_models_of_every_architecture_load(
    tmp_path: Path, architecture: tuple[Any, bool]
) -> None:
    model, _ = architecture
    model.save_pretrained(tmp_path)
    check_weights(SETTINGS.model_copy(update={"base": str(tmp_path)}))
    loaded = load(tmp_path, attention="eager")
    ids = torch.tensor([[5, 9, 17, 200]])
    assert torch.equal(loaded(ids).logits, loaded(ids).logits)
    assert {n for n, _ in loaded.named_parameters()} == {n for n, _ in model.named_parameters()}


def test_constants_that_old_checkpoints_hold_are_no_fault(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda w: w.update({name: torch.zeros(4)}))
    load(folder)


UP = "model.layers.1.mlp.up_proj.weight"


CHANGES: dict[str, Change] = {
    f"{UP} is missing; copy or save": lambda w: w.pop(UP),
    "lm_head.weight is missing; copy or save": lambda w: w.pop("lm_head.weight"),
    "v.weight is unexpected; copy or save": lambda w: w.update({"v.weight": torch.ones(2)}),
    r"model.norm.weight is \[5\] for \[32\]; ": lambda w: w.update(
        {"model.norm.weight": torch.ones(5)}
    ),
}


@pytest.mark.parametrize("message", CHANGES)
def test_tensors_that_do_not_fit_are_named(folder: Path, message: str) -> None:
    whole = {"base": "hub/model", "fine_tuned": str(folder), "retain": {"retain90": str(folder)}}
    check_weights(SETTINGS.model_copy(update=whole))
    change_weights(folder, CHANGES[message])
    refused = f"not those of a LlamaForCausalLM: {message}"
    with pytest.raises(ModelError, match=refused):
        load(folder)
    for changes in ({"base": str(folder)}, {"base": "tiny", "fine_tuned": str(folder)}):
        with pytest.raises(ModelError, match=refused):
            check_weights(SETTINGS.model_copy(update=changes))


def test_an_encoder_is_refused_as_one(tmp_path: Path, tokenizer: Any) -> None:
    from transformers import BertConfig, BertModel

    shape: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32}
    made: Any = BertModel
    config = BertConfig(vocab_size=330, num_hidden_layers=1, **shape)
    made(config, add_pooling_layer=False).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="a bert model is an encoder"):
        load(tmp_path)


ADAPTERS: dict[str, Change] = {
    "1 tensors missing, such as base_model": lambda w: w.pop(min(w)),
    "1 tensors unexpected, such as x": lambda w: w.update({"x.lora_A.weight": torch.ones(1)}),
}


@pytest.mark.parametrize("message", ADAPTERS)
def test_an_adapter_that_is_not_whole_is_refused(
    tmp_path: Path, folder: Path, message: str
) -> None:
    from unlearnbench.models.lora import add_lora, load_any_model

    adapter = tmp_path / "adapter"
    add_lora(load(folder), LoRA(rank=2)).save_pretrained(adapter)
    load_any_model(Source(str(adapter)), SETTINGS)
    file = adapter / "adapter_model.safetensors"
    weights = load_file(file)
    ADAPTERS[message](weights)
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match=message):
        load_any_model(Source(str(adapter)), SETTINGS)
