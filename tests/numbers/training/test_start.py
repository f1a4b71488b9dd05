"""The first step, in which the trained model still is the start model that a loss compares it with.

Stored predictions of the start model differ from the model's own by rounding, since they were
computed in other batches. Here that rounding is made: stored values are changed by a relative 1e-6.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.modifier import Gradients, Memory, Modifier, Role, RunStep, WeightEdit
from unlearnbench.config.schema import LoRA, RetainSpec
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.models.dropout import ModelDropout
from unlearnbench.training.objective import Objective
from unlearnbench.training.reference_model import ReferenceRows
from unlearnbench.training.trainer import Trainer

from ...factories.trainers import Extras, trainer_of, training_rows

VANISHING: dict[str, tuple[dict[str, Any], Role]] = {
    "kl-minimization": ({}, "retain"),
    "gradient-ascent+kl": ({}, "retain"),
    "npo+kl": ({}, "retain"),
    "task-vector+kl": ({}, "retain"),
    "rmu": ({"layer": 1}, "retain"),
    "lunar": ({"layer": 1}, "retain"),
    "elm": ({}, "retain"),
    "jensun": ({}, "retain"),
    "circuit-breakers": ({"layers": "1,2"}, "retain"),
}
"""Method, its settings, and the role whose loss has its minimum at the start model."""


def rounded(tensor: Tensor) -> Tensor:
    """The values as another batch would round them."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return tensor * (1 + 1e-6 * noise).to(tensor.dtype)


def in_other_batches(reference: Any) -> Any:
    if not isinstance(reference, ReferenceRows):
        return reference
    return replace(
        reference,
        hidden=None if reference.hidden is None else rounded(reference.hidden),
        states={layer: rounded(state) for layer, state in reference.states.items()},
    )


class RoundedReference:
    """The start model that runs in every step, with values as another batch would round them."""

    def __init__(self, reference: Any) -> None:
        self.reference = reference

    def batch(self, *rows: Any) -> Reference:
        made: Reference = self.reference.batch(*rows)
        return replace(made, token_logprob=rounded(made.token_logprob))


@pytest.fixture
def make(model: Any, tokenizer: Any, questions: Sequence[Question], tmp_path: Path) -> Any:
    def started(
        name: str,
        *modifiers: str | Modifier,
        knows: bool = True,
        lora: bool = False,
        settings: dict[str, Any] | None = None,
        **how: Any,
    ) -> Trainer:
        name, _, added = name.partition("+")
        method = registry.load("methods", name)(**(settings or {}))
        term: Any = added or None
        objective = Objective(method, RetainSpec(term=term) if term else None)
        kinds = [registry.load("modifiers", m)() if isinstance(m, str) else m for m in modifiers]
        extras = Extras(kinds, LoRA(rank=2) if lora else None, in_other_batches, knows)
        rows = training_rows(tokenizer, questions)
        return trainer_of(model, tokenizer, rows, objective, tmp_path, extras, **how)

    return started


class Roles(registry.load("modifiers", "sago")):  # type: ignore[misc]
    """Has the gradients of both roles, whatever becomes of them."""


class Scaled(WeightEdit):
    """Shrinks all weights after each step."""

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:  # noqa: ARG002
        weights.scale_(0.9)


def gradient(trainer: Trainer, role: Role, offset: Gradients | None = None) -> Tensor:
    """The gradient of a role in the trainer's next step."""
    assert trainer.modifiers is not None
    draws = trainer.rows.items(trainer.objective.needs, 5, 1)[:4]
    at = trainer.modifiers.evaluation(trainer.passes, trainer.step_rows(draws, by_role=True))
    found = at({role}, offset)[role]
    return torch.cat([tensor.flatten() for tensor in found.tensors.values()])


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.parameters]).clone()


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("name", VANISHING)
def test_a_loss_at_its_minimum_has_no_gradient_of_rounding(
    name: str, lora: bool, make: Any
) -> None:
    settings, role = VANISHING[name]
    noise = gradient(make(name, Roles(), settings=settings, lora=lora, knows=False), role)
    exact = gradient(make(name, Roles(), settings=settings, lora=lora), role)
    # At the start the weight of circuit breakers' retain term is 0, too.
    assert bool(noise.norm()) is (name != "circuit-breakers")
    assert exact.norm() == 0


def test_a_divergence_of_samples_has_no_gradient_of_rounding(make: Any) -> None:
    """Also if all samples are worth the same, so that the divergence is all that is left."""
    settings = {"samples": 2, "max_new_tokens": 4, "beta": 0.1}

    def half(_answer: str, _truth: str) -> float:
        return 0.5

    def built(*, knows: bool) -> Trainer:
        trainer: Trainer = make("grpo", settings=settings, knows=knows)
        assert trainer.sampler is not None
        trainer.sampler = replace(trainer.sampler, reward=half)
        references = trainer.batches.references
        other: Any = {part: RoundedReference(one) for part, one in references.items()}
        trainer.batches.references = other
        return trainer

    assert next(built(knows=False).epoch(1)).grad_norm > 0
    trainer = built(knows=True)
    before = weights(trainer)
    step = next(trainer.epoch(1))
    assert step.terms["kl"] == 0
    assert step.grad_norm == 0
    assert torch.equal(weights(trainer), before)


