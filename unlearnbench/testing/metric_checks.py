"""The checks of a metric: its declarations, and its values on observations that are made up.

No model and no tensor: all of them take milliseconds. What a `Summary` computes from whole sets and
other metrics' columns is tried only for values, and for the end of a membership inference.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, get_args

import numpy as np

from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    EXTRA,
    UNDER_ATTACK,
    EvaluatedModel,
    Measure,
    Metric,
    MetricInputs,
    Role,
    Summary,
)
from unlearnbench.api.metric_engine import columns_of, computed
from unlearnbench.api.observations import AnswerTokens, FloatArray, Samples, SetEvaluation
from unlearnbench.config.metric_plan import metric_plan
from unlearnbench.evaluation.made_up_sets import made_up_set, observed
from unlearnbench.testing import declarations
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed, unless
from unlearnbench.testing.extreme_sets import hopeless_set, perfect_set

AnyMetric = Metric | Summary

_CLOSE = 1e-9
"""Difference of two numbers that is rounding."""
_OPTIONAL = EXTRA | UNDER_ATTACK
"""Observations that exist only if a metric declares that it reads them."""
_SETS = ("retain", "real_authors", "world_facts", "forget", "holdout")
"""The sets of a made-up model. Each role has at least one."""
_NEAR_END = 0.01
"""Share of the scale within which a perfect or hopeless model reaches its end."""

metric_check = partial(check, kind="metrics")
settings = metric_check(alone=True)(declarations.settings)


def _values(metric: Metric, seen: SetEvaluation) -> FloatArray:
    """Compute the values [n] of a metric from only those observations that it declares.

    Returns:
        The values, which are NaN if they are undefined.

    Raises:
        PluginError: If the metric fails.
    """
    undeclared: dict[str, Any] = {name: None for name in _OPTIONAL if name not in metric.reads}
    reads_tokens = bool(metric.observes or metric.reads & {"tokens", "moments"})
    if not reads_tokens:
        undeclared["token_columns"] = None
    seen = replace(seen, **undeclared)
    values = Measure("", metric, ()).per_example(observed(seen, metric.observes))
    return np.full(len(seen.answer_loss), np.nan) if values is None else values


def _apart(values: FloatArray, others: FloatArray) -> list[int]:
    """Return the places of the examples whose values differ."""
    alike = np.isclose(values, others, rtol=_CLOSE, atol=1e-12, equal_nan=True)
    return np.flatnonzero(~alike).tolist()


@metric_check(first=True)
def columns(metric: AnyMetric) -> Outcome:
    """Names of columns are valid; roles, observations, labels and bounds are known.

    A column's name is a key in CSV, MLflow, JSON and the page: a space or a capital letter breaks
    what reads them.

    A name of small letters, digits and underscores; a label for people; bounds from low to high.
    """
    roles: dict[str, Role] = {role: role for role in get_args(Role)}
    plan = metric_plan(roles, (), {"tried": type(metric)}, chosen={"tried": dict(metric)})
    return passed(", ".join(column.name for column in (*plan.columns, *plan.under_attack)))


@metric_check(first=True)
def values(metric: AnyMetric) -> Outcome:
    """Values are finite, within bounds, the same again, and computed from what `reads` declares.

    A metric that raises, or whose quotients of probabilities underflow where a model is destroyed,
    has no column; all metrics read the same arrays, and a resumed run computes them again.

    A float64 array with a number for each example, or numbers by the names of columns; logarithms
    subtracted before `np.exp`; `x = x * 2` in place of `x *= 2`; no random numbers; in `reads` what
    `per_example` reads besides losses.
    """
    if isinstance(metric, Summary):
        return unless(_summary_faults(metric), ", ".join(c.name for c in columns_of(metric)))
    return unless(_value_faults(metric), "finite, and the same again")


def _value_faults(metric: Metric) -> Iterator[str]:
    low, high = metric.bounds
    sets = {"ordinary observations": made_up_set()}
    for loss, false_loss in product((0.0, 1e4), repeat=2):
        name = f"an answer at {loss:g} nats, false ones at {false_loss:g}"
        sets[name] = _set_with_losses(loss, false_loss)
    for name, seen in sets.items():
        first = _values(metric, frozen(seen))
        again = _values(metric, frozen(seen))
        if not np.array_equal(first, again, equal_nan=True):
            yield f"other values when computed again for {name}"
        for value in first:
            if not math.isfinite(value):
                yield f"{value} for {name}"
            elif not low <= value <= high:
                yield f"{value:.6g} for {name}, out of its bounds {low:g} to {high:g}"


def _summary_faults(summary: Summary) -> Iterator[str]:
    first = computed(summary, inputs())
    again = computed(summary, inputs())
    if first != again:
        yield "other numbers when computed again"
    for column in columns_of(summary):
        value = first.get(column.name)
        low, high = column.bounds
        if value is not None and not low - _CLOSE <= value <= high + _CLOSE:
            yield f"{column.name} is {value:.6g}, out of its bounds {low:g} to {high:g}"
    if not any(value is not None for value in first.values()):
        yield "no column is a number, though every set and column is there"


def _set_with_losses(loss: float, false_loss: float) -> SetEvaluation:
    """Return a set in which all true answers have one loss, and all false ones another one."""
    seen = hopeless_set(3, tokens=4) if loss else perfect_set(3, tokens=4)
    return replace(
        seen,
        answer_loss=np.full(3, loss),
        # Another loss than the answer's means that there is a paraphrase.
        base_loss=np.full(3, loss + 1e-9),
        perturbed_loss=np.full((3, 2), false_loss),
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
    count = len(seen.answer_loss)
    values_alone = [_values(metric, taken(seen, [place])) for place in range(count)]
    differing = _apart(_values(metric, seen), np.concatenate(values_alone))
    if differing:
        return fault(f"example {differing[0]} has another value when it is alone")
    return passed(f"{count} examples, one of them without a token")


@metric_check()
def nan(metric: AnyMetric) -> Outcome:
    """NaN in an example's observations gives NaN, and no mean.

    A model that diverged has NaN for a loss. A number made of it looks like a result: `max(0, nan)`
    is 0, and `nanmean` leaves the worst answers out.

    `np.maximum`, not `max`; `mean`, not `nanmean`; no `nan_to_num`.
    """
    if isinstance(metric, Summary):
        return not_applicable("it has no values by example")
    seen = taken(made_up_set(), [2])
    (whole,) = _values(metric, seen)
    (from_nan,) = _values(metric, damaged(seen))
    # Hits are truth values, which cannot be NaN. Damaged tokens are no hits instead, so a metric of
    # hits may have the value that it has without a hit.
    without_hits = replace(seen, token_columns=replace(seen.tokens, hit=damaged(seen).tokens.hit))
    if not math.isnan(from_nan) and from_nan not in (whole, *_values(metric, without_hits)):
        return fault(f"{from_nan:.6g}, made of NaN")
    value = metric.value(np.array([whole, np.nan]))
    if value is not None and math.isfinite(value):
        return fault(f"the set's value is {value:.6g} where an example has none")
    return passed("NaN" if math.isnan(from_nan) else "not read")


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
    """Check that a membership inference tells members from others if the difference is extreme.

    The model knows all members and no others. The retain model knows neither.
    """
    known = perfect_set()
    unknown = hopeless_set()
    model = EvaluatedModel({attack.members: known, attack.others: unknown})
    retain = EvaluatedModel({attack.members: unknown, attack.others: unknown})
    area = computed(attack, MetricInputs(model, retain, None)).get(attack.columns()[0].name)
    seen = f"AUC {area} where the model knows every member and no other"
    return passed(seen) if area == 1 else fault(seen)


def taken(seen: SetEvaluation, order: list[int]) -> SetEvaluation:
    """Return a set with the examples at the places `order`, in this order."""
    columns = {column.name: _taken(getattr(seen, column.name), order) for column in fields(seen)}
    return replace(seen, **columns)


def _taken(column: Any, order: list[int]) -> Any:
    """Return the entries of a set's column at the places `order`."""
    if isinstance(column, np.ndarray):
        return column[order]
    if isinstance(column, tuple):
        return tuple(column[place] for place in order) if column else ()
    if isinstance(column, Samples):
        return Samples(_taken(column.texts, order), _taken(column.rouge_l_recall, order))
    if isinstance(column, AnswerTokens):
        return _taken_tokens(column, order)
    return column


