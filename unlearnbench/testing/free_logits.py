"""Batches whose logits are leaves of the graph, so that checks can set them and read gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unlearnbench.api.method import LossBatch, Part, References
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

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


def freed(batch: LossBatch, tokens: Mapping[Part, Token] | None = None) -> LossBatch:
    """Return `batch` with its logits (or those in `tokens`) as leaves that require gradients.

    The hidden states that a loss may read become leaves as well.
    """
    chosen = tokens or {}
    parts: dict[Part, Predictions] = {}
    references: dict[Part, Reference] = dict(batch.reference.parts)
    for part, old in batch.parts.items():
        token = chosen.get(part, Token(old.logits, old.labels))
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


def slopes(loss: Tensor, batch: LossBatch) -> dict[Part, list[Tensor]]:
    """Gradients of a freed batch by part: ∂L/∂z [N, V], then those of the hidden states."""
    leaves: dict[Part, list[Tensor]] = {
        part: [one.hidden, *one.states.values()] for part, one in batch.parts.items()
    }
    flat = [leaf for own in leaves.values() for leaf in own]
    found = iter(torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True))
    return {part: [next(found) for _ in own] for part, own in leaves.items()}
