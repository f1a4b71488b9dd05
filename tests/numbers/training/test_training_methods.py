"""Needs of methods in the training loop: state, statistics, trained and evaluated weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api.benchmark import Question
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import TEMPLATES

from ...factories.marks import some_in_make_test
from ...factories.trainers import (
    TRAINED_METHODS,
    assert_resumes,
    losses,
    objective_of,
    trainer_of,
    training_rows,
    weights,
)


def copies(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", some_in_make_test(TRAINED_METHODS, 3))
def test_every_method_resumes_where_it_stopped(
    name: str, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of(name)
    assert_resumes(lambda: trainer_of(model, tokenizer, rows, objective, tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("name", "hyperparameters"),
    [
        *some_in_make_test([(name, {}) for name in TRAINED_METHODS], 3),
        ("kto", {"clamp": False, "beta": 1.0}),
        ("pdu", {"warmup_epochs": 0, "dual_start": 1.0, "dual_rate": 0.5}),
        ("rmu", {"layer": 1, "trained": "all"}),
        ("flat", {"divergence": "jeffreys"}),
        ("tnpo", {"alpha": 1.5}),
    ],
)
def test_accumulation_changes_nothing(
    name: str,
    hyperparameters: dict[str, Any],
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of(name, **hyperparameters)
    model = model.double()
    whole = trainer_of(model, tokenizer, rows, objective, tmp_path)
    parts = trainer_of(model, tokenizer, rows, objective, tmp_path, micro_batch_size=1)
    assert losses(whole, 2) == pytest.approx(losses(parts, 2), rel=1e-9)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-7, atol=1e-9)
    assert dict(whole.state) == pytest.approx(dict(parts.state), rel=1e-9)


def test_the_dual_variable_follows_the_retain_loss_after_the_warm_up(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    objective = objective_of("pdu", dual_start=2.0, dual_rate=0.5, warmup_epochs=1)
    trainer = trainer_of(model, tokenizer, training_rows(tokenizer, questions), objective, tmp_path)
    for _ in trainer.epoch(1):
        assert trainer.state == {"dual": 2.0}
    dual = 2.0
    for step in trainer.epoch(2):
        violation = step.terms["retain"] / dual  # the step was taken with the dual before it
        dual = max(0.0, dual + 0.5 * violation)
        assert trainer.state["dual"] == pytest.approx(dual, rel=1e-6)
    assert dual != 2.0


def test_rmu_moves_the_down_projections_of_its_layers_alone(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, before = training_rows(tokenizer, questions), copies(model)
    for layer, moved in ((1, {0}), (2, {0, 1})):
        trainer = trainer_of(model, tokenizer, rows, objective_of("rmu", layer=layer), tmp_path)
        losses(trainer, 1)
        after = copies(trainer.model)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == {f"model.layers.{i}.mlp.down_proj.weight" for i in moved}


def test_a_task_vector_is_evaluated_on_the_other_side_of_the_start(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, start = training_rows(tokenizer, questions), copies(model)
    trainer = trainer_of(model, tokenizer, rows, objective_of("task-vector", alpha=2.5), tmp_path)
    learned = losses(trainer, 3)
    assert learned[-1] < learned[0], "its training is fine-tuning"
    trained = copies(trainer.model)
    with trainer.evaluation_model() as evaluated:
        for name, weight in evaluated.named_parameters():
            negated = start[name] - 2.5 * (trained[name] - start[name])
            torch.testing.assert_close(weight, negated)
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, trained[name]), "training goes on from what was trained"


def test_the_direction_is_between_the_ends_of_prompts(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """As transformers gives the states, prompt by prompt without an answer."""
    objective = objective_of("lunar", layer=1, questions="Who? | What is it?")
    rows = training_rows(tokenizer, questions)
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    texts = ["Who?", "What is it?"], [q.question for q in questions[: len(rows.forget)]]

    def end(text: str) -> Tensor:
        ids = torch.tensor([encoder.prompt(Question(text, ""))])
        with torch.no_grad():
            state: Tensor = model(ids, output_hidden_states=True).hidden_states[1][0, -1]
        return state

    there, here = (torch.stack([end(text) for text in group]).mean(0) for group in texts)
    known = trainer.batches.references["forget"].batch(rows.forget[:1], torch.device("cpu"))
    torch.testing.assert_close(known.direction(1), there - here, rtol=1e-4, atol=1e-5)
