"""The observations of an evaluation: per question and set; all metrics are computed from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.stats.text_overlap import WordRule

_T = TypeVar("_T", bound=np.generic)

SetName = str
SETS: tuple[SetName, ...] = ("retain", "forget", "real_authors", "world_facts")

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AnswerTokens:
    """The T scored tokens of a set's n true answers, one answer after the other."""

    lengths: IntArray
    """[n] tokens of each answer, including what ends the turn; they add up to T."""
    ended: BoolArray
    """[n] True if the last token ends the turn; False where the answer was cut."""
    loss: Float32Array
    """[T] negative log-likelihood in nats; NaN where undefined."""
    hit: BoolArray
    """[T] True if the token is the most probable one in its place."""
    tied: BoolArray
    """[T] True if another token was as probable up to rounding (`tie_gap`): `hit` may differ with
    another batch."""
    mean_logprob: Float32Array | None = None
    """[T] μ = Σ_v p_v log p_v over the vocabulary; None where not asked for."""
    logprob_variance: Float32Array | None = None
    """[T] Σ_v p_v (log p_v − μ)²."""
    observed: Mapping[str, Float32Array] = field(default_factory=dict[str, Float32Array])
    """[T] by name: what the `Observation`s of metrics gave."""
    end_lengths: IntArray | None = None
    """[n] tokens that end the turn of each answer; None if no turn ends with more than one."""

    @property
    def end_counts(self) -> IntArray:
        """[n] tokens that end the turn of each answer; 0 where it was cut."""
        return self.ended.astype(np.int64) if self.end_lengths is None else self.end_lengths

    def by_answer(self, column: NDArray[_T], *, eos: bool) -> list[NDArray[_T]]:
        """[n] the part [T_i] of a column [T] that belongs to each answer.

        eos  with the tokens that end it; without, an answer that was cut stays whole
        """
        parts = np.split(column, np.cumsum(self.lengths)[:-1])
        if eos:
            return parts
        return [p[: len(p) - count] for p, count in zip(parts, self.end_counts, strict=True)]


