"""The part of a step that modifiers take: gradients by role, in passes by groups of parts.

A group are the parts that the terms of the loss read together, directly or through each other. Its
pass gives the loss empty predictions of all other parts. Means divide by the counts of the whole
step, so the gradients of the passes add up to that of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unlearnbench.api.method import PARTS, RETAIN_PARTS, LossBatch, Part, Terms
from unlearnbench.api.modifier import (
    ByRole,
    Gradients,
    Modifier,
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
from unlearnbench.training.optimizers import PRODUCTS, reseed, seed_of

if TYPE_CHECKING:
    from unlearnbench.training.trainer import Trainer

Groups = Mapping[Role, Sequence[frozenset[Part]]]
Values = tuple[Mapping[str, float], Mapping[str, float]]
_SELECTION = "selection"
SEEN = 0.9
"""Cosine of an offset with what is left of it in low precision, below which a run warns."""


@dataclass(eq=False)
class StepEvaluation:
    """Gradients of the loss over the rows of a step, see `api.modifier.Evaluate`."""

    trainer: Trainer
    rows: StepRows
    groups: Groups
    values: dict[Role, Values] = field(init=False, default_factory=dict)
    """Loss by term and reported values at the weights themselves, by role."""
    reached: set[str] = field(init=False, default_factory=set[str])
    """Weights with a gradient."""
    measured: dict[str, float] = field(init=False, default_factory=dict[str, float])
    """Of the gradients and offsets, to be shown with the step."""
    refuses_joint: bool = False
    """Whether the forget rows' gradient is refused if a term joins them with retain rows."""

    @property
    def weights(self) -> Gradients:
        """The trained weights themselves."""
        return self.trainer.weights

    def __call__(
        self, roles: Iterable[Role], offset: Gradients | None = None
    ) -> dict[Role, Gradients]:
        """The gradients of those `roles` that the loss has; the weights are restored."""
        wanted = {*roles}
        self._check_joint(wanted)
        with nullcontext() if offset is None else self._moved(offset):
            return {r: self._gradient(r, offset is None) for r in self.groups if r in wanted}

    @torch.no_grad()
    def losses(self, roles: Iterable[Role], offset: Gradients | None = None) -> dict[Role, float]:
        """The loss by role, see `api.modifier.Evaluate`."""
        wanted, passes = {*roles}, dict[Role, Values]()
        self._check_joint(wanted)
        with nullcontext() if offset is None else self._moved(offset):
            for role in self.groups:  # in the same order in all processes
                if role in wanted:
                    passes[role] = self._pass(role, offset is None)
            reshard(self.trainer.model)
        return {role: sum(terms.values(), 0.0) for role, (terms, _) in passes.items()}

    def _check_joint(self, wanted: Set[str]) -> None:
        """Raise PluginError for a forget gradient that would be one of retain rows as well."""
        is_joint = any(group & RETAIN_PARTS for group in self.groups.get("forget", ()))
        if self.refuses_joint and is_joint and wanted == {"forget"}:
            name = type(self.trainer.objective.method).__name__
            raise PluginError(
                f"the loss of {name} joins forget and retain rows in one term, so a mask of forget "
                "rows cannot be computed; return a term for each, or `batch.mean_over_union(…)`"
            )

    @contextmanager
    def _moved(self, offset: Gradients) -> Generator[None, None, None]:
        """Add an offset to the weights for a while."""
        # To subtract it again would not give the same bits.
        stored = self.weights.copy()
        self.trainer.is_offset = True
        try:
            self._compare(self.weights.add_(offset), stored, offset)
            yield
        finally:
            self.weights.set_(stored)
            self.trainer.is_offset = False

    def noise(self, draw: int) -> Gradients:
        """Standard normal numbers, see `api.modifier.Evaluate`."""
        trainer, noise = self.trainer, dict[str, Tensor]()
        for name, weight in trainer.trained().items():
            seed = seed_of(trainer.how.seed, trainer.step, draw, name)
            generator = torch.Generator(weight.device).manual_seed(seed)
            whole = torch.randn(weight.shape, generator=generator, device=weight.device)
            noise[name] = local_part(local_shard(whole, weight))
        return trainer.by_weight(noise)

    def _compare(self, moved: Gradients, stored: Gradients, offset: Gradients) -> None:
        """Note how much of an offset is left in the precision of the model's products."""
        low = PRODUCTS.get(self.trainer.how.precision)

        def realised(moved: Tensor, stored: Tensor) -> Tensor:
            moved, stored = (at_least_fp32(t.to(low or t.dtype)) for t in (moved, stored))
            return moved - stored

        if low or any(t.dtype.itemsize < 4 for t in stored.tensors.values()):
            cosine = moved.map(realised, stored).cosine(offset)
            self.measured["offset_cosine"] = min(cosine, self.measured.get("offset_cosine", 1.0))

    def _pass(self, role: Role, at_weights: bool) -> Values:
        """The passes of a role, which add to the gradient where gradients are taken."""
        trainer = self.trainer
        # Dropout's masks are the same in all evaluations of a step.
        reseed(trainer.how.seed, trainer.step, trainer.accelerator.process_index)
        groups = self.groups[role]
        values = trainer.retried(lambda: trainer.backward(self.rows, groups), self.rows.draws)
        if at_weights:
            self.values.setdefault(role, values)
        return values

    def _gradient(self, role: Role, at_weights: bool) -> Gradients:
        trainer = self.trainer
        trainer.zero()
        self._pass(role, at_weights)
        trained = trainer.trained()
        result = {name: p.grad for name, p in trained.items() if p.grad is not None}
        self.reached |= result.keys()
        trainer.zero()
        return trainer.by_weight(
            {
                name: at_least_fp32(
                    local_part(result[name] if name in result else torch.zeros_like(p)).detach()
                )
                for name, p in trained.items()
            }
        )


