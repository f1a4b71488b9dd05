"""Gradient norms equal those of plain autograd, one example at a time, whatever is frozen."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.schema import LoRA
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.lora import add_lora
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.models.templates import TEMPLATES

CHOSEN: dict[str, dict[str, Any]] = {"mia-grad-norm": {}}


@pytest.fixture
def sets(questions: tuple[Question, ...]) -> dict[str, tuple[Question, ...]]:
    holdout = tuple(Question(q.question, f"Not {q.answer}") for q in questions[:3])
    facts = tuple(replace(q, paraphrased_answer=None) for q in questions[7:9])
    return {"retain": questions[4:6], "real_authors": facts, "forget": questions[:3]} | {
        "holdout": holdout
    }


def evaluator_of(
    sets: Any, tokenizer: Any, precision: Any = None, template: str = "plain"
) -> Evaluator:
    extra = plan_of(TOFU, None, CHOSEN).extra
    how = TEMPLATES[template], TOFU, pad_id(tokenizer), 300, precision, ROLES
    return Evaluator(sets, tokenizer, *how, extra=extra)


def plain(model: Any, tokenizer: Any, questions: tuple[Question, ...]) -> list[float]:
    """By the definition: each whole sequence, its loss's backward pass, a norm for each tensor."""
    encoder, found = Encoder(tokenizer, TEMPLATES["plain"], TOFU.max_length), list[float]()
    for question in questions:
        row = encoder.row(question)
        model.zero_grad()
        logprobs = model(torch.tensor([row.ids])).logits[0].float().log_softmax(1)
        places = range(row.start, len(row.ids) - 1)  # the last one is EOS
        torch.stack([-logprobs[t - 1, row.ids[t]] for t in places]).mean().backward()
        tensors = [p.grad.float().norm().item() for p in model.parameters() if p.grad is not None]
        found.append(float(np.mean(tensors)))
    model.zero_grad()
    return found


def test_each_example_has_its_own_gradient(
    model: Any, tokenizer: Any, sets: dict[str, tuple[Question, ...]], tmp_path: Path
) -> None:
    wanted = {name: plain(model, tokenizer, sets[name]) for name in ("forget", "retain", "holdout")}
    names = [name for name, _ in model.named_parameters()]
    for name in names[::2]:  # as where a method trains some layers
        model.get_parameter(name).requires_grad_(False)
    kept = model.get_parameter(names[1])
    kept.grad = torch.ones_like(kept)
    with torch.no_grad():  # as at the end of an epoch
        found: Any = evaluator_of(sets, tokenizer)(model.eval())
    for name, values in wanted.items():
        np.testing.assert_allclose(found.sets[name].grad_norm, values, rtol=1e-4)
    assert found.sets["real_authors"].grad_norm is None
    assert [p.requires_grad for _, p in model.named_parameters()] == [
        i % 2 == 1 for i in range(len(names))
    ]
    assert torch.equal(kept.grad, torch.ones_like(kept)), "gradients of training are left alone"

    path = tmp_path / "epoch-1.safetensors"
    write_observations(found, path)
    again: Any = read_observations(path).sets
    np.testing.assert_array_equal(again["forget"].grad_norm, found.sets["forget"].grad_norm)
    assert again["real_authors"].grad_norm is None
    numbers = plan_of(TOFU, None, CHOSEN).values(again)
    pairs = [(own, other) for own in wanted["forget"] for other in wanted["holdout"]]
    assert numbers["mia_grad_norm"] == pytest.approx(np.mean([own < other for own, other in pairs]))
    assert numbers["mia_grad_norm_control"] is not None
    assert "mia_grad_norm" not in plan_of(TOFU).values(again)


def test_an_adapter_has_the_gradients_of_the_merged_weights(
    model: Any, tokenizer: Any, sets: dict[str, tuple[Question, ...]]
) -> None:
    torch.manual_seed(0)  # some adapters change the norms by less than the last line wants
    adapted = add_lora(copy.deepcopy(model), LoRA(rank=2, alpha=4)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    found: Any = evaluator_of(sets, tokenizer)(adapted).sets["forget"].grad_norm
    assert sum(p.requires_grad for p in adapted.parameters()) == sum(
        "lora_" in name for name, _ in adapted.named_parameters()
    )
    merged = adapted.merge_and_unload().requires_grad_(True)
    np.testing.assert_allclose(found, plain(merged, tokenizer, sets["forget"]), rtol=1e-4)
    assert not np.allclose(found, plain(model, tokenizer, sets["forget"]), rtol=1e-2)


def test_a_shift_of_prompts_and_the_precision_take_part(
    model: Any, tokenizer: Any, sets: dict[str, tuple[Question, ...]]
) -> None:
    own = {name: sets[name] for name in ("forget", "holdout")}
    exact: Any = evaluator_of(own, tokenizer)(model.eval()).sets["forget"].grad_norm
    mixed: Any = evaluator_of(own, tokenizer, "bf16")(model).sets["forget"].grad_norm
    np.testing.assert_allclose(mixed, exact, rtol=0.05)
    assert not np.array_equal(mixed, exact)
    width = model.get_input_embeddings().weight.shape[1]

    def shift(prompts: Any) -> list[torch.Tensor | None]:
        return [torch.full((len(prompt), width), 0.5) for prompt in prompts]

    moved: Any = evaluator_of(own, tokenizer)(ShiftedModel(model, shift)).sets["forget"].grad_norm
    assert not np.allclose(moved, exact, rtol=1e-2)


def test_an_answer_without_a_token_has_none(
    model: Any, tokenizer: Any, sets: dict[str, tuple[Question, ...]]
) -> None:
    empty = replace(sets["forget"][0], answer="")
    own = {"forget": (empty, *sets["forget"][:1]), "holdout": sets["holdout"]}
    bare = evaluator_of(own, tokenizer, template="llama-2")  # no space in front of an answer
    found: Any = bare(model.eval()).sets["forget"].grad_norm
    assert np.isnan(found).tolist() == [True, False]
