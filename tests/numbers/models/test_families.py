"""Models of the families that people use: what they load as, and when their tokens are packed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api.registry import load
from unlearnbench.base.errors import ModelError
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.loading import load_model
from unlearnbench.models.packed_attention import can_pack
from unlearnbench.models.row_states import RowReader
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.runs.evaluate_model import model_settings
from unlearnbench.training.fine_tuning import FineTuner
from unlearnbench.training.reference_model import load_references

from ...conftest import QUESTIONS
from ...families import FAMILIES, WINDOW

WITHOUT_SDPA = ("gemma2", "gpt-oss", "gpt-j", "gpt-neo", "bloom", "mpt", "mamba")


def loaded(folder: Path, **settings: Any) -> Any:
    return load_model(Source(str(folder)), model_settings("m", "plain", "float32", **settings))


@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_a_model_without_sdpa_is_loaded_with_eager_attention(name: str, tmp_path: Path) -> None:
    wanted = FAMILIES[name].build()
    wanted.save_pretrained(tmp_path)
    model = loaded(tmp_path)
    assert model.config._attn_implementation == wanted.config._attn_implementation == "eager"
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wanted(ids).logits, rtol=0, atol=0)


def test_a_configuration_does_not_choose_the_attention(tmp_path: Path) -> None:
    """The setting does, whatever the files of a model say."""
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text()) | {"_attn_implementation": "eager"}
    path.write_text(json.dumps(content))
    assert loaded(tmp_path).config._attn_implementation == "sdpa"
    assert loaded(tmp_path, attention="eager").config._attn_implementation == "eager"


def test_the_hint_of_a_library_is_not_cut(tmp_path: Path) -> None:
    """transformers says how to allow remote code at the end of a long message."""
    FAMILIES["llama"].build().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    names = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.Y"}
    path.write_text(json.dumps({"model_type": "unheard_of", "auto_map": names}))
    with pytest.raises(ModelError) as caught:
        loaded(tmp_path)
    message = str(caught.value)
    assert "`trust_remote_code=True`" in message
    assert "--trust-remote-code" in message
    assert "damaged" not in message


@pytest.mark.parametrize(
    ("name", "changes", "longest"),
    [
        ("llama", {}, 1000),
        ("mistral", {}, WINDOW),
        ("gemma3", {}, WINDOW),
        # Llama 4 scales queries by their index in the packed row, unless it is told not to.
        ("llama4", {}, 0),
        ("llama4", {"attn_temperature_tuning": False}, WINDOW),
        ("mamba", {}, 0),
        ("gemma2", {}, 0),
    ],
)
def test_rows_longer_than_any_mask_are_not_packed(
    name: str, changes: dict[str, Any], longest: int
) -> None:
    model = FAMILIES[name].build()
    for key, value in changes.items():
        setattr(model.config, key, value)
    tried = [1, WINDOW, WINDOW + 1, 1000]
    assert [can_pack(model, tokens) for tokens in tried] == [tokens <= longest for tokens in tried]


@pytest.fixture
def unnamed_window(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with a window of 12 tokens that its configuration does not name."""
    from transformers.masking_utils import create_sliding_window_causal_mask

    model = FAMILIES["mistral"].build()
    model.config.sliding_window = None
    with_window = copy.deepcopy(model.config)
    with_window.sliding_window = 12

    def windowed(**values: Any) -> Any:
        return create_sliding_window_causal_mask(**{**values, "config": with_window})

    place = "transformers.models.mistral.modeling_mistral.create_causal_mask"
    monkeypatch.setattr(place, windowed)
    return model


def test_a_mask_that_no_configuration_names_is_found_by_a_trial_of_the_longest_row(
    unnamed_window: Any,
) -> None:
    model = unnamed_window
    assert can_pack(model, 100)
    rows = [Row(tuple(range(3, 43)), 1)]
    assert RowReader(model, 0, longest=12).packs(model, rows)
    assert not RowReader(model, 0, longest=40).packs(model, rows)
    trial = build_tree([Row(tuple(range(3, 13)), 1)])
    assert Predictor(model, trial, pad=0, longest=12).packed
    assert not Predictor(model, trial, pad=0, longest=40).packed


def test_the_start_model_reads_samples_with_such_a_mask(
    unnamed_window: Any, tmp_path: Path
) -> None:
    """It runs in every step, and its rows do not exist in advance."""
    row = Row(tuple(range(3, 43)), 1)
    references = load_references(
        lambda: unnamed_window,
        "weights",
        TrainingRows(forget=[row]),
        load("methods", "grpo")(beta=0.1).needed(),
        seed=0,
        epochs=1,
        pad=0,
        folder=tmp_path,
    )
    found = references["sample"].batch([row], torch.device("cpu")).token_logprob
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        logprobs = unnamed_window(input_ids=ids).logits[0, :-1].log_softmax(1)
    torch.testing.assert_close(found, logprobs.gather(1, ids[0, 1:, None])[:, 0])


@pytest.mark.parametrize("name", FAMILIES)
def test_an_attack_trains_adapters_of_its_own_on_every_family(name: str, tokenizer: Any) -> None:
    model = FAMILIES[name].build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        plain = model(input_ids=ids).logits
    tuner = FineTuner(Encoder(tokenizer, TEMPLATES["plain"], 200), 0)
    options: Any = {"steps": 2, "learning_rate": 1e-2, "batch_size": 4, "lora_rank": 2}
    taught = plain
    for _ in tuner(model, QUESTIONS[:4], **options):
        with torch.no_grad():
            taught = model(input_ids=ids).logits
    assert not torch.equal(taught, plain)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
