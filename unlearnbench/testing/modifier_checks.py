"""The checks of a modifier: a short training of a tiny model, with it and without it.

The loss is gradient difference, whose two gradients conflict where a model knows both sets.
"""

import tempfile
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.modifier import ByRole, Evaluate, Filter, Memory, Modifier, Perturb, RunStep
from unlearnbench.base.errors import PluginError
from unlearnbench.config.schema import LoRA
from unlearnbench.models.lora import add_lora
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.tiny_lab import PAD, SEED, TinyLab
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.step_passes import StepPasses
from unlearnbench.training.trainer import Trainer

modifier_check = partial(check, kind="modifiers")
settings = modifier_check(alone=True)(declarations.settings)
docstring = modifier_check(alone=True)(declarations.docstring)
_NEAR = 1e-7
"""Relative; training in float64 rounds far below it."""


class _PassError(Exception):
    """A pass that fails."""


class Plain(Perturb):
    """The gradients as they are: a step of modifiers that changes nothing."""

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Those at the weights."""
        return at({"forget", "retain"})


class TriedModifier:
    """A modifier with a lab to train in."""

    def __init__(self, modifier: Modifier, _: str) -> None:
        tried = {k: v for k, v in modifier.tried.items() if k not in modifier.model_fields_set}
        self.modifier = type(modifier).model_validate({**modifier.model_dump(), **tried})
        self.lab = TinyLab(registry.load("methods", "gradient-difference")())

    def trainer(
        self, modifier: Modifier | None = None, *, lora: bool = False, **changes: Any
    ) -> Trainer:
        """A training of two epochs, with a modifier; default: the one that is tried."""
        given: dict[str, Any] = {"weight_decay": 0.1, "learning_rate": 1e-2, "batch_size": 3}
        model: Any = self.lab.model.copied()
        return Trainer(
            add_lora(model, LoRA(rank=2)) if lora else model,
            self.lab.objective,
            self.lab.rows,
            TrainerSettings(epochs=2, seed=SEED, **(given | changes)),
            PAD,
            self.lab.references,
            None,
            ((modifier or self.modifier).model_copy(deep=True),),
        )

    @cached_property
    def whole(self) -> Tensor:
        """The evaluated weights after an undisturbed training."""
        return ended(self.trainer())

    @cached_property
    def plain(self) -> Tensor:
        """The same without the modifier."""
        return ended(self.trainer(Plain()))


def weights_of(model: Any) -> Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def ended(trainer: Trainer, *epochs: int) -> Tensor:
    """The evaluated weights after `epochs`; default: both."""
    for epoch in epochs or (1, 2):
        for _ in trainer.epoch(epoch):
            pass
    with trainer.evaluation_model() as model:
        return weights_of(model)


def gap(first: Tensor, second: Tensor) -> float:
    """The distance of two models, relative to the length of one."""
    return float((first - second).norm() / second.norm())


@modifier_check(first=True)
def effect(tried: TriedModifier) -> Outcome:
    """A training with it ends in other weights than one without it.

    Released code of GP, CR and AGT adds a penalty without a gradient, and SURE's mask stands in a
    hook that nothing calls: the numbers are those of the loss alone, under another name.

    Return what is computed: gradients, a selection, an optimiser, or other weights to evaluate.
    """
    changed = gap(tried.whole, tried.plain)
    if not changed > _NEAR:
        return fault("the weights after two epochs are those of a training without it")
    return passed(f"weights {changed:.2g} of their norm apart")


@modifier_check(first=True)
def repeatable(tried: TriedModifier) -> Outcome:
    """The same training again ends in the same weights, bit for bit.

    Random numbers of the global generator, or values kept in the modifier, give each process of a
    sweep its own numbers.

    `at.noise(draw)` for random numbers; `memory` for what passes from step to step.
    """
    if not torch.equal(ended(tried.trainer()), tried.whole):
        return fault("the second training ends in other weights")
    return passed("bit for bit")


@modifier_check()
def neutral(tried: TriedModifier) -> Outcome:
    """With the settings that it declares to change nothing, it changes nothing.

    A wrong divisor or a doubled gradient shows where the rest of a rule is switched off; released
    code of CR and SURE doubles the gradient of what is forgotten.

    `neutral = {"rho": 0.0}`: a class attribute with such settings, where there are any.
    """
    nothing: Mapping[str, Any] | None = tried.modifier.neutral
    if nothing is None:
        return not_applicable("it declares no `neutral` settings")
    other = type(tried.modifier).model_validate({**tried.modifier.model_dump(), **nothing})
    if (changed := gap(ended(tried.trainer(other)), tried.plain)) > _NEAR:
        return fault(f"with {nothing} the weights are {changed:.2g} of their norm apart")
    return passed(f"with {nothing} as without it")


@modifier_check()
def resumed(tried: TriedModifier) -> Outcome:
    """A training that is stopped and goes on in another process ends in the same weights.

    A running mean that is not in the checkpoint restarts from zero, without an error.

    Keep tensors in what `memory` returns, and change them in place.
    """
    first, second = tried.trainer(), tried.trainer()
    with tempfile.TemporaryDirectory() as folder:
        ended(first, 1)
        first.save(Path(folder) / "checkpoint")
        second.load(Path(folder) / "checkpoint")
    if not torch.equal(ended(second, 2), tried.whole):
        return fault("the resumed training ends in other weights")
    return passed("bit for bit")


@modifier_check()
def restored(tried: TriedModifier) -> Outcome:
    """Where a pass fails, the weights are what they were before the step, bit for bit.

    Offsets that are added and subtracted again leave the weights elsewhere: half of them, in bf16.

    `at(roles, offset)` in place of a change of `at.weights`.
    """
    trainer, backward, left = tried.trainer(), StepPasses.backward, 0
    next(trainer.epoch(1))  # which also does what comes before the first step
    before = weights_of(trainer.model)

    def failing(self: StepPasses, *given: Any, **named: Any) -> Any:
        nonlocal left
        values, left = backward(self, *given, **named), left - 1
        if left == 0:
            raise _PassError
        return values

    passes = 0
    with patch.object(StepPasses, "backward", failing):
        while left <= 0:  # the last pass that is to fail was there
            left = passes = passes + 1
            try:
                next(trainer.epoch(1))
            except (_PassError, PluginError):
                if not torch.equal(weights_of(trainer.model), before):
                    return fault(f"other weights after a failure in pass {passes} of a step")
    return passed(f"bit for bit, after each of {passes - 1} passes")


@modifier_check()
def frozen(tried: TriedModifier) -> Outcome:
    """A selection leaves out some weights, which keep their bits under weight decay.

    Released masks of SalUn and WAGLE stop gradients alone, and weight decay moves what they call
    frozen; a threshold above or below all scores is no mask.

    Return 1 and 0 from `select`, and leave the rest to the harness.
    """
    if not isinstance(tried.modifier, Filter):
        return not_applicable("it is no filter")
    share = 0.0
    for optimizer in ("adamw", "muon"):
        trainer = tried.trainer(optimizer=optimizer)
        start = weights_of(trainer.model)
        end = ended(trainer)
        kept = trainer.modifiers and trainer.modifiers.all[0][1].get("selection")
        if not kept:
            return not_applicable("it selects no weights")
        still = torch.cat([t.flatten() == 0 for t in kept.tensors.values()])
        share = float(still.double().mean())
        if share in (0, 1):
            return fault("it leaves out no weight" if share == 0 else "it leaves out all weights")
        if not torch.equal(end[still], start[still]):
            return fault(f"{optimizer} moves weights that are left out")
    return passed(f"{share:.0%} of the weights stay")


@modifier_check()
def adapters(tried: TriedModifier) -> Outcome:
    """It trains adapters, and leaves the weights below them as they are.

    Masks and offsets of base weights do nothing to adapters (MMUnlearner #8).

    Read the weights' names from the gradients that are passed.
    """
    trainer = tried.trainer(lora=True)
    base = {
        n: p.detach().clone() for n, p in trainer.model.named_parameters() if not p.requires_grad
    }
    before = [p.detach().clone() for p in trainer.parameters]
    for _ in trainer.epoch(1):
        pass
    for name, weight in trainer.model.named_parameters():
        if name in base and not torch.equal(weight, base[name]):
            return fault(f"it changes {name}, which is no adapter's")
    if all(map(torch.equal, before, trainer.parameters)):
        return fault("no weight of an adapter moves")
    return passed("only they move")
