"""Modifiers with a fault each, as published code has them, or as is easily written."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from unlearnbench.api.modifier import (
    ByRole,
    Combine,
    Evaluate,
    Filter,
    Gradients,
    Memory,
    Perturb,
    RunStep,
    WeightEdit,
)

SEEN: list[int] = []


class ConstantPenalty(Perturb):
    """A penalty that is a number, as of GP and CR: Fan et al. 2025. It has no gradient."""

    weight: float = Field(default=0.01, description="of the penalty")

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        plain = at({"forget", "retain"})
        _ = self.weight * plain["forget"].norm()
        return plain


class Doubled(Perturb):
    """The gradient of what is forgotten is added twice, as in SURE: Zhang et al. 2025."""

    neutral: ClassVar[Mapping[str, Any] | None] = {"rho": 0.0}
    rho: float = Field(default=0.01, description="length")

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        plain = at({"forget", "retain"})
        moved = at({"forget"}, plain["forget"].unit().scale_(self.rho))["forget"]
        return {**plain, "forget": moved.add_(plain["forget"])}


class Subtracted(Perturb):
    """The offset is added to the weights, and subtracted again: Fan et al. 2025."""

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        plain = at({"forget", "retain"})
        offset = plain["forget"].unit().scale_(0.01)
        at.weights.add_(offset)
        moved = at({"forget"})
        at.weights.add_(offset, -1)
        return {**plain, **moved}


class MeanOfItsOwn(Combine):
    """A mean that no checkpoint has: Wang et al. 2025."""

    _mean: Any = PrivateAttr(default=None)

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        mean = gradients["retain"] if self._mean is None else self._mean
        self._mean = mean.copy().scale_(0.5).add_(gradients["retain"], 0.5)
        return gradients["forget"].add_(self._mean)


class Counting(Combine):
    """A count of calls that outlives a run: 2025."""

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        SEEN.append(step.number)
        return gradients["forget"].add_(gradients["retain"], 1 / len(SEEN))


class MaskOfNothing(Filter):
    """A threshold above all scores: Fan et al. 2024."""

    def select(self, at: Evaluate) -> Gradients:
        def above(gradient: Tensor) -> Tensor:
            return (gradient.abs() > 1e9).to(torch.uint8)

        return at({"forget"})["forget"].map(above)


class BaseWeights(WeightEdit):
    """It knows the names of weights that adapters stand beside: 2024."""

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:
        weights.tensors["lm_head.weight"].mul_(0.99)
