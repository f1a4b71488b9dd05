"""The part of a step that modifiers take: from the gradients by role to the optimiser's gradient.

A step asks its modifiers in this order. *Perturb* computes the gradients of the roles, at the
weights or at an offset. *Combine* makes one gradient of them. *Filter* changes it, or keeps it from
weights that are not selected. Then an optimiser steps, and *weight edits* may change the result.
"""

import math
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from unlearnbench.api.method import RETAIN_PARTS
from unlearnbench.api.modifier import (
    ByRole,
    Combine,
    Filter,
    Gradients,
    Modifier,
    OptimizerKind,
    Perturb,
    Role,
    RunStep,
    WeightEdit,
    inner,
)
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import PluginError
from unlearnbench.base.fsdp import as_shard, local_part, local_shard, reshard
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.training.micro_batches import StepRows
from unlearnbench.training.objective import called
from unlearnbench.training.optimizer_state import Reader
from unlearnbench.training.optimizers import PRODUCTS, seed_of
from unlearnbench.training.role_groups import ONE_ROLE, Groups, groups_by_role
from unlearnbench.training.step_passes import LossValues, StepPasses
from unlearnbench.training.trained_model import TrainedModel

T = TypeVar("T")

SEEN = 0.9
"""A run warns if the cosine of an offset with its rounded value is smaller."""
_SELECTION = "selection"
"""Key of a filter's memory under which the result of `Filter.select` is kept."""
_PREFIX = "modifier."
"""Prefix of the names of modifiers' tensors in a checkpoint."""


@dataclass(eq=False)
class StepEvaluation:
    """Gradients of the loss over the rows of a step: implements `api.modifier.Evaluate`."""

    passes: StepPasses
    rows: StepRows
    groups: Groups
    refuses_joint: bool = False
    """Whether the gradient of forget rows is refused if a term joins them with retain rows."""
    values: dict[Role, LossValues] = field(init=False, default_factory=dict)
    """Loss by role, at the weights themselves."""
    reached: set[str] = field(init=False, default_factory=set[str])
    """Names of the weights that a backward pass has given a gradient."""
    measured: dict[str, float] = field(init=False, default_factory=dict[str, float])
    """Numbers about gradients and offsets, which are reported with the step."""

    @property
    def weights(self) -> Gradients:
        """The trained weights themselves."""
        return self.passes.model.weights

    def __call__(
        self, roles: Iterable[Role], offset: Gradients | None = None
    ) -> dict[Role, Gradients]:
        """Compute gradients by role, see `api.modifier.Evaluate`."""
        present = self._present(roles)
        with self._moved_by(offset):
            return {role: self._gradient(role, offset) for role in present}

    @torch.no_grad()
    def losses(self, roles: Iterable[Role], offset: Gradients | None = None) -> dict[Role, float]:
        """Compute the loss by role, see `api.modifier.Evaluate`."""
        losses: dict[Role, float] = {}
        present = self._present(roles)
        with self._moved_by(offset):
            for role in present:
                losses[role] = sum(self._loss(role, offset).terms.values(), 0.0)
            # FSDP frees the root module's gathered weights in the backward pass. The next pass
            # would read them again, although the stored weights change when the offset is removed.
            reshard(self.passes.model.module)
        return losses

    def noise(self, draw: int) -> Gradients:
        """Draw standard normal numbers, see `api.modifier.Evaluate`."""
        model = self.passes.model
        noise: dict[str, Tensor] = {}
        for name, weight in model.trained().items():
            seed = seed_of(self.passes.seed, self.rows.step, draw, name)
            generator = torch.Generator(weight.device).manual_seed(seed)
            # Drawn whole and then cut, so that the numbers do not depend on the sharding.
            whole = torch.randn(weight.shape, generator=generator, device=weight.device)
            noise[name] = local_part(local_shard(whole, weight))
        return model.by_weight(noise)

    def _present(self, roles: Iterable[Role]) -> list[Role]:
        """Select the roles that the loss has, in the same order in all processes.

        Raises:
            PluginError: A gradient of forget rows is refused because it includes retain rows.
        """
        wanted = {*roles}
        self._check_joint(wanted)
        return [role for role in self.groups if role in wanted]

    def _check_joint(self, wanted: Set[str]) -> None:
        is_joint = any(group & RETAIN_PARTS for group in self.groups.get("forget", ()))
        if self.refuses_joint and is_joint and wanted == {"forget"}:
            name = type(self.passes.objective.method).__name__
            raise PluginError(
                f"the loss of {name} joins forget and retain rows in one term, so a mask of forget "
                "rows cannot be computed; return a term for each, or `batch.mean_over_union(…)`"
            )

    @contextmanager
    def _moved_by(self, offset: Gradients | None) -> Generator[None, None, None]:
        """Move the weights by an offset inside the `with`, and restore them bit for bit."""
        if offset is None:
            yield
            return
        # Weights are restored from a copy, because subtracting the offset would leave other bits.
        stored = self.weights.copy()
        try:
            moved = self.weights.add_(offset)
            self._measure_rounding(moved, stored, offset)
            yield
        finally:
            self.weights.set_(stored)

    def _measure_rounding(self, moved: Gradients, stored: Gradients, offset: Gradients) -> None:
        """Measure the cosine of an offset with the offset that the model's products see.

        A small offset may vanish: bfloat16 has 8 significant bits, so 1 + 0.001 rounds to 1.
        """
        products = PRODUCTS.get(self.passes.model.precision)
        is_stored_in_16_bits = any(weight.dtype.itemsize < 4 for weight in stored.tensors.values())
        if products is None and not is_stored_in_16_bits:
            return

        def rounded(weight: Tensor) -> Tensor:
            return at_least_fp32(weight.to(products or weight.dtype))

        def difference(moved: Tensor, stored: Tensor) -> Tensor:
            return rounded(moved) - rounded(stored)

        cosine = moved.map(difference, stored).cosine(offset)
        smallest = self.measured.get("offset_cosine", 1.0)
        self.measured["offset_cosine"] = min(cosine, smallest)

    def _loss(self, role: Role, offset: Gradients | None) -> LossValues:
        """Compute the loss of a role where the weights are, and its gradient if gradients are on.

        Args:
            role: A role that the loss has.
            offset: The offset by which the weights have been moved; None if they have not.
        """
        passes = self.passes
        rows = self.rows
        if offset is not None:
            # The predictions of the start model are no longer those of the model.
            rows = replace(rows, context=replace(rows.context, at_start=False))
        # Dropout draws the same masks in all evaluations of a step.
        passes.reseed(rows.step)
        groups = self.groups[role]
        values = passes.retried(lambda: passes.backward(rows, groups), rows.items, rows.step)
        if offset is None:
            self.values.setdefault(role, values)
        return values

    def _gradient(self, role: Role, offset: Gradients | None) -> Gradients:
        """Compute the gradient of a role where the weights are, in float32 at least."""
        model = self.passes.model
        model.discard_gradient()
        self._loss(role, offset)
        gradient: dict[str, Tensor] = {}
        for name, weight in model.trained().items():
            if weight.grad is None:
                whole = torch.zeros_like(weight)
            else:
                whole = weight.grad
                self.reached.add(name)
            gradient[name] = at_least_fp32(local_part(whole).detach())
        model.discard_gradient()
        return model.by_weight(gradient)


