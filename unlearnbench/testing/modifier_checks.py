"""The checks of a modifier: a short training of a tiny model, with it and without it.

The loss is gradient difference, whose two gradients conflict where a model knows both sets.
"""

import tempfile
from collections.abc import Mapping, Sequence
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
"""Relative distance of weights up to which a difference is rounding. Training in float64 rounds far
below it."""


class _PassError(Exception):
    """Raised by a backward pass that is to fail."""


class Plain(Perturb):
    """A modifier that changes nothing. Training takes the same path as with others."""

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Return the gradients at the weights as they are."""
        return at({"forget", "retain"})


class TriedModifier:
    """A modifier with a lab to train in."""

    def __init__(self, modifier: Modifier, _: str) -> None:
        # A modifier names settings that show an effect in a short training. Those that the user has
        # set come first.
        settings = modifier.model_dump()
        for name, value in modifier.tried.items():
            if name not in modifier.model_fields_set:
                settings[name] = value
        self.modifier = type(modifier).model_validate(settings)
        self.lab = TinyLab(registry.load("methods", "gradient-difference")())

    def trainer(
        self, modifier: Modifier | None = None, *, lora: bool = False, **changes: Any
    ) -> Trainer:
        """Prepare a training of two epochs.

        Args:
            modifier: In place of the one that is tried.
            lora: Whether adapters are trained.
            changes: Settings of the trainer.
        """
        settings: dict[str, Any] = {"weight_decay": 0.1, "learning_rate": 1e-2, "batch_size": 3}
        settings |= changes
        model: Any = self.lab.model.copied()
        return Trainer(
            add_lora(model, LoRA(rank=2)) if lora else model,
            self.lab.objective,
            self.lab.rows,
            TrainerSettings(epochs=2, seed=SEED, **settings),
            PAD,
            self.lab.references,
            None,
            ((modifier or self.modifier).model_copy(deep=True),),
        )

    @cached_property
    def whole(self) -> Tensor:
        """The evaluated weights after an undisturbed training."""
        return train(self.trainer())

    @cached_property
    def plain(self) -> Tensor:
        """The evaluated weights after a training without the modifier."""
        return train(self.trainer(Plain()))


def weights_of(model: Any) -> Tensor:
    """Return all weights as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def train(trainer: Trainer, epochs: Sequence[int] = (1, 2)) -> Tensor:
    """Train for epochs, and return the weights that would be evaluated."""
    for epoch in epochs:
        for _ in trainer.epoch(epoch):
            pass
    with trainer.evaluation_model() as model:
        return weights_of(model)


def relative_distance(first: Tensor, second: Tensor) -> float:
    """Return the distance of two vectors of weights, relative to the length of the second one."""
    return float((first - second).norm() / second.norm())


@modifier_check(first=True)
def effect(tried: TriedModifier) -> Outcome:
    """A training with it ends in other weights than one without it.

    Released code of GP, CR and AGT adds a penalty without a gradient, and SURE's mask stands in a
    hook that nothing calls: the numbers are those of the loss alone, under another name.

    Return what is computed: gradients, a selection, an optimiser, or other weights to evaluate.
    """
    distance = relative_distance(tried.whole, tried.plain)
    # Negated, so that NaN is a fault.
    if not distance > _NEAR:
        return fault("the weights after two epochs are those of a training without it")
    return passed(f"weights {distance:.2g} of their norm apart")


@modifier_check(first=True)
def repeatable(tried: TriedModifier) -> Outcome:
    """The same training again ends in the same weights, bit for bit.

    Random numbers of the global generator, or values kept in the modifier, give each process of a
    sweep its own numbers.

    `at.noise(draw)` for random numbers; `memory` for what passes from step to step.
    """
    if not torch.equal(train(tried.trainer()), tried.whole):
        return fault("the second training ends in other weights")
    return passed("bit for bit")


@modifier_check()
def neutral(tried: TriedModifier) -> Outcome:
    """With the settings that it declares to change nothing, it changes nothing.

    A wrong divisor or a doubled gradient shows where the rest of a rule is switched off; released
    code of CR and SURE doubles the gradient of what is forgotten.

    `neutral = {"rho": 0.0}`: a class attribute with such settings, where there are any.
    """
    neutral_settings: Mapping[str, Any] | None = tried.modifier.neutral
    if neutral_settings is None:
        return not_applicable("it declares no `neutral` settings")
    settings = {**tried.modifier.model_dump(), **neutral_settings}
    neutral_modifier = type(tried.modifier).model_validate(settings)
    distance = relative_distance(train(tried.trainer(neutral_modifier)), tried.plain)
    if distance > _NEAR:
        return fault(f"with {neutral_settings} the weights are {distance:.2g} of their norm apart")
    return passed(f"with {neutral_settings} as without it")


