"""A batch whose logits are free: leaves of the graph, to be set, renamed and looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import LossBatch, Part, References
from unlearnbench.projection import Projection

_PLAIN = Projection(None)


@dataclass(frozen=True)
class Token:
    """What a part's scored tokens are set to."""

    logits: Tensor
    """[N, V]"""
    labels: Tensor
    """[N]"""
    reference: Tensor | None = None
    """[N, V] logits of the start model; None leaves the reference as it is."""


def freed(batch: LossBatch, tokens: Mapping[Part, Token] | None = None) -> LossBatch:
    """`batch` with logits as leaves that carry gradients, of the values in `tokens`.

    The hidden states that a loss may read are leaves as well, of the values that they have.
    """
    given = tokens or {}
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = dict(batch.reference.parts)
    for part, old in batch.parts.items():
        token = given.get(part, Token(old.logits, old.labels))
        leaf = token.logits.detach().clone().requires_grad_()
        states = {k: s.detach().clone().requires_grad_() for k, s in old.states.items()}
        parts[part] = replace(
            old, hidden=leaf, projection=_PLAIN, labels=token.labels, states=states
        )
        if part in references and token.reference is not None:
            references[part] = _reference(references[part], token.reference, token.labels)
    return replace(batch, parts=parts, reference=References(references))


def _reference(old: Reference, logits: Tensor, labels: Tensor) -> Reference:
    logprob = logits.double().log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    new = replace(old, token_logprob=logprob.to(old.token_logprob.dtype))
    return new if old.hidden is None else replace(new, hidden=logits, projection=_PLAIN)


def slopes(loss: Tensor, batch: LossBatch) -> dict[Part, Tensor | None]:
    """∂L/∂z [N, V] by part of a freed batch; None where the loss does not read the logits."""
    leaves = [predictions.hidden for predictions in batch.parts.values()]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return dict(zip(batch.parts, found, strict=True))


def own(slope: Tensor, labels: Tensor) -> Tensor:
    """[N] of ∂L/∂z [N, V] the component of the label."""
    return slope.gather(1, labels.unsqueeze(1)).squeeze(1)
