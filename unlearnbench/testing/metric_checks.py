"""The checks of a metric: its declarations, and its values on observations that are made up.

Each takes the metric itself, a `Metric` or a `Summary`, and does not apply to the other kind where
its claim has no meaning there. No model and no tensor: all of them take milliseconds.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from unlearnbench.api import registry
from unlearnbench.api.benchmark import MetricUse
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    Compared,
    EvaluatedModel,
    Measure,
    Metric,
    MetricInputs,
    Reads,
    Role,
    Summary,
)
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.config.metric_plan import columns_of, computed, metric_plan
from unlearnbench.config.plugin_settings import example
from unlearnbench.errors import PluginError, UnlearnbenchError
from unlearnbench.evaluation.made_up_sets import hopeless_set, made_up_set, perfect_set
from unlearnbench.testing import metric_observations as made_up
from unlearnbench.testing.check import Check, Outcome, fault, metric_check, not_applicable, passed

AnyMetric = Metric | Summary

_CLOSE = 1e-9
_NEAR_END = 0.01
"""Share of the scale within which a perfect or hopeless model reaches its end."""
_OF_SETS = not_applicable("it is no metric of one set")
_OF_EVALUATIONS = not_applicable("it is a metric of one set")


def _values(metric: Metric, seen: SetEvaluation) -> FloatArray:
    """[n] Raises: PluginError where the metric fails."""
    found = Measure("", metric, ()).per_example(seen)
    if found is None:
        raise PluginError("undefined on a set that has everything that can be read")
    return found


def _numbers(summary: Summary, of: MetricInputs) -> dict[str, float]:
    """The numbers that are defined, by column."""
    return {name: v for name, v in computed(summary, of).items() if v is not None}


def _differ(values: Mapping[str, float], others: Mapping[str, float]) -> str:
    """Describe the first column that differs; empty if none does."""
    for name in {**values, **others}:
        one, other = values.get(name), others.get(name)
        if (
            one is None
            or other is None
            or not math.isclose(one, other, rel_tol=_CLOSE, abs_tol=1e-12)
        ):
            return f"{name} is {_short(one)} and {_short(other)}"
    return ""


def _short(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.6g}"


def _unequal(values: FloatArray, others: FloatArray) -> int | None:
    """The first example whose values differ."""
    alike = np.isclose(values, others, rtol=_CLOSE, atol=1e-12, equal_nan=True)
    return None if alike.all() else int(np.flatnonzero(~alike)[0])


@metric_check(
    "values",
    why="A metric that raises, or returns text or another shape, has no column; without a sweep "
    "that says so its author believes that it is measured.",
    fix="Return a float64 array with a number for each example; a Summary, numbers by the names of "
    "its columns, and no other.",
    first=True,
)
def values(metric: AnyMetric) -> Outcome:
    """On ordinary observations every value is a finite number within the declared bounds."""
    if isinstance(metric, Summary):
        return _numbers_of(metric)
    found = _values(metric, made_up_set())
    returned = metric.per_example(made_up_set())
    if returned.dtype != np.float64:
        return fault(f"an array of {returned.dtype}, not float64")
    low, high = metric.bounds
    for i, value in enumerate(found):
        if not math.isfinite(value):
            return fault(f"example {i} has {value} on ordinary observations")
        if not low <= value <= high:
            return fault(f"example {i} has {value:.6g}, out of its bounds {low:g} to {high:g}")
    return passed(f"{found.min():.4g} to {found.max():.4g}")


def _numbers_of(summary: Summary) -> Outcome:
    seen: dict[str, float] = {}
    for levels in ((0.5, 0.3, 0.9), *product((0.0, 1.0), repeat=3)):
        found = _numbers(summary, made_up.inputs(*levels))
        for column in columns_of(summary):
            value, (low, high) = found.get(column.name), column.bounds
            if value is not None and not low - _CLOSE <= value <= high + _CLOSE:
                return fault(f"{column.name} is {value:.6g}, out of its bounds {low:g} to {high:g}")
        seen = found | seen
    undefined = [c.name for c in columns_of(summary) if c.name not in seen]
    if undefined:
        return fault(
            f"{', '.join(undefined)}: never a number, though every set and column is there"
        )
    return passed(", ".join(f"{name} {value:.4g}" for name, value in seen.items()))


@metric_check(
    "read-only",
    why="All metrics of an evaluation read the same arrays: what one changes in place, the next "
    "one reads, and the record stores.",
    fix="Write `x = x * 2` in place of `x *= 2`; or `.copy()` first.",
    first=True,
)
def read_only(metric: AnyMetric) -> Outcome:
    """The observations are left as they are."""
    seen = made_up.frozen(made_up_set())
    try:
        if isinstance(metric, Metric):
            metric.per_example(seen)
        else:
            sets = {name: made_up.frozen(made_up_set(n=12)) for name in made_up.SETS}
            computed(metric, _with_sets(made_up.inputs(), lambda _, name: sets[name]))
    except (ValueError, PluginError) as error:
        if "read-only" in str(error):
            return fault(f"changes an array of the observations in place: {error}")
        raise
    return passed("nothing changed")


@metric_check(
    "repeatable",
    why="Resumed, retried and verified runs compute a metric again, and a leaderboard refuses "
    "numbers that come out otherwise.",
    fix="No random numbers without a `Generator` of a fixed seed, no counter, nothing kept.",
    first=True,
)
def repeatable(metric: AnyMetric) -> Outcome:
    """The same observations give the same values, to the last bit."""
    for _ in range(2):
        if isinstance(metric, Summary):
            if computed(metric, made_up.inputs()) != computed(metric, made_up.inputs()):
                return fault("other numbers when computed again")
        elif not np.array_equal(
            _values(metric, made_up_set()), _values(metric, made_up_set()), equal_nan=True
        ):
            return fault("other values when computed again")
    return passed("the same each time")


@metric_check(
    "order",
    why="The order of questions comes from a file; batches and processes may change it.",
    fix="Compute each example from its own row; compare models example by example.",
)
def order(metric: AnyMetric) -> Outcome:
    """The order of the examples changes no value."""
    if isinstance(metric, Metric):
        seen = made_up_set(empty=True)
        back = range(len(seen.answer_loss))[::-1]
        i = _unequal(_values(metric, seen)[::-1], _values(metric, made_up.taken(seen, back)))
        return passed("reversed") if i is None else fault("values change with the examples' order")
    plain = made_up.inputs()

    def reverse(seen: SetEvaluation, _: str) -> SetEvaluation:
        return made_up.taken(seen, range(len(seen.answer_loss))[::-1])

    found = _differ(_numbers(metric, plain), _numbers(metric, _with_sets(plain, reverse)))
    return fault(f"{found} in reverse order") if found else passed("reversed")


@metric_check(
    "other-examples",
    why="A value by example is stored, compared between models and shown beside its question: it "
    "must not depend on which others were evaluated.",
    fix="No mean, rank or padding over the set in `per_example`; that is a `Summary`'s work.",
)
def other_examples(metric: AnyMetric) -> Outcome:
    """Each example has the value that it has alone; one without a token is among them."""
    if isinstance(metric, Summary):
        return _OF_SETS
    seen = made_up_set(empty=True)
    n = len(seen.answer_loss)
    alone = [_values(metric, made_up.taken(seen, [i])) for i in range(n)]
    i = _unequal(_values(metric, seen), np.concatenate(alone))
    if i is not None:
        return fault(f"example {i} has another value when it is alone")
    return passed(f"{n} examples, one of them without a token")


@metric_check(
    "nan",
    why="A model that diverged has NaN for a loss. A number made of it looks like a result: "
    "`max(0, nan)` is 0, and `nanmean` leaves the worst answers out.",
    fix="`np.maximum`, not `max`; `mean`, not `nanmean`; no `nan_to_num`.",
)
def nan(metric: AnyMetric) -> Outcome:
    """NaN in an example's observations gives NaN for this example alone, and no mean."""
    if isinstance(metric, Summary):
        return _nan_of(metric)
    seen = made_up_set()
    whole, broken = _values(metric, seen), _values(metric, made_up.damaged(seen, 2))
    i = _unequal(np.delete(whole, 2), np.delete(broken, 2))
    if i is not None:
        return fault(f"example {i + (i >= 2)} changes where example 2 is NaN")
    # Hits are no numbers, but a token without a loss is none: the misses may count.
    hit = made_up.damaged(seen, 2).tokens.hit
    missed = replace(seen, token_columns=replace(seen.tokens, hit=hit))
    allowed = (whole[2], _values(metric, missed)[2])
    if not math.isnan(broken[2]) and broken[2] not in allowed:
        return fault(f"example 2 has {broken[2]:.6g}, made of NaN")
    value = metric.value(np.where(np.arange(len(whole)) == 2, np.nan, whole))
    if value is not None and math.isfinite(value):
        return fault(f"the set's value is {value:.6g} where an example has none")
    return passed("NaN of that example only" if math.isnan(broken[2]) else "not read")


