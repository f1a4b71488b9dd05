"""Batches that show what a loss does with them.

A *freed* batch has logits and hidden states that are leaves: a check can set them, and can compute
the gradient of the loss in them. `FixedDetached` keeps detached values constant from one call of a
loss to the next.
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

_IDENTITY = Projection(None)


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
    """[N, V] logits of the start model after each of the method's prompts. If it is empty,
    `reference` stands for all of them."""
    text: Tensor | None = None
    """[N] tokens of `Predictions.text_tokens`; None leaves them as they are."""


def freed(batch: LossBatch, tokens: Mapping[Part, Token] | None = None) -> LossBatch:
    """Return a batch whose logits and hidden states are leaves that require gradients.

    Args:
        batch: A batch of a lab.
        tokens: Logits and labels that replace those of the batch, by part.
    """
    tokens = tokens or {}
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = dict(batch.reference.parts)
    for part, predictions in batch.parts.items():
        token = tokens.get(part, Token(predictions.logits, predictions.labels))
        # With the identity as projection, hidden states are the logits.
        parts[part] = replace(
            predictions,
            hidden=_leaf(token.logits),
            projection=_IDENTITY,
            labels=token.labels,
            states={layer: _leaf(state) for layer, state in predictions.states.items()},
            text_tokens=predictions.text_tokens if token.text is None else token.text,
        )
        if part in references and token.reference is not None:
            references[part] = _with_logits(references[part], token.reference, token.labels)

    prompted = batch.reference.prompted
    forget = tokens.get("forget")
    if forget is not None and forget.reference is not None:
        logits_of_prompts = forget.prompted or [forget.reference] * len(prompted)
        prompted = [
            _with_logits(reference, logits, forget.labels)
            for reference, logits in zip(prompted, logits_of_prompts, strict=True)
        ]
    return replace(batch, parts=parts, reference=References(references, prompted))


def _leaf(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that requires a gradient."""
    return tensor.detach().clone().requires_grad_()


def _with_logits(reference: Reference, logits: Tensor, labels: Tensor) -> Reference:
    """Return the values that a start model with these logits would have."""
    logprob = logits.double().log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    changed = replace(reference, token_logprob=logprob.to(reference.token_logprob.dtype))
    if reference.hidden is None:
        # The method reads only log-probabilities.
        return changed
    return replace(changed, hidden=logits, projection=_IDENTITY)


def slopes(loss: Tensor, batch: LossBatch) -> dict[Part, list[Tensor]]:
    """Compute the gradient of a loss in the leaves of a freed batch.

    Returns:
        By part, ∂L/∂z [N, V] for the logits z, and then the gradients of the hidden states.
    """
    leaves_of_part: dict[Part, list[Tensor]] = {
        part: [predictions.hidden, *predictions.states.values()]
        for part, predictions in batch.parts.items()
    }
    leaves = [leaf for leaves in leaves_of_part.values() for leaf in leaves]
    # One call for all leaves, because a backward pass through the loss takes long.
    gradients = iter(torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True))
    return {part: [next(gradients) for _ in leaves] for part, leaves in leaves_of_part.items()}


class FixedDetached(TorchFunctionMode):
    """Computes the terms of an objective. Later calls reuse the detached values of the first call.

    A detached tensor (a weight, a target) is a constant of the gradient, though not of the value.
    Only with these constants fixed must a step against the gradient lower the value.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self._recorded: list[Tensor] = []
        """Detached values of the first call, in the order of their computation."""
        self._replay: Iterator[Tensor] | None = None
        """The recorded values that the current call has not used yet; None in the first call."""
        self._statistics: Mapping[str, Tensor] | None = None
        """`LossBatch.statistics` of the first call, sums over the step that are constants, too."""

    def terms(self, batch: LossBatch) -> Terms:
        """Compute the terms of the loss on a batch."""
        if self._statistics is None:
            self._statistics = batch.statistics
        else:
            self._replay = iter(self._recorded)
        # `vars` of a copy has the fields alone. The original also has cached properties there.
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
        self._recorded.append(value.clone())
        return value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        # A call without gradients is one inside a primitive, not one in the method's own code.
        is_detached = func is torch.Tensor.detach and torch.is_grad_enabled()
        return self.fixed(value) if is_detached else value


@dataclass(frozen=True, eq=False)
class _FixedPredictions(Predictions):
    """Predictions that also fix the target of `unified_cross_entropy`, which detaches it itself."""

    fixed: Callable[[Tensor], Tensor] = torch.clone

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        with torch.no_grad():
            target = self.fixed(self._target(self.spread(score, by_token=by_token), raw=raw))
        return -(target * self.logits.log_softmax(dim=1)).sum(dim=1)

    def _target(self, score: Tensor, *, raw: bool) -> Tensor:
        """Compute the target distribution r · onehot(y) + (1 − r) · q [N, V].

        Here y is the label, and q the distribution of the model over all tokens but the label.

        Args:
            score: [N] r, or with `raw` a logit of the label, from which r follows.
            raw: Whether the score is a logit.
        """
        label = self.labels.unsqueeze(1)
        other_logits = self.logits.scatter(1, label, -torch.inf)
        r = score.to(self.logits.dtype)
        if raw:
            r = torch.sigmoid(r - other_logits.logsumexp(dim=1))
        r = r.unsqueeze(1)
        return ((1 - r) * other_logits.softmax(dim=1)).scatter_add(1, label, r)
