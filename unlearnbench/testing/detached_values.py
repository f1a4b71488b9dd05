"""Repeat a loss with the detached values of its first computation.

A detached tensor (a weight, a target) is a constant of the gradient, though not of the value.
Only with these constants fixed must a step against the gradient lower the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unlearnbench.api.method import LossBatch, Part, Terms
from unlearnbench.losses.predictions import Predictions
from unlearnbench.testing.read_recorder import twin
from unlearnbench.training.objective import Objective


class FixedDetached(TorchFunctionMode):
    """Compute the terms of an objective; later calls reuse the detached values of the first."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self._values: list[Tensor] = []
        self._replay: Iterator[Tensor] | None = None
        self._statistics: Mapping[str, Tensor] | None = None

    def terms(self, batch: LossBatch) -> Terms:
        """The terms of the loss on `batch`."""
        if self._statistics is None:
            self._statistics = batch.statistics
        else:
            self._replay = iter(self._values)
        parts: dict[Part, Predictions] = {
            part: twin(_Predictions, replace(predictions), fixed=self.fixed)
            for part, predictions in batch.parts.items()
        }
        with self:
            return self.objective.terms(replace(batch, parts=parts, statistics=self._statistics))

    def fixed(self, value: Tensor) -> Tensor:
        """Record a detached value, or return the recorded one."""
        if self._replay is not None:
            return next(self._replay, value)
        self._values.append(value.clone())
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # Without gradients this is inside a primitive, not in the method's own code.
        detached = func is torch.Tensor.detach and torch.is_grad_enabled()
        return self.fixed(result) if detached else result


class _Predictions(Predictions):
    """Predictions that also fix the target which `unified_cross_entropy` detaches itself."""

    fixed: Callable[[Tensor], Tensor]

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        with torch.no_grad():
            target = self.fixed(self._target(self.spread(score, by_token=by_token), raw=raw))
        return -(target * self.logits.log_softmax(dim=1)).sum(dim=1)

    def _target(self, score: Tensor, *, raw: bool) -> Tensor:
        """[N, V] r · onehot(y) + (1 − r) · q."""
        logits, at = self.logits, self.labels.unsqueeze(1)
        others = logits.scatter(1, at, -torch.inf)
        r = score.to(logits.dtype)
        r = torch.sigmoid(r - others.logsumexp(dim=1)) if raw else r
        r = r.unsqueeze(1)
        return ((1 - r) * others.softmax(dim=1)).scatter_add(1, at, r)
