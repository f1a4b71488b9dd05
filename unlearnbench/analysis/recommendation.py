"""The recommended setting of a panel as facts: its scores, the other methods, and the next step.

The first screen of the page draws these facts, `conclusion.json` stores them, and the sentences of
the conclusion are made from the same values. Order of the computation: how far methods got
(`Outcome`), the setting and its scores, each other method's verdict, and what would decide more.
Pure, except that a `Scorer` reads observations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import TypeAdapter

from unlearnbench.analysis.attack_text import attack_to_add, share_given_back
from unlearnbench.analysis.best_settings import Best, Panel, Setting, is_evidence
from unlearnbench.analysis.method_order import Untested
from unlearnbench.analysis.scorecard import (
    LASTING,
    OVER_FORGOTTEN,
    Score,
    Scorer,
    lasting_score,
    questions,
)
from unlearnbench.analysis.under_attack import LEAST_REMOVED
from unlearnbench.analysis.wording import variant_label
from unlearnbench.base.number_text import float_text
from unlearnbench.config.schema import RetainTermName
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval

if TYPE_CHECKING:
    from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
    from unlearnbench.analysis.method_order import PanelOrder, Rivals
    from unlearnbench.analysis.pairs import PairTable
    from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
    from unlearnbench.results.outcomes import RunOutcome

FORGOTTEN, REMOVED, PRIVATE, KEPT = "Forgotten", "Removed", "Private", "Kept"


class Outcome(StrEnum):
    """How far the methods of a panel got."""

    RECOMMENDED = "recommended"
    """A setting has forgotten and has enough utility."""
    NOT_ENOUGH = "not enough forgotten"
    """The best setting has forgotten something, and the headline's test still finds the rest."""
    NOTHING = "nothing forgotten"
    """No setting with enough utility has forgotten more than the start model."""
    NO_UTILITY = "not enough utility"
    """No setting has enough utility."""
    NO_RESULT = "no result"
    """The start model has a fault, or nothing was evaluated."""


class Verdict(StrEnum):
    """How the recommended setting compares with another method."""

    BETTER = "better"
    """It forgets significantly more than the other method at equal utility."""
    WORSE = "worse"
    """The other method forgets significantly more at equal utility."""
    UNDECIDED = "undecided"
    """It was compared at equal utility, and the difference may be chance, or there are too few
    seeds to claim one."""
    NOT_COMPARABLE = "not comparable"
    """No test at equal utility is possible."""
    NO_SETTING = "no usable setting"
    """The other method has no setting with enough utility, or no number."""


@dataclass(frozen=True)
class RecommendedSetting:
    """The best setting of a panel's first method."""

    method: str
    """Label of the setting: `npo+nll (beta=0.5)`."""
    name: str
    """Name of the method among the others of its panel: `npo+nll`."""
    family: str
    """Method with its retain term, by which it is coloured."""
    learning_rate: float | None
    unit: str
    """What `at` counts: `epoch` or `step`."""
    at: int
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    """Ids of its runs, one per seed."""
    chosen_on: tuple[int, ...]
    """Seeds that it was chosen on; empty if it is the best by the page's rule."""
    utility: float | None
    start_utility: float | None
    utility_share: float | None
    """Its utility as a share of the start model's."""
    forgotten: float | None
    """The headline's number of what is forgotten."""
    utility_low: float | None = None
    """Lower end of the interval of its utility; None without an interval."""
    utility_high: float | None = None
    utility_interval: str = ""
    """What these ends are: `95 % t interval of the mean over 3 seeds`."""
    least_utility: float | None = None
    """The utility that a setting must have to be recommended."""
    may_keep_too_little: bool = False
    """Whether the interval of its utility reaches below `least_utility`."""