@pytest.mark.parametrize("name", ["sago", "ngdiff", "pcgrad", "gru", "bilevel", "dual"])
def test_the_first_step_of_a_modifier_is_that_of_the_forget_loss(name: str, make: Any) -> None:
    """With a gradient of retain rows that is exactly 0, each of these rules gives the other."""
    trainer, plain = make("gradient-ascent+kl", name), make("gradient-ascent")
    start = weights(plain)
    for one in (trainer, plain):
        next(one.epoch(1))
    moved, expected = weights(trainer) - start, weights(plain) - start
    # Adam's step does not depend on the gradient's length, but for its ε.
    torch.testing.assert_close(moved, expected, rtol=2e-3, atol=2e-6)
    by_rounding = make("gradient-ascent+kl", name, knows=False)
    next(by_rounding.epoch(1))
    if name in ("sago", "ngdiff", "dual"):
        assert (weights(by_rounding) - start - expected).norm() > 0.1 * expected.norm()


def test_wagle_does_not_choose_weights_by_rounding(make: Any) -> None:
    """μ divides the retain gradient by 1e-6: with 0 there, θ · f decides alone."""
    keep = registry.load("modifiers", "wagle")(keep=0.5)
    trainer = make("gradient-ascent+kl", keep)
    trainer.begin(trainer.modifiers)
    draws = trainer.rows.items(trainer.objective.needs, 5, 1)
    at = trainer.modifiers.evaluation(trainer.passes, trainer.step_rows(draws, by_role=True))
    forget = at({"forget"})["forget"]
    score = torch.cat([t.flatten() for t in forget.tensors.values()]) * weights(trainer)
    selection = trainer.modifiers.all[0][1]["selection"].tensors.values()
    chosen = torch.cat([t.flatten() for t in selection]).bool()
    assert score[chosen].abs().min() >= score[~chosen].abs().max()


class TestOnlyAtTheStart:
    """The stored predictions count as soon as the models can differ."""

    def test_not_after_a_step(self, make: Any) -> None:
        trainer = make("kl-minimization", Roles())
        next(trainer.epoch(1))
        assert gradient(trainer, "retain").norm() > 0

    def test_still_after_a_step_of_rate_0(self, make: Any) -> None:
        trainer = make("kl-minimization", Roles(), schedule="tofu", batch_size=2)
        steps = trainer.epoch(1)
        start = weights(trainer)
        next(steps)
        assert torch.equal(weights(trainer), start)
        assert gradient(trainer, "retain").norm() == 0
        next(steps)
        assert gradient(trainer, "retain").norm() > 0

    def test_not_if_a_modifier_changes_weights_after_a_step_of_rate_0(
        self, make: Any, tmp_path: Path
    ) -> None:
        """Nor if the training is resumed behind that step. A mean of iterates changes none."""

        def built(modifier: str | Modifier) -> Trainer:
            trainer: Trainer = make(
                "kl-minimization", Roles(), modifier, schedule="tofu", batch_size=2
            )
            return trainer

        trainer = built(Scaled())
        next(trainer.epoch(1))
        assert gradient(trainer, "retain").norm() > 1e-3
        trainer.save(tmp_path / "step-1.safetensors")
        resumed = built(Scaled())
        resumed.load(tmp_path / "step-1.safetensors")
        assert torch.equal(gradient(resumed, "retain"), gradient(trainer, "retain"))
        averaged = built("average")
        next(averaged.epoch(1))
        assert gradient(averaged, "retain").norm() == 0

    def test_not_at_an_offset(self, make: Any) -> None:
        trainer = make("kl-minimization", Roles())
        offset = trainer.passes.model.weights.copy().scale_(0.1)
        assert gradient(trainer, "retain", offset).norm() > 0
        assert gradient(trainer, "retain").norm() == 0

    def test_not_if_weights_are_changed_before(self, make: Any) -> None:
        trainer = make("kl-minimization", Roles(), "shrink")
        trainer.begin(trainer.modifiers)
        assert gradient(trainer, "retain").norm() > 1e-3

    def test_not_with_the_dropout_of_the_model(self, make: Any) -> None:
        def built(**how: Any) -> Trainer:
            trainer: Trainer = make("kl-minimization", Roles(), **how)
            return trainer

        assert built()._is_at_start()  # pyright: ignore[reportPrivateUsage]

        def always(_: ModelDropout) -> bool:
            return True

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelDropout, "__bool__", always)
            assert not built()._is_at_start()  # pyright: ignore[reportPrivateUsage]
            assert built(removes_dropout=True)._is_at_start()  # pyright: ignore[reportPrivateUsage]