def _taken_tokens(tokens: AnswerTokens, order: list[int]) -> AnswerTokens:
    """Return the tokens of the answers at the places `order`."""
    columns: dict[str, Any] = {}
    for name, values in vars(tokens).items():
        if not isinstance(values, np.ndarray):
            continue
        if name in ("lengths", "ended", "end_lengths"):
            # One value for each answer. All other columns have one for each token.
            columns[name] = values[order]
        else:
            values_of_answer = tokens.by_answer(values, eos=True)
            columns[name] = np.concatenate([values_of_answer[place] for place in order])
    return replace(tokens, **columns)


def damaged(seen: SetEvaluation) -> SetEvaluation:
    """Return a set in which every number is NaN, and no token is hit."""
    no_hits = np.zeros_like(seen.tokens.hit)
    tokens = replace(seen.tokens, **_as_nan(seen.tokens), hit=no_hits)
    samples = None if seen.samples is None else replace(seen.samples, **_as_nan(seen.samples))
    return replace(seen, **_as_nan(seen), token_columns=tokens, samples=samples)


def _as_nan(columns: Any) -> dict[str, Any]:
    """Return the columns of floats, with NaN for all values."""
    return {
        name: np.full_like(values, np.nan)
        for name, values in vars(columns).items()
        if isinstance(values, np.ndarray) and values.dtype.kind == "f"
    }


def frozen(seen: SetEvaluation) -> SetEvaluation:
    """Return the same set, whose arrays raise an error if they are changed in place."""
    for values in (*vars(seen).values(), *vars(seen.tokens).values()):
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
    return seen


@dataclass(frozen=True)
class _Columns(Mapping[str, float | None]):
    """Columns of a made-up model, in which every name has the same value."""

    level: float

    def __getitem__(self, name: str) -> float | None:
        return self.level

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def inputs() -> MetricInputs:
    """Make up a run's model, its retain model and its start model, with all sets and columns."""
    models: list[EvaluatedModel] = []
    # A model after unlearning lies between the retain model and the start model.
    for level in (0.5, 0.3, 0.9):
        sets = {
            name: frozen(made_up_set(level, seed=seed, n=12)) for seed, name in enumerate(_SETS)
        }
        models.append(EvaluatedModel(sets, _Columns(level)))
    return MetricInputs(*models)