@dataclass(frozen=True)
class ScoreFact:
    """One of the four scores, ready to be drawn."""

    name: str
    """`Forgotten`, `Private`, `Kept` or `Lasting`; `Removed` in the place of `Forgotten` in a sweep
    without a retain model."""
    value: float | None
    """None if it is not scored."""
    low: float | None = None
    """Lower end of its interval, see `Interval.within`; None without an interval."""
    high: float | None = None
    interval: str = ""
    """What `low` and `high` are: `95 % t interval of the mean over 3 seeds`."""
    start: float | None = None
    """Score of the start model."""
    retain: float | None = None
    """Score of the retain model."""
    under: str = ""
    """The attack that gives most back, of Lasting: `relearning, 13 steps`."""
    given_back: str = ""
    """What comes back of the removed knowledge under this attack: `8 % [5, 11 %]`."""
    warnings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sentences by kind: `over-forgotten`, `unfamiliar`, `repetitive`, `bypassed`."""
    not_scored: str = ""
    """Why there is no value, in a few words; empty if there is one."""
    to_add: str = ""
    """What to write into the configuration to get a value, or a surer one; empty if nothing
    helps."""


@dataclass(frozen=True)
class ComparedMethod:
    """Another method of the panel, beside the recommended setting."""

    name: str
    family: str
    verdict: Verdict
    is_runner_up: bool = False
    reason: str = ""
    """The numbers behind the verdict, or why there are none."""
    short_reason: str = ""
    """The same in a few words: `it has more utility (0.832)`."""


@dataclass(frozen=True)
class MethodStanding:
    """What a method's best setting keeps and has forgotten, or why the method has none."""

    name: str
    family: str
    place: int | None = None
    """Place among the methods. Between methods that share a place, the difference may be chance.
    None without a usable setting, and for a setting of fewer than `ENOUGH_SEEDS` seeds."""
    learning_rate: float | None = None
    at: int | None = None
    """Epoch or step of the best setting."""
    utility: float | None = None
    utility_share: float | None = None
    """Its utility as a share of the start model's."""
    forgotten: float | None = None
    """The headline's number of what is forgotten."""
    score: float | None = None
    """Its score `Recommendation.score_name`."""
    is_little: bool = False
    """Whether its score is below `LEAST_REMOVED`, the share that Lasting needs, and not because it
    is over-forgotten."""
    is_over_forgotten: bool = False
    """Whether it knows less of the forget rows than the retain model, beyond chance."""
    is_unmoved: bool = False
    """Whether it has forgotten no more than the start model."""
    why_not: str = ""
    """Why the method has no usable setting; empty if it has one."""
    most_kept: float | None = None
    """Largest share of the start model's utility that any of its settings keeps. Only for a method
    whose settings all keep too little."""

    @property
    def is_usable(self) -> bool:
        """Whether it has a setting that keeps enough utility."""
        return not self.why_not


@dataclass(frozen=True)
class NextStep:
    """What would decide an open question, as an edit of the configuration."""

    purpose: str
    """`to compare it with general-ce-u`."""
    action: str
    """`try npo+nll at a learning rate between 0.0001 and 0.001`."""
    edit: str
    """A line of YAML: `learning_rates: [1.0e-4, 3.0e-4, 1.0e-3]`."""
    entry: str = ""
    """Method in whose entry of `methods` the line belongs, such as `npo+nll`. There it replaces the
    learning rates of this method only. Empty for a line that belongs at the top of the file."""
    entry_text: str = ""
    """The same as YAML has it: "`npo` with `retain: {term: nll}`"."""
    reason: str = ""
    """Why this may help: `0.0001 has less utility (0.298)`; empty if the action says it."""


@dataclass(frozen=True)
class Recommendation:
    """All facts about a panel."""

    outcome: Outcome
    setting: RecommendedSetting | None = None
    """None without a best setting, and if nothing was forgotten."""
    scores: tuple[ScoreFact, ...] = ()
    compared: tuple[ComparedMethod, ...] = ()
    """The other methods, in the order of the page's tables."""
    next_step: NextStep | None = None
    """None if nothing is open, or if the sentence of the conclusion says what to do."""
    standings: tuple[MethodStanding, ...] = ()
    """All methods of the panel, best first; those without a usable setting come last."""
    score_name: str = ""
    """`Forgotten` or `Removed`: the score of the standings; empty if none has a number."""

    @property
    def runner_up(self) -> ComparedMethod | None:
        """The first of the other methods that has a usable setting."""
        return next((method for method in self.compared if method.is_runner_up), None)

    def with_verdict(self, verdict: Verdict) -> tuple[ComparedMethod, ...]:
        """List the methods with a verdict."""
        return tuple(method for method in self.compared if method.verdict is verdict)

    @staticmethod
    def from_json(stored: Mapping[str, Any] | None) -> Recommendation | None:
        """Read what `asdict` wrote; None if an earlier version wrote nothing."""
        if stored is None:
            return None
        return TypeAdapter(Recommendation).validate_python(stored)