def _nan_of(summary: Summary) -> Outcome:
    def spoil(seen: SetEvaluation, _: str) -> SetEvaluation:
        return made_up.damaged(seen, 2)

    plain, unknown = made_up.inputs(), made_up.inputs(None, None, None)
    read = _columns_read(summary)
    if read:
        numbers = _numbers(summary, unknown)
        if numbers:
            return fault(f"{_listed(numbers)} where every column is undefined")
        return passed("undefined with undefined columns")
    found = _numbers(summary, _with_sets(plain, spoil))
    if found and _differ(found, _numbers(summary, plain)):
        return fault(f"{_listed(found)} where an example of each set is NaN")
    return passed("not read" if found else "undefined with NaN")


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} is {value:.6g}" for name, value in numbers.items())


@metric_check(
    "ends",
    why="A direction that is declared the wrong way round ranks methods upside down, in every "
    "table and figure; open-unlearning's extraction strength never reaches the end of its scale.",
    fix='`knows = "higher"` where a model that knows the answers has the higher value, `"lower"` '
    "otherwise, None for neither; `bounds` are values that are reached.",
)
def ends(metric: AnyMetric) -> Outcome:
    """A perfect and a hopeless model are at the ends of the bounds, as its direction declares."""
    if isinstance(metric, MembershipInference):
        return _recognised(metric)
    if isinstance(metric, Summary):
        return _OF_SETS
    if metric.knows is None:
        return Outcome("not declared", "neither end is that of a model that knows the answers")
    perfect = float(_values(metric, perfect_set()).mean())
    hopeless = float(_values(metric, hopeless_set()).mean())
    low, high = metric.bounds
    top, bottom = (high, low) if metric.knows == "higher" else (low, high)
    text = f"perfect {perfect:.4g}, hopeless {hopeless:.4g}"
    if (perfect > hopeless) != (metric.knows == "higher") or perfect == hopeless:
        return fault(f"{text}: not {metric.knows} where the model knows the answers")
    near = _NEAR_END * (high - low) if math.isfinite(high - low) else 1e-6
    for name, value, end in (("perfect", perfect, top), ("hopeless", hopeless, bottom)):
        if math.isfinite(end) and abs(value - end) > near:
            return fault(f"{text}: a {name} model is not at {end:g}, the end of the bounds")
    return passed(text)


