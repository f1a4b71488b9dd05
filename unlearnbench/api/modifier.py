"""The contract of modifiers: they change the gradient, the update or the weights of any method.

A modifier is a frozen value whose fields are its settings. There are five kinds. In each step the
harness applies them in this order, whatever their order in the configuration:

    perturb → combine → filter → clip → optimizer → weights

A modifier sees gradients and weights by name, never the model, the rows or the processes. It
evaluates the loss only through `Evaluate`. Gradients are given by *role*: `retain` for the terms of
the loss that read only retain rows, `forget` for all other terms.

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
"""Elements of a piece, which take a megabyte in float32."""


class Gradients:
    """A tensor for each trained weight, with its name and shape: a gradient, an offset or a copy.

    Under FSDP each process has its shards. The numbers that `totals`, `dot`, `norm` and similar
    functions return are those of the whole tensors, so all processes must call these functions.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, sharded: bool = False) -> None:
        """Keep tensors by name.

        Args:
            tensors: This process's part of each tensor.
            sharded: Whether other processes have other parts.
        """
        self.tensors = dict(tensors)
        self.sharded = sharded

    def _pieces(self, *others: Gradients) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
        """Yield the name of a weight, with the same rows of its tensors in `self` and `others`.

        On a CPU a piece has so few rows that the results computed from it stay in the cache. On
        other devices a piece is the whole tensor.
        """
        for name, tensor in self.tensors.items():
            tensors = (tensor, *(other.tensors[name] for other in others))
            if tensor.ndim == 0 or tensor.device.type != "cpu":
                yield name, tensors
                continue
            rows = max(1, _PIECE * len(tensor) // max(tensor.numel(), 1))
            for piece in zip(*(each.split(rows) for each in tensors), strict=True):
                yield name, piece

    @torch.no_grad()
    def map(self, function: Callable[..., Tensor], *others: Gradients) -> Gradients:
        """Return new tensors, computed weight by weight.

        Args:
            function: Called with the tensor of a weight, and with its tensor in each of `others`.
            others: Tensors of the same weights.
        """
        return Gradients(
            {
                name: function(tensor, *(other.tensors[name] for other in others))
                for name, tensor in self.tensors.items()
            },
            sharded=self.sharded,
        )

    @torch.no_grad()
    def map_(self, function: Callable[..., Tensor], *others: Gradients) -> Self:
        """Replace the tensors by what `function` returns, in the same dtype.

        Args:
            function: An elementwise function, called with some rows of a weight at a time.
            others: Tensors of the same weights, whose rows are further arguments.
        """
        for _, (tensor, *rest) in self._pieces(*others):
            tensor.copy_(function(tensor, *rest))
        return self

    def copy(self) -> Gradients:
        """Return a copy, which shares no memory."""
        return self.map(torch.clone)

    @torch.no_grad()
    def set_(self, other: Gradients) -> Self:
        """Copy the values of `other` into these tensors."""
        for name, tensor in self.tensors.items():
            tensor.copy_(other.tensors[name])
        return self

    def add_(self, other: Gradients, scale: float = 1.0) -> Self:
        """Add `scale` · `other`, in place."""
        return self.map_(partial(torch.add, alpha=scale), other)

    def scale_(self, factor: float) -> Self:
        """Multiply by a number, in place."""
        return self.map_(partial(torch.mul, other=factor))

    @torch.no_grad()
    def summed(
        self, function: Callable[..., Sequence[Tensor]], *others: Gradients
    ) -> dict[str, list[float]]:
        """Sum several numbers over the rows of each weight, in float64.

        Reading the weights takes most of the time, so several sums of the same weights are made in
        one pass: a step that logs how far two gradients disagree needs five. `totals` makes one.

        Args:
            function: Called with some rows of a weight at a time. It returns scalars whose sums
                over the rows make sense: a squared norm, but not a norm or a largest element.
            others: Tensors of the same weights, whose rows are further arguments.

        Returns:
            By weight, the sum of each of the scalars. Under FSDP, all processes have to call this
            function, and the sums are over all shards.
        """
        sums: dict[str, Tensor] = {}
        for name, piece in self._pieces(*others):
            value = torch.stack([number.double() for number in function(*piece)])
            sums[name] = sums[name] + value if name in sums else value
        sums_of_weights = torch.stack([*sums.values()])
        if self.sharded:
            distributed.all_reduce(sums_of_weights)
        return dict(zip(sums, sums_of_weights.tolist(), strict=True))

    def totals(self, function: Callable[..., Tensor], *others: Gradients) -> dict[str, float]:
        """Sum the elements that `function` returns, by weight and in float64. See `map_`."""
        sums = self.summed(lambda *rows: [function(*rows).sum(dtype=torch.float64)], *others)
        return {name: total for name, (total,) in sums.items()}

    def dots(self, other: Gradients) -> dict[str, float]:
        """Return the inner product with `other`, by weight."""
        return self.totals(inner, other)

    def dot(self, other: Gradients) -> float:
        """Return the inner product with `other` over all weights."""
        return sum(self.dots(other).values())

    def norm(self) -> float:
        """Return the Euclidean norm over all weights."""
        return float(self.dot(self) ** 0.5)

    def unit(self) -> Gradients:
        """Return a copy of norm 1. If all elements are 0, they stay 0."""
        norm = self.norm()
        return self.copy().scale_(1 / norm if norm else 0.0)

    def cosine(self, other: Gradients) -> float:
        """Return the cosine of the angle to `other`; 0 if the norm of either is 0."""
        norms = self.norm() * other.norm()
        return self.dot(other) / norms if norms else 0.0

    def gram(self, name: str) -> Tensor:
        """Return GᵀG [columns, columns] of a weight's matrix G [rows, columns], in float64.

        Args:
            name: Name of the weight.
        """
        rows = self.tensors[name].double()
        product = rows.T @ rows
        if self.sharded:
            distributed.all_reduce(product)
        return product

    def largest(self, share: float) -> Gradients:
        """Return 1 for the largest elements and their equals, and 0 for all others.

        Args:
            share: Fraction of the elements of all weights. No element may be negative.
        """
        bits = 8 * next(iter(self.tensors.values())).element_size()
        # Read as an integer, the bits of floating-point numbers from 0 on have the order of the
        # numbers. So the smallest of the largest elements is found bit by bit, without sorting.
        integer = torch.int64 if bits == 64 else torch.int32
        wanted = share * sum(self.totals(torch.ones_like).values())
        limit = 0

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
    """Return the inner product of all elements, in float32 at least."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    a, b = a.flatten().to(dtype), b.flatten().to(dtype)
    return torch.dot(a, b)


ByRole = Mapping[Role, Gradients]
"""A gradient for each role that the loss has."""
Memory = Mapping[str, Gradients]
"""Tensors that a modifier keeps between steps, by name. It changes them in place, and checkpoints
store them."""


@dataclass(frozen=True)
class RunStep:
    """The optimiser step that a modifier is called in."""

    number: int
    """Number of the step, from 1."""
    steps: int
    """Number of optimiser steps of the whole run."""


class Evaluate(Protocol):
    """Computes gradients of a step's loss, each time on the same rows with the same random numbers.

    For example, `at({"forget"})["forget"]` is the gradient of the forget role at the weights, and
    `at({"forget"}, offset)["forget"]` is the gradient at the weights plus an offset.
    """

    @property
    def weights(self) -> Gradients:
        """The trained weights themselves. A change of their values changes the model."""
        ...

    def __call__(
        self, roles: Iterable[Role], offset: Gradients | None = None
    ) -> dict[Role, Gradients]:
        """Compute the gradients of roles. Collective.

        Costs a forward and a backward pass over the rows of the roles.

        Args:
            roles: The roles. A role that the loss does not have is left out.
            offset: Added to the weights for this evaluation. The weights are restored bit for bit,
                even if the evaluation fails.

        Returns:
            Gradients in float32 at least, which the caller may keep or change.
        """
        ...

    def losses(self, roles: Iterable[Role], offset: Gradients | None = None) -> dict[Role, float]:
        """Compute the loss of roles. Collective.

        Costs a forward pass over the rows of the roles. The arguments are those of `__call__`.
        """
        ...

    def noise(self, draw: int) -> Gradients:
        """Draw a standard normal number for each element of the weights.

        The numbers depend on the run's seed, the step, the name of the weight and `draw`. The
        number of processes changes none.

        Args:
            draw: Number of the draw in this step.
        """
        ...


class Modifier(HyperParameters, ABC):
    """Base of modifiers. A plug-in subclasses one of the five kinds below.

    Its docstring states the equation. The description of a setting ends with the source of its
    default, as for a method: `[source: …]`.
    """

    kind: ClassVar[Literal["perturb", "combine", "filter", "optimizer", "weights"]]
    several: ClassVar[bool] = False
    """Whether a method may have several modifiers of this kind."""
    two_roles: ClassVar[bool] = False
    """Whether the modifier needs a gradient of each role. The loss must have a retain term then."""
    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Settings with which the modifier changes nothing, for its check; None if it always changes
    something."""
    tried: ClassVar[Mapping[str, Any]] = {}
    """Settings for its checks, whose model is small and trains a few steps; empty for defaults."""

    def memory(self, weights: Gradients) -> Memory:
        """Return what is kept between steps, for example a copy of the start weights.

        Args:
            weights: The weights before the first step.
        """
        return {}


class Perturb(Modifier):
    """Base of modifiers that evaluate gradients at other weights. A method has at most one."""

    kind = "perturb"

    @property
    def evaluations(self) -> int:
        """How often a step evaluates the forget rows, at any weights. Read for estimates."""
        return 2

    @abstractmethod
    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Return the gradient of every role.

        Args:
            at: Evaluates gradients at the weights, or at an offset.
            memory: What `memory` has returned. May be changed in place.
            step: The step.
        """


class Combine(Modifier):
    """Base of modifiers that combine the gradients of the two roles. A method has at most one.

    A loss that is one mean over forget and retain rows gives a term for each role then, see
    `LossBatch.mean_over_union`.
    """

    kind = "combine"
    two_roles = True

    @abstractmethod
    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """Return the gradient of the step. The gradients of the roles may be changed in place."""


class Filter(Modifier):
    """Base of modifiers that select the weights that may move, or change the gradient."""

    kind = "filter"
    several = True

    def select(self, at: Evaluate) -> Gradients | None:
        """Select the elements of the weights that may move, once before the first step.

        Other elements keep their bits, whatever the optimiser and weight decay do.

        Args:
            at: Evaluates all rows of the first epoch as one step.

        Returns:
            1 for elements that may move and 0 for others; None if all may move.
        """
        return None

    def apply(self, gradient: Gradients, memory: Memory, step: RunStep) -> Gradients:
        """Return the gradient to clip.

        Args:
            gradient: The gradient of the step, which may be changed in place.
            memory: What `memory` has returned. May be changed in place.
            step: The step.
        """
        return gradient


class OptimizerKind(Modifier):
    """Base of modifiers that bring an optimiser. A method has at most one.

    With `two_roles`, each role has an optimiser of its own. Both move the weights in each step, the
    optimiser of the forget role first.
    """

    kind = "optimizer"

    @abstractmethod
    def make(
        self, weights: Mapping[str, nn.Parameter], rate: float, decay: float
    ) -> torch.optim.Optimizer:
        """Make the optimiser of the weights.

        Its state has to consist of tensors by weight, because checkpoints store it.

        Args:
            weights: The trained weights by name.
            rate: Learning rate. The schedule scales the rate of each group of parameters.
            decay: Weight decay.
        """


class WeightEdit(Modifier):
    """Base of modifiers that change weights outside the optimiser."""

    kind = "weights"
    several = True

    def before(self, at: Evaluate) -> None:
        """Change the weights once before the first step.

        Args:
            at: Evaluates all rows of the first epoch as one step. `at.weights` are to be changed in
                place.
        """

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:
        """Change the weights or the memory in place, after each step."""

    def evaluated(self, weights: Gradients, memory: Memory) -> Gradients:
        """Return the weights to evaluate. By default they are the trained weights."""
        return weights