def recommend(
    panel: Panel,
    order: PanelOrder | None,
    attacked: AttackedPanel | None,
    scorer: Scorer | None,
    pairs: PairTable | None,
    lost: Sequence[RunOutcome] = (),
) -> Recommendation:
    """Collect the facts about a panel.

    Args:
        panel: The panel.
        order: Order of its methods; None if its start model has a fault.
        attacked: Its settings under attacks; None if no attack was run.
        scorer: Scores its settings; None leaves out the scores.
        pairs: Its methods, compared pair by pair; None if its start model has a fault.
        lost: Its runs that failed or collapsed.
    """
    outcome = outcome_of(panel)
    standings: tuple[MethodStanding, ...] = ()
    if outcome is not Outcome.NO_RESULT:
        standings = (*_standings(panel, scorer), *_without_numbers(panel, lost))
    is_scored = any(standing.score is not None for standing in standings)
    score_name = _first_score(panel) if is_scored else ""
    best = next((best for best in panel.best if best.ranked is not None), None)
    if best is None or best.ranked is None or outcome is Outcome.NOTHING:
        step = _step_without_setting(panel, outcome)
        return Recommendation(outcome, next_step=step, standings=standings, score_name=score_name)
    rivals = None if order is None else order.rivals
    compared = tuple(_compared(panel, best, rivals, pairs))
    return Recommendation(
        outcome,
        _recommended(panel, best, best.ranked),
        () if scorer is None else tuple(_scores(panel, best.ranked, attacked, scorer)),
        compared,
        _next_step(panel, best, best.ranked, outcome, compared),
        standings,
        score_name,
    )


def outcome_of(panel: Panel) -> Outcome:
    """Return how far the methods of a panel got."""
    start, test = panel.start, panel.headline.forgotten.test
    evaluated = [row for row in panel.rows if is_evidence(row) and row.epoch > 0]
    unknown = start.utility is None or all(row.forgotten is None for row in evaluated)
    if start.fault or not evaluated or unknown:
        return Outcome.NO_RESULT
    best = next((best.ranked for best in panel.best if best.ranked is not None), None)
    if best is None:
        return Outcome.NO_UTILITY
    if start.unmoved(best.forgotten):
        return Outcome.NOTHING
    passes = test is None or (
        best.forgotten is not None and best.forgotten > math.log10(test.level)
    )
    return Outcome.RECOMMENDED if passes else Outcome.NOT_ENOUGH


def _recommended(panel: Panel, best: Best, setting: Setting) -> RecommendedSetting:
    """Describe the recommended setting: its place in the sweep, its numbers, and how sure they are.

    A setting may keep too little if the interval of its utility reaches below the least utility
    that a best setting has to keep.
    """
    interval = setting.interval(panel.headline.kept.column)
    least = panel.least_kept
    reaches_below = interval is not None and least is not None and interval.low < least
    return RecommendedSetting(
        method=setting.method,
        name=best.name,
        family=best.family,
        learning_rate=setting.learning_rate,
        unit=str(setting.unit),
        at=setting.epoch,
        seeds=tuple(row.seed for row in setting.rows),
        runs=tuple(row.run_id for row in setting.rows),
        chosen_on=() if best.choice is None else best.choice.chosen_on,
        utility=setting.kept,
        start_utility=panel.start.utility,
        utility_share=panel.share_kept(setting.kept),
        forgotten=setting.forgotten,
        utility_low=None if interval is None else interval.low,
        utility_high=None if interval is None else interval.high,
        utility_interval="" if interval is None else interval.name,
        least_utility=least,
        may_keep_too_little=reaches_below,
    )


# Standings