class TestCircuitBreakers:
    """Their cosine is at its maximum in the start, where no gradient leads away."""

    def test_states_begin_to_turn_in_a_direction_of_the_seed(self, make: Any) -> None:
        settings = {"layers": "2"}
        found = [
            gradient(make("circuit-breakers", Roles(), settings=settings | seed), "forget")
            for seed in ({}, {}, {"direction_seed": 1})
        ]
        assert torch.equal(found[0], found[1])
        cosine = found[0] @ found[2] / found[0].norm() / found[2].norm()
        assert cosine.abs() < 0.9
        by_rounding = make("circuit-breakers", Roles(), settings=settings, knows=False)
        assert found[0].norm() > 100 * gradient(by_rounding, "forget").norm()

    def test_the_first_gradient_is_that_of_the_equation(self, make: Any) -> None:
        """∂/∂h of α mean cos(h + 0.01 ‖h‖ u, h) over the tokens, by torch."""
        trainer = make("circuit-breakers", Roles(), settings={"layers": "2", "weight": 10.0})
        found = gradient(trainer, "forget")
        draws = trainer.rows.items(trainer.objective.needs, 5, 1)[:4]
        rows = trainer.rows.of("forget", draws, trainer.objective.needs)
        generator = torch.Generator().manual_seed(0)
        model = copy.deepcopy(trainer.model)
        u = torch.randn(model.config.hidden_size, generator=generator, dtype=torch.float64)
        u = (u / u.norm()).float()
        tokens = sum(row.scored for row in rows)
        loss = torch.zeros(())
        for row in rows:
            output = model(input_ids=torch.tensor([row.ids]), output_hidden_states=True)
            h = output.hidden_states[2][0, row.start - 1 : -1]
            start = h.detach()
            moved = h + 0.01 * start.norm(dim=1, keepdim=True) * u
            loss = loss + 10 * torch.cosine_similarity(moved, start, dim=1).sum() / tokens
        loss.backward()
        by_name = dict(model.named_parameters())
        expected = torch.cat([by_name[name].grad.flatten() for name in trainer.trained()])
        assert (found - expected).norm() < 1e-3 * expected.norm()

    def test_a_training_leaves_the_start(self, make: Any) -> None:
        trainer = make("circuit-breakers", settings={"layers": "2"})
        losses = [step.terms["forget"] for epoch in (1, 2, 3) for step in trainer.epoch(epoch)]
        assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("lowered", [0.0, 10.0])
@pytest.mark.parametrize("divergence", ["kl", "reverse", "jsd"])
def test_a_divergence_from_itself(divergence: str, lowered: float) -> None:
    """Exactly 0 with the gradient 0, and where a logit is lowered that of plain torch."""
    torch.manual_seed(0)
    hidden = torch.randn(7, 16, requires_grad=True)
    projection = Projection(torch.randn(50, 16), torch.randn(50))
    labels, rows = torch.randint(50, (7,)), torch.arange(7)
    own = Predictions(hidden, projection, labels, rows, 7, 7, 7)
    reference = Reference(torch.zeros(7), rows, 7, hidden.detach(), projection.detach())
    if divergence == "jsd":
        value = own.jsd_from(reference)
    else:
        value = own.kl_from(reference, reverse=divergence == "reverse", lowered=lowered)
    value.sum().backward()
    if divergence == "jsd" or not lowered:
        assert (value == 0).all()
        assert (hidden.grad == 0).all()  # type: ignore[union-attr]
        return
    gradient, hidden.grad = hidden.grad, None
    z = projection(hidden)
    shift = torch.nn.functional.one_hot(labels, 50) * lowered
    log_p, log_t = z.log_softmax(1), (z.detach() - shift).log_softmax(1)
    base, gap = (log_p, log_p - log_t) if divergence == "reverse" else (log_t, log_t - log_p)
    expected = (base.exp() * gap).sum(1)
    expected.sum().backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, hidden.grad)


def test_logits_that_are_not_finite_are_noticed() -> None:
    hidden = torch.full((2, 4), float("nan"))
    projection = Projection(torch.ones(5, 4))
    rows = torch.arange(2)
    own = Predictions(hidden, projection, torch.zeros(2, dtype=torch.long), rows, 2, 2, 2)
    reference = Reference(torch.zeros(2), rows, 2, hidden, projection)
    assert own.kl_from(reference).isnan().all()
    assert own.jsd_from(reference).isnan().all()


def test_a_changed_reference_is_not_the_model_itself() -> None:
    """As ELM's, which moves the start model's states."""
    hidden = torch.randn(3, 4)
    projection = Projection(torch.randn(5, 4))
    rows = torch.arange(3)
    own = Predictions(hidden, projection, torch.zeros(3, dtype=torch.long), rows, 3, 3, 3)
    reference = Reference(torch.zeros(3), rows, 3, hidden, projection)
    for other in (
        replace(reference, hidden=hidden + 1),
        replace(reference, projection=Projection(torch.randn(5, 4))),
    ):
        assert (own.kl_from(other) > 0).all()
