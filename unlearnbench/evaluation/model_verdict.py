"""The scorecard of one model, and the verdict in sentences, with intervals. Pure."""

import unicodedata
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from unlearnbench.api.benchmark import Headline, HeadlineTest
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import (
    UNDER_ATTACK,
    Compared,
    EvaluatedModel,
    Measure,
    MetricInputs,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.observations import Evaluation, FloatArray
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.config.metric_plan import MetricPlan, columns_of
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.stats.bootstrap_mean import bootstrap_mean
from unlearnbench.stats.ks_test import ks_power
from unlearnbench.stats.roc import auc_interval
from unlearnbench.stats.t_interval import LEVEL

UNDEFINED = "what they read is missing here, or not a number"


@dataclass(frozen=True)
class ScoreOfQuestion:
    """The answer to one question of the scorecard."""

    label: str
    value: float | None
    question: str
    relative_to: tuple[Compared, ...]


@dataclass(frozen=True)
class Scorecard:
    """All metrics of one model, in groups."""

    scores: tuple[ScoreOfQuestion, ...]
    """Scores of what was to be forgotten, of privacy, of what is kept."""
    numbers: tuple[tuple[str, float], ...]
    """(label, value) of the other metrics of the whole evaluation."""
    sets: tuple[str, ...]
    """The evaluation sets that have metrics."""
    by_set: tuple[tuple[str, tuple[float | None, ...]], ...]
    """(label, a value for each of `sets`)."""
    attacks: tuple[tuple[str, tuple[float | None, ...]], ...]
    """(label, area under the curve, true positive rate at 1 % false positives, control's area)."""
    missing: tuple[tuple[str, tuple[str, ...]], ...]
    """(reason, labels) of what is not measured."""


def scorecard(
    plan: MetricPlan,
    roles: Mapping[str, Role],
    values: Values,
    sets: Set[str],
    compared: Set[Compared],
    references: Set[Compared],
) -> Scorecard:
    """Group the metrics of a model.

    roles       of the evaluation sets of the benchmark
    values      by column, as `plan.values` gives them
    sets        the names of the model's
    compared    models whose evaluations were given beside it
    references  models that the benchmark has
    """
    # First what is relative to the retain model: what was to be forgotten; then what is kept.
    ordered = sorted(plan.summaries.values(), key=lambda item: "retain" not in item.relative_to)
    scores = tuple(
        ScoreOfQuestion(_plain(column.label), values.get(column.name), item.question, _order(item))
        for item in ordered
        if item.question
        for column in columns_of(item)[:1]
    )
    attacks: list[tuple[str, tuple[float | None, ...]]] = []
    numbers: list[tuple[str, float]] = []
    missing: dict[str, dict[str, None]] = {}
    for summary in plan.summaries.values():
        columns = columns_of(summary)
        result = [values.get(column.name) for column in columns]
        attack = summary.label if isinstance(summary, MembershipInference) else ""
        if columns and result[0] is None and not summary.reads & UNDER_ATTACK:
            title = f"{attack} attack" if attack else _plain(columns[0].label)
            missing.setdefault(_why_not(summary, compared, references), {})[title] = None
        elif attack:
            attacks.append((attack, (*result, *[None] * (3 - len(result)))))
        elif not summary.question:
            pairs = zip(columns, result, strict=True)
            numbers += [(_plain(column.label), v) for column, v in pairs if v is not None]
    by_set: dict[str, dict[str, float | None]] = {}
    labels: dict[str, str] = {}
    for measure in plan.measures:
        labels.setdefault(measure.name, measure.metric.label)
        for name in measure.sets:
            value = values.get(f"{measure.name}_{name}")
            by_set.setdefault(measure.name, {})[name] = value
            # What only an attack observes is no fault of a plain evaluation.
            if value is None and not measure.metric.reads & UNDER_ATTACK:
                reason = UNDEFINED if name in sets else f"no {name.replace('_', ' ')} set"
                missing.setdefault(reason, {})[measure.metric.label] = None
    names = tuple(n for n in roles if any(row.get(n) is not None for row in by_set.values()))
    rows = ((labels[key], tuple(map(row.get, names))) for key, row in by_set.items())
    return Scorecard(
        scores,
        tuple(numbers),
        names,
        tuple((label, row) for label, row in rows if any(v is not None for v in row)),
        tuple(attacks),
        tuple((reason, tuple(labels)) for reason, labels in missing.items()),
    )


def _why_not(summary: Summary, compared: Set[Compared], references: Set[Compared]) -> str:
    models = [name for name in _order(summary) if name not in compared]
    if not models:
        return UNDEFINED
    if lacking := [name for name in models if name not in references]:
        return f"not known without a {lacking[0]} model, which the benchmark lacks"
    options = ", ".join(f"--{name}" for name in models)
    return f"need the {' and the '.join(models)} model: {options}"


def _order(summary: Summary) -> tuple[Compared, ...]:
    models: tuple[Compared, ...] = ("start", "retain")
    return tuple(name for name in models if name in summary.relative_to)


def _plain(label: str) -> str:
    """The label without subscripts, for terminals."""
    return unicodedata.normalize("NFKC", label)


DRAWS = 500
"""Resamples of the questions behind an interval of a number that is no mean."""
Ends = tuple[float, float]
"""Low and high end of an interval."""


@dataclass(frozen=True)
class ModelVerdict:
    """Answers to four questions about a model, in sentences, and the intervals of its numbers."""

    forgotten: str
    private: str
    kept: str
    lacking: str = ""
    """The evaluations that other answers need, and the options that name them."""
    intervals: Mapping[str, Ends] = field(default_factory=dict[str, Ends])
    """Interval over questions by column; `kept_share`: of the share of the start's number."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that apply, in their order."""
        return tuple(filter(None, (self.forgotten, self.private, self.kept, self.lacking)))


@dataclass(frozen=True, eq=False)
class Judged:
    """A model, the models that it is compared with, and how its numbers are made."""

    plan: MetricPlan
    roles: Mapping[str, Role]
    headline: Headline
    values: Values
    model: Evaluation
    retain: Evaluation | None = None
    start: Evaluation | None = None


def judge(of: Judged) -> ModelVerdict:
    """Judge a model: is it forgotten, is it private, is the rest kept."""
    intervals = _intervals(of)
    share = _kept_share(of)
    if share is not None:
        intervals["kept_share"] = share[1]
    attack = _strongest_attack(of)
    if attack is not None and attack[3] is not None:
        intervals[attack[1]] = attack[3]
    needed = {
        "--retain": (
            of.retain,
            "is it forgotten and private, against a model that never saw the forget rows",
        ),
        "--start": (of.start, "how much is kept of the model before unlearning"),
    }
    lacking = "; ".join(
        f"pass {option} to answer: {question}"
        for option, (given, question) in needed.items()
        if given is None
    )
    return ModelVerdict(
        " ".join(_forgotten(of)),
        _private(of, attack),
        _kept(of, share, intervals),
        f"Not known: {lacking}." if lacking else "",
        intervals,
    )


def _forgotten(of: Judged) -> Iterator[str]:
    test = of.headline.forgotten.test
    if of.retain is None:
        return
    if test is not None:
        yield from _tested(of, test)
    for measure, name in _memorization(of):
        model, goal = (measure.per_example(item.sets[name]) for item in (of.model, of.retain))
        if model is None or goal is None or model.shape != goal.shape:
            continue
        ends = bootstrap_mean(model - goal)
        if ends is None:
            continue
        more = "no more and no less than there, as far as these questions show"
        if ends[0] > 0:
            more = "more is memorised than there"
        elif ends[1] < 0:
            more = "less than there"
        yield (
            f"{measure.column(name, of.roles[name]).label}: {model.mean():.3f}, the retain model's "
            f"{goal.mean():.3f}; difference {(model - goal).mean():+.3f} "
            f"[{ends[0]:+.3f}, {ends[1]:+.3f}], {more}."
        )
        return


def _tested(of: Judged, test: HeadlineTest) -> Iterator[str]:
    """The headline's test, with the smallest distance that it can find."""
    p, distance, n = (of.values.get(item) for item in (test.p_value, test.distance, test.questions))
    if of.retain is None or p is None or distance is None or n is None:
        return
    answer, verb = (
        ("No", "distinguishes") if p <= test.level else ("Perhaps", "does not distinguish")
    )
    least = None
    with suppress(EvaluationError, KeyError):
        least = ks_power(forget_ratios(of.retain)).distance
    finest = "none, they are too few" if least is None else f"{least:.3g}"
    yield (
        f"Forgotten? {answer}: {test.label} p = {p:.2g} {verb} it from the retain model "
        f"(D = {distance:.3g}; with {n:.0f} questions the smallest D that shows: {finest})."
    )


def _memorization(of: Judged) -> Iterator[tuple[Measure, str]]:
    """Measures of what is memorised of a forget set, the most telling ones first."""
    for key in ("extraction_strength", "exact_memorization", "probability", "rouge"):
        for measure in (item for item in of.plan.measures if item.name == key):
            for name in measure.sets:
                both = of.retain is not None and {*of.retain.sets} & {*of.model.sets} & {name}
                if of.roles.get(name) == "forget" and both:
                    yield measure, name


Attack = tuple[MembershipInference, str, float | None, Ends | None]
"""A membership inference attack, its column, the retain model's area, and the interval of its own
area."""


def _strongest_attack(of: Judged) -> Attack | None:
    """The attack whose area is farthest from the retain model's, or from ½ without one."""
    start = None if of.start is None else EvaluatedModel(of.start.sets)
    aims = {} if of.retain is None else of.plan.values(of.retain.sets, start=start)
    result: list[tuple[float, MembershipInference, str]] = []
    for summary in of.plan.summaries.values():
        if isinstance(summary, MembershipInference):
            column = summary.columns()[0].name
            area, aim = of.values.get(column), aims.get(column)
            # One that takes the retain model for its reference has no area of it to aim at.
            if area is not None and (aim is not None or of.retain is None):
                result.append((abs(area - (0.5 if aim is None else aim)), summary, column))
    if not result:
        return None
    _, attack, column = max(result, key=lambda item: item[0])
    pair = attack.pair(MetricInputs(EvaluatedModel(of.model.sets), start=start))
    return attack, column, aims.get(column), None if pair is None else auc_interval(*pair)


def _private(of: Judged, attack: Attack | None) -> str:
    if attack is None:
        return ""
    item, column, aim, ends = attack
    area = of.values[column] or 0.0
    goal = 0.5 if aim is None else aim
    whose = "½, chance" if aim is None else f"{aim:.2f}, the retain model's"
    if ends is None:
        return f"Private? The {item.label} attack has AUC {area:.2f}; the aim is {whose}."
    answer = "Perhaps" if ends[0] <= goal <= ends[1] else "No"
    return (
        f"Private? {answer}: of all membership attacks {item.label} is farthest off, "
        f"AUC {area:.2f} [{ends[0]:.2f}, {ends[1]:.2f}]; the aim is {whose}."
    )


def _kept(of: Judged, share: tuple[float, Ends] | None, intervals: Mapping[str, Ends]) -> str:
    kept = of.headline.kept
    value = of.values.get(kept.column)
    if value is None:
        return ""
    ends = intervals.get(kept.column)
    text = f"Kept? {kept.plain_label} {value:.3f}"
    if ends is not None:
        text += f" [{ends[0]:.3f}, {ends[1]:.3f}]"
    if share is None:
        return f"{text}."
    part, (low, high) = share
    return (
        f"{text}, which is {100 * part:.0f} % [{100 * low:.0f}, {100 * high:.0f} %] of the start "
        "model's."
    )


def _intervals(of: Judged) -> dict[str, Ends]:
    """Intervals of the means over questions, and of what is kept."""
    endss: dict[str, Ends] = {}
    for measure in of.plan.measures:
        for name in measure.sets:
            values = _finite(measure, of.model, name)
            if values is not None and (ends := _interval(measure, values)) is not None:
                endss[f"{measure.name}_{name}"] = ends
    drawn = _drawn(of, of.model)
    if drawn is not None:
        endss[of.headline.kept.column] = _percentiles(drawn)
    return endss


def _finite(measure: Measure, model: Evaluation, name: str) -> FloatArray | None:
    """The values of a set, several numbers; None where that cannot be had."""
    if name in model.sets:
        with suppress(PluginError):  # the table warns of it
            values = measure.per_example(model.sets[name])
            if values is not None and values.size > 1 and np.isfinite(values).all():
                return values
    return None


def _interval(measure: Measure, values: FloatArray) -> Ends | None:
    """Interval of a metric of a set, from its values by question."""
    if measure.metric.value(values) == values.mean():
        return bootstrap_mean(values)
    rng = np.random.default_rng(0)
    drawn = [measure.metric.value(rng.choice(values, values.size)) for _ in range(DRAWS)]
    return _percentiles(np.array(drawn, dtype=np.float64))


def _percentiles(drawn: FloatArray) -> Ends:
    low, high = np.nanquantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _kept_share(of: Judged) -> tuple[float, Ends] | None:
    """Share of the start model's number that is kept, with its interval over questions.

    Both models are resampled by the same questions.
    """
    if of.start is None:
        return None
    column = of.headline.kept.column
    part, begin = of.values.get(column), of.plan.values(of.start.sets).get(column)
    of_model, of_start = (_drawn(of, item) for item in (of.model, of.start))
    if not part or not begin or of_model is None or of_start is None or not of_start.all():
        return None
    for name in of.model.sets.keys() - {"holdout"}:
        other = of.start.sets.get(name)
        if other is None or len(other.answer_loss) != len(of.model.sets[name].answer_loss):
            return None
    return part / begin, _percentiles(of_model / of_start)


def _drawn(of: Judged, model: Evaluation) -> FloatArray | None:
    """[draws] what is kept, on resampled questions of each set; the same ones for every model."""
    column = of.headline.kept.column
    plan = of.plan.of_columns([column])
    (summary,) = plan.summaries.values() if len(plan.summaries) == 1 else (None,)
    arrays: dict[tuple[str, str], tuple[Measure, FloatArray]] = {}
    for measure in plan.measures:
        for name in measure.sets:
            if (values := _finite(measure, model, name)) is None:
                return None
            arrays[measure.name, name] = measure, values
    if not arrays or (summary is None and len(arrays) > 1):
        return None
    return np.array([*_resampled(summary, column, arrays)], dtype=np.float64)


def _resampled(
    summary: Summary | None,
    column: str,
    arrays: Mapping[tuple[str, str], tuple[Measure, FloatArray]],
) -> Iterator[float]:
    rng = np.random.default_rng(0)
    sizes = {name: values.size for (_, name), (_, values) in arrays.items()}
    for _ in range(DRAWS):
        places = {name: rng.integers(size, size=size) for name, size in sorted(sizes.items())}
        numbers = {
            f"{key}_{name}": measure.metric.value(values[places[name]])
            for (key, name), (measure, values) in arrays.items()
        }
        if summary is not None:
            numbers |= summary.compute(MetricInputs(EvaluatedModel({}, numbers)))
        value = numbers.get(column)
        yield np.nan if value is None else value
