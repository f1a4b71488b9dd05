"""General CE-U: learn or unlearn each token as far as its score says."""

from typing import Annotated, Literal, Self

from pydantic import model_validator
from torch import Tensor

from unlearnbench.api.hyperparameters import refuse_unused, setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Sampling, Terms

from .grpo import withheld

_PAPER = "Yang 2025, arXiv:2503.01224"
_AS_GRPO = "ours: as in `grpo`"


class GeneralCEU(Method):
    """General CE-U: Yang 2025, the generalisation of CE-U by a score per token.

    L = mean_t −Σ_v a_tv log p_tv,   a_t = r · onehot(y) + (1 − r) · q_t

    q_t  softmax of the logits with z_ty = −∞, detached;  r  score, 1 learns, 0 unlearns
    t    scored token of a forget row or, with `scores: reward`, of a sample, or of a retain row

    The mean is over the tokens of both sides together, so the weight of each side is its number of
    tokens.

    Scores of the forget side come from (`scores`)
    constant  `forget_score`, the same for all
    column    the column `score` of the forget rows: a number in [0, 1], or a list with one for
              each token of the answer and the one that ends it (such as a process reward model's)
    reward    answers that the model samples to the forget questions in each step, `samples` to
              each, instead of the forget rows. r is a sample's reward, 1 − ROUGE-L recall against
              the answer to forget (as in `grpo`). Samples that reveal the answer are unlearned, and
              others are learned. Your own method can derive from this class, and define
              `reward(answer, truth)`, or `token_rewards(answer, tokens, truth)` with a number for
              each token.

    The scores of retain rows are constant, or they come from a column (`retain_scores`). The paper
    proposes such scores for whole answers and for steps. It is our choice that a reward is taken as
    r unchanged.

    With `raw`, a score replaces z_ty itself: r = σ(score − log Σ_{v≠y} exp z_tv), where +inf learns
    and −inf unlearns. (The paper's listing sends −inf to the learning target as well. Here, −inf
    unlearns, as the paper's text says.) Without `raw`, the score does not depend on the scale of
    the logits. This is why `raw` is off by default.
    """

    family = "target distribution"
    needs = Needs(
        parts=frozenset({"forget", "retain", "sample"}),
        samples=Sampling(8),
        scores=frozenset({"forget", "retain", "sample"}),
    )

    ignore_first_answer_tokens: int = setting(
        1,
        "number of first tokens that the loss ignores in the answer of each forget row; above 0, "
        "the loss also ignores the label that a template puts before the answer "
        "(training.ignore_label)",
        _PAPER,
        ge=0,
    )
    scores: Annotated[Literal["constant", "column", "reward"], IF_SET] = setting(
        "constant",
        "where scores of the forget side come from",
        "Yang 2025, arXiv:2503.01224: 0 for all rows to forget",
    )
    retain_scores: Annotated[Literal["constant", "column"], IF_SET] = setting(
        "constant",
        "where scores of the retain rows come from",
        "Yang 2025, arXiv:2503.01224: 1 for all that is kept",
    )
    forget_score: float = setting(
        0.0, "constant score of the forget rows; 0 unlearns", _PAPER, allow_inf_nan=True
    )
    retain_score: float = setting(
        1.0, "constant score of the retain rows; 1 learns", _PAPER, allow_inf_nan=True
    )
    raw: bool = setting(
        False,
        "constant scores are logits (+inf learns, -inf unlearns)",
        "ours: a score that does not depend on the scale of the logits",
    )
    samples: Annotated[int, IF_SET] = setting(
        8, "number of answers sampled to each question, with scores: reward", _AS_GRPO, ge=1
    )
    max_new_tokens: Annotated[int, IF_SET] = setting(
        64, "maximal number of tokens of a sampled answer", _AS_GRPO, ge=1
    )

    @model_validator(mode="after")
    def _in_range(self) -> Self:
        for name in ("forget_score", "retain_score"):
            score = getattr(self, name)
            if not self.raw and not 0 <= score <= 1:
                raise ValueError(f"{name} must lie in [0, 1] unless raw is true, got {score}")
        if self.raw and (self.scores, self.retain_scores) != ("constant", "constant"):
            raise ValueError(
                "raw is for constant scores; those of a column or reward are in [0, 1]"
            )
        if self.scores != "constant":
            refuse_unused(self, "scores", "forget_score")
        if self.retain_scores != "constant":
            refuse_unused(self, "retain_scores", "retain_score")
        if self.scores != "reward":
            refuse_unused(self, "scores", "samples", "max_new_tokens")
        return self

    def needed(self) -> Needs:
        """Return the parts that scores come from; samples only with `scores: reward`."""
        scored: set[Part] = set()
        if self.retain_scores == "column":
            scored.add("retain")
        if self.scores == "reward":
            scored.add("sample")
            return Needs(
                parts=frozenset({"sample", "retain"}),
                samples=Sampling(self.samples, max_new_tokens=self.max_new_tokens),
                scores=frozenset(scored),
            )
        if self.scores == "column":
            scored.add("forget")
        return Needs(parts=frozenset({"forget", "retain"}), scores=frozenset(scored))

    def reward(self, answer: str, truth: str) -> float:
        """Return the score of a sampled answer, in [0, 1]."""
        return withheld(answer, truth)

    def loss(self, batch: LossBatch) -> Tensor | Terms:
        """Return the loss, or the terms of both sides. The mean reward of samples is reported."""
        retain = batch.retain
        scored = batch.forget
        if self.scores == "reward":
            if batch.rewards is None:
                raise LookupError(f"{type(self).__name__} needs the samples' rewards")
            scored = batch.sample
            batch.report("reward", scored.mean_sequences(batch.rewards))
        r = self.forget_score if self.scores == "constant" else scored.token_scores
        retain_r = self.retain_score if self.retain_scores == "constant" else retain.token_scores
        return batch.mean_over_union(
            forget=(scored, scored.unified_cross_entropy(r, raw=self.raw, by_token=True)),
            retain=(retain, retain.unified_cross_entropy(retain_r, raw=self.raw, by_token=True)),
        )
