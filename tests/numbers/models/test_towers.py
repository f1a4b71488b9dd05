"""Models with a vision tower are trained on texts: what no text reaches is frozen, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unlearnbench.base.deferred_warnings import drain
from unlearnbench.config.schema import LoRA, ModelSettings
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora import add_lora
from unlearnbench.models.source import Source
from unlearnbench.models.towers import text_decoder, unreached_weights
from unlearnbench.results.model_shape import shape_of
from unlearnbench.training.objective import Objective
from unlearnbench.training.trainer import FineTuning, Trainer

from ...conftest import QUESTIONS
from ...factories.trainers import assert_resumes, objective_of, trainer_of, training_rows
from ...families import FAMILIES

TOWER = ("model.vision_tower.", "model.multi_modal_projector.")

pytestmark = pytest.mark.usefixtures("no_warning_given")


def made(model: Any, tokenizer: Any, folder: Path, objective: Objective | None = None) -> Trainer:
    rows = training_rows(tokenizer, QUESTIONS)
    return trainer_of(model, tokenizer, rows, objective or Objective(FineTuning()), folder)


def test_the_tower_is_frozen_and_a_process_says_so_once(tokenizer: Any, tmp_path: Path) -> None:
    model = FAMILIES["gemma3-vision"].build()
    before = {name: p.clone() for name, p in model.named_parameters()}
    trainers = [made(model, tokenizer, tmp_path) for _ in range(2)]
    inside = sum(p.numel() for name, p in model.named_parameters() if name.startswith(TOWER))
    assert drain() == [
        "Gemma3ForConditionalGeneration: no text reaches model.vision_tower, "
        f"model.multi_modal_projector, so {inside:,} weights there are not trained"
    ]
    trainer = trainers[0]
    assert {*trainer.trained()} == {name for name in before if not name.startswith(TOWER)}
    next(trainer.epoch(1))
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, before[name]) is name.startswith(TOWER), name


def test_a_checkpoint_holds_what_is_trained_and_resumes(tokenizer: Any, tmp_path: Path) -> None:
    model = FAMILIES["gemma3-vision"].build()
    trainer = made(model, tokenizer, tmp_path)
    next(trainer.epoch(1))
    assert not [name for name in trainer.tensors() if "vision" in name]
    assert_resumes(lambda: made(model, tokenizer, tmp_path), tmp_path)


def test_a_trained_model_is_written_whole_and_loads(tokenizer: Any, tmp_path: Path) -> None:
    trainer = made(FAMILIES["gemma3-vision"].build(), tokenizer, tmp_path)
    next(trainer.epoch(1))
    trainer.model.eval().save_pretrained(tmp_path / "model")
    again = load_model(
        Source(str(tmp_path / "model")), ModelSettings(name="m", base=str(tmp_path / "model"))
    )
    weights = dict(trainer.model.named_parameters())
    assert {name for name, _ in again.named_parameters()} == weights.keys()
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, weights[name]), name


def test_layers_of_the_tower_are_not_taken_for_those_of_the_text(
    tokenizer: Any, tmp_path: Path
) -> None:
    """RMU trains layers by their number, which the tower's layers have as well."""
    model = FAMILIES["gemma3-vision"].build()
    trainer = made(model, tokenizer, tmp_path, objective_of("rmu", layer=1, trained_layers=1))
    next(trainer.epoch(1))
    assert trainer.trained()
    assert all(name.startswith("model.language_model.layers.0.") for name in trainer.trained())


def test_adapters_on_a_tower_are_frozen(tokenizer: Any, tmp_path: Path) -> None:
    model = add_lora(FAMILIES["gemma3-vision"].build(), LoRA(rank=2))
    trainer = made(model, tokenizer, tmp_path)
    next(trainer.epoch(1))
    assert trainer.trained()
    assert all(".language_model." in name for name in trainer.trained())
    (notice,) = drain()
    assert "model.vision_tower" in notice


@pytest.mark.parametrize("lora", [None, LoRA(rank=2)])
def test_the_memory_estimate_counts_what_is_trained(
    lora: LoRA | None, tokenizer: Any, tmp_path: Path
) -> None:
    family = FAMILIES["gemma3-vision"]
    model = family.build()
    model = model if lora is None else add_lora(model, lora)
    trainer = made(model, tokenizer, tmp_path)
    settings = ModelSettings(name="m", base="./m", lora=lora)
    trains: Any = objective_of("gradient-ascent").method.trains
    shape = shape_of(family.config(), settings, trains, autocast=False, width=20)
    assert shape.trained == sum(p.numel() for p in trainer.trained().values())
    layer = sum(p.numel() for p in text_decoder(model).get_submodule("layers.0").parameters())
    assert shape.largest_layer == layer


def test_only_weights_outside_the_decoder_that_no_text_reaches_are_frozen() -> None:
    """A weight beside the decoder stays trained if the logits depend on it."""
    model = FAMILIES["llama"].build()
    model.bridge = nn.Linear(32, 32)
    model.tower = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def crossed(_: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (model.bridge(inputs[0]),)

    model.lm_head.register_forward_pre_hook(crossed)
    assert {*unreached_weights(model)} == {
        name for name, _ in model.tower.named_parameters("tower")
    }


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "gemma3-vision"])
def test_texts_reach_every_weight_of_other_families(name: str) -> None:
    assert not unreached_weights(FAMILIES[name].build())