class StatefulModifier(NamedTuple):
    """A modifier, and the tensors that it keeps between steps."""

    modifier: Modifier
    memory: dict[str, Gradients]


class Modifiers:
    """The modifiers of a run, and what they keep between steps."""

    def __init__(self, modifiers: Sequence[Modifier]) -> None:
        self.all = [StatefulModifier(modifier, {}) for modifier in modifiers]
        self.two_roles = any(modifier.two_roles for modifier in modifiers)
        """Whether the loss must have a term for each role."""
        self.by_role = self.two_roles or any(isinstance(m, Perturb) for m in modifiers)
        """Whether a step computes a gradient for each role. If not, one pass has all parts."""
        self.has_optimizer_by_role = any(
            isinstance(m, OptimizerKind) and m.two_roles for m in modifiers
        )
        """Whether each role has an optimiser."""
        self.edits_start = any(
            isinstance(m, WeightEdit) and type(m).before is not WeightEdit.before for m in modifiers
        )
        """Whether weights are changed before the first step."""
        self.reads_first_epoch = any(isinstance(m, WeightEdit | Filter) for m in modifiers)
        """Whether `begin` evaluates rows."""
        self._groups: Groups | None = None

    def make_memories(self, weights: Gradients) -> None:
        """Let modifiers make what they keep between steps, before the first step."""
        for modifier, memory in self.all:
            with called(modifier, "memory"):
                kept = modifier.memory(weights)
            memory.update(kept)

    def begin(self, passes: StepPasses, rows: StepRows) -> None:
        """Let modifiers edit the start weights and select the weights that may move.

        Args:
            passes: Computes losses and gradients.
            rows: All rows of the first epoch as one step, with terms by role.
        """
        # By role, as in a step that takes the roles apart. Otherwise a mask of forget rows would
        # depend on which other modifiers there are.
        evaluation = replace(self.evaluation(passes, rows), refuses_joint=True)
        for modifier, _ in self.all:
            if isinstance(modifier, WeightEdit):
                with called(modifier, "before"):
                    modifier.before(evaluation)
        for modifier, memory in self.all:
            if isinstance(modifier, Filter):
                with called(modifier, "select"):
                    selection = modifier.select(evaluation)
                if selection is not None:
                    memory[_SELECTION] = selection

    def step(self, passes: StepPasses, rows: StepRows) -> StepEvaluation:
        """Return evaluations on the rows of a step, by role if a modifier needs that."""
        if self.by_role:
            return self.evaluation(passes, rows)
        return StepEvaluation(passes, rows, ONE_ROLE)

    def evaluation(self, passes: StepPasses, rows: StepRows) -> StepEvaluation:
        """Return evaluations by role on the rows of a step.

        Raises:
            PluginError: A modifier needs both roles, and the loss has only one.
        """
        # The method's state may turn terms on, for example after a warm-up. So the groups of a
        # method with a state are found again in each step.
        if self._groups is None or rows.context.state:
            self._groups = _groups_of(passes, rows)
        if self.two_roles and len(self._groups) < 2:
            raise PluginError(
                f"the loss of {type(passes.objective.method).__name__} has no term of retain rows "
                "alone, which a modifier combines with the others; add retain: {term: nll}"
            )
        return StepEvaluation(passes, rows, self._groups)

    def gradients(self, evaluation: StepEvaluation, step: RunStep) -> list[Gradients]:
        """Compute the gradient of a step as modifiers change it.

        Returns:
            One gradient, or one for each role if each role has an optimiser.
        """
        by_role = self._by_role(evaluation, step)
        # The loss of each role at the weights is reported, and the method's state depends on it.
        # So it is computed for the roles that have been evaluated at an offset only.
        evaluation.losses(evaluation.groups.keys() - evaluation.values.keys())

        gradients = [by_role[role] for role in evaluation.groups]
        for modifier, memory in self.all:
            if isinstance(modifier, Combine):
                evaluation.measured |= _conflict(by_role["forget"], by_role["retain"])
                with called(modifier, "combine"):
                    combined = modifier.combine(by_role, memory, step)
                gradients = [_returned(modifier, "combine", combined)]
        if len(gradients) == 2 and not self.has_optimizer_by_role:
            forget, retain = gradients
            gradients = [forget.add_(retain)]
        return [self._filtered(gradient, step) for gradient in gradients]

    def _by_role(self, evaluation: StepEvaluation, step: RunStep) -> ByRole:
        """Compute the gradient of each role, at the weights or where a modifier wants it."""
        by_role: ByRole | None = None
        for modifier, memory in self.all:
            if isinstance(modifier, Perturb):  # a configuration has at most one
                with called(modifier, "gradients"):
                    perturbed = modifier.gradients(evaluation, memory, step)
                by_role = _returned(modifier, "gradients", perturbed)
        cosine = evaluation.measured.get("offset_cosine", 1.0)
        if step.number == 1 and cosine < SEEN:
            warn_later(
                "rounding changes the offset at which gradients are taken: the cosine of the two "
                f"is {cosine:.2f}; set training.precision: fp32 and dtype: float32, or a larger "
                "offset"
            )
        return evaluation(evaluation.groups) if by_role is None else by_role

    def _filtered(self, gradient: Gradients, step: RunStep) -> Gradients:
        """Apply all filters to a gradient, and set it to 0 for weights that are not selected."""
        for modifier, memory in self.all:
            if isinstance(modifier, Filter):
                with called(modifier, "apply"):
                    applied = modifier.apply(gradient, memory, step)
                gradient = _returned(modifier, "apply", applied)
        for selection in self._selections:
            gradient = gradient.map_(torch.mul, selection)
        return gradient

    @property
    def _selections(self) -> list[Gradients]:
        """What each filter lets move: 1 for elements that may move, 0 for others."""
        return [memory[_SELECTION] for _, memory in self.all if _SELECTION in memory]

    @contextmanager
    def frozen(self, weights: Gradients, optimizers: Iterable[Any]) -> Generator[None, None, None]:
        """Keep weights that are not selected, bit for bit, while optimisers step inside the `with`.

        Their gradients are 0, but weight decay or momentum may move them all the same.
        """
        selections = self._selections
        if all(_stands_still(optimizer) for optimizer in optimizers):
            selections = []
        stored = weights.copy() if selections else weights
        yield
        for selection in selections:
            weights.map_(_selected, stored, selection)

    def edit(self, weights: Gradients, step: RunStep) -> None:
        """Let modifiers change the weights after a step."""
        for modifier, memory in self.all:
            if isinstance(modifier, WeightEdit):
                with called(modifier, "after"):
                    modifier.after(weights, memory, step)

    def evaluated(self, weights: Gradients) -> Gradients:
        """Return the weights to evaluate: `weights` itself if they are the trained ones."""
        for modifier, memory in self.all:
            if isinstance(modifier, WeightEdit):
                with called(modifier, "evaluated"):
                    evaluated = modifier.evaluated(weights, memory)
                weights = _returned(modifier, "evaluated", evaluated)
        return weights

    def tensors(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all memories for a checkpoint.

        Args:
            trained: The trained weights by name.

        Returns:
            Tensors by `modifier.<index>.<key of the memory>.<name of the weight>`.
        """
        tensors: dict[str, Tensor] = {}
        for index, (_, memory) in enumerate(self.all):
            for key, kept in memory.items():
                for name, tensor in kept.tensors.items():
                    tensors[f"{_PREFIX}{index}.{key}.{name}"] = as_shard(tensor, trained[name])
        return tensors

    def load(self, model: TrainedModel, names: Iterable[str], read: Reader) -> None:
        """Restore the memories from a checkpoint.

        Args:
            model: The model, whose weights have the same names and shapes.
            names: The names that `tensors` returned.
            read: Reads the whole tensor of a name.
        """
        for index, key in sorted({_memory_of(name) for name in names}):
            kept: dict[str, Tensor] = {}
            for name, weight in model.trained().items():
                whole = read(f"{_PREFIX}{index}.{key}.{name}").to(weight.device)
                kept[name] = local_part(local_shard(whole, weight))
            self.all[index].memory[key] = model.by_weight(kept)


def _groups_of(passes: StepPasses, rows: StepRows) -> Groups:
    """Find the groups of the loss from one item of each process."""
    batch, terms = passes.retried(lambda: passes.forward_one_item(rows), rows.items, rows.step)
    return groups_by_role(batch, terms)


def _memory_of(name: str) -> tuple[int, str]:
    """Return the modifier's index and the memory's key from the name of a stored tensor.

    For example, return `(0, "mean")` for `modifier.0.mean.lm_head.weight`.
    """
    index, key, _ = name.removeprefix(_PREFIX).split(".", maxsplit=2)
    return int(index), key


def _returned(modifier: Modifier, part: str, value: T | None) -> T:
    """Return what a function of a modifier has returned.

    Raises:
        PluginError: The function has no `return`.
    """
    if value is None:
        raise PluginError(f"`{part}` of {type(modifier).__name__} returned nothing")
    return value


def _stands_still(optimizer: Any) -> bool:
    """Whether an optimiser never moves weights whose gradients are 0 from the first step on."""
    decays = any(group["weight_decay"] for group in optimizer.param_groups)
    return type(optimizer) is torch.optim.AdamW and not decays


def _selected(moved: Tensor, stored: Tensor, selection: Tensor) -> Tensor:
    return torch.where(selection.bool(), moved, stored)


def _conflict(forget: Gradients, retain: Gradients) -> dict[str, float]:
    """Measure how far the gradients of the roles disagree, over all weights.

    Returns:
        Both norms, the cosine of the angle between the gradients, and as `opposed` the fraction of
        elements with different signs, among those that are 0 in neither gradient.
    """

    def sums(f: Tensor, r: Tensor) -> list[Tensor]:
        signs = (f * r).sign_()  # 1: same sign, −1: opposed signs, 0: one of the two is 0
        both_nonzero = inner(signs, signs)
        return [inner(f, f), inner(r, r), inner(f, r), signs.sum(), both_nonzero]

    sums_of_weights = forget.summed(sums, retain).values()
    totals = [sum(column) for column in zip(*sums_of_weights, strict=True)]
    forget_squared, retain_squared, dot, same_minus_opposed, both_nonzero = totals
    norms = {"forget_norm": forget_squared**0.5, "retain_norm": retain_squared**0.5}
    return norms | {
        "cosine": dot / (math.prod(norms.values()) or 1.0),
        "opposed": (both_nonzero - same_minus_opposed) / 2 / max(both_nonzero, 1.0),
    }
