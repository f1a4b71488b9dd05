"""The observations of an evaluation, from which all metrics are computed.

There is one `SetEvaluation` for each evaluation set. Its arrays have an entry for each question.
The arrays of `SetEvaluation.tokens` have an entry for each token of the true answers.
"""

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
"""The evaluation sets of TOFU."""

FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AnswerTokens:
    """The T scored tokens of a set's n true answers, one answer after the other.

    Attributes:
        lengths: [n] Number of tokens of each answer. The tokens that end the turn are included. The
            sum is T.
        ended: [n] Whether the last token ends the turn. False if the answer was cut.
        loss: [T] Negative log-likelihood in nats. NaN if it is undefined.
        hit: [T] Whether the token is the most probable one in its place.
        tied: [T] Whether another token was as probable up to rounding (`tie_gap`). Then `hit` may
            be different in another batch.
        mean_logprob: [T] μ = Σ_v p_v log p_v over the vocabulary. None if no metric reads it.
        logprob_variance: [T] Σ_v p_v (log p_v − μ)². None if no metric reads it.
        observed: [T] Numbers of metrics' own `Observation`s, by name.
        end_lengths: [n] Number of tokens that end the turn of each answer. None if no turn ends
            with more than one token.
    """

    lengths: IntArray
    ended: BoolArray
    loss: Float32Array
    hit: BoolArray
    tied: BoolArray
    mean_logprob: Float32Array | None = None
    logprob_variance: Float32Array | None = None
    observed: Mapping[str, Float32Array] = field(default_factory=dict[str, Float32Array])
    end_lengths: IntArray | None = None

    @property
    def end_counts(self) -> IntArray:
        """[n] Number of tokens that end the turn of each answer. 0 if the answer was cut."""
        return self.ended.astype(np.int64) if self.end_lengths is None else self.end_lengths

    def by_answer(self, column: NDArray[_T], *, eos: bool) -> list[NDArray[_T]]:
        """Divide a column [T] into its n answers.

        Args:
            column: One of the columns by token.
            eos: Whether the tokens that end a turn are included.

        Returns:
            The part of each answer, in the order of the questions.
        """
        parts = np.split(column, np.cumsum(self.lengths)[:-1])
        if eos:
            return parts
        return [
            part[: len(part) - end_count]
            for part, end_count in zip(parts, self.end_counts, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Samples:
    """Sampled answers: s to each of a set's n questions.

    Attributes:
        texts: [n, s] The answers.
        rouge_l_recall: [n, s] ROUGE-L recall of the true answer. NaN if logits were not finite.
    """

    texts: tuple[tuple[str, ...], ...]
    rouge_l_recall: FloatArray


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """One set of n questions with at most k perturbed answers each.

    Arrays and tuples are in the order of the questions.

    Attributes:
        questions: [n] The questions.
        generated: [n] Greedy answers. Empty if only scores are known, as in TOFU's published logs
            and for holdout rows.
        references: [n] Texts of the true answers, which are the references of ROUGE.
        answer_loss: [n] Mean negative log-likelihood of the true answer's tokens in nats. EOS is
            included.
        answer_tokens: [n] Number of these tokens.
        base_loss: [n] Mean negative log-likelihood of the base of the truth ratio: the paraphrase,
            or the answer if there is none.
        base_tokens: [n] Number of the base's tokens.
        perturbed_loss: [n, k] Mean negative log-likelihood of the perturbed answers. NaN in the
            last places of a question that has fewer than k.
        perturbed_tokens: [n, k] Number of the perturbed answers' tokens. 0 in these places.
        rouge1_recall: [n] ROUGE-1 recall of the true answer by the greedy one.
        rouge_l_recall: [n] ROUGE-L recall of the true answer by the greedy one.
        token_columns: Values by token. None if only means are known, as in logs of TOFU and of
            open-unlearning, and in early records.
        grad_norm: [n] Norm of the gradient of the true answer's mean loss without EOS, averaged
            over the model's weight tensors, see `evaluation/gradient_norms.py`. None if no metric
            reads it.
        start_loss: [n] Mean negative log-likelihood of the greedy answer's tokens under the start
            model. EOS is included. None if no metric reads it.
        token_entropy: [n] Entropy of the greedy answer's tokens, see `stats/token_entropy.py`. NaN
            if logits were not finite. None if no metric reads it.
        samples: Sampled answers. None except under an attack that samples answers.
        sentences: [n] True answers as whole sentences, with which metrics of meaning compare the
            greedy answers. Empty if the references are these sentences.
        values: [n] Values by metric that a log states, because it lacks the observations to compute
            them from.
        options: [n, k + 1] Options of each multiple choice, in their order. Empty in other sets.
        answer_index: [n] Index of the right option. None in other sets.
        labels: [n] Labels of each question, see `Question.labels`. Empty if no question has any.
        word_rule: What counts as a word, by the evaluation's profile, see `stats/text_overlap`.
        compressed_bytes: [n] Number of bytes after zlib of the text of the true answer's scored
            tokens. None if these texts are the references, and in early records.
        places: [n] Index of each row among all rows of the set, if an attack left some out. None
            if it left none out, and in early records.
        text_values: [n] Values by `Measure.key` of the metrics that read texts, if texts were not
            kept (`keep_texts: false`). None if they were kept.
    """

    questions: tuple[str, ...]
    generated: tuple[str, ...]
    references: tuple[str, ...]
    answer_loss: FloatArray
    answer_tokens: IntArray
    base_loss: FloatArray
    base_tokens: IntArray
    perturbed_loss: FloatArray
    perturbed_tokens: IntArray
    rouge1_recall: FloatArray
    rouge_l_recall: FloatArray
    token_columns: AnswerTokens | None = None
    grad_norm: FloatArray | None = None
    start_loss: FloatArray | None = None
    token_entropy: FloatArray | None = None
    samples: Samples | None = None
    sentences: tuple[str, ...] = ()
    values: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    options: tuple[tuple[str, ...], ...] = ()
    answer_index: IntArray | None = None
    labels: tuple[tuple[str, ...], ...] = ()
    word_rule: WordRule = "ascii"
    compressed_bytes: IntArray | None = None
    places: IntArray | None = None
    text_values: Mapping[str, FloatArray] | None = None

    @property
    def whole_references(self) -> tuple[str, ...]:
        """[n] Texts of the true answers as whole sentences, if there are any."""
        return self.sentences or self.references

    @property
    def perturbed(self) -> BoolArray:
        """[n, k] Whether there is a perturbed answer, even if its loss is undefined."""
        unknown = np.isnan(self.perturbed_loss)
        # A log may have losses without numbers of tokens.
        has_token_counts = self.perturbed_tokens.any()
        if not unknown.any() or not has_token_counts:
            return np.ones_like(unknown)
        return ~unknown | (self.perturbed_tokens > 0)

    @property
    def scored_answers(self) -> tuple[FloatArray, IntArray, BoolArray]:
        """The true answers and the perturbed ones, as three arrays [n, 1 + k].

        They are mean losses, numbers of tokens, and whether there is such an answer.
        """
        has_answer = np.ones(len(self.answer_loss), dtype=np.bool_)
        loss = np.column_stack([self.answer_loss, self.perturbed_loss])
        tokens = np.column_stack([self.answer_tokens, self.perturbed_tokens])
        exists = np.column_stack([has_answer, self.perturbed])
        return loss, tokens, exists

    @property
    def tokens(self) -> AnswerTokens:
        """Values by token of the true answers.

        Raises:
            EvaluationError: Only means are known.
        """
        if self.token_columns is None:
            raise EvaluationError(
                "no values by token, only means: evaluate again, or add tokens to `reads`"
            )
        return self.token_columns

    def sampled_scores(self, k: int = 1) -> FloatArray:
        """Return the ROUGE-L recall of the sampled answers [n, s].

        Args:
            k: Least number of answers to each question that the metric reads.

        Raises:
            EvaluationError: There are no sampled answers.
            PluginError: There are fewer than k.
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
    """Cost and diagnostics of an evaluation. They are no part of its result, and not in logs.

    Attributes:
        generated: Number of tokens of all greedy answers, with EOS.
        drafted: Number of these tokens that were verified as part of a draft.
        steps: Number of forward passes of decoding, summed over batches.
        ties: Questions whose greedy answer has a tie (`tie_gap`) at some token. Only there may
            another batch size or machine give another answer.
        not_finite: First question with logits that are NaN or infinite. None if there is none.
        cut: Number of true answers that are longer than the profile's `max_length` permits.
        remarks: Sentences about texts and settings because of which numbers mean something else
            than they seem to.
    """

    generated: int
    drafted: int
    steps: int
    ties: tuple[str, ...]
    not_finite: str | None
    cut: int = 0
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One evaluation of a model on all sets.

    Attributes:
        profile: Name and hash of the profile, `tofu@1a2b3c4d`. Numbers of different profiles are
            not comparable.
        sets: Observations by set.
        statistics: Cost and diagnostics. None if the evaluation was read from a log.
        answers: Token ids of the greedy answers by set, without EOS. They are drafts for the next
            evaluation, and not in logs. A set that is only scored has none.
        precision: `float32` or `bfloat16`, see `precision.py`. None for logs that do not state it.
    """

    profile: str
    sets: Mapping[SetName, SetEvaluation]
    statistics: Statistics | None = None
    answers: Mapping[SetName, tuple[tuple[int, ...], ...]] | None = None
    precision: str | None = None
