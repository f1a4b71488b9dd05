"""Predictions of answer tokens, and the primitives of losses computed from them.

`Predictions` has scored positions only: shift, padding and prompt are removed before a method sees
anything. Every primitive but `logits` is computed a chunk of tokens at a time from the final hidden
states and the output layer, without a [tokens, vocabulary] matrix.

Symbols: N scored tokens of the micro-batch, B its sequences, H hidden size, V vocabulary entries,
z [N, V] logits, y [N] labels, p = softmax(z), q = softmax(z with z_y = −∞).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from unlearnbench.losses.chunked import apply_kernel
from unlearnbench.losses.kernels import (
    Divergence,
    Entropy,
    FromUniform,
    JensenShannon,
    Lead,
    LogOdds,
    Margin,
    UnifiedCrossEntropy,
    unified_value,
)
from unlearnbench.losses.lm_head import Projection, at_least_fp32


@dataclass(frozen=True, eq=False)
class Predictions:
    """The model's predictions for one part of a micro-batch."""

    hidden: Tensor
    """[N, H] final hidden states; [N, V] logits where the projection has no weight."""
    projection: Projection
    labels: Tensor
    """[N] the tokens to predict."""
    rows: Tensor
    """[N] index of the sequence each token belongs to, in 0..B-1, in ascending order."""
    row_count: int
    """B"""
    step_tokens: int
    """Scored tokens of this part in the whole optimiser step: every micro-batch, every process."""
    step_rows: int
    """Sequences of this part in the whole optimiser step."""
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[N, D] hidden states after each decoder layer that the method's needs declare."""
    scores: Tensor | None = None
    """[N] score in [0, 1] of each token, where the method's needs declare it."""
    text_tokens: Tensor | None = None
    """[N] tokens of the text that the method's needs name, repeated from each row's first."""

    @property
    def token_scores(self) -> Tensor:
        """[N] score of each token: column `score` of the data, or the reward of a sample."""
        if self.scores is None:
            raise LookupError("the loss reads scores by token, which its `needs` does not declare")
        return self.scores

    @property
    def text_labels(self) -> Tensor:
        """[N] tokens of a text in the place of the labels."""
        if self.text_tokens is None:
            raise LookupError(
                "the loss reads the tokens of a text, which its `needs` does not name"
            )
        return self.text_tokens

    @property
    def logits(self) -> Tensor:
        """[N, V] in fp32 at least, all at once: for losses that no primitive here covers."""
        return self.projection(self.hidden)

    @cached_property
    def _odds(self) -> tuple[Tensor, Tensor]:
        return apply_kernel(self.hidden, self.projection, LogOdds(self.labels), eager=False)

    @property
    def log_odds(self) -> Tensor:
        """[N] z_y − log Σ_{v≠y} exp z_v, of which p_y is the sigmoid; exact also for p_y near 1."""
        return self._odds[0]

    @cached_property
    def token_logprob(self) -> Tensor:
        """[N] log p_y; fast also where tokens weigh differently, unlike `cross_entropy`."""
        return logsigmoid(self.log_odds)

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_y over each sequence's scored tokens; 0 for a sequence without any."""
        return self.sum_rows(self.token_logprob)

    @cached_property
    def lengths(self) -> Tensor:
        """[B] scored tokens of each sequence."""
        # Not `bincount`, which waits for a GPU to find the largest.
        return _sum_rows(torch.ones_like(self.rows), self.rows, self.row_count)

    def cross_entropy(self) -> Tensor:
        """[N] −log p_y, fastest where all tokens weigh the same, as in `mean_tokens`."""
        return self.unified_cross_entropy(1.0)

    @property
    def unlearning_cross_entropy(self) -> Tensor:
        """[N] cross entropy against q, detached: CE-U (Yang 2025), H(q) − log(1 − p_y).

        Its gradient p − q is that of token-level unlikelihood, −log(1 − p_y).
        """
        return self.unified_cross_entropy(0.0)

    @property
    def unlikelihood(self) -> Tensor:
        """[N] −log(1 − p_y), finite as long as the logits are (Welleck et al. 2020)."""
        return softplus(self.log_odds)

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        """[N] cross entropy against r · onehot(y) + (1 − r) · q, detached: General CE-U, Yang 2025.

        score  r in [0, 1], one number, [B] or [N]: 1 learns (negative log-likelihood), 0 unlearns
               (CE-U). With `raw`, the score replaces the true label's logit, +inf to −inf, so that
               r = σ(score − log Σ_{v≠y} exp z_v).
        by_token  a score with dimensions is [N], also where B is N: then a row can be empty
        """
        r = self.spread(score, by_token=by_token)
        if "_odds" in self.__dict__ and not raw:  # one pass over the logits serves both
            return unified_value(*self._odds, r)
        kernel = UnifiedCrossEntropy(self.labels, r.detach(), raw)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def spread(self, score: float | Tensor, *, by_token: bool) -> Tensor:
        """[N] of one number, [B] or [N]; with `by_token` never [B], even where B is N."""
        like = at_least_fp32(self.hidden[:0])
        # The device fills in a number; a tensor made of it would have to be sent there.
        r = score.to(like) if isinstance(score, Tensor) else like.new_full((), score)
        by_row = r.ndim > 0 and len(r) == self.row_count and not by_token
        return (r[self.rows] if by_row else r).expand(len(self.labels))

    def kl_from(
        self, reference: Reference, *, reverse: bool = False, lowered: float = 0.0
    ) -> Tensor:
        """[N] KL(p_ref ‖ p) = Σ_v p_ref,v (log p_ref,v − log p_v), gradient p − p_ref.

        reverse  KL(p ‖ p_ref)
        lowered  subtracted from the reference's logit of the true label first (UNDIAL)
        """
        hidden, projection = reference.distributions
        labels = self.labels if lowered else None
        is_own = self._are_of(hidden, projection)
        kernel = Divergence(hidden, projection, reverse, labels, lowered, is_own)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def jsd_from(self, reference: Reference) -> Tensor:
        """[N] JSD(p, p_ref) = ½ KL(p ‖ m) + ½ KL(p_ref ‖ m), m = ½ (p + p_ref)."""
        hidden, projection = reference.distributions
        is_own = self._are_of(hidden, projection)
        kernel = JensenShannon(hidden, projection, is_own=is_own)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def _are_of(self, hidden: Tensor, projection: Projection) -> bool:
        """Whether these are the states and the output layer of the predictions themselves."""
        has_same_memory = hidden.data_ptr() == self.hidden.data_ptr()
        has_same_states = has_same_memory and hidden.shape == self.hidden.shape
        return has_same_states and projection.is_same(self.projection)

    @property
    def kl_from_uniform(self) -> Tensor:
        """[N] KL(U ‖ p) = −mean_v log p_v − log V; masked entries (−inf) count for neither."""
        return apply_kernel(self.hidden, self.projection, FromUniform(), eager=True)[0]

    @property
    def lead(self) -> Tensor:
        """[N] p_y − max_{v≠y} p_v."""
        return apply_kernel(self.hidden, self.projection, Lead(self.labels), eager=True)[0]

    def logprob_of(self, tokens: Tensor) -> Tensor:
        """[N] log-probability of other tokens [N] than the labels."""
        odds, _ = apply_kernel(self.hidden, self.projection, LogOdds(tokens), eager=False)
        return logsigmoid(odds)

    @cached_property
    def entropy(self) -> Tensor:
        """[N] −Σ_v p_v log p_v."""
        return apply_kernel(self.hidden, self.projection, Entropy(), eager=False)[0]

    @cached_property
    def margin(self) -> Tensor:
        """[N] max_v z_v − mean_v z_v; masked entries (−inf) count for neither."""
        return apply_kernel(self.hidden, self.projection, Margin(), eager=False)[0]

    def hidden_states(self, layer: int) -> Tensor:
        """[N, D] after decoder layer `layer`, from 1, at the positions that predict the tokens."""
        return _state(self.states, layer, "the hidden states of")

    def sum_rows(self, values: Tensor) -> Tensor:
        """[B] Σ_t of `values` [N] over each sequence's scored tokens."""
        return _sum_rows(values, self.rows, self.row_count)

    def mean_rows(self, values: Tensor) -> Tensor:
        """[B] mean of `values` [N] over each sequence's scored tokens; 0 where there are none."""
        return self.sum_rows(values) / self.lengths.clamp(min=1)

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
    hidden: Tensor | None = None
    """[N, H] final hidden states."""
    projection: Projection | None = None
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[N, D] by decoder layer."""
    directions: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[D] by decoder layer."""

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_ref,y."""
        return _sum_rows(self.token_logprob, self.rows, self.row_count)

    @property
    def distributions(self) -> tuple[Tensor, Projection]:
        """Hidden states and the map to logits; only where the method's needs declare them."""
        if self.hidden is None or self.projection is None:
            raise LookupError(
                "the loss reads the reference's distributions, which its `needs` does not declare"
            )
        return self.hidden, self.projection

    @property
    def logits(self) -> Tensor:
        """[N, V], all at once; only where the method's needs declare `distributions`."""
        hidden, projection = self.distributions
        return projection(hidden)

    def hidden_states(self, layer: int) -> Tensor:
        """[N, D] after decoder layer `layer`, from 1."""
        return _state(self.states, layer, "the reference's hidden states of")

    def direction(self, layer: int) -> Tensor:
        """[D] difference of mean states after `layer`, at the end of prompts: those of the needs'
        questions less those of the forget rows."""
        return _state(self.directions, layer, "the reference's direction in")


def _state(states: Mapping[int, Tensor], layer: int, subject: str) -> Tensor:
    if layer not in states:
        declared = ", ".join(str(state) for state in sorted(states)) or "none"
        raise LookupError(
            f"the loss reads {subject} layer {layer}, which its needs do not declare; "
            f"declared: {declared}"
        )
    return states[layer]


def _sum_rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, rows, values)
