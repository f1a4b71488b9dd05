"""Predictions of answer tokens, and the primitives of losses computed from them.

`Predictions` contains only scored positions: shift, padding and prompt are removed before a method
gets it. Every primitive except `logits` is computed one chunk of tokens at a time from the final
hidden states and the output layer, without a [tokens, vocabulary] matrix in memory.

Symbols: N scored tokens of the micro-batch, B its sequences, H hidden size, V vocabulary entries,
D size of the states between decoder layers, z [N, V] logits, y [N] labels, p = softmax(z),
q = softmax(z with z_y = −∞), p_ref the reference model's probabilities.
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
    """[N, H] final hidden states; [N, V] logits if the projection has no weight."""
    projection: Projection
    labels: Tensor
    """[N] the tokens to predict."""
    rows: Tensor
    """[N] index of the sequence each token belongs to, in 0..B-1, in ascending order."""
    row_count: int
    """B"""
    step_tokens: int
    """Scored tokens of this part in the optimiser step, in all its micro-batches and processes."""
    step_rows: int
    """Sequences of this part in the whole optimiser step."""
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[N, D] hidden states by decoder layer, for the layers that the method's `needs` declares."""
    scores: Tensor | None = None
    """[N] score in [0, 1] of each token; None if the method's `needs` does not declare it."""
    text_tokens: Tensor | None = None
    """[N] tokens of the text that the method's `needs` names; None if it names no text. The text
    begins again at each row's first token, and is repeated until the row is full."""

    @property
    def token_scores(self) -> Tensor:
        """[N] score of each token: column `score` of the data, or the reward of a sample.

        Raises:
            LookupError: If the method's `needs` does not declare scores.
        """
        if self.scores is None:
            raise LookupError("the loss reads scores by token, which its `needs` does not declare")
        return self.scores

    @property
    def text_labels(self) -> Tensor:
        """[N] tokens of a text that take the place of the labels.

        Raises:
            LookupError: If the method's `needs` does not name a text.
        """
        if self.text_tokens is None:
            raise LookupError(
                "the loss reads the tokens of a text, which its `needs` does not name"
            )
        return self.text_tokens

    @property
    def logits(self) -> Tensor:
        """[N, V] logits in fp32 or fp64, all at once, for losses that no primitive here covers."""
        return self.projection(self.hidden)

    @cached_property
    def _odds(self) -> tuple[Tensor, Tensor]:
        """[N] log-odds of the labels and [N] entropies H(q), which have no gradient."""
        return apply_kernel(self.hidden, self.projection, LogOdds(self.labels), eager=False)

    @property
    def log_odds(self) -> Tensor:
        """[N] log-odds z_y − log Σ_{v≠y} exp z_v, so that p_y = σ(log-odds).

        They are exact even if p_y is so near 1 that it rounds to 1.
        """
        return self._odds[0]

    @cached_property
    def token_logprob(self) -> Tensor:
        """[N] log p_y. Unlike `cross_entropy`, it is fast even if tokens have different weights."""
        return logsigmoid(self.log_odds)

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_y over each sequence's scored tokens; 0 for a sequence without tokens."""
        return self.sum_rows(self.token_logprob)

    @cached_property
    def lengths(self) -> Tensor:
        """[B] number of scored tokens of each sequence."""
        # `bincount` would wait for the GPU to find the largest index.
        return _sum_rows(torch.ones_like(self.rows), self.rows, self.row_count)

    def cross_entropy(self) -> Tensor:
        """Compute −log p_y [N]. It is fastest if all tokens weigh the same, as in `mean_tokens`."""
        return self.unified_cross_entropy(1.0)

    @property
    def unlearning_cross_entropy(self) -> Tensor:
        """[N] cross entropy against the detached q, H(q) − log(1 − p_y), which is CE-U (Yang 2025).

        Its gradient, p − q, equals the gradient of token-level unlikelihood, −log(1 − p_y).
        """
        return self.unified_cross_entropy(0.0)

    @property
    def unlikelihood(self) -> Tensor:
        """[N] −log(1 − p_y) (Welleck et al. 2020). It is finite if the logits are finite."""
        return softplus(self.log_odds)

    def unified_cross_entropy(
        self, score: float | Tensor, *, raw: bool = False, by_token: bool = False
    ) -> Tensor:
        """Compute General CE-U [N] (Yang 2025).

        It is the cross entropy against the detached target r · onehot(y) + (1 − r) · q.

        Args:
            score: r in [0, 1] as one number, [B] or [N]. 1 learns (negative log-likelihood), and 0
                unlearns (CE-U).
            raw: Whether the score replaces the logit of the true label in the target, so that
                r = σ(score − log Σ_{v≠y} exp z_v). A raw score may be any number from −inf to +inf.
            by_token: Whether a score with a dimension is always [N]. Otherwise it is read as [B] if
                its length is B. If B equals N, the two readings differ as soon as a row is empty.
        """
        r = self.spread(score, by_token=by_token)
        if "_odds" in self.__dict__ and not raw:
            # The log-odds are cached, and the value follows from them without another pass.
            return unified_value(*self._odds, r)
        kernel = UnifiedCrossEntropy(self.labels, r.detach(), raw)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def spread(self, score: float | Tensor, *, by_token: bool) -> Tensor:
        """Expand a score to one for each token [N].

        Args:
            score: One number, [B] or [N].
            by_token: Whether a score with a dimension is always [N], even if B equals N.
        """
        like = at_least_fp32(self.hidden[:0])
        # The device fills in a number. A tensor on the CPU would have to be copied there.
        r = score.to(like) if isinstance(score, Tensor) else like.new_full((), score)
        is_by_row = r.ndim > 0 and len(r) == self.row_count and not by_token
        if is_by_row:
            r = r[self.rows]
        return r.expand(len(self.labels))

    def kl_from(
        self, reference: Reference, *, reverse: bool = False, lowered: float = 0.0
    ) -> Tensor:
        """Compute KL(p_ref ‖ p) = Σ_v p_ref,v (log p_ref,v − log p_v) [N], with gradient p − p_ref.

        Args:
            reference: The reference model's predictions, with distributions.
            reverse: Whether to compute KL(p ‖ p_ref) instead.
            lowered: Number that is first subtracted from the reference's logit of the true label,
                as the method UNDIAL does.
        """
        hidden, projection = reference.distributions
        labels = self.labels if lowered else None
        is_own = self._are_of(hidden, projection)
        kernel = Divergence(hidden, projection, reverse, labels, lowered, is_own)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def jsd_from(self, reference: Reference) -> Tensor:
        """Compute JSD(p, p_ref) = ½ KL(p ‖ m) + ½ KL(p_ref ‖ m) [N], with m = ½ (p + p_ref)."""
        hidden, projection = reference.distributions
        is_own = self._are_of(hidden, projection)
        kernel = JensenShannon(hidden, projection, is_own=is_own)
        return apply_kernel(self.hidden, self.projection, kernel, eager=True)[0]

    def _are_of(self, hidden: Tensor, projection: Projection) -> bool:
        """Whether these are the predictions' own hidden states and output layer."""
        has_same_memory = hidden.data_ptr() == self.hidden.data_ptr()
        has_same_states = has_same_memory and hidden.shape == self.hidden.shape
        return has_same_states and projection.is_same(self.projection)

    @property
    def kl_from_uniform(self) -> Tensor:
        """[N] KL(U ‖ p) = −mean_v log p_v − log V, from the uniform distribution U.

        Masked vocabulary entries (−inf) count neither in the mean nor in V.
        """
        return apply_kernel(self.hidden, self.projection, FromUniform(), eager=True)[0]

    @property
    def lead(self) -> Tensor:
        """[N] lead p_y − max_{v≠y} p_v of the label over the most likely other token."""
        return apply_kernel(self.hidden, self.projection, Lead(self.labels), eager=True)[0]

    def logprob_of(self, tokens: Tensor) -> Tensor:
        """Compute the log-probabilities [N] of other tokens [N] in the place of the labels."""
        odds, _ = apply_kernel(self.hidden, self.projection, LogOdds(tokens), eager=False)
        return logsigmoid(odds)

    @cached_property
    def entropy(self) -> Tensor:
        """[N] entropy −Σ_v p_v log p_v."""
        return apply_kernel(self.hidden, self.projection, Entropy(), eager=False)[0]

    @cached_property
    def margin(self) -> Tensor:
        """[N] margin max_v z_v − mean_v z_v. Masked vocabulary entries (−inf) do not count."""
        return apply_kernel(self.hidden, self.projection, Margin(), eager=False)[0]

    def hidden_states(self, layer: int) -> Tensor:
        """Return the hidden states [N, D] at the positions that predict the tokens.

        Args:
            layer: Decoder layer after which they are read, from 1.

        Raises:
            LookupError: If the method's `needs` does not declare the layer.
        """
        return _state(self.states, layer, "the hidden states of")

    def sum_rows(self, values: Tensor) -> Tensor:
        """Sum values [N] over each sequence's scored tokens, which gives [B]."""
        return _sum_rows(values, self.rows, self.row_count)

    def mean_rows(self, values: Tensor) -> Tensor:
        """Average values [N] over each sequence's scored tokens, which gives [B].

        The mean of a sequence without scored tokens is 0.
        """
        return self.sum_rows(values) / self.lengths.clamp(min=1)

    def mean_tokens(self, values: Tensor) -> Tensor:
        """Divide the sum of values [N] by the number of scored tokens of the whole optimiser step.

        The micro-batches of a step therefore add up to the mean over all its tokens. If nothing is
        scored, the result is 0 with gradient 0.
        """
        return values.sum() / max(self.step_tokens, 1)

    def mean_sequences(self, values: Tensor) -> Tensor:
        """Divide the sum of values [B] by the number of sequences of the whole optimiser step."""
        return values.sum() / max(self.step_rows, 1)


