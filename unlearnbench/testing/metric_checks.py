"""The checks of a metric: its declarations, and its values on observations that are made up.

No model and no tensor: all of them take milliseconds. What a `Summary` computes from whole sets and
other metrics' columns is tried only for values, and for the end of a membership inference.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    EvaluatedModel,
    Measure,
    Metric,
    MetricInputs,
    Reads,
    Role,
    Summary,
)
from unlearnbench.api.observations import AnswerTokens, FloatArray, Samples, SetEvaluation
from unlearnbench.base.errors import PluginError, UnlearnbenchError
from unlearnbench.config.metric_plan import columns_of, computed, metric_plan
from unlearnbench.evaluation.made_up_sets import hopeless_set, made_up_set, observed, perfect_set
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed, unless

AnyMetric = Metric | Summary

_CLOSE = 1e-9
_SETS = ("retain", "real_authors", "world_facts", "forget", "holdout")
"""The sets of a made-up model: one at least of each role."""
_NEAR_END = 0.01
"""Share of the scale within which a perfect or hopeless model reaches its end."""

metric_check = partial(check, kind="metrics")
settings = metric_check(alone=True)(declarations.settings)


def _values(metric: Metric, seen: SetEvaluation) -> FloatArray:
    """[n] Raises: PluginError where the metric fails."""
    values = Measure("", metric, ()).per_example(observed(seen, metric.observes))
    if values is None:
        raise PluginError("undefined on a set that has everything that can be read")
    return values


def _apart(values: FloatArray, others: FloatArray) -> list[int]:
    """The examples whose values differ."""
    alike = np.isclose(values, others, rtol=_CLOSE, atol=1e-12, equal_nan=True)
    return np.flatnonzero(~alike).tolist()


@metric_check(first=True)
def columns(metric: AnyMetric) -> Outcome:
    """Names of columns are valid; roles, observations, labels and bounds are known.

    A column's name is a key in CSV, MLflow, JSON and the page: a space or a capital letter breaks
    what reads them.

    A name of small letters, digits and underscores; a label for people; bounds from low to high.
    """
    name = re.sub(r"(?<=.)(?=[A-Z])", "-", type(metric).__name__).lower()  # as a file is named
    roles: dict[str, Role] = {role: role for role in get_args(Role)}
    plan = metric_plan(roles, (), {name: type(metric)}, chosen={name: dict(metric)})
    return passed(", ".join(column.name for column in (*plan.columns, *plan.under_attack)))


@metric_check(first=True)
def values(metric: AnyMetric) -> Outcome:
    """Values are finite, within the declared bounds, the same again, and change no observation.

    A metric that raises, or whose quotients of probabilities underflow where a model is destroyed,
    has no column; all metrics read the same arrays, and a resumed run computes them again.

    A float64 array with a number for each example, or numbers by the names of columns; logarithms
    subtracted before `np.exp`; `x = x * 2` in place of `x *= 2`; no random numbers.
    """
    if isinstance(metric, Summary):
        return unless(_summary_faults(metric), ", ".join(c.name for c in columns_of(metric)))
    return unless(_value_faults(metric), "finite, and the same again")


def _value_faults(metric: Metric) -> Iterator[str]:
    low, high = metric.bounds
    sets = {"ordinary observations": made_up_set()}
    for loss, false in product((0.0, 1e4), repeat=2):
        sets[f"an answer at {loss:g} nats, false ones at {false:g}"] = _at(loss, false)
    for name, seen in sets.items():
        first, again = (_values(metric, frozen(seen)) for _ in range(2))
        if not np.array_equal(first, again, equal_nan=True):
            yield f"other values when computed again for {name}"
        for value in first:
            if not math.isfinite(value):
                yield f"{value} for {name}"
            elif not low <= value <= high:
                yield f"{value:.6g} for {name}, out of its bounds {low:g} to {high:g}"


def _summary_faults(summary: Summary) -> Iterator[str]:
    first, again = (computed(summary, inputs()) for _ in range(2))
    if first != again:
        yield "other numbers when computed again"
    for column in columns_of(summary):
        value, (low, high) = first.get(column.name), column.bounds
        if value is not None and not low - _CLOSE <= value <= high + _CLOSE:
            yield f"{column.name} is {value:.6g}, out of its bounds {low:g} to {high:g}"
    if not any(value is not None for value in first.values()):
        yield "no column is a number, though every set and column is there"


def _at(loss: float, false: float) -> SetEvaluation:
    """A set whose answers all have the same `loss`, and their perturbed ones `false`."""
    seen = hopeless_set(3, tokens=4) if loss else perfect_set(3, tokens=4)
    return replace(
        seen,
        answer_loss=np.full(3, loss),
        base_loss=np.full(3, loss + 1e-9),  # it differs: there is a paraphrase
        perturbed_loss=np.full((3, 2), false),
        perturbed_tokens=np.full((3, 2), 4),
        token_columns=replace(seen.tokens, loss=np.full_like(seen.tokens.loss, loss)),
    )


@metric_check()
def order(metric: AnyMetric) -> Outcome:
    """Each example has the value that it has alone.

    A value by example is stored, compared between models and shown beside its question; the order
    of questions comes from a file, and processes divide it.

    Compute each example from its own row: no mean, rank or padding over the set in `per_example`.
    """
    if isinstance(metric, Summary):
        return not_applicable("it has no values by example")
    seen = made_up_set(empty=True)
    n = len(seen.answer_loss)
    alone = [_values(metric, taken(seen, [i])) for i in range(n)]
    if apart := _apart(_values(metric, seen), np.concatenate(alone)):
        return fault(f"example {apart[0]} has another value when it is alone")
    return passed(f"{n} examples, one of them without a token")


@metric_check()
def nan(metric: AnyMetric) -> Outcome:
    """NaN in an example's observations gives NaN for this example alone, and no mean.

    A model that diverged has NaN for a loss. A number made of it looks like a result: `max(0, nan)`
    is 0, and `nanmean` leaves the worst answers out.

    `np.maximum`, not `max`; `mean`, not `nanmean`; no `nan_to_num`.
    """
    if isinstance(metric, Summary):
        return not_applicable("it has no values by example")
    seen = made_up_set()
    whole, broken = _values(metric, seen), _values(metric, damaged(seen, 2))
    if others := [i for i in _apart(whole, broken) if i != 2]:
        return fault(f"example {others[0]} changes where example 2 is NaN")
    # Hits are no numbers, but a token without a loss is none: the misses may count.
    missed = replace(seen.tokens, hit=damaged(seen, 2).tokens.hit)
    allowed = (whole[2], _values(metric, replace(seen, token_columns=missed))[2])
    if not math.isnan(broken[2]) and broken[2] not in allowed:
        return fault(f"example 2 has {broken[2]:.6g}, made of NaN")
    value = metric.value(np.where(np.arange(len(whole)) == 2, np.nan, whole))
    if value is not None and math.isfinite(value):
        return fault(f"the set's value is {value:.6g} where an example has none")
    return passed("NaN of that example only" if math.isnan(broken[2]) else "not read")


@metric_check()
def ends(metric: AnyMetric) -> Outcome:
    """A perfect and a hopeless model are at the ends of the bounds, as its direction declares.

    A direction that is declared the wrong way round ranks methods upside down, in every table and
    figure; open-unlearning's extraction strength never reaches the end of its scale.

    `knows = "higher"` where a model that knows the answers has the higher value, `"lower"`
    otherwise, None for neither; `bounds` are values that are reached.
    """
    if isinstance(metric, MembershipInference):
        return _recognised(metric)
    if isinstance(metric, Summary):
        return not_applicable("it is no metric of one set")
    if metric.knows is None:
        return Outcome("not declared", "neither end is that of a model that knows the answers")
    perfect = float(_values(metric, perfect_set()).mean())
    hopeless = float(_values(metric, hopeless_set()).mean())
    low, high = metric.bounds
    text = f"perfect {perfect:.4g}, hopeless {hopeless:.4g}"
    if (perfect > hopeless) != (metric.knows == "higher") or perfect == hopeless:
        return fault(f"{text}: not {metric.knows} where the model knows the answers")
    near = _NEAR_END * (high - low) if math.isfinite(high - low) else 1e-6
    for name, value in (("perfect", perfect), ("hopeless", hopeless)):
        end = high if value == max(perfect, hopeless) else low
        if math.isfinite(end) and abs(value - end) > near:
            return fault(f"{text}: a {name} model is not at {end:g}, the end of the bounds")
    return passed(text)


def _recognised(attack: MembershipInference) -> Outcome:
    """Members that the model knows, against others that it does not, and that retain has not."""
    known, unknown = perfect_set(), hopeless_set()
    model = EvaluatedModel({attack.members: known, attack.others: unknown})
    retain = EvaluatedModel({attack.members: unknown, attack.others: unknown})
    area = computed(attack, MetricInputs(model, retain, None)).get(attack.columns()[0].name)
    seen = f"AUC {area} where the model knows every member and no other"
    return passed(seen) if area == 1 else fault(seen)


@metric_check()
def reads(metric: AnyMetric) -> Outcome:
    """The declared observations are read, and no others.

    Where something is missing, a metric that declares it is left undefined, and one that does not
    fails after hours of training, or is computed from nothing.

    Name in `reads` what `per_example` reads besides losses.
    """
    if isinstance(metric, Summary):
        return not_applicable("it reads sets and columns")
    seen = made_up_set()
    whole, implied = _values(metric, seen), {"tokens"} if "moments" in metric.reads else set[str]()
    for column in get_args(Reads):
        if column not in metric.reads | implied:
            try:
                changed = _apart(whole, _values(metric, without(seen, column)))
            except UnlearnbenchError as error:
                return fault(f"reads {column!r}, which `reads` does not name: {error}")
            if changed:
                return fault(f"has other values without {column!r}, which `reads` does not name")
    return passed(", ".join(sorted(metric.reads)) or "losses alone")


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

        observed = {name: by_token(values) for name, values in column.observed.items()}
        chosen = {
            name: values[order] if name in ("lengths", "ended") else by_token(values)
            for name, values in vars(column).items()
            if isinstance(values, np.ndarray)
        }
        return replace(column, **chosen, observed=observed)
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
