"""The scores of a setting as the first screen shows them: with ends, or with a reason for none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from unlearnbench.analysis.attack_text import attack_to_add, share_given_back
from unlearnbench.analysis.recommendation import ScoreFact
from unlearnbench.analysis.scorecard import LASTING, Score, Scorer, lasting_score, questions

if TYPE_CHECKING:
    from unlearnbench.analysis.best_settings import Panel
    from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
    from unlearnbench.analysis.settings import Setting
    from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
    from unlearnbench.stats.t_interval import Interval

# Labels of the scores that metrics declare, see `Summary.question`.
FORGOTTEN = "Forgotten"
REMOVED = "Removed"
PRIVATE = "Private"
KEPT = "Kept"

_BASE = "models: [{base: …}]"
"""Edit that adds a base model, from which a retain model is trained."""
_HOLDOUT = "data: {holdout: …}"
"""Edit that adds rows like the forget rows that no model has seen."""


def first_score(panel: Panel) -> str:
    """Return `Forgotten`, or `Removed` in a sweep without a retain model; empty without both."""
    labels = [summary.columns()[0].label for summary in questions(panel.rows[0].schema)]
    for name in (FORGOTTEN, REMOVED):
        if name in labels:
            return name
    return ""


def score_facts(
    panel: Panel, setting: Setting, attacked: AttackedPanel | None, scorer: Scorer
) -> Iterator[ScoreFact]:
    """Yield the four scores in their order, scored or not; a benchmark may have further ones.

    Args:
        panel: Panel of the setting.
        setting: The setting, averaged over its seeds.
        attacked: The panel's settings under attacks; None if no attack was run.
        scorer: Scores settings of the panel.
    """
    schema = panel.rows[0].schema
    score_by_name = {score.label: score for score in scorer.scores(setting.rows)}
    first = FORGOTTEN if schema.has_retain or REMOVED not in score_by_name else REMOVED
    for name in dict.fromkeys((first, PRIVATE, KEPT, *score_by_name)):
        score = score_by_name.get(name)
        if score is None or score.mean is None:
            yield _not_scored(panel, schema, name, score)
        else:
            yield _scored(panel, score)
    yield _lasting(setting, attacked)


def _scored(panel: Panel, score: Score) -> ScoreFact:
    schema = panel.rows[0].schema
    # A score against the retain model says more than `Removed`, and a base model would allow it.
    needs_base = score.label == REMOVED and schema.could_have_retain
    fact = ScoreFact(
        name=score.label,
        value=score.mean,
        start=_score_of_model(panel, "fine-tuned", score),
        retain=_score_of_model(panel, "retain", score),
        warnings=dict(score.warnings),
        to_add=_BASE if needs_base else "",
    )
    return _with_interval(fact, score.interval)


def _score_of_model(panel: Panel, kind: str, score: Score) -> float | None:
    """Return the score of the start model (`fine-tuned`) or the retain model."""
    row = panel.row(kind)
    return None if row is None else row.metrics.get(score.label.lower())


def _with_interval(fact: ScoreFact, interval: Interval | None) -> ScoreFact:
    """Add the ends of a score's interval, as far as they lie within 0 and 1."""
    if interval is None:
        return fact
    inside = interval.within((0.0, 1.0))
    return replace(fact, low=inside.low, high=inside.high, interval=interval.name)


# Scores without a value


class _Missing(NamedTuple):
    """What a score lacks."""

    reason: str
    to_add: str = ""
    """Edit of the configuration that adds it; empty if there is none."""


def _not_scored(panel: Panel, schema: BenchmarkSchema, name: str, score: Score | None) -> ScoreFact:
    missing = _missing_data(panel, schema, name)
    if missing is None:
        not_measured = "this benchmark does not measure it"
        missing = _Missing(not_measured if score is None else _missing_parts(score))
    return ScoreFact(name=name, value=None, not_scored=missing.reason, to_add=missing.to_add)


def _missing_data(panel: Panel, schema: BenchmarkSchema, name: str) -> _Missing | None:
    """Return which rows or model a score lacks; None if it lacks none of them."""
    if name == PRIVATE:
        if "holdout" in schema.absent:
            also = ", no retain model" if schema.could_have_retain else ""
            return _Missing(f"no holdout rows{also}", _HOLDOUT)
        if not schema.sets("holdout"):
            return _Missing("this benchmark has no holdout rows")
    if name in (PRIVATE, FORGOTTEN):
        if not schema.has_retain:
            return _Missing("no retain model", _BASE if schema.could_have_retain else "")
        if panel.row("retain") is None:
            return _Missing("the retain model was not evaluated")
    if panel.row("fine-tuned") is None:
        return _Missing("the start model was not evaluated")
    return None


def _missing_parts(score: Score) -> str:
    """Return which numbers a score without a value lacks.

    Returns:
        A text such as `no Distinct 4-grams (and 2 more numbers)`. If all numbers that the score is
        made of have a value, one of them has no value on some seed, or the score itself divides by
        0, and the text says only that.
    """
    missing = [part.column.label for part in score.parts if part.value is None]
    if not missing:
        return "a number behind it is undefined"
    first, *others = missing
    if not others:
        return f"no {first}"
    noun = "number" if len(others) == 1 else "numbers"
    return f"no {first} (and {len(others)} more {noun})"


# The score under attacks


def _lasting(setting: Setting, attacked: AttackedPanel | None) -> ScoreFact:
    """Return the score under attacks, or exactly what to add for it."""
    if attacked is None:
        to_add = f"attacks: {attack_to_add(setting.learning_rate)}"
        return ScoreFact(LASTING, None, not_scored="no attack was run", to_add=to_add)
    of_setting = attacked.of(setting)
    if of_setting is None or not of_setting.under:
        reason = f"not attacked at {setting.when}"
        return ScoreFact(LASTING, None, not_scored=reason, to_add=_attack_each_epoch(attacked))
    if of_setting.worst is None:
        return ScoreFact(
            LASTING,
            None,
            not_scored=of_setting.why_not.removeprefix("it "),
            to_add=_attack_each_epoch(attacked) if of_setting.not_attacked else "",
        )
    return _scored_under_attack(of_setting, of_setting.worst.label)


def _scored_under_attack(of_setting: AttackedSetting, worst_label: str) -> ScoreFact:
    score = lasting_score(of_setting)
    fact = ScoreFact(
        name=LASTING,
        value=score.mean,
        under=worst_label,
        given_back=share_given_back(of_setting),
        warnings=dict(score.warnings),
    )
    return _with_interval(fact, score.interval)


def _attack_each_epoch(attacked: AttackedPanel) -> str:
    """Return the edit that attacks each evaluated epoch, the best one included.

    For example, `attacks: {relearning: {at: every}}`.
    """
    attacks = ", ".join(f"{attack}: {{at: every}}" for attack in attacked.attacks)
    return f"attacks: {{{attacks}}}"
