"""Loading, building and preparing models; logits only at chosen positions."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Cohere2Config, Gemma2Config, GPT2Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import ModelError, TrainingError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.forward import OutputLayer, predict
from unlearnbench.models.limits import check_context, check_vocabulary, pad_id
from unlearnbench.models.named_models import source_errors
from unlearnbench.models.source import Source
from unlearnbench.models.token_row import Row
from unlearnbench.runs.model_sources import is_prepared
from unlearnbench.runs.prepared_models import prepared
from unlearnbench.training.optimizers import TrainerSettings, make_optimizers

SETTINGS = ModelSettings(name="m", base="unused")


def small(kind: str) -> Any:
    shape: dict[str, Any] = {"vocab_size": 50, "num_hidden_layers": 1, "intermediate_size": 16}
    heads: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    configs: dict[str, Any] = {
        "gpt2": GPT2Config(vocab_size=50, n_layer=1, n_head=2, n_embd=16),
        "gemma2": Gemma2Config(**shape, **heads, head_dim=8, final_logit_softcapping=0.005),
        "cohere2": Cohere2Config(**shape, **heads, logit_scale=0.25, pad_token_id=0),
    }
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(configs[kind]).eval()


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "cohere2"])
def test_logits_at_positions_equal_full_logits(kind: str) -> None:
    model = small(kind)
    ids = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(1))
    where = torch.tensor([[0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]]).bool()
    with torch.no_grad():
        logits, hidden = predict(model, where, input_ids=ids)
        full = model(input_ids=ids).logits
    torch.testing.assert_close(logits, full[where])
    torch.testing.assert_close(OutputLayer(model)(hidden), full[where])


def test_identity_follows_the_weights(model_folder: Path, model: Any) -> None:
    before = Source(str(model_folder)).identity()
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    model.save_pretrained(model_folder)
    assert Source(str(model_folder)).identity() != before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": "./nowhere"}, "no model folder"),
        ({"fine_tuned": "./nowhere"}, "no model folder"),
        ({"retain": {"retain90": "./nowhere"}}, "no model folder"),
        ({"retain": {"retain90": "log.json"}}, r"models\.m\.retain\.retain90: no log 'log\.json'"),
    ],
)
def test_sources_are_checked_before_anything_is_spent(
    model_folder: Path, changes: dict[str, Any], message: str
) -> None:
    good = ModelSettings(name="m", base=str(model_folder), fine_tuned="hub/model")
    assert not [*source_errors(good)]
    ((_, error),) = source_errors(good.model_copy(update=changes))
    assert re.search(message, str(error))
    for path in model_folder.glob("tokenizer*"):
        path.unlink()
    ((_, error),) = source_errors(good)
    assert "no tokenizer files" in str(error)


def test_a_training_row_longer_than_the_context_is_named(model: Any) -> None:
    questions = [
        Question("Where?", "Here."),
        Question("", "Once.", format="text", place="t.json:2"),
    ]
    rows = [Row((1,) * 256, 3), Row((1,) * 257, 1)]
    check_context(model, rows[:1], questions[:1], "training.max_length")
    with pytest.raises(
        ModelError, match=r"^t\.json:2: 257 tokens .* set training.max_length to 256"
    ):
        check_context(model, rows, questions, "training.max_length")


def test_an_added_token_that_no_text_holds_is_no_other_vocabulary(
    model: Any, tokenizer: Any
) -> None:
    """Llama-2's first upload has `<pad>` behind the embedding's last row."""
    words = copy.deepcopy(tokenizer)
    words.add_special_tokens({"pad_token": "<later>"})
    assert words.pad_token_id == len(words) - 1 == model.get_input_embeddings().num_embeddings
    check_vocabulary(model, words)
    assert pad_id(words) == words.eos_token_id
    assert pad_id(tokenizer) == tokenizer.pad_token_id
    words.chat_template = "<later>{{ messages[0].content }}"
    with pytest.raises(ModelError, match=r"ids up to 330 of texts, .* has 330 entries"):
        check_vocabulary(model, words)


def test_muon_takes_the_matrices_and_leaves_the_embeddings(model: Any) -> None:
    how = TrainerSettings(1, 1, 3e-3, 0, optimizer="muon", embedding_learning_rate=2e-3)
    muon, adamw = make_optimizers(model, how)
    shapes = {tuple(p.shape) for p in muon.param_groups[0]["params"]}
    assert tuple(model.get_input_embeddings().weight.shape) not in shapes
    assert muon.param_groups[0]["lr"] == 3e-3
    assert adamw.param_groups[0]["lr"] == 2e-3
    count = sum(len(o.param_groups[0]["params"]) for o in (muon, adamw))
    assert count == len(list(model.parameters()))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(TrainingError, match="nothing would change"):
        list(make_optimizers(model, how))


def test_a_model_is_prepared_once_and_whole(tmp_path: Path, model: Any, tokenizer: Any) -> None:
    place, calls = tmp_path / "models" / "m", []

    def build() -> tuple[Any, Any]:
        calls.append(1)
        return model, tokenizer

    prepared(place, build)
    prepared(place, build)
    assert calls == [1]
    assert is_prepared(place)
    assert json.loads((place / "prepared.json").read_text())["seconds"] >= 0

    def fail() -> tuple[Any, Any]:
        raise ModelError("no")

    with pytest.raises(ModelError):
        prepared(tmp_path / "models" / "other", fail)
    visible = [p.name for p in (tmp_path / "models").iterdir() if not p.name.startswith(".")]
    assert visible == ["m"], "nothing half-made is left"
