"""A check that a profile's rule for words counts the words of the true answers.

The profiles of other harnesses count runs of a-z and 0-9, as rouge-score does. In an answer of
another script, such a rule counts nothing or only numbers. ROUGE is then 0 or nearly so whatever a
model writes, and so is every score that contains ROUGE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.metrics.rouge import Rouge
from unlearnbench.metrics.rouge_f1 import RougeF1
from unlearnbench.stats.text_overlap import WordRule

if TYPE_CHECKING:
    from unlearnbench.evaluation.evaluator import Evaluator

KEY = "uncounted_words"
"""Key in the provenance of a record, for the shares of uncounted answers by set."""
LEAST_SHARE = 0.01
"""Share of a set's answers from which a warning is worth its line."""
MOST_ANSWERS = 0.5
"""Share of a set's answers from which its ROUGE says nothing about a model."""


def is_uncounted(answer: str, word_rule: WordRule) -> bool:
    """Whether a rule for words counts less than half of an answer's letters and digits.

    Numbers alone would be counted in most Chinese answers with a year, so it is not enough that
    some word is counted.
    """
    if word_rule == "unicode" or answer.isascii():
        return False
    letters = sum(character.isalnum() for character in answer)
    counted = sum(character.isalnum() and character.isascii() for character in answer)
    return 2 * counted < letters


def uncounted_shares(answers: Mapping[str, Sequence[str]], word_rule: WordRule) -> dict[str, float]:
    """Return the share of uncounted answers by set, for sets with enough of them for a warning."""
    shares: dict[str, float] = {}
    for name, texts in answers.items():
        share = sum(is_uncounted(text, word_rule) for text in texts) / max(len(texts), 1)
        if share >= LEAST_SHARE:
            shares[name] = share
    return shares


def rouge_sets(plan: MetricPlan) -> tuple[str, ...]:
    """Return the sets on which a benchmark reports ROUGE, in the order of the plan."""
    names: dict[str, None] = {}
    for measure in plan.measures:
        if isinstance(measure.metric, Rouge | RougeF1):
            names |= dict.fromkeys(measure.sets)
    return tuple(names)


def uncounted_notice(shares: Mapping[str, float], profile: Profile, fix: str) -> str | None:
    """Return a line about answers whose words are not counted; None if there are none.

    Args:
        shares: Shares of uncounted answers by set, see `uncounted_shares`.
        profile: Rules of the evaluation.
        fix: How the user names a profile, such as `set evaluation.profile to`.
    """
    if not shares:
        return None
    listed = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in shares.items())
    return (
        f"profile {profile.name} counts only words of a-z and 0-9, and these true answers are "
        f"mostly in other scripts: {listed}. Their ROUGE is near 0 whatever a model answers, and "
        f"so is every score with ROUGE in it; {fix} {UNLEARNBENCH.name}, which counts the words of "
        "all scripts"
    )


def evaluated_shares(evaluation: Evaluation, sets: Sequence[str]) -> dict[str, float]:
    """Return the shares of uncounted answers in an evaluation's sets, see `uncounted_shares`."""
    shares: dict[str, float] = {}
    for name in sets:
        evaluated = evaluation.sets.get(name)
        if evaluated is not None:
            shares |= uncounted_shares({name: evaluated.references}, evaluated.word_rule)
    return shares


def uncounted_entry(evaluator: Evaluator, plan: MetricPlan) -> dict[str, Any]:
    """Return the entry of a record's provenance: shares of uncounted answers, if there are any."""
    shares = uncounted_shares(evaluator.references(rouge_sets(plan)), evaluator.profile.words)
    return {KEY: shares} if shares else {}