def _recognised(attack: MembershipInference) -> Outcome:
    """Members that the model knows, against others that it does not, and that retain has not."""
    known, unknown = perfect_set(), hopeless_set()
    sets = {attack.members: known, attack.others: unknown}
    retain = EvaluatedModel({attack.members: unknown, attack.others: unknown})
    area = attack.columns()[0].name
    found = _numbers(attack, MetricInputs(EvaluatedModel(sets), retain, None)).get(area)
    if found != 1:
        return fault(f"{area} is {_short(found)} where the model knows every member and no other")
    return passed(f"{area} 1 where the model knows every member and no other")


@metric_check(
    "extremes",
    why="A destroyed model gives an answer a loss of thousands of nats, whose probability is 0: "
    "quotients of such numbers are NaN, and the run has no value at all.",
    fix="Subtract logarithms before `np.exp`; `np.logaddexp`; bounds by `np.clip`.",
)
def extremes(metric: AnyMetric) -> Outcome:
    """Losses of 0 and of 10,000 nats have finite values within the bounds."""
    if isinstance(metric, Summary):
        return _OF_SETS
    low, high = metric.bounds
    for own in (0.0, 1e4):
        for false in (0.0, 1e4):
            value = _values(metric, _at(own, false))
            where = f"an answer at {own:g} nats, false ones at {false:g}"
            if not np.isfinite(value).all():
                return fault(f"{value[0]} for {where}")
            if (value < low).any() or (value > high).any():
                return fault(f"{value[0]:.6g} for {where}, out of its bounds {low:g} to {high:g}")
    return passed("finite")