@modifier_check()
def resumed(tried: TriedModifier) -> Outcome:
    """A training that is stopped and goes on in another process ends in the same weights.

    A running mean that is not in the checkpoint restarts from zero, without an error.

    Keep tensors in what `memory` returns, and change them in place.
    """
    stopped = tried.trainer()
    resumed_trainer = tried.trainer()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint"
        train(stopped, [1])
        stopped.save(checkpoint)
        resumed_trainer.load(checkpoint)
    if not torch.equal(train(resumed_trainer, [2]), tried.whole):
        return fault("the resumed training ends in other weights")
    return passed("bit for bit")


@modifier_check()
def restored(tried: TriedModifier) -> Outcome:
    """Where a pass fails, the weights are what they were before the step, bit for bit.

    Offsets that are added and subtracted again leave the weights elsewhere: half of them, in bf16.

    `at(roles, offset)` in place of a change of `at.weights`.
    """
    trainer = tried.trainer()
    # The first step also does what comes before it, such as a selection of weights.
    next(trainer.epoch(1))
    before = weights_of(trainer.model)
    backward = StepPasses.backward
    passes_done = 0
    failing_pass = 0

    def counted_backward(self: StepPasses, *arguments: Any, **options: Any) -> Any:
        nonlocal passes_done
        values = backward(self, *arguments, **options)
        passes_done += 1
        if passes_done == failing_pass:
            raise _PassError
        return values

    with patch.object(StepPasses, "backward", counted_backward):
        # Each pass of a step fails once, until a step has fewer passes than that.
        while passes_done >= failing_pass:
            failing_pass += 1
            passes_done = 0
            try:
                next(trainer.epoch(1))
            except (_PassError, PluginError):
                if not torch.equal(weights_of(trainer.model), before):
                    return fault(f"other weights after a failure in pass {failing_pass} of a step")
    return passed(f"bit for bit, after each of {failing_pass - 1} passes")


@modifier_check()
def frozen(tried: TriedModifier) -> Outcome:
    """A selection leaves out some weights, which keep their bits under weight decay.

    Released masks of SalUn and WAGLE stop gradients alone, and weight decay moves what they call
    frozen; a threshold above or below all scores is no mask.

    Return 1 and 0 from `select`, and leave the rest to the harness.
    """
    if not isinstance(tried.modifier, Filter):
        return not_applicable("it is no filter")
    fraction = 0.0
    for optimizer in ("adamw", "muon"):
        trainer = tried.trainer(optimizer=optimizer)
        before = weights_of(trainer.model)
        after = train(trainer)
        selection = trainer.modifiers and trainer.modifiers.all[0][1].get("selection")
        if not selection:
            return not_applicable("it selects no weights")
        # A selection has 1 for weights that are trained, and 0 for those that are left out.
        is_left_out = torch.cat([tensor.flatten() == 0 for tensor in selection.tensors.values()])
        fraction = float(is_left_out.double().mean())
        if fraction == 0:
            return fault("it leaves out no weight")
        if fraction == 1:
            return fault("it leaves out all weights")
        if not torch.equal(after[is_left_out], before[is_left_out]):
            return fault(f"{optimizer} moves weights that are left out")
    return passed(f"{fraction:.0%} of the weights stay")


@modifier_check()
def adapters(tried: TriedModifier) -> Outcome:
    """It trains adapters, and leaves the weights below them as they are.

    Masks and offsets of base weights do nothing to adapters (MMUnlearner #8).

    Read the weights' names from the gradients that are passed.
    """
    trainer = tried.trainer(lora=True)
    base_weights = {
        name: weight.detach().clone()
        for name, weight in trainer.model.named_parameters()
        if not weight.requires_grad
    }
    adapter_weights = [weight.detach().clone() for weight in trainer.parameters]
    for _ in trainer.epoch(1):
        pass
    for name, weight in trainer.model.named_parameters():
        if name in base_weights and not torch.equal(weight, base_weights[name]):
            return fault(f"it changes {name}, which is no adapter's")
    if all(map(torch.equal, adapter_weights, trainer.parameters)):
        return fault("no weight of an adapter moves")
    return passed("only they move")
