"""Observations as the checks of a metric change them: reordered, cut, damaged, without columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from unlearnbench.api.metric import EXTRA, UNDER_ATTACK, EvaluatedModel, MetricInputs, Reads
from unlearnbench.api.observations import AnswerTokens, Samples, SetEvaluation
from unlearnbench.evaluation.made_up_sets import made_up_set

SETS = ("retain", "real_authors", "world_facts", "forget", "holdout")
"""The sets of a made-up model: one at least of each role."""


def taken(seen: SetEvaluation, order: Sequence[int]) -> SetEvaluation:
    """The examples `order` of a set, in this order."""
    changed = {
        one.name: _taken(getattr(seen, one.name), order)
        for one in fields(seen)
        if one.name not in ("token_columns", "values", "samples")
    }
    if seen.token_columns is not None:
        changed["token_columns"] = _tokens_taken(seen.tokens, order)
    if seen.samples is not None:
        own = seen.samples
        changed["samples"] = Samples(_taken(own.texts, order), _taken(own.rouge_l_recall, order))
    return replace(seen, **changed)


def _taken(column: Any, order: Sequence[int]) -> Any:
    if column is None:
        return None
    if isinstance(column, tuple):
        return tuple(column[i] for i in order) if column else ()
    return column[list(order)]


def _tokens_taken(tokens: AnswerTokens, order: Sequence[int]) -> AnswerTokens:
    def of_tokens(column: Any) -> Any:
        if column is None:
            return None
        parts = tokens.by_answer(column, eos=True)
        return np.concatenate([parts[i] for i in order])

    names = ("loss", "hit", "tied", "mean_logprob", "logprob_variance")
    by_token = {name: of_tokens(getattr(tokens, name)) for name in names}
    order = list(order)
    return AnswerTokens(lengths=tokens.lengths[order], ended=tokens.ended[order], **by_token)


def damaged(seen: SetEvaluation, example: int) -> SetEvaluation:
    """A set in which every number of one example is NaN, and none of its tokens is hit."""
    changed: dict[str, Any] = {}
    losses = ("answer_loss", "base_loss", "perturbed_loss", "rouge1_recall", "rouge_l_recall")
    for name in (*losses, *(key for key in EXTRA if getattr(seen, key) is not None)):
        changed[name] = getattr(seen, name).copy()
        changed[name][example] = np.nan
    if seen.samples is not None:
        rouge = seen.samples.rouge_l_recall.copy()
        rouge[example] = np.nan
        changed["samples"] = replace(seen.samples, rouge_l_recall=rouge)
    tokens = seen.tokens
    own = np.repeat(np.arange(len(tokens.lengths)), tokens.lengths) == example  # [T]
    changed["token_columns"] = replace(
        tokens,
        loss=np.where(own, np.float32(np.nan), tokens.loss),
        hit=tokens.hit & ~own,
        mean_logprob=_nan_where(own, tokens.mean_logprob),
        logprob_variance=_nan_where(own, tokens.logprob_variance),
    )
    return replace(seen, **changed)


def _nan_where(own: Any, column: Any) -> Any:
    return None if column is None else np.where(own, np.float32(np.nan), column)


def without(seen: SetEvaluation, what: Reads) -> SetEvaluation:
    """A set without the observations that a metric declares as `what`."""
    n = len(seen.answer_loss)
    if what == "tokens":
        return replace(seen, token_columns=None)
    if what == "moments":
        bare = replace(seen.tokens, mean_logprob=None, logprob_variance=None)
        return replace(seen, token_columns=bare)
    if what == "perturbed":
        none = np.empty((n, 0), dtype=np.int64)
        return replace(seen, perturbed_loss=np.empty((n, 0)), perturbed_tokens=none)
    if what == "generated":
        return replace(seen, generated=())
    if what in EXTRA | UNDER_ATTACK:
        absent: dict[str, Any] = {what: None}
        return replace(seen, **absent)
    if what == "rouge":
        unknown = np.full(n, np.nan)
        return replace(seen, rouge1_recall=unknown, rouge_l_recall=unknown)
    return seen  # a paraphrase: without one, the answer itself is in its place


def frozen(seen: SetEvaluation) -> SetEvaluation:
    """The same set; a change of its arrays in place is an error."""
    samples = () if seen.samples is None else (seen.samples.rouge_l_recall,)
    for one in (*vars(seen).values(), *vars(seen.tokens).values(), *samples):
        if isinstance(one, np.ndarray):
            one.flags.writeable = False
    return seen


@dataclass
class Columns(Mapping[str, float | None]):
    """Columns of a model in which every name has the value `level`; keeps the names that are read.

    level  None: every column is undefined
    """

    level: float | None
    read: set[str] = field(default_factory=set[str])

    def __getitem__(self, name: str) -> float | None:
        self.read.add(name)
        return self.level

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(self.read)

    def __len__(self) -> int:
        return len(self.read)


def inputs(
    own: float | None = 0.5, retain: float | None = 0.3, start: float | None = 0.9
) -> MetricInputs:
    """Three made-up models whose columns, and whose knowledge of every set, are at these levels."""
    return MetricInputs(*(model(level) for level in (own, retain, start)))


def model(level: float | None) -> EvaluatedModel:
    """One made-up model; its columns are `Columns`."""
    knows = 0.5 if level is None else level
    sets = {name: made_up_set(knows, seed=seed, n=12) for seed, name in enumerate(SETS)}
    return EvaluatedModel(sets, Columns(level))