@dataclass(frozen=True, eq=False)
class Samples:
    """s sampled answers to each of a set's n questions."""

    texts: tuple[tuple[str, ...], ...]
    """[n][s]"""
    rouge_l_recall: FloatArray
    """[n, s] against the reference; NaN where logits were not finite."""


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """One set of n questions with k perturbed answers at most; arrays are aligned by question."""

    questions: tuple[str, ...]
    generated: tuple[str, ...]
    """Greedy answers; empty when only scores are known: of holdout rows, in TOFU's published
    logs."""
    references: tuple[str, ...]
    """Texts of the true answers, the references of ROUGE."""
    answer_loss: FloatArray
    """[n] mean negative log-likelihood of the true answer's tokens, EOS included, in nats."""
    answer_tokens: IntArray
    """[n]"""
    base_loss: FloatArray
    """[n] the same for the base of the truth ratio: the paraphrase, or the answer."""
    base_tokens: IntArray
    """[n]"""
    perturbed_loss: FloatArray
    """[n, k] the same for the perturbed answers; NaN behind those of a question with fewer."""
    perturbed_tokens: IntArray
    """[n, k]; 0 there."""
    rouge1_recall: FloatArray
    """[n]"""
    rouge_l_recall: FloatArray
    """[n]"""
    token_columns: AnswerTokens | None = None
    """None where only means are known: in TOFU's and open-unlearning's logs, in early records."""
    grad_norm: FloatArray | None = None
    """[n] mean over the model's weight tensors of the norm of the true answer's mean loss's
    gradient, EOS excluded, see `evaluation/gradient_norms.py`; None where no metric reads it."""
    start_loss: FloatArray | None = None
    """[n] mean negative log-likelihood of the greedy answer's tokens, EOS included, under the start
    model; None where no metric reads it."""
    samples: Samples | None = None
    """None outside an attack that samples answers."""
    values: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    """[n] by metric: as stated in a log that lacks the columns to compute them."""
    options: tuple[tuple[str, ...], ...] = ()
    """[n][k + 1] the options of each question in their order; empty in a set of other questions."""
    answer_index: IntArray | None = None
    """[n] place of the answer among them; None there."""
    labels: tuple[tuple[str, ...], ...] = ()
    """[n] of each question, see `Question.labels`; empty where no question has one."""
    word_rule: WordRule = "ascii"
    """What counts as a word of the texts, by the evaluation's profile, see `stats/text_overlap`."""
    compressed_bytes: IntArray | None = None
    """[n] bytes of the text of each true answer's scored tokens after zlib. None where these texts
    are the references, and in records from before there was this column."""
    places: IntArray | None = None
    """[n] places of these rows among all rows of the set, if an attack left some out. None if it
    left none out, and in records from before there was this column."""
    text_values: Mapping[str, FloatArray] | None = None
    """[n] by `Measure.key`: values of the metrics that read texts, if texts were not kept
    (`keep_texts: false`). None if they were."""

    @property
    def perturbed(self) -> BoolArray:
        """[n, k] True where there is a perturbed answer, also one whose loss is undefined."""
        unknown = np.isnan(self.perturbed_loss)
        if not unknown.any() or not self.perturbed_tokens.any():  # a log may have losses alone
            return np.ones_like(unknown)
        return ~unknown | (self.perturbed_tokens > 0)

    @property
    def scored_answers(self) -> tuple[FloatArray, IntArray, BoolArray]:
        """[n, 1 + k] mean losses and tokens of the true and the perturbed answers, and which there
        are."""
        present = np.column_stack([np.ones(len(self.answer_loss), dtype=np.bool_), self.perturbed])
        loss = np.column_stack([self.answer_loss, self.perturbed_loss])
        return loss, np.column_stack([self.answer_tokens, self.perturbed_tokens]), present

    @property
    def tokens(self) -> AnswerTokens:
        """The true answers' tokens. Raises: EvaluationError where only means are known."""
        if self.token_columns is None:
            raise EvaluationError(
                "no values by token, only means: evaluate again, or add tokens to `reads`"
            )
        return self.token_columns

    def sampled_scores(self, k: int = 1) -> FloatArray:
        """[n, s] ROUGE-L recall of the sampled answers, for a metric that reads at least k of them.

        Raises: EvaluationError without sampled answers; PluginError where s is below k.
        """
        if self.samples is None:
            raise EvaluationError(
                "this evaluation has no sampled answers; attack the model by sampling"
            )
        scores = self.samples.rouge_l_recall
        if scores.shape[1] < k:
            raise PluginError(
                f"k is {k}, and {scores.shape[1]} answers to each question were sampled; set the "
                "metric's k (evaluation.metrics) to as many or fewer, or sample more"
            )
        return scores


@dataclass(frozen=True)
class Statistics:
    """Cost and diagnostics of an evaluation; no part of its result or of logs."""

    generated: int
    """Tokens of all greedy answers, EOS included."""
    drafted: int
    """Tokens of these that were verified as part of a draft."""
    steps: int
    """Forward passes of decoding, summed over batches."""
    ties: tuple[str, ...]
    """Questions whose greedy answer has a tie (`tie_gap`) at some token: only there may another
    batch size or machine give another answer."""
    not_finite: str | None
    """First question where logits were NaN or infinite."""
    cut: int = 0
    """True answers that are longer than the profile's `max_length` lets them be."""
    remarks: tuple[str, ...] = ()
    """Sentences about texts and settings that make numbers other than they seem."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation of a model on all sets."""

    profile: str
    """Name and hash of the profile, `tofu@1a2b3c4d`; do not compare numbers across profiles."""
    sets: Mapping[SetName, SetEvaluation]
    statistics: Statistics | None = None
    """None where the evaluation was read from a log."""
    answers: Mapping[SetName, tuple[tuple[int, ...], ...]] | None = None
    """Ids of the greedy answers, without EOS: drafts for the next evaluation; not in logs. Of a set
    that is only scored, none."""
    precision: str | None = None
    """`float32`, `bfloat16`, see `precision.py`; None for logs without it."""