def _at(own: float, false: float) -> SetEvaluation:
    """A set whose answers all have the loss `own`, and their perturbed ones `false`."""
    seen = hopeless_set(3, tokens=4) if own else perfect_set(3, tokens=4)
    tokens = replace(seen.tokens, loss=np.full_like(seen.tokens.loss, own))
    losses = np.full(3, own)
    return replace(
        seen,
        answer_loss=losses,
        base_loss=losses + 1e-9,  # it differs: there is a paraphrase
        perturbed_loss=np.full((3, 2), false),
        perturbed_tokens=np.full((3, 2), 4),
        token_columns=tokens,
    )


@metric_check(
    "reads",
    why="Where an observation is missing, a metric that declares it is left undefined; one that "
    "does not fails, or is computed from nothing. Moments cost time, and are made where declared.",
    fix="Name in `reads` what `per_example` reads besides the answers' losses, and nothing else.",
)
def reads(metric: AnyMetric) -> Outcome:
    """The declared observations, and no others, are read."""
    if isinstance(metric, Summary):
        return _OF_SETS
    seen = made_up_set()
    whole = _values(metric, seen)
    for what in get_args(Reads):
        implied = what == "tokens" and "moments" in metric.reads
        if what in metric.reads or implied:
            continue
        try:
            changed = _unequal(whole, _values(metric, made_up.without(seen, what))) is not None
        except UnlearnbenchError as error:
            return fault(f"reads {what!r}, which `reads` does not name: {error}")
        if changed:
            return fault(f"has other values without {what!r}, which `reads` does not name")
    return passed(", ".join(sorted(metric.reads)) or "losses alone")


@metric_check(
    "undefined",
    why="A log has no tokens, a benchmark no holdout, a start model no retain model beside it: a "
    "summary that fails there loses its column with a warning, for each evaluation.",
    fix="Return `{}` where a set or a model is missing (`of.retain is None`), and name the models "
    "without which nothing is defined in `relative_to`.",
)
def undefined(metric: AnyMetric) -> Outcome:
    """Without what it needs a summary is undefined, and says of which models that is so."""
    if isinstance(metric, Metric):
        return _OF_EVALUATIONS
    plain = made_up.inputs()
    bare = EvaluatedModel({}, made_up.Columns(None))
    if numbers := _numbers(metric, MetricInputs(bare, bare, bare)):
        return fault(f"{_listed(numbers)} without any set and column")
    alone: Mapping[Compared, MetricInputs] = {
        "retain": replace(plain, retain=None),
        "start": replace(plain, start=None),
    }
    for name, of in alone.items():
        numbers = _numbers(metric, of)
        if numbers and name in metric.relative_to:
            return fault(f"{_listed(numbers)} without the {name} model, named in `relative_to`")
        if not numbers and name not in metric.relative_to:
            return fault(f"undefined without the {name} model, which `relative_to` does not name")
    models = ", ".join(sorted(metric.relative_to)) or "no other model"
    return passed(f"relative to {models}")


@metric_check(
    "after",
    why="Summaries are computed in the order that `after` gives: one that reads another's column "
    "too early finds it undefined.",
    fix='`after = frozenset({"model-utility"})`: the names of the metrics whose columns are read.',
)
def after(metric: AnyMetric) -> Outcome:
    """The summaries whose columns it reads are those that `after` names."""
    if isinstance(metric, Metric):
        return _OF_EVALUATIONS
    read, needed = _columns_read(metric), set[str]()
    for name, other in _summaries():
        if not isinstance(metric, type(other)) and read & {c.name for c in columns_of(other)}:
            needed.add(name)
    for name in sorted(needed - metric.after):
        return fault(f"reads a column of {name!r}, which `after` does not name")
    for name in sorted(metric.after - needed):
        return fault(f"`after` names {name!r}, of which no column is read")
    return passed(", ".join(sorted(needed)) or "reads no other summary")


