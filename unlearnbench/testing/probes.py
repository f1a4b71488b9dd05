"""Batches that show what a loss does with them: leaves to set and to differentiate, and detached
values that stay fixed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unlearnbench.api.method import LossBatch, Part, References, Terms
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.training.objective import Objective

_PLAIN = Projection(None)


@dataclass(frozen=True)
class Token:
    """Logits and labels for the scored tokens of a part."""

    logits: Tensor
    """[N, V]"""
    labels: Tensor
    """[N]"""
    reference: Tensor | None = None
    """[N, V] logits of the start model; None leaves the reference as it is."""
    prompted: Sequence[Tensor] = ()
    """[N, V] those behind the method's prompts; empty for `reference` behind each."""
    text: Tensor | None = None
    """[N] see `Predictions.text_tokens`; None leaves them as they are."""


def freed(batch: LossBatch, tokens: Mapping[Part, Token] | None = None) -> LossBatch:
    """Return `batch` with its logits (or those in `tokens`) as leaves that require gradients.

    The hidden states that a loss may read become leaves as well.
    """
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = dict(batch.reference.parts)
    for part, old in batch.parts.items():
        token = (tokens or {}).get(part, Token(old.logits, old.labels))
        leaf = token.logits.detach().clone().requires_grad_()
        states = {k: s.detach().clone().requires_grad_() for k, s in old.states.items()}
        text = old.text_tokens if token.text is None else token.text
        changed: Any = {"labels": token.labels, "states": states, "text_tokens": text}
        parts[part] = replace(old, hidden=leaf, projection=_PLAIN, **changed)
        if part in references and token.reference is not None:
            references[part] = _reference(references[part], token.reference, token.labels)
    prompted, new = batch.reference.prompted, (tokens or {}).get("forget")
    if new is not None and new.reference is not None:
        logits = new.prompted or [new.reference] * len(prompted)
        pairs = zip(prompted, logits, strict=True)
        prompted = [_reference(old, other, new.labels) for old, other in pairs]
    return replace(batch, parts=parts, reference=References(references, prompted))


def _reference(old: Reference, logits: Tensor, labels: Tensor) -> Reference:
    logprob = logits.double().log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    new = replace(old, token_logprob=logprob.to(old.token_logprob.dtype))
    return new if old.hidden is None else replace(new, hidden=logits, projection=_PLAIN)


def slopes(loss: Tensor, batch: LossBatch) -> dict[Part, list[Tensor]]:
    """Gradients of a freed batch by part: ∂L/∂z [N, V], then those of the hidden states."""
    leaves: dict[Part, list[Tensor]] = {
        part: [item.hidden, *item.states.values()] for part, item in batch.parts.items()
    }
    flat = [leaf for leave in leaves.values() for leaf in leave]
    result = iter(torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True))
    return {part: [next(result) for _ in leave] for part, leave in leaves.items()}


class FixedDetached(TorchFunctionMode):
    """Compute the terms of an objective; later calls reuse the detached values of the first.

    A detached tensor (a weight, a target) is a constant of the gradient, though not of the value.
    Only with these constants fixed must a step against the gradient lower the value.
    """

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
            part: _FixedPredictions(**vars(replace(predictions)), fixed=self.fixed)
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


@dataclass(frozen=True, eq=False)
class _FixedPredictions(Predictions):
    """Predictions that also fix the target which `unified_cross_entropy` detaches itself."""

    fixed: Callable[[Tensor], Tensor] = torch.clone

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