def _standings(panel: Panel, scorer: Scorer | None) -> Iterable[MethodStanding]:
    """Yield the methods of a panel as `Panel.best` has them, best first."""
    for best, place in zip(panel.best, panel.places, strict=True):
        setting = best.setting
        if setting is None or setting.why_not:
            yield _standing_without_setting(panel, best)
            continue
        scores = () if scorer is None else scorer.scores(setting.rows)
        name = _first_score(panel)
        score = next((score for score in scores if score.label == name), None)
        is_over_forgotten = score is not None and OVER_FORGOTTEN in score.warnings
        is_low = score is not None and score.mean is not None and score.mean < LEAST_REMOVED
        yield MethodStanding(
            name=best.name,
            family=best.family,
            place=place,
            learning_rate=setting.learning_rate,
            at=setting.epoch,
            utility=setting.kept,
            utility_share=panel.share_kept(setting.kept),
            forgotten=setting.forgotten,
            score=None if score is None else score.mean,
            is_little=is_low and not is_over_forgotten,
            is_over_forgotten=is_over_forgotten,
            is_unmoved=panel.start.unmoved(setting.forgotten),
            why_not=best.why_not,
        )


def _standing_without_setting(panel: Panel, best: Best) -> MethodStanding:
    # A choice has no numbers yet, and a seed that ended early leaves no mean: neither says how much
    # the method keeps.
    keeps_too_little = best.choice is None and not best.lost and not panel.not_judged
    most = panel.share_kept(panel.most_kept(best.family)) if keeps_too_little else None
    return MethodStanding(best.name, best.family, why_not=best.why_not, most_kept=most)


def _without_numbers(panel: Panel, lost: Sequence[RunOutcome]) -> Iterable[MethodStanding]:
    """Yield the methods of which no run has a number that counts."""
    known = {best.family for best in panel.best}
    for family, run in {run.family: run for run in reversed(lost)}.items():
        if family and family not in known:
            yield MethodStanding(family, family, why_not=run.why_no_number)


# Scores


def _first_score(panel: Panel) -> str:
    """Return `Forgotten`, or `Removed` in a sweep without a retain model; empty without both."""
    labels = [summary.columns()[0].label for summary in questions(panel.rows[0].schema)]
    return next((name for name in (FORGOTTEN, REMOVED) if name in labels), "")


def _scores(
    panel: Panel, setting: Setting, attacked: AttackedPanel | None, scorer: Scorer
) -> Iterable[ScoreFact]:
    """Yield the four scores in their order, scored or not; a benchmark may have further ones."""
    schema = panel.rows[0].schema
    scores = {score.label: score for score in scorer.scores(setting.rows)}
    first = FORGOTTEN if schema.has_retain or REMOVED not in scores else REMOVED
    names = dict.fromkeys((first, PRIVATE, KEPT, *scores))
    for name in names:
        score = scores.get(name)
        if score is None or score.mean is None:
            yield _not_scored(panel, schema, name, score)
        else:
            yield _scored(panel, score)
    yield _lasting(setting, attacked)


def _scored(panel: Panel, score: Score) -> ScoreFact:
    column = score.label.lower()
    models = {kind: panel.row(kind) for kind in ("fine-tuned", "retain")}
    of_model = {
        kind: None if row is None else row.metrics.get(column) for kind, row in models.items()
    }
    low, high, name = _ends(score.interval)
    schema = panel.rows[0].schema
    needs_base = score.label == REMOVED and schema.could_have_retain
    return ScoreFact(
        name=score.label,
        value=score.mean,
        low=low,
        high=high,
        interval=name,
        start=of_model["fine-tuned"],
        retain=of_model["retain"],
        warnings=dict(score.warnings),
        to_add=_BASE if needs_base else "",
    )


def _ends(interval: Interval | None) -> tuple[float | None, float | None, str]:
    """Return the ends of a score's interval, see `Interval.within`, and what they are."""
    if interval is None:
        return None, None, ""
    inside = interval.within((0.0, 1.0))
    return inside.low, inside.high, interval.name


_BASE = "models: [{base: …}]"
"""A base model, from which a retain model is trained."""
_HOLDOUT = "data: {holdout: …}"
"""Rows like the forget rows that no model has seen."""


def _not_scored(panel: Panel, schema: BenchmarkSchema, name: str, score: Score | None) -> ScoreFact:
    reason, to_add = _why_not_scored(panel, schema, name)
    if not reason:
        reason = "this benchmark does not measure it" if score is None else _lacking(score)
    return ScoreFact(name=name, value=None, not_scored=reason, to_add=to_add)