def _summaries() -> Iterator[tuple[str, Summary]]:
    """Every summary on offer that can be made without settings."""
    for name in registry.names("metrics"):
        try:
            kind = registry.load("metrics", name)
            if issubclass(kind, Summary):
                yield name, example(kind, {}, name)
        except PluginError:
            continue  # it is at fault itself


def _columns_read(summary: Summary) -> set[str]:
    of = made_up.inputs()
    computed(summary, of)
    read: set[str] = set()
    for one in (of.model, of.retain, of.start):
        if one is not None and isinstance(one.values, made_up.Columns):
            read |= one.values.read
    return read


@metric_check(
    "columns",
    why="A column's name is a key in CSV, MLflow, JSON and the page: two of one name are one, and "
    "a space or a capital letter breaks what reads them.",
    fix="A name of small letters, digits and underscores; a label for people; bounds from low to "
    "high.",
    first=True,
)
def columns(metric: AnyMetric) -> Outcome:
    """Names of columns are valid and its own; roles, observations, labels and bounds are known."""
    kind, name = type(metric), _offered(type(metric))
    roles: dict[str, Role] = {f"a_{role}_set": role for role in get_args(Role)}
    sets = tuple(roles) if isinstance(metric, Metric) and not metric.roles else ()
    use = MetricUse(name, sets, dict(metric))
    plan = metric_plan(roles, [use], {name: kind})
    if plan.faults:
        return fault(str(plan.faults[0]))
    others = {
        column.name: other
        for other, one in _summaries()
        if not isinstance(metric, type(one))
        for column in columns_of(one)
    }
    for column in plan.columns:
        low, high = column.bounds
        if not low < high:
            return fault(f"{column.name}: its bounds are {low:g} to {high:g}")
        if not column.label.strip():
            return fault(f"{column.name} has no label")
        if column.name in others and isinstance(metric, Summary):
            return fault(f"{column.name} is a column of {others[column.name]!r} too")
    return passed(", ".join(column.name for column in plan.columns))


def _offered(kind: type[AnyMetric]) -> str:
    """The name under which a class is on offer; else one from the class's name."""
    for name in registry.names("metrics"):
        try:
            if registry.load("metrics", name) is kind:
                return name
        except PluginError:
            continue
    return kind.__name__.lower()


@metric_check(
    "value",
    why="Metrics are kept between evaluations, compared, and sent to worker processes; one whose "
    "settings change on the way gives other numbers there.",
    fix="Fields with annotations, no attribute set in a method; the class at the top level of its "
    "file.",
)
def value(metric: AnyMetric) -> Outcome:
    """It is a frozen value: its settings cannot be changed, and it survives a copy by pickle."""
    for key in type(metric).model_fields:
        try:
            setattr(metric, key, getattr(metric, key))
        except ValidationError:
            continue
        return fault(f"{key} can be changed: derive from Metric or Summary without `model_config`")
    try:
        again = pickle.loads(pickle.dumps(metric))  # its own, of a moment ago
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return fault(f"cannot be sent to another process: {error}")
    if again != metric:
        return fault("another metric comes back from a copy by pickle")
    if not (vars(type(metric)).get("__doc__") or "").strip():
        return fault("no docstring, in which `metrics show` has formula and source")
    return passed(", ".join(f"{key}={v!r}" for key, v in metric) or "no settings")


def _with_sets(
    of: MetricInputs, change: Callable[[SetEvaluation, str], SetEvaluation]
) -> MetricInputs:
    """The same models, whose sets are changed."""

    def changed(one: EvaluatedModel | None) -> Any:
        if one is None:
            return None
        return EvaluatedModel({n: change(seen, n) for n, seen in one.sets.items()}, one.values)

    return MetricInputs(changed(of.model), changed(of.retain), changed(of.start))


METRIC_CHECKS: tuple[Check, ...] = (
    columns,
    values,
    read_only,
    repeatable,
    order,
    other_examples,
    nan,
    ends,
    extremes,
    reads,
    undefined,
    after,
    value,
)
