"""Observations as the checks of a metric change them: cut, reordered, damaged, without columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from unlearnbench.api.metric import EvaluatedModel, MetricInputs, Reads
from unlearnbench.api.observations import AnswerTokens, Samples, SetEvaluation
from unlearnbench.evaluation.made_up_sets import made_up_set

_SETS = ("retain", "real_authors", "world_facts", "forget", "holdout")
"""The sets of a made-up model: one at least of each role."""


def taken(seen: SetEvaluation, order: Sequence[int]) -> SetEvaluation:
    """The examples `order` of a set, in this order."""
    chosen = {column.name: _taken(getattr(seen, column.name), [*order]) for column in fields(seen)}
    return replace(seen, **chosen)


def _taken(column: Any, order: list[int]) -> Any:
    if isinstance(column, np.ndarray):
        return column[order]
    if isinstance(column, tuple):
        return tuple(column[i] for i in order) if column else ()
    if isinstance(column, Samples):
        return Samples(_taken(column.texts, order), _taken(column.rouge_l_recall, order))
    if isinstance(column, AnswerTokens):

        def by_token(values: Any) -> Any:
            return np.concatenate([column.by_answer(values, eos=True)[i] for i in order])

        per_answer: dict[str, Any] = {
            "lengths": column.lengths[order],
            "ended": column.ended[order],
        }
        observed = {name: by_token(values) for name, values in column.observed.items()}
        rest: dict[str, Any] = {
            name: by_token(values)
            for name, values in vars(column).items()
            if isinstance(values, np.ndarray) and name not in per_answer
        }
        return AnswerTokens(**per_answer, **rest, observed=observed)
    return column


def damaged(seen: SetEvaluation, example: int) -> SetEvaluation:
    """A set in which every number of one example is NaN, and none of its tokens is hit."""
    tokens, spoilt = seen.tokens, np.arange(len(seen.answer_loss)) == example
    by_token = np.repeat(spoilt, tokens.lengths)
    token_columns = _spoilt(tokens, by_token) | {"hit": tokens.hit & ~by_token}
    changed = _spoilt(seen, spoilt) | {"token_columns": replace(tokens, **token_columns)}
    if seen.samples is not None:
        changed["samples"] = replace(seen.samples, **_spoilt(seen.samples, spoilt))
    return replace(seen, **changed)


def _spoilt(columns: Any, spoilt: Any) -> dict[str, Any]:
    """The numbers of some columns, NaN where `spoilt`."""
    return {
        name: np.where(
            spoilt.reshape(-1, *[1] * (values.ndim - 1)), values.dtype.type("nan"), values
        )
        for name, values in vars(columns).items()
        if isinstance(values, np.ndarray) and values.dtype.kind == "f"
    }


def without(seen: SetEvaluation, column: Reads) -> SetEvaluation:
    """A set without the observations that a metric declares as `column`."""
    n = len(seen.answer_loss)
    none, unknown = np.empty((n, 0)), np.full(n, np.nan)
    changes: Mapping[str, dict[str, Any]] = {
        "tokens": {"token_columns": None},
        "moments": {
            "token_columns": replace(seen.tokens, mean_logprob=None, logprob_variance=None)
        },
        "perturbed": {"perturbed_loss": none, "perturbed_tokens": none.astype(np.int64)},
        "generated": {"generated": ()},
        "rouge": {"rouge1_recall": unknown, "rouge_l_recall": unknown},
        "paraphrase": {},  # without one, the answer itself is in its place
    }
    return replace(seen, **changes.get(column, {column: None}))


def frozen(seen: SetEvaluation) -> SetEvaluation:
    """The same set; a change of its arrays in place is an error."""
    samples = () if seen.samples is None else (seen.samples.rouge_l_recall,)
    for values in (*vars(seen).values(), *vars(seen.tokens).values(), *samples):
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    return seen


@dataclass(frozen=True)
class _Columns(Mapping[str, float | None]):
    """Columns of a model, in which every name has the value `level`."""

    level: float

    def __getitem__(self, name: str) -> float | None:
        return self.level

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def inputs() -> MetricInputs:
    """A run's model, its retain model and its start model: every set and every column."""
    models: list[EvaluatedModel] = []
    for level in (0.5, 0.3, 0.9):
        sets = {
            name: frozen(made_up_set(level, seed=seed, n=12)) for seed, name in enumerate(_SETS)
        }
        models.append(EvaluatedModel(sets, _Columns(level)))
    return MetricInputs(*models)