def mean_over_union(*parts: tuple[Predictions, Tensor]) -> Tensor:
    """Average values over the tokens of several parts, in which each token has the same weight.

    Args:
        parts: The predictions of a part, and its values [N].
    """
    total = torch.stack([values.sum() for _, values in parts]).sum()
    step_tokens = sum(predictions.step_tokens for predictions, _ in parts)
    return total / max(step_tokens, 1)


@dataclass(frozen=True, eq=False)
class Reference:
    """The frozen start model's predictions for the same tokens, which carry no gradient."""

    token_logprob: Tensor
    """[N] log p_ref,y"""
    rows: Tensor
    """[N] index of the sequence each token belongs to, as in `Predictions.rows`."""
    row_count: int
    """B"""
    hidden: Tensor | None = None
    """[N, H] final hidden states; None if the method's `needs` does not declare distributions."""
    projection: Projection | None = None
    """Output layer of the start model; None if `hidden` is None."""
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[N, D] hidden states by decoder layer."""
    directions: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[D] directions by decoder layer, see `direction`."""

    @cached_property
    def sequence_logprob(self) -> Tensor:
        """[B] Σ_t log p_ref,y over each sequence's scored tokens."""
        return _sum_rows(self.token_logprob, self.rows, self.row_count)

    @property
    def distributions(self) -> tuple[Tensor, Projection]:
        """Final hidden states [N, H], and the output layer that maps them to logits.

        Raises:
            LookupError: If the method's `needs` does not declare `distributions`.
        """
        if self.hidden is None or self.projection is None:
            raise LookupError(
                "the loss reads the reference's distributions, which its `needs` does not declare"
            )
        return self.hidden, self.projection

    @property
    def logits(self) -> Tensor:
        """[N, V] logits, all at once.

        Raises:
            LookupError: If the method's `needs` does not declare `distributions`.
        """
        hidden, projection = self.distributions
        return projection(hidden)

    def hidden_states(self, layer: int) -> Tensor:
        """Return the hidden states [N, D] after a decoder layer, counted from 1.

        Raises:
            LookupError: If the method's `needs` does not declare the layer.
        """
        return _state(self.states, layer, "the reference's hidden states of")

    def direction(self, layer: int) -> Tensor:
        """Return the direction [D] from the forget rows to the questions that `needs` names.

        It is the mean hidden state at the end of those questions' prompts, minus the mean hidden
        state at the end of the forget rows' prompts.

        Args:
            layer: Decoder layer after which the states are read, from 1.

        Raises:
            LookupError: If the method's `needs` does not declare the layer.
        """
        return _state(self.directions, layer, "the reference's direction in")


def _state(states: Mapping[int, Tensor], layer: int, subject: str) -> Tensor:
    """Return the entry of a layer, or raise a LookupError that names the declared layers."""
    if layer not in states:
        declared = ", ".join(str(state) for state in sorted(states)) or "none"
        raise LookupError(
            f"the loss reads {subject} layer {layer}, which its needs do not declare; "
            f"declared: {declared}"
        )
    return states[layer]


def _sum_rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Sum values [N] over the tokens of each of `count` sequences; `rows` [N] are their indices."""
    return values.new_zeros(count).index_add(0, rows, values)
