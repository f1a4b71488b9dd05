"""A loss computed twice, with what it detaches held fixed the second time.

What a loss detaches (a weight, a target) is a constant of its gradient, though not of its value.
Only with these held does a step against the gradient have to lower the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unlearnbench.losses import Predictions
from unlearnbench.method import LossBatch, Part, Terms
from unlearnbench.retain import Objective


class Held:
    """Computes the terms of an objective; from the second time on with the first's constants."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._values: list[Tensor] = []
        self._statistics: Mapping[str, Tensor] | None = None

    def __call__(self, batch: LossBatch) -> Terms:
        """The terms of the loss on `batch`."""
        given = None if self._statistics is None else iter(self._values)
        kept = self._values if given is None else []
        if self._statistics is None:
            self._statistics = batch.statistics
        parts: dict[Part, Predictions] = {
            part: _with_held_targets(predictions, kept, given)
            for part, predictions in batch.parts.items()
        }
        with _Detached(kept, given):
            return self.objective.terms(replace(batch, parts=parts, statistics=self._statistics))


class _Detached(TorchFunctionMode):
    """Keeps what is detached, or gives back what was kept."""

    def __init__(self, kept: list[Tensor], given: Iterator[Tensor] | None) -> None:
        super().__init__()
        self._kept, self._given = kept, given

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        # Without gradients this is the inside of a primitive, which is none of the method's doing.
        if func is not torch.Tensor.detach or not torch.is_grad_enabled():
            return result
        return _held(result, self._kept, self._given)


def _held(value: Tensor, kept: list[Tensor], given: Iterator[Tensor] | None) -> Tensor:
    if given is not None:
        return next(given, value)
    kept.append(value.clone())
    return value


class _Predictions(Predictions):
    """The target of a cross entropy, which a primitive detaches for itself, is held as well."""

    kept: list[Tensor]
    given: Iterator[Tensor] | None

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        with torch.no_grad():
            target = _held(
                self._target(self.spread(score, by_token=by_token), raw=raw), self.kept, self.given
            )
        return -(target * self.logits.log_softmax(dim=1)).sum(dim=1)

    def _target(self, score: Tensor, *, raw: bool) -> Tensor:
        """[N, V] r · onehot(y) + (1 − r) · q."""
        logits, at = self.logits, self.labels.unsqueeze(1)
        others = logits.scatter(1, at, -torch.inf)
        r = score.to(logits.dtype)
        r = torch.sigmoid(r - others.logsumexp(dim=1)) if raw else r
        r = r.unsqueeze(1)
        return ((1 - r) * others.softmax(dim=1)).scatter_add(1, at, r)


def _with_held_targets(
    predictions: Predictions, kept: list[Tensor], given: Iterator[Tensor] | None
) -> Predictions:
    made = object.__new__(_Predictions)
    made.__dict__.update(vars(replace(predictions)) | {"kept": kept, "given": given})
    return made
