"""The contract of modifiers: they change the gradient, the update or the weights of any method.

A modifier is a frozen value whose fields are its settings, of one of five kinds. In each step the
harness applies them in one order, whatever the order in the configuration:

    perturb → combine → filter → clip → optimizer → weights

It sees gradients and weights by name, never the model, rows or processes, and cannot run a backward
pass but through `Evaluate`. Gradients are by *role*: `retain` for what the loss computes from
retain rows alone, `forget` for all else.

    class SAM(Perturb):
        rho: float = Field(default=0.01, ge=0, description="length of the offset")

        def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
            offset = at({"forget"})["forget"].unit().scale_(self.rho)
            return {**at({"retain"}), **at({"forget"}, offset)}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, distributed, nn

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.base.deferred_warnings import warn_later

Role = Literal["forget", "retain"]
_PIECE = 2**18
"""Elements of a piece: a megabyte."""


class Gradients:
    """A tensor for each trained weight, by its name and of its shape: a gradient, or an offset.

    Under FSDP each process has its shards, and the numbers that `totals`, `dot` and `norm` return
    are those of the whole, the same in all processes: all must call them.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, sharded: bool = False) -> None:
        self.tensors, self.sharded = dict(tensors), sharded

    def _pieces(self, *others: Gradients) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
        """By weight some rows of each at a time, so few that a CPU keeps in its cache what is made
        of them."""
        for name, tensor in self.tensors.items():
            all_of = (tensor, *(other.tensors[name] for other in others))
            if tensor.ndim == 0 or tensor.device.type != "cpu":
                yield name, all_of
                continue
            rows = max(1, _PIECE * len(tensor) // max(tensor.numel(), 1))
            for piece in zip(*(each.split(rows) for each in all_of), strict=True):
                yield name, piece

    @torch.no_grad()
    def map(self, function: Callable[..., Tensor], *others: Gradients) -> Gradients:
        """New tensors: `function` of this one's and those of `others`, elementwise."""
        return Gradients(
            {
                name: function(tensor, *(other.tensors[name] for other in others))
                for name, tensor in self.tensors.items()
            },
            sharded=self.sharded,
        )

    @torch.no_grad()
    def map_(self, function: Callable[..., Tensor], *others: Gradients) -> Self:
        """`map` in place, in the same dtype; `function` is called with some rows at a time."""
        for _, (tensor, *rest) in self._pieces(*others):
            tensor.copy_(function(tensor, *rest))
        return self

    def copy(self) -> Gradients:
        """The same values in memory of their own."""
        return self.map(torch.clone)

    @torch.no_grad()
    def set_(self, other: Gradients) -> Self:
        """Take the values of `other`."""
        for name, tensor in self.tensors.items():
            tensor.copy_(other.tensors[name])
        return self

    def add_(self, other: Gradients, scale: float = 1.0) -> Self:
        """Add `scale` · `other`."""
        return self.map_(partial(torch.add, alpha=scale), other)

    def scale_(self, factor: float) -> Self:
        """Multiply by a number."""
        return self.map_(partial(torch.mul, other=factor))

    @torch.no_grad()
    def summed(
        self, function: Callable[..., Sequence[Tensor]], *others: Gradients
    ) -> dict[str, list[float]]:
        """By weight the sums of the numbers that `function` makes of some rows at a time."""
        sums: dict[str, Tensor] = {}
        for name, piece in self._pieces(*others):
            value = torch.stack([number.double() for number in function(*piece)])
            sums[name] = sums[name] + value if name in sums else value
        every = torch.stack([*sums.values()])
        if self.sharded:
            distributed.all_reduce(every)
        return dict(zip(sums, every.tolist(), strict=True))

    def totals(self, function: Callable[..., Tensor], *others: Gradients) -> dict[str, float]:
        """The sum over the elements of `function`, as in `map_`, by weight; in float64."""
        sums = self.summed(lambda *rows: [function(*rows).sum(dtype=torch.float64)], *others)
        return {name: total for name, (total,) in sums.items()}

    def dots(self, other: Gradients) -> dict[str, float]:
        """The inner product by weight."""
        return self.totals(inner, other)

    def dot(self, other: Gradients) -> float:
        """The inner product over all weights."""
        return sum(self.dots(other).values())

    def norm(self) -> float:
        """The Euclidean norm over all weights."""
        return float(self.dot(self) ** 0.5)

    def unit(self) -> Gradients:
        """A copy of norm 1; zeros stay zeros."""
        norm = self.norm()
        return self.copy().scale_(1 / norm if norm else 0.0)

    def cosine(self, other: Gradients) -> float:
        """The cosine of the angle between both; 0 where one is 0."""
        norms = self.norm() * other.norm()
        return self.dot(other) / norms if norms else 0.0

    def gram(self, name: str) -> Tensor:
        """GᵀG of a weight's matrix G [rows, columns] in float64, [columns, columns]."""
        rows = self.tensors[name].double()
        product = rows.T @ rows
        if self.sharded:
            distributed.all_reduce(product)
        return product

    def largest(self, share: float) -> Gradients:
        """1 for the largest `share` of all elements and their equals, 0 for the others.

        No element may be negative.
        """
        bits = 8 * next(iter(self.tensors.values())).element_size()
        integer = torch.int64 if bits == 64 else torch.int32  # in the order of the numbers
        wanted, limit = share * sum(self.totals(torch.ones_like).values()), 0

        def at_least(tensor: Tensor, limit: int) -> Tensor:
            return (tensor.view(integer) >= limit).to(torch.uint8)

        for bit in reversed(range(bits - 1)):
            above = self.totals(partial(at_least, limit=limit | 1 << bit))
            limit |= (sum(above.values()) >= wanted) << bit
        if share < 1 and not limit:
            warn_later(
                f"a modifier's mask freezes no weight: less than {100 * share:g} % of its scores "
                "are above 0 (with LoRA those of A are 0, as B begins at 0); set a smaller share"
            )
        return self.map(partial(at_least, limit=limit))


def inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of all elements, in fp32 at least."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    a, b = a.flatten().to(dtype), b.flatten().to(dtype)
    return torch.dot(a, b)


ByRole = Mapping[Role, Gradients]
Memory = Mapping[str, Gradients]
"""Tensors that a modifier keeps between steps, changed in place; checkpoints have them."""


@dataclass(frozen=True)
class RunStep:
    """The optimiser step that a modifier is called in."""

    number: int
    """From 1; 0 before the first."""
    steps: int
    """Optimiser steps of the whole run."""


class Evaluate(Protocol):
    """Gradients of the step's loss, on the same rows and with the same random numbers each time."""

    @property
    def weights(self) -> Gradients:
        """The trained weights themselves: a change of them changes the model."""
        ...

    def __call__(
        self, roles: Iterable[Role], offset: Gradients | None = None
    ) -> dict[Role, Gradients]:
        """The gradients of those `roles` that the loss has, in fp32 at least, to keep or change.

        offset  added to the weights for this evaluation; they are restored bit for bit, also where
                it fails

        Collective. Costs a forward and a backward pass over the rows of the roles.
        """
        ...

    def losses(self, roles: Iterable[Role], offset: Gradients | None = None) -> dict[Role, float]:
        """The loss by role, for those of `roles` that it has; `offset` as in a call. Collective.

        Costs a forward pass over the rows of the roles.
        """
        ...

    def noise(self, draw: int) -> Gradients:
        """Standard normal numbers, others for each `draw` of a step, run and weight.

        However many processes share the weights, they are the same.
        """
        ...


class Modifier(HyperParameters, ABC):
    """Base of modifiers; a subclass of one of the five kinds below adds settings and a method.

    Its docstring states the equation, and the description of a setting ends with where its default
    comes from, as of a method's: `[source: …]`.
    """

    kind: ClassVar[Literal["perturb", "combine", "filter", "optimizer", "weights"]]
    several: ClassVar[bool] = False
    """True if a method may have several of this kind."""
    two_roles: ClassVar[bool] = False
    """True if it takes the gradients of both roles apart: the method must have a retain term."""
    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Settings with which it changes nothing, for its check; None where there are none."""
    tried: ClassVar[Mapping[str, Any]] = {}
    """Settings in place of defaults for its checks, whose model is small and trains a few steps."""

    def memory(self, weights: Gradients) -> Memory:
        """The tensors kept between steps, before the first: such as copies of `weights`."""
        return {}


class Perturb(Modifier):
    """Base of modifiers that evaluate gradients at other weights; at most one."""

    kind = "perturb"

    @property
    def evaluations(self) -> int:
        """How often a step evaluates the forget rows, also at other weights: for estimates."""
        return 2

    @abstractmethod
    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """The gradient of every role, from evaluations at the weights and at offsets of them."""


class Combine(Modifier):
    """Base of modifiers that make one gradient of those of the two roles; at most one.

    A loss that is one mean over forget and retain rows together gives a term for each then.
    """

    kind = "combine"
    two_roles = True

    @abstractmethod
    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """The gradient of the step; those of the roles may be changed."""


class Filter(Modifier):
    """Base of modifiers that choose weights, or map the gradient."""

    kind = "filter"
    several = True

    def select(self, at: Evaluate) -> Gradients | None:
        """Which elements may move (1) or not (0); None: all.

        Called once, before the first step; `at` evaluates all rows of an epoch as one step. The
        others stay bit for bit what they are, whatever optimiser and weight decay do.
        """
        return None

    def apply(self, gradient: Gradients, memory: Memory, step: RunStep) -> Gradients:
        """The gradient that is clipped, from that of the step, which may be changed."""
        return gradient


class OptimizerKind(Modifier):
    """Base of modifiers that bring an optimiser; at most one.

    With `two_roles` each role has its own: both step in each step, forget first.
    """

    kind = "optimizer"

    @abstractmethod
    def make(
        self, weights: Mapping[str, nn.Parameter], rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """The optimiser of the weights. Its state are tensors by weight; checkpoints have them.

        rate, decay  learning rate and weight decay; the schedule scales the rate of each group
        """


class WeightEdit(Modifier):
    """Base of modifiers that change weights outside the optimiser."""

    kind = "weights"
    several = True

    def before(self, at: Evaluate) -> None:
        """Change `at.weights` in place, before the first step; `at` as in `Filter.select`."""

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:
        """Change `weights` or `memory` in place, after each step."""

    def evaluated(self, weights: Gradients, memory: Memory) -> Gradients:
        """The weights that are evaluated; by default those that are trained."""
        return weights
