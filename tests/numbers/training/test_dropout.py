"""Dropout of a model's configuration: none while a loss compares with the start model."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.config.schema import LoRA, RetainSpec
from unlearnbench.models.dropout import ModelDropout, config_has_dropout
from unlearnbench.models.lora import add_lora
from unlearnbench.training.objective import Objective

from ...factories.trainers import TRAINED_METHODS, trainer_of, training_rows

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256}
GPT2_DROPOUT = {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}
BLOOM = {"n_head": 4, "n_layer": 2}
OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32}
RATES = {
    "gpt2": GPT2_DROPOUT,
    "opt": {"dropout": 0.1, "attention_dropout": 0.1},
    "bloom": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "gpt_neox": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "phi": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attention_dropout": 0.1},
    "phi3": {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attention_dropout": 0.1},
    "mamba": {},
}
"""Names that architectures give to their rates; all others say `attention_dropout`."""
IDS = torch.arange(5, 45)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_dropout_of_every_architecture_is_removed_and_put_back(
    architecture: tuple[Any, bool],
) -> None:
    plain = architecture[0].config
    assert not config_has_dropout(plain) or plain.model_type in ("gpt2", "opt")
    names = RATES.get(plain.model_type, {"attention_dropout": 0.1})
    settings = plain.to_dict() | names
    torch.manual_seed(0)
    model = type(architecture[0])(type(plain).from_dict(settings)).eval()
    expected = logits(model)
    dropout = ModelDropout(model)
    assert bool(dropout) is bool(names) is config_has_dropout(model.config)
    model.train()
    assert names == {} or not torch.allclose(logits(model), expected)
    dropout.remove()
    torch.testing.assert_close(logits(model), expected)
    dropout.put_back()
    assert names == {} or not torch.allclose(logits(model), expected)


def test_dropout_that_layers_read_from_the_configuration_is_removed(build: Any) -> None:
    """Persimmon's attention does. Its rate is in no module."""
    model = build("persimmon", {"num_key_value_heads": 2, "attention_dropout": 0.4})
    model = add_lora(model, LoRA(rank=2, target_modules=("dense",)))
    expected = logits(model.eval())
    dropout = ModelDropout(model.train())
    assert dropout
    dropout.remove()
    torch.testing.assert_close(logits(model), expected)
    dropout.put_back()
    assert not torch.allclose(logits(model), expected)
    assert model.config.attention_dropout == 0.4


def test_dropout_of_adapters_stays(build: Any) -> None:
    model = add_lora(build("bloom", BLOOM | RATES["bloom"]), LoRA(rank=2, dropout=0.3))
    ModelDropout(model).remove()
    rates = {p: m.p for p, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}
    assert {rate for path, rate in rates.items() if "lora_dropout" in path} == {0.3}
    assert {rate for path, rate in rates.items() if "lora_dropout" not in path} == {0.0}


def test_classifiers_and_summaries_are_no_part_of_a_language_model(build: Any) -> None:
    none = dict.fromkeys(GPT2_DROPOUT, 0.0)
    config = build("gpt2", GPT2 | none).config
    assert config.summary_first_dropout == 0.1
    assert not config_has_dropout(config)


KNOWN = [
    name
    for name in TRAINED_METHODS
    if (one := registry.load("methods", name)()).value_at_reference() is not None
    and one.needed().reference
    and "sample" not in one.needed().parts
]
"""Methods whose first loss, or some of its terms, does not depend on the rows."""


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
@pytest.mark.parametrize("name", [*KNOWN, "gradient-ascent+kl"])
def test_the_first_loss_is_that_of_equal_models(
    name: str,
    kind: str,
    build: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    tmp_path: Path,
) -> None:
    name, _, added = name.partition("+")
    method = registry.load("methods", name)()
    objective = Objective(method, RetainSpec(term="kl") if added else None)
    shape = GPT2 | GPT2_DROPOUT if kind == "gpt2" else OPT | RATES["opt"]
    model = build(kind, shape | {"vocab_size": 330})
    first = [
        next(
            trainer_of(
                model,
                tokenizer,
                training_rows(tokenizer, questions),
                objective,
                tmp_path,
                removes_dropout=removes,
            ).epoch(1)
        ).terms
        for removes in (True, False)
    ]
    expected = {"added_kl": 0.0} if added else method.value_at_reference()
    expected = expected if isinstance(expected, dict) else {"loss": expected}
    for term, value in expected.items():
        assert first[0][term] == pytest.approx(value, rel=1e-5, abs=1e-5)
        assert first[1][term] != pytest.approx(value, rel=1e-3, abs=1e-3)


def test_an_evaluated_model_has_its_dropout_for_attacks_that_train_it(
    build: Any, tokenizer: Any, questions: Sequence[Question], tmp_path: Path
) -> None:
    model = build("gpt2", GPT2 | GPT2_DROPOUT | {"vocab_size": 330})
    rows, objective = (
        training_rows(tokenizer, questions),
        Objective(registry.load("methods", "npo")()),
    )
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path, removes_dropout=True)

    def rates(of: Any) -> set[float]:
        return {module.p for module in of.modules() if isinstance(module, torch.nn.Dropout)}

    assert rates(trainer.model) == {0.0}
    with trainer.evaluation_model() as evaluated:
        assert rates(evaluated) == {0.1}
        assert not evaluated.training
    assert rates(trainer.model) == {0.0}
    next(trainer.epoch(1))
    assert rates(copy.deepcopy(model)) == {0.1}, "the start model is another"
