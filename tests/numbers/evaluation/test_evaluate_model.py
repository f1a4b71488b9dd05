"""A model folder and a data folder in, an evaluation out; adapters, errors, and nothing heavy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench import evaluate_model, get_profile, summarize
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.runs.evaluate_model import set_up

DATA = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
PROFILE = get_profile("tofu", rows=2, max_length=120)


FROM_PEFT = "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
"""peft calls transformers by a deprecated name."""


@pytest.fixture
def adapter(tmp_path: Path, model_folder: Path) -> Path:
    """A LoRA adapter around it that changes every answer."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_folder)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    place = tmp_path / "adapter"
    model.save_pretrained(place)
    return place


def evaluated(model: Any, profile: str | Profile = PROFILE, **more: Any) -> Evaluation:
    return evaluate_model(model, data=DATA, forget=0.25, profile=profile, **more)


def assert_same(one: Evaluation, other: Evaluation) -> None:
    assert one.profile == other.profile
    for name, found in one.sets.items():
        assert found.generated == other.sets[name].generated
        np.testing.assert_allclose(found.perturbed_loss, other.sets[name].perturbed_loss, atol=1e-6)


def test_equals_the_evaluator(model_folder: Path, model: Any, tokenizer: Any) -> None:
    sets = evaluation_sets(load_benchmark(DATA, (0.25,)), 0.25, PROFILE)
    wanted = Evaluator(sets, tokenizer, TEMPLATES["plain"], PROFILE, 0, roles=DATA.roles)(model)
    found = evaluated(str(model_folder))
    assert_same(found, wanted)
    assert_same(evaluated(model_folder, batch_tokens=64), wanted)
    assert {name: len(rows.questions) for name, rows in found.sets.items()} == {
        "retain": 2, "forget": 2, "real_authors": 2, "world_facts": 2, "holdout": 2,
    }  # fmt: skip
    metrics = summarize(found, None, PROFILE)
    assert None not in (metrics["model_utility"], metrics["mia_min_k_plus_plus"])


def test_a_model_in_memory_is_left_as_it_was(
    model_folder: Path, model: Any, tokenizer: Any
) -> None:
    model.train()
    found = evaluated(model, tokenizer=tokenizer)
    assert model.training
    assert_same(found, evaluated(model_folder))
    with pytest.raises(EvaluationError, match="a model in memory has no tokenizer with it"):
        evaluated(model)


@pytest.mark.filterwarnings(FROM_PEFT)
class TestAdapter:
    """A folder with adapter_config.json is its base with the adapter around it."""

    def test_is_the_model_that_was_saved(
        self, model_folder: Path, adapter: Path, tokenizer: Any
    ) -> None:
        import peft
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(model_folder)
        merged: Any = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()
        wanted = evaluated(merged, tokenizer=tokenizer)
        found = evaluated(adapter)
        for name, rows in found.sets.items():
            np.testing.assert_allclose(
                rows.answer_loss, wanted.sets[name].answer_loss, rtol=1e-4, atol=1e-4
            )
        plain = evaluated(model_folder)
        assert abs(found.sets["forget"].answer_loss - plain.sets["forget"].answer_loss).max() > 0.01

    def test_finds_its_base_beside_itself(
        self, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = evaluated(adapter)
        self.rename(adapter, "../model")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(elsewhere)
        assert_same(evaluated(adapter), wanted)

    @staticmethod
    def rename(adapter: Path, base: str | None) -> None:
        config = json.loads((adapter / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = base
        (adapter / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.filterwarnings(FROM_PEFT)
def test_an_adapter_has_the_context_of_its_base(adapter: Path) -> None:
    setup = set_up(str(adapter), data=DATA, forget=0.25, profile="unlearnbench")
    assert setup.evaluator.max_length == 256
