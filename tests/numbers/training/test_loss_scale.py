"""Training in float16 against float32, with overflows that are provoked by a large scale."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import LossBatch
from unlearnbench.base.errors import TrainingError
from unlearnbench.config.schema import LoRA
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.lora import add_lora
from unlearnbench.training.loss_scale import LossScale
from unlearnbench.training.objective import Objective
from unlearnbench.training.trainer import FineTuning, NonFiniteError, Trainer

from ...factories.trainers import (
    assert_resumes,
    losses,
    objective_of,
    trainer_of,
    training_rows,
    weights,
)

TOO_LARGE = 2.0**40
"""A scale with which gradients of the tests' losses overflow."""

Make = Callable[..., Trainer]


@pytest.fixture
def make(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> Callable[..., Trainer]:
    """A trainer in float16 of a method, whose first scale can be set."""
    rows = training_rows(tokenizer, questions)

    def made(objective: Objective, scale: float | None = None, **how: Any) -> Trainer:
        settings = {"precision": "fp16"} | how
        trainer = trainer_of(model, tokenizer, rows, objective, tmp_path, **settings)
        if scale is not None:
            assert trainer.passes.scale is not None
            trainer.passes.scale.value = scale
        return trainer

    return made


def scale_of(trainer: Trainer) -> LossScale:
    assert trainer.passes.scale is not None
    return trainer.passes.scale


def test_the_scale_moves_as_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "INTERVAL", 3)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.0)
    theirs = torch.amp.GradScaler("cpu", growth_interval=3)
    ours = LossScale()
    assert ours.value == theirs.get_scale()
    generator = torch.Generator().manual_seed(0)
    for draw in torch.rand(60, generator=generator).tolist():
        overflows = draw < 0.2
        theirs.scale(weight.sum() * (math.inf if overflows else 1.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        if overflows:
            assert ours.lower()
        else:
            ours.step_taken()
        assert ours.value == theirs.get_scale()


@pytest.mark.parametrize("name", ["gradient-difference", "npo", "kl-minimization", "rmu", "ce-u"])
def test_a_run_in_float16_is_near_one_in_float32(name: str, make: Make) -> None:
    exact = make(objective_of(name), precision="fp32", learning_rate=1e-4)
    half = make(objective_of(name), learning_rate=1e-4)
    wanted = [step for epoch in (1, 2) for step in exact.epoch(epoch)]
    got = [step for epoch in (1, 2) for step in half.epoch(epoch)]
    for one, other in zip(wanted, got, strict=True):
        assert other.loss == pytest.approx(one.loss, rel=2e-3, abs=1e-3)
    assert got[0].grad_norm == pytest.approx(wanted[0].grad_norm, rel=5e-3)
    assert "loss_scale" not in wanted[-1].reported
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["gradient-difference", "npo", "grpo"])
def test_an_overflow_repeats_the_pass_and_changes_no_number(name: str, make: Make) -> None:
    """A power of two changes no digit: the run is that which began with the smaller scale."""
    overflowed = make(objective_of(name), TOO_LARGE)
    found = losses(overflowed, 2)
    scale = scale_of(overflowed)
    assert scale.overflows > 0
    assert scale.value == TOO_LARGE / 2**scale.overflows
    begun = make(objective_of(name), scale.value)
    assert losses(begun, 2) == found
    assert scale_of(begun).overflows == 0
    assert torch.equal(weights(begun), weights(overflowed))


def test_overflows_are_counted_in_the_steps_of_a_run(make: Make) -> None:
    for step in make(objective_of("gradient-difference"), TOO_LARGE).epoch(1):
        assert step.reported["overflows"] > 0
        assert step.reported["loss_scale"] == TOO_LARGE / 2 ** step.reported["overflows"]
        assert math.isfinite(step.grad_norm)


@pytest.mark.parametrize("scale", [None, TOO_LARGE])
def test_a_run_in_float16_resumes_with_its_scale(
    scale: float | None, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LossScale, "INTERVAL", 5)  # it grows in the middle of the second epoch
    made: list[Trainer] = []

    def next_trainer() -> Trainer:
        made.append(make(objective_of("npo"), scale))
        return made[-1]

    assert_resumes(next_trainer, tmp_path)
    through, _, second = (scale_of(trainer) for trainer in made)
    assert second == through
    assert through.value != (scale or 2.0**16), "it has not moved"


class Root(FineTuning):
    """A finite loss with an infinite gradient: the root of 0."""

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        value = batch.retain.cross_entropy().sum()
        return (value - value).sqrt() + value


def test_a_gradient_that_no_scale_makes_finite_ends_the_run(make: Make) -> None:
    trainer = make(Objective(Root()))
    before = weights(trainer)
    with pytest.raises(NonFiniteError) as caught:
        next(trainer.epoch(1))
    assert "gradient at step 1 (epoch 1)" in str(caught.value)
    assert "float16 has no numbers above 65,504" in str(caught.value)
    assert scale_of(trainer).value == LossScale.LEAST
    assert scale_of(trainer).overflows == 17, "from 2^16 to 1, and once there"
    assert torch.equal(weights(trainer), before)


def test_a_loss_that_is_infinite_itself_is_not_tried_again(make: Make) -> None:
    class Infinite(FineTuning):
        """An infinite loss."""

        def loss(self, batch: LossBatch) -> Tensor:
            """Scalar."""
            return batch.retain.cross_entropy().sum() * math.inf

    trainer = make(Objective(Infinite()))
    with pytest.raises(NonFiniteError, match="infinite loss at step 1"):
        next(trainer.epoch(1))
    assert scale_of(trainer).overflows == 0


def test_a_confident_token_keeps_its_gradient() -> None:
    """∂/∂z of a token of p = 1 − 1e-7 is below what float16 resolves, until it is scaled."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    labels = torch.arange(8)
    hidden = weight[labels] * 0.8
    gradients: list[Tensor] = []
    for half in (False, True):
        states, output = hidden.clone().requires_grad_(True), weight.clone().requires_grad_(True)
        with torch.autocast("cpu", torch.float16, enabled=half):
            rows = torch.zeros(8, dtype=torch.long)
            predictions = Predictions(states, Projection(output), labels, rows, 1, 8, 1)
            loss = predictions.mean_tokens(predictions.cross_entropy())
        factor = 2.0**16 if half else 1.0
        (loss * factor).backward()
        assert states.grad is not None
        assert output.grad is not None
        gradients.append(torch.cat([states.grad.flatten(), output.grad.flatten()]) / factor)
    exact, found = gradients
    assert 0 < exact.abs().max() < 1e-7
    assert float((exact - found).norm() / exact.norm()) < 0.02


def test_weights_of_float16_are_trained_only_below_adapters(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, questions)

    def made(precision: str, model: Any) -> Trainer:
        objective = Objective(FineTuning())
        return trainer_of(model, tokenizer, rows, objective, tmp_path, precision=precision)

    half = model.to(torch.float16)
    for precision in ("fp32", "bf16", "fp16"):
        with pytest.raises(TrainingError, match="weights of float16 cannot be trained"):
            made(precision, half)
    adapted = add_lora(half, LoRA(rank=4))
    with pytest.raises(TrainingError, match="adapters"):
        made("fp32", adapted)
    trainer = made("fp16", adapted)
    trained = {p.dtype for p in trainer.model.parameters() if p.requires_grad}
    assert trained == {torch.float32}


def test_adapters_on_float16_weights_are_near_those_on_float32(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows = TrainingRows(retain=training_rows(tokenizer, questions).retain)
    model = model.half().float()  # the same weights in both
    found: list[list[float]] = []
    for dtype, precision in ((torch.float32, "fp32"), (torch.float16, "fp16")):
        torch.manual_seed(0)
        adapted = add_lora(copy.deepcopy(model).to(dtype), LoRA(rank=4))
        trainer = trainer_of(
            adapted, tokenizer, rows, Objective(FineTuning()), tmp_path,
            precision=precision, learning_rate=2e-2,
        )  # fmt: skip
        found.append(losses(trainer, 3))
    assert found[1] == pytest.approx(found[0], abs=2e-2)
    assert found[0][0] - found[0][-1] > 0.5, "it has learned"


def test_a_modifier_sees_gradients_without_the_scale(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("gradient-difference")
    found: list[list[float]] = []
    for precision, scale in (("fp32", None), ("fp16", None), ("fp16", TOO_LARGE)):
        plain = trainer_of(model, tokenizer, rows, objective, tmp_path, precision=precision)
        sharpness = registry.load("modifiers", "sam")(rho=0.05)
        trainer = Trainer(
            plain.model, objective, rows, plain.settings, 0, plain.batches.references,
            modifiers=[sharpness],
        )  # fmt: skip
        if scale is not None:
            scale_of(trainer).value = scale
        steps = [*trainer.epoch(1)]
        found.append([step.grad_norm for step in steps])
    assert found[1] == pytest.approx(found[0], rel=0.02)
    assert found[2] == pytest.approx(found[1], rel=1e-3)
