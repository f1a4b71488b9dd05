"""Collect the facts about a panel: which setting is recommended, and where the other methods stand.

Order of the computation: how far methods got (`outcome_of`), what each method reached (its
standing), the recommended setting and its scores (`score_facts.py`), each other method's verdict,
and what would decide more (`next_step.py`). The types are those of `recommendation.py`. Only a
`Scorer` reads observations; everything else is computed from table rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.method_order import Untested
from unlearnbench.analysis.next_step import next_step, step_without_setting
from unlearnbench.analysis.recommendation import (
    ComparedMethod,
    MethodStanding,
    Outcome,
    Recommendation,
    RecommendedSetting,
    ScoreFact,
    Verdict,
)
from unlearnbench.analysis.score_facts import first_score, score_facts
from unlearnbench.analysis.scorecard import OVER_FORGOTTEN, Score, Scorer
from unlearnbench.analysis.settings import Setting, is_evidence
from unlearnbench.analysis.under_attack import LEAST_REMOVED
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

if TYPE_CHECKING:
    from unlearnbench.analysis.lasting import AttackedPanel
    from unlearnbench.analysis.method_order import PanelOrder, Rivals
    from unlearnbench.analysis.pairs import PairTable
    from unlearnbench.results.outcomes import RunOutcome


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
    score_name = first_score(panel) if is_scored else ""

    best = _best_method(panel)
    setting = None if best is None else best.ranked
    if best is None or setting is None or outcome is Outcome.NOTHING:
        step = step_without_setting(panel, outcome)
        return Recommendation(outcome, next_step=step, standings=standings, score_name=score_name)

    scores: tuple[ScoreFact, ...] = ()
    if scorer is not None:
        scores = tuple(score_facts(panel, setting, attacked, scorer))
    rivals = None if order is None else order.rivals
    compared = tuple(_compared(panel, best, rivals, pairs))
    return Recommendation(
        outcome=outcome,
        setting=_recommended(panel, best, setting),
        scores=scores,
        compared=compared,
        next_step=next_step(panel, best, setting, outcome, compared),
        standings=standings,
        score_name=score_name,
    )


def _best_method(panel: Panel) -> Best | None:
    """Return the first method that has a place among the methods; None if none has."""
    return next((best for best in panel.best if best.ranked is not None), None)


def outcome_of(panel: Panel) -> Outcome:
    """Return how far the methods of a panel got."""
    start = panel.start
    trained_rows = [row for row in panel.rows if is_evidence(row) and row.epoch > 0]
    has_numbers = any(row.forgotten is not None for row in trained_rows)
    if start.fault or start.utility is None or not has_numbers:
        return Outcome.NO_RESULT
    best = _best_method(panel)
    if best is None or best.ranked is None:
        return Outcome.NO_UTILITY
    forgotten = best.ranked.forgotten
    if start.unmoved(forgotten):
        return Outcome.NOTHING
    test = panel.headline.forgotten.test
    if test is None:
        return Outcome.RECOMMENDED
    # `forgotten` is the logarithm of the test's p-value: a small one finds what is left.
    passes = forgotten is not None and forgotten > math.log10(test.level)
    return Outcome.RECOMMENDED if passes else Outcome.NOT_ENOUGH


def _recommended(panel: Panel, best: Best, setting: Setting) -> RecommendedSetting:
    """Describe the recommended setting: its place in the sweep, its numbers, and how sure they are.

    A setting may keep too little if the interval of its utility reaches below the least utility
    that a best setting has to keep.

    Args:
        panel: Model and split.
        best: The method that comes first, with its choice if `select` or `tune` made one.
        setting: The recommended setting of this method.
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


def _standings(panel: Panel, scorer: Scorer | None) -> Iterator[MethodStanding]:
    """Yield the methods of a panel as `Panel.best` has them, best first."""
    for best, place in zip(panel.best, panel.places, strict=True):
        setting = best.setting
        if setting is None or setting.why_not:
            yield _standing_without_setting(panel, best)
            continue
        score = None if scorer is None else _score_of_standing(panel, setting, scorer)
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


def _score_of_standing(panel: Panel, setting: Setting, scorer: Scorer) -> Score | None:
    """Return the score of what a setting has forgotten, see `first_score`."""
    name = first_score(panel)
    return next((score for score in scorer.scores(setting.rows) if score.label == name), None)


def _standing_without_setting(panel: Panel, best: Best) -> MethodStanding:
    # A choice has no numbers yet, and a seed that ended early leaves no mean. Neither says how much
    # the method keeps.
    keeps_too_little = best.choice is None and not best.lost and not panel.not_judged
    most = panel.share_kept(panel.most_kept(best.family)) if keeps_too_little else None
    return MethodStanding(best.name, best.family, why_not=best.why_not, most_kept=most)


def _without_numbers(panel: Panel, lost: Sequence[RunOutcome]) -> Iterator[MethodStanding]:
    """Yield the methods of which no run has a number that counts, with the first run's reason."""
    first_run: dict[str, RunOutcome] = {}
    for run in reversed(lost):
        first_run[run.family] = run
    families_with_best = {best.family for best in panel.best}
    for family, run in first_run.items():
        if family and family not in families_with_best:
            yield MethodStanding(family, family, why_not=run.why_no_number)


# Other methods


def _compared(
    panel: Panel, leader: Best, rivals: Rivals | None, pairs: PairTable | None
) -> Iterator[ComparedMethod]:
    """Yield how the recommended setting compares with each other method of the panel.

    Args:
        panel: The panel.
        leader: The method of the recommended setting.
        rivals: Which other methods could not be tested, and why.
        pairs: Comparisons of the leader with the other methods. If `rivals` or `pairs` is None,
            only methods without a setting are yielded.
    """
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
            name=best.name,
            family=best.family,
            verdict=Verdict(pair.verdict.value),
            is_runner_up=best.name == rivals.runner_up,
            reason=pair.reason,
            short_reason=_short_reason(best.ranked, rivals.kinds.get(best.name)),
        )


def _short_reason(other: Setting, kind: Untested | None) -> str:
    """Return in a few words why a method could not be tested; empty if it was."""
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