def _lacking(score: Score) -> str:
    """`no Distinct 4-grams, forget (and 2 more numbers)`: what a score is made of and lacks."""
    missing = [part.column.label for part in score.parts if part.value is None]
    if not missing:
        return "a number behind it is undefined"
    more = len(missing) - 1
    others = f" (and {more} more number{'s' * (more > 1)})" if more else ""
    return f"no {missing[0]}{others}"


def _why_not_scored(panel: Panel, schema: BenchmarkSchema, name: str) -> tuple[str, str]:
    """Return why a score has no number, and what to add; empty if the reason is not known here."""
    if name == PRIVATE:
        if "holdout" in schema.absent:
            also = ", no retain model" if schema.could_have_retain else ""
            return f"no holdout rows{also}", _HOLDOUT
        if not schema.sets("holdout"):
            return "this benchmark has no holdout rows", ""
    if name in (PRIVATE, FORGOTTEN):
        if not schema.has_retain:
            return "no retain model", _BASE if schema.could_have_retain else ""
        if panel.row("retain") is None:
            return "the retain model was not evaluated", ""
    if panel.row("fine-tuned") is None:
        return "the start model was not evaluated", ""
    return "", ""


def _lasting(setting: Setting, attacked: AttackedPanel | None) -> ScoreFact:
    """Return the score under attacks, or exactly what to add for it."""
    if attacked is None:
        to_add = f"attacks: {attack_to_add(setting.learning_rate)}"
        return ScoreFact(LASTING, None, not_scored="no attack was run", to_add=to_add)
    of_setting = attacked.of(setting)
    if of_setting is None or not of_setting.under:
        reason = f"not attacked at {setting.when}"
        return ScoreFact(LASTING, None, not_scored=reason, to_add=_attack_edit(attacked))
    if of_setting.worst is None:
        return ScoreFact(
            LASTING,
            None,
            not_scored=of_setting.why_not.removeprefix("it "),
            to_add=_attack_edit(attacked) if of_setting.not_attacked else "",
        )
    return _lasting_scored(of_setting, variant_label(of_setting.worst.variant))


def _lasting_scored(of_setting: AttackedSetting, under: str) -> ScoreFact:
    score = lasting_score(of_setting)
    low, high, name = _ends(score.interval)
    return ScoreFact(
        name=LASTING,
        value=score.mean,
        low=low,
        high=high,
        interval=name,
        under=under,
        given_back=share_given_back(of_setting),
        warnings=dict(score.warnings),
    )


def _attack_edit(attacked: AttackedPanel) -> str:
    """`attacks: {relearning: {at: every}}`: attack each evaluated epoch, the best one included."""
    attacks = ", ".join(f"{attack}: {{at: every}}" for attack in attacked.attacks)
    return f"attacks: {{{attacks}}}"


# Other methods


def _compared(
    panel: Panel, leader: Best, rivals: Rivals | None, pairs: PairTable | None
) -> Iterable[ComparedMethod]:
    for best in panel.best:
        if best is leader:
            continue
        if best.ranked is None:
            yield ComparedMethod(best.name, best.family, Verdict.NO_SETTING, reason=best.why_not)
            continue
        if rivals is None or pairs is None:
            continue
        pair = pairs.of_leader[best.name]
        yield ComparedMethod(
            best.name,
            best.family,
            Verdict(pair.verdict.value),
            best.name == rivals.runner_up,
            pair.reason,
            _short_reason(best.ranked, rivals.kinds.get(best.name)),
        )


def _short_reason(other: Setting, kind: Untested | None) -> str:
    match kind:
        case None:
            return ""
        case Untested.NO_EQUAL_UTILITY:
            kept = other.headline.kept
            return f"it has more {kept.plain_short} ({kept.text(other.kept)})"
        case Untested.FEW_SEEDS:
            return f"fewer than {ENOUGH_SEEDS} common seeds"
        case Untested.UNREADABLE:
            return "answers cannot be compared"


# The next step


