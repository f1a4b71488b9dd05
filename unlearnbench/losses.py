"""What a loss is made of: predictions of answer tokens, and the primitives computed from them.

`Predictions` holds only scored positions: the shift, the padding and the prompt are gone before a
method sees anything. Every primitive is computed when it is first read, and remembered.

Symbols: N scored tokens of the micro-batch, B its sequences, V vocabulary entries, z [N, V] logits,
y [N] labels, p = softmax(z).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Predictions:
    """The model's predictions for one part of a micro-batch."""

    logits: Tensor
    """[N, V] float32: log-softmax over a large vocabulary loses digits in bf16."""
    labels: Tensor
    """[N] the tokens that were to be predicted."""
    rows: Tensor
    """[N] index of the sequence each token belongs to, in 0..B-1."""
    row_count: int
    """B"""
    step_tokens: int
    """Scored tokens of this part in the whole optimiser step: every micro-batch, every process."""
    step_rows: int
    """Sequences of this part in the whole optimiser step."""

    @cached_property
    def log_normaliser(self) -> Tensor:
        """[N] log Σ_v exp z_v."""
        return torch.logsumexp(self.logits, dim=1)

    @cached_property
    def token_logprob(self) -> Tensor:
        """[N] log p_y."""
        chosen = self.logits.gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return chosen - self.log_normaliser

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_y over each sequence's scored tokens; 0 for a sequence without any."""
        return _sum_rows(self.token_logprob, self.rows, self.row_count)

    @cached_property
    def lengths(self) -> Tensor:
        """[B] scored tokens of each sequence."""
        return torch.bincount(self.rows, minlength=self.row_count)

    def cross_entropy(self) -> Tensor:
        """[N] −log p_y."""
        return -self.token_logprob

    @cached_property
    def log_normaliser_of_others(self) -> Tensor:
        """[N] log Σ_{v≠y} exp z_v."""
        others = self.logits.scatter(1, self.labels.unsqueeze(1), float("-inf"))
        return torch.logsumexp(others, dim=1)

    @cached_property
    def unlearning_cross_entropy(self) -> Tensor:
        """[N] cross entropy against q, the detached softmax of the logits with z_y = −∞.

        Yang 2025 (CE-U). Σ_v −q_v log p_v = H(q) − log(1 − p_y), with the gradient p − q. It is
        computed as a difference of two log-sum-exps, which stays finite where 1 − p_y rounds to 0;
        H(q) is a constant of the optimisation, so it carries no gradient.
        """
        unlikelihood = self.log_normaliser - self.log_normaliser_of_others
        return unlikelihood + self._entropy_of_others()

    @torch.no_grad()
    def _entropy_of_others(self) -> Tensor:
        log_q = self.logits - self.log_normaliser_of_others.unsqueeze(1)
        log_q = log_q.scatter(1, self.labels.unsqueeze(1), float("-inf"))
        # A vocabulary entry masked at −inf has probability 0 and adds nothing; 0 · −inf is NaN.
        return -(log_q.exp() * log_q.masked_fill(log_q.isneginf(), 0.0)).sum(dim=1)

    def unified_cross_entropy(self, score: float | Tensor, *, raw: bool = False) -> Tensor:
        """[N] cross entropy against r · onehot(y) + (1 − r) · q: General CE-U (Yang 2025).

        score  r in [0, 1], one number or [N]: 1 learns (negative log-likelihood), 0 unlearns
               (CE-U). With `raw`, the score replaces the true label's logit, +inf to −inf, so that
               r = σ(score − log Σ_{v≠y} exp z_v), detached.
        """
        r = torch.as_tensor(score, dtype=self.logits.dtype, device=self.logits.device)
        if raw:
            r = torch.sigmoid(r - self.log_normaliser_of_others.detach())
        # Not `where`: both terms are finite wherever r gives them weight, and a 0 weight must not
        # bring in the other term's infinity.
        learn = torch.where(r > 0, r * self.cross_entropy(), 0.0)
        unlearn = torch.where(r < 1, (1 - r) * self.unlearning_cross_entropy, 0.0)
        return learn + unlearn

    def kl_from(self, reference: Reference) -> Tensor:
        """[N] KL(p_ref ‖ p) = Σ_v p_ref,v (log p_ref,v − log p_v), gradient p − p_ref."""
        log_p = self.logits - self.log_normaliser.unsqueeze(1)
        log_ref = torch.log_softmax(reference.logits, dim=1)
        masked = log_ref.isneginf()
        gap = log_ref.masked_fill(masked, 0.0) - log_p.masked_fill(masked, 0.0)
        return (log_ref.exp() * gap).sum(dim=1)

    def mean_tokens(self, values: Tensor) -> Tensor:
        """Sum of `values` [N] over the scored tokens of the whole optimiser step.

        The micro-batches of a step therefore add up to the mean over all its tokens. Zero with
        gradient zero where nothing is scored.
        """
        return values.sum() / max(self.step_tokens, 1)

    def mean_sequences(self, values: Tensor) -> Tensor:
        """Sum of `values` [B] over the sequences of the whole optimiser step."""
        return values.sum() / max(self.step_rows, 1)


def mean_over_union(*parts: tuple[Predictions, Tensor]) -> Tensor:
    """Token mean over several parts together: weights follow the parts' token counts."""
    total = torch.stack([values.sum() for _, values in parts]).sum()
    return total / max(sum(predictions.step_tokens for predictions, _ in parts), 1)


@dataclass(frozen=True, eq=False)
class Reference:
    """The frozen start model's predictions for the same tokens; carries no gradient."""

    token_logprob: Tensor
    """[N] log p_ref,y"""
    rows: Tensor
    row_count: int
    logits_or_none: Tensor | None = None

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_ref,y."""
        return _sum_rows(self.token_logprob, self.rows, self.row_count)

    @property
    def logits(self) -> Tensor:
        """[N, V]; only where the method's needs declare `distributions`."""
        if self.logits_or_none is None:
            raise LookupError(
                "the loss reads the reference's distributions, which its `needs` does not declare"
            )
        return self.logits_or_none


def _sum_rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, rows, values)