class Modifiers:
    """The modifiers of a run, and what they keep between steps."""

    def __init__(self, modifiers: Sequence[Modifier]) -> None:
        self.all: list[tuple[Modifier, dict[str, Gradients]]] = [
            (modifier, {}) for modifier in modifiers
        ]
        self.two_roles = any(modifier.two_roles for modifier in modifiers)
        """The loss must have a term for each role."""
        self.by_role = self.two_roles or any(item.kind == "perturb" for item in modifiers)
        """A step takes the gradients of the roles apart; else one pass has all parts."""
        self.apart = any(item.kind == "optimizer" and item.two_roles for item in modifiers)
        """Each role has an optimiser."""
        self.edits_start = any(
            isinstance(item, WeightEdit) and type(item).before is not WeightEdit.before
            for item in modifiers
        )
        """Whether weights are changed before the first step."""
        self._groups: Groups | None = None

    def of(self, kind: str, part: str) -> list[tuple[Callable[..., Any], dict[str, Gradients]]]:
        """The functions `part` of the modifiers of a kind, each with its modifier's memory."""
        return [(_guarded(item, part), memory) for item, memory in self.all if item.kind == kind]

    def begin(self, trainer: Trainer) -> None:
        """Before the first step: what modifiers keep, choose and change."""
        for item, memory in self.all:
            memory |= _guarded(item, "memory")(trainer.weights)
        edits, filters = self.of("weights", "before"), self.of("filter", "select")
        if not edits and not filters:
            return
        items = trainer.rows.items(trainer.objective.needs, trainer.how.seed, 1)
        # The same roles as in a step that takes them apart: a mask of forget rows must not depend
        # on which other modifiers there are.
        rows = trainer.retried(lambda: trainer.step_rows(items, by_role=True), items)
        at = replace(self.evaluation(trainer, rows), refuses_joint=True)
        for edit, _ in edits:
            edit(at)
        for select, memory in filters:
            if (selection := select(at)) is not None:
                memory[_SELECTION] = selection

    def step(self, trainer: Trainer, rows: StepRows) -> StepEvaluation:
        """Evaluations on the rows of a step, by role if a modifier needs that."""
        if self.by_role:
            return self.evaluation(trainer, rows)
        return StepEvaluation(trainer, rows, {"forget": [frozenset(PARTS)]})

    def evaluation(self, trainer: Trainer, rows: StepRows) -> StepEvaluation:
        """Evaluations by role on some rows. Raises: PluginError for a role that is missing."""
        # A state may turn terms on, as after a warm-up.
        if self._groups is None or trainer.state:
            self._groups = trainer.retried(lambda: _groups(trainer, rows), rows.draws)
        if self.two_roles and len(self._groups) < 2:
            raise PluginError(
                f"the loss of {type(trainer.objective.method).__name__} has no term of retain rows "
                "alone, which a modifier combines with the others; add retain: {term: nll}"
            )
        return StepEvaluation(trainer, rows, self._groups)

    def gradients(self, at: StepEvaluation, step: RunStep) -> list[Gradients]:
        """The gradient that the optimisers take in a step, or that of each."""
        by_role: ByRole | None = None
        for perturb, memory in self.of("perturb", "gradients"):
            by_role = perturb(at, memory, step)
        cosine = at.measured.get("offset_cosine", 1.0)
        if step.number == 1 and cosine < SEEN:
            warn_later(
                "rounding changes the offset at which gradients are taken: the cosine of the two "
                f"is {cosine:.2f}; set training.precision: fp32 and dtype: float32, or a larger "
                "offset"
            )
        by_role = at(at.groups) if by_role is None else by_role
        at.losses(at.groups.keys() - at.values.keys())  # to be shown, and for the method's state
        result = [by_role[role] for role in at.groups]
        for combine, memory in self.of("combine", "combine"):
            at.measured |= _conflict(by_role["forget"], by_role["retain"])
            result = [combine(by_role, memory, step)]
        if not self.apart and result[1:]:
            result = [result[0].add_(result[1])]
        for apply, memory in self.of("filter", "apply"):
            result = [apply(gradient, memory, step) for gradient in result]
        for selection in self._selections:
            result = [gradient.map_(torch.mul, selection) for gradient in result]
        return result

    @property
    def _selections(self) -> list[Gradients]:
        return [memory[_SELECTION] for _, memory in self.all if _SELECTION in memory]

    @contextmanager
    def frozen(self, trainer: Trainer) -> Generator[None, None, None]:
        """Keep what no filter lets move, bit for bit, over an optimiser's step."""
        selections = [] if all(map(_stands_still, trainer.optimizers)) else self._selections
        weights = trainer.weights
        stored = weights.copy() if selections else weights
        yield
        for selection in selections:
            weights.map_(_selected, stored, selection)

    def evaluated(self, weights: Gradients) -> Gradients:
        """The weights to evaluate; `weights` itself for those that are trained."""
        for evaluated, memory in self.of("weights", "evaluated"):
            weights = evaluated(weights, memory)
        return weights

    def tensors(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The memory of all modifiers, as tensors of a checkpoint by name."""
        return {
            f"modifier.{i}.{key}.{name}": as_shard(tensor, trained[name])
            for i, (_, memory) in enumerate(self.all)
            for key, kept in memory.items()
            for name, tensor in kept.tensors.items()
        }

    def load(self, trainer: Trainer, names: Iterable[str], read: Callable[[str], Tensor]) -> None:
        """Restore what `tensors` returned, read by name."""
        for begin in sorted({name[: name.index(".", name.index(".", 9) + 1)] for name in names}):
            _, i, key = begin.split(".")
            self.all[int(i)][1][key] = trainer.by_weight(
                {
                    name: local_part(local_shard(read(f"{begin}.{name}").to(p.device), p))
                    for name, p in trainer.trained().items()
                }
            )


def _stands_still(optimizer: Any) -> bool:
    """Whether weights with gradients of 0 from the first step on do not move."""
    decays = any(group["weight_decay"] for group in optimizer.param_groups)
    return type(optimizer) is torch.optim.AdamW and not decays


def _selected(moved: Tensor, stored: Tensor, selection: Tensor) -> Tensor:
    return torch.where(selection.bool(), moved, stored)


def _conflict(forget: Gradients, retain: Gradients) -> dict[str, float]:
    """Norms and cosine of two gradients, and the share of their weights with opposed signs."""

    def sums(f: Tensor, r: Tensor) -> list[Tensor]:
        signs = (f * r).sign_()
        return [inner(f, f), inner(r, r), inner(f, r), signs.sum(), inner(signs, signs)]

    each = forget.summed(sums, retain).values()
    squared, squared_retain, dot, signs, both = (sum(column) for column in zip(*each, strict=True))
    norms = {"forget_norm": squared**0.5, "retain_norm": squared_retain**0.5}
    return norms | {
        "cosine": dot / (math.prod(norms.values()) or 1.0),
        "opposed": (both - signs) / 2 / max(both, 1.0),
    }


def _guarded(modifier: Modifier, part: str) -> Callable[..., Any]:
    """A function of a modifier, whose errors name it."""

    def call(*arguments: Any) -> Any:
        with called(modifier, part):
            result = getattr(modifier, part)(*arguments)
        if result is None and part in ("gradients", "combine", "apply", "evaluated"):
            raise PluginError(f"`{part}` of {type(modifier).__name__} returned nothing")
        return result

    return call


def _groups(trainer: Trainer, rows: StepRows) -> Groups:
    """The groups of parts by role, from the graph of the loss on one row of each process."""
    groups: list[frozenset[Part]]
    groups = [frozenset({part}) for part in PARTS if part in trainer.objective.needs.parts]

    def watch(terms: Terms, batch: LossBatch) -> None:
        for value in terms.values():
            read = parts_read(value, batch)
            joined = frozenset[Part]().union(*(group for group in groups if group & read))
            groups[:] = [*([joined] if joined else []), *(g for g in groups if not g & read)]

    trainer.zero()
    trainer.backward(replace(rows, mine=(rows.mine or rows.draws)[:1]), watch=watch)
    trainer.zero()
    trainer.tokens = {}  # of the step alone
    by_role: Groups = {
        "forget": [group for group in groups if not group <= RETAIN_PARTS],
        "retain": [group for group in groups if group <= RETAIN_PARTS],
    }
    return {role: subset for role, subset in by_role.items() if subset}


def parts_read(value: Tensor, batch: LossBatch) -> frozenset[Part]:
    """The parts whose predictions the graph of `value` reaches."""
    ends: dict[Any, Part] = {
        states.grad_fn: part
        for part, predictions in batch.parts.items()
        for states in (predictions.hidden, *predictions.states.values())
    }
    seen, ahead = set[Any](), [value.grad_fn]
    while ahead:
        node: Any = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [] if node in ends else [before for before, _ in node.next_functions]
    return frozenset(ends[node] for node in seen if node in ends)