def _next_step(
    panel: Panel,
    best: Best,
    setting: Setting,
    outcome: Outcome,
    compared: Sequence[ComparedMethod],
) -> NextStep | None:
    """Return what would make the recommendation surer; None if nothing is open."""
    if outcome is Outcome.NOT_ENOUGH:
        return _more_forgetting(panel, best, setting)
    open_methods = [
        method
        for method in compared
        if method.verdict in (Verdict.UNDECIDED, Verdict.NOT_COMPARABLE)
    ]
    seeds = len({row.seed for row in setting.rows})
    if seeds < ENOUGH_SEEDS:
        return _more_seeds(panel, ENOUGH_SEEDS - seeds, "to rank methods")
    if not open_methods:
        return None
    other = next((method for method in open_methods if method.is_runner_up), open_methods[0])
    if other.verdict is Verdict.UNDECIDED:
        return _more_seeds(panel, 2, f"to decide between {best.name} and {other.name}")
    if best.choice is not None:
        return None
    return _rate_with_more_utility(panel, best, setting, f"to compare it with {other.name}")


def _more_seeds(panel: Panel, more: int, purpose: str) -> NextStep:
    """Add seeds to those that were run, from 0 on."""
    seeds = sorted({row.seed for row in panel.rows if row.kind == "run"})
    unused = (seed for seed in range(len(seeds) + more) if seed not in seeds)
    added = [seed for seed, _ in zip(unused, range(more), strict=False)]
    listed = ", ".join(map(str, sorted([*seeds, *added])))
    noun = "seed" if more == 1 else "seeds"
    return NextStep(purpose, f"run {more} more {noun}", f"seeds: [{listed}]")


def _rates(panel: Panel, family: str) -> list[float]:
    """List the learning rates that were tried for a method, in order."""
    return sorted(
        {
            setting.learning_rate
            for setting in panel.settings
            if setting.family == family and setting.learning_rate is not None
        }
    )


def _rate_with_more_utility(
    panel: Panel, best: Best, setting: Setting, purpose: str
) -> NextStep | None:
    """Try a learning rate at which there is more utility.

    A setting that forgets more and has less utility than another method cannot be compared with it.
    The rates that were tried say on which side there is more utility. For example, NPO with a
    retain term may have 0.28 at 1e-4 and 0.75 at 1e-3, because the term needs the higher rate. If
    no lower rate was tried, one is: a gentler training usually has more utility.

    Returns:
        None if the neighbouring rates on both sides have less utility.
    """
    rate = setting.learning_rate
    if rate is None or setting.kept is None:
        return None
    rates = _rates(panel, best.family)
    utility = _utility_by_rate(panel, best.family, setting.epoch)
    lower = max((other for other in rates if other < rate), default=None)
    higher = min((other for other in rates if other > rate), default=None)
    for neighbour in (higher, lower):
        if neighbour is not None and utility.get(neighbour, -math.inf) > setting.kept:
            action, edit = _try_between(best.family, rates, rate, neighbour)
            reason = _utility_at(panel, neighbour, utility, "more")
            return _step_of_entry(purpose, action, edit, best.family, reason)
    if lower is None:
        action, edit = _try_beyond(best.family, rates, rate, "below")
        reason = _utility_at(panel, higher, utility, "less")
        if higher is None:
            reason = f"a gentler training usually has more {panel.headline.kept.plain_short}"
        return _step_of_entry(purpose, action, edit, best.family, reason)
    if higher is None:
        action, edit = _try_beyond(best.family, rates, rate, "above")
        reason = _utility_at(panel, lower, utility, "less")
        return _step_of_entry(purpose, action, edit, best.family, reason)
    return None


def _utility_at(
    panel: Panel, rate: float | None, utility: Mapping[float, float], than: Literal["more", "less"]
) -> str:
    """`0.0001 has less utility (0.298)`; empty if nothing is known of a learning rate."""
    if rate is None or rate not in utility:
        return ""
    kept = panel.headline.kept
    return f"{float_text(rate)} has {than} {kept.plain_short}: {kept.text(utility[rate])}"


def _step_of_entry(purpose: str, action: str, edit: str, family: str, reason: str = "") -> NextStep:
    return NextStep(purpose, action, edit, family, entry_in_yaml(family), reason)


def entry_in_yaml(family: str) -> str:
    """Name the entry of a method as the configuration has it.

    For example, "`npo` with `retain: {term: nll}`" for `npo+nll`.
    """
    name, *others = family.split("+")
    terms = [other for other in others if other in get_args(RetainTermName)]
    modifiers = [other for other in others if other not in terms]
    parts = [f"`retain: {{term: {term}}}`" for term in terms]
    if modifiers:
        parts.append(f"`modifiers: [{', '.join(modifiers)}]`")
    with_parts = f" with {' and '.join(parts)}" if parts else ""
    return f"`{name}`{with_parts}"


def _utility_by_rate(panel: Panel, family: str, epoch: int) -> dict[float, float]:
    """Return the highest utility of a method after an epoch or step, by learning rate."""
    utility: dict[float, float] = {}
    for setting in panel.settings:
        rate, kept = setting.learning_rate, setting.kept
        if setting.family != family or setting.epoch != epoch or rate is None or kept is None:
            continue
        utility[rate] = max(kept, utility.get(rate, -math.inf))
    return utility


def _try_between(family: str, rates: Sequence[float], one: float, other: float) -> tuple[str, str]:
    """Return the action and the edit that try a rate between two."""
    low, high = sorted((one, other))
    action = f"try {family} at a learning rate between {float_text(low)} and {float_text(high)}"
    return action, _rates_edit([*rates, _between(low, high, rates)])


def _try_beyond(
    family: str, rates: Sequence[float], rate: float, side: Literal["below", "above"]
) -> tuple[str, str]:
    """Return the action and the edit that try a third of a rate, or three times the rate."""
    new = rate / 3 if side == "below" else 3 * rate
    action = f"try {family} at a learning rate {side} {float_text(rate)}"
    return action, _rates_edit([*rates, _rounded(new, rates)])


def _more_forgetting(panel: Panel, best: Best, setting: Setting) -> NextStep | None:
    """Try a higher learning rate of the method that has forgotten most."""
    rate = setting.learning_rate
    if rate is None or best.choice is not None:
        return None
    rates = _rates(panel, best.family)
    higher = min((other for other in rates if other > rate), default=None)
    if higher is None:
        action, edit = _try_beyond(best.family, rates, rate, "above")
    else:
        action, edit = _try_between(best.family, rates, rate, higher)
    return _step_of_entry("to forget more", action, edit, best.family)


def _step_without_setting(panel: Panel, outcome: Outcome) -> NextStep | None:
    """Return what to try if no method has a usable setting; None if the sentence says it."""
    rates = sorted(
        {
            setting.learning_rate
            for setting in panel.settings
            if setting.learning_rate is not None and setting.epoch > 0
        }
    )
    if not rates or panel.choices:
        return None
    if outcome is Outcome.NOTHING:
        new = _rounded(3 * rates[-1], rates)
        action = f"try a learning rate above {float_text(rates[-1])}"
        return NextStep("to forget something", action, _rates_edit([*rates, new]))
    if outcome is Outcome.NO_UTILITY:
        new = _rounded(rates[0] / 3, rates)
        action = f"try a learning rate below {float_text(rates[0])}"
        return NextStep("to keep the model usable", action, _rates_edit([*rates, new]))
    return None


def _between(low: float, high: float, known: Sequence[float]) -> float:
    return _rounded(math.sqrt(low * high), known)


def _rounded(rate: float, known: Sequence[float]) -> float:
    """Round to as few digits as tell a rate from those that were tried."""
    for digits in range(1, 6):
        rounded = float(f"{rate:.{digits}g}")
        if rounded not in known:
            return rounded
    return rate


def _rates_edit(rates: Iterable[float]) -> str:
    """`learning_rates: [1.0e-4, 3.0e-4]`, as YAML reads it: without a point 1e-4 is a text."""
    texts = ", ".join(_yaml_rate(rate) for rate in sorted(rates))
    return f"learning_rates: [{texts}]"


def _yaml_rate(rate: float) -> str:
    mantissa, _, exponent = f"{rate:e}".partition("e")
    digits = mantissa.rstrip("0")
    return f"{digits}{'0' * digits.endswith('.')}e{int(exponent):+d}".replace("e+", "e")
