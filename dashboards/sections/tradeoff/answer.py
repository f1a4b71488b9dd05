"""The words beside a panel: what the first screen says about the facts of a conclusion.

`analysis/recommendation.py` decides what is recommended, and how sure that is. This module only
puts these facts into words. `recommendation.html.j2` arranges the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.recommendation import (
    ComparedMethod,
    MethodStanding,
    Outcome,
    Recommendation,
    RecommendedSetting,
    Verdict,
)
from unlearnbench.analysis.under_attack import LEAST_REMOVED
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

if TYPE_CHECKING:
    from unlearnbench.analysis.conclusion import Conclusion
    from unlearnbench.api.benchmark import Headline

    from ...figures.tradeoff_data import TradeOffPanel

TITLES: Mapping[Outcome, str] = {
    Outcome.RECOMMENDED: "Recommended setting",
    Outcome.NOT_ENOUGH: "No method forgot enough",
    Outcome.NOTHING: "No method forgot",
    Outcome.NO_UTILITY: "No usable setting",
    Outcome.NO_RESULT: "No result",
}
IS_BETTER: Mapping[Verdict, str] = {
    Verdict.BETTER: "yes",
    Verdict.WORSE: "no, worse",
    Verdict.UNDECIDED: "undecided",
    Verdict.NOT_COMPARABLE: "not comparable",
    Verdict.NO_SETTING: "",
}
"""Answers to whether the recommended setting is better than another method."""
WARNING_LABELS: Mapping[str, str] = {
    "over-forgotten": "over-forgotten: it knows less than the retain model",
    "unfamiliar": "forget rows stand out as unfamiliar",
    "repetitive": "repetitive answers",
    "bypassed": "bypassed",
}
"""What a kind of warning says beside a score of the recommended setting."""
LITTLE = f"a score below {LEAST_REMOVED:g}"
"""What the sign `little` stands for in the list of methods."""


@dataclass(frozen=True)
class MethodLine:
    """A method in the list of methods beside a panel."""

    standing: MethodStanding
    utility: str
    """The utility as a fraction of the start model's, such as `83 %`."""
    utility_in_full: str
    """Such as `Model Utility 0.749`."""
    forgotten: str
    """The score, or the headline's number if the benchmark has no such score."""
    is_better: str
    """Whether the recommended setting is better, such as `yes` or `undecided`. Empty without a
    comparison."""
    without_setting: str
    """Such as `no usable setting: keeps at most 11 % of the utility`. Empty if it has one."""
    compared: ComparedMethod | None
    """How the recommended setting compares with this method. None for the recommended method, and
    without a recommended setting."""

    @property
    def reason(self) -> str:
        """The numbers behind the answer in `is_better`."""
        return "" if self.compared is None else self.compared.reason


@dataclass(frozen=True)
class Answer:
    """What stands beside a panel. A text is empty if there is nothing to say."""

    facts: Recommendation
    title: str
    """Such as `Recommended setting`."""
    lead: str
    """The first sentence without the title, for a panel without a recommended setting."""
    is_bad: bool
    """Whether there is no recommended setting."""
    utility: str
    """Such as `Model Utility 0.749, 83 % of the start model's; 3 seeds`."""
    utility_doubt: str
    """Such as `its interval [0.695, 0.803] reaches below the minimum, 0.722`."""
    verdict_word: str
    """`Undecided`, `Not comparable`, `Better` or `Worse`. Empty if nothing is compared."""
    verdict: str
    """The rest of the sentence, such as `than npo, the runner-up, at equal utility.`"""
    basis: str
    """The number of seeds, and what would make the answers surer."""
    methods: tuple[MethodLine, ...]
    """All methods, best first."""
    usable: str
    """How many of the methods have a usable setting."""
    about_places: str
    """What places are by, and what it means to share one."""
    about_comparison: str
    """What the last column of the list compares."""
    signs: str
    """What the signs in the list mean."""
    about_little: str
    """What `little` means, for the text at the sign."""
    forgotten_label: str
    """Head of the column with what is forgotten."""
    sentences: tuple[str, ...]
    """The whole conclusion in sentences."""
    has_retain: bool
    """Whether the panel has a retain model."""
    warning_labels: Mapping[str, str]


def answer_of(panel: TradeOffPanel, conclusion: Conclusion) -> Answer | None:
    """Word the facts of a conclusion; None if it was stored without facts."""
    facts = conclusion.facts
    if facts is None:
        return None
    headline = panel.headline
    setting = facts.setting
    title = TITLES[facts.outcome]
    verdict_word, verdict = verdict_of(facts)
    return Answer(
        facts=facts,
        title=title,
        lead=_without_title(conclusion.found, title),
        is_bad=facts.outcome is not Outcome.RECOMMENDED,
        utility="" if setting is None else utility_of(setting, headline),
        utility_doubt="" if setting is None else utility_doubt(setting, headline),
        verdict_word=verdict_word,
        verdict=verdict,
        basis="" if setting is None else basis_of(setting),
        methods=method_lines(facts, headline),
        usable=usable_methods(facts.standings, headline),
        about_places=about_places(facts.standings, headline),
        about_comparison=about_comparison(facts, headline),
        signs=about_signs(facts.standings),
        about_little=LITTLE,
        forgotten_label=facts.score_name or headline.forgotten.short,
        sentences=conclusion.sentences,
        has_retain=panel.retain is not None,
        warning_labels=WARNING_LABELS,
    )


def _without_title(sentence: str, title: str) -> str:
    """Return the rest of a sentence behind its title.

    Example: `The start model knows nothing` for `No result: the start model knows nothing`.
    """
    rest = sentence.removeprefix(f"{title}: ")
    return rest[0].upper() + rest[1:]


def utility_of(setting: RecommendedSetting, headline: Headline) -> str:
    """Say what the setting keeps, and on how many seeds.

    Example: `Model Utility 0.749, 83 % of the start model's; 3 seeds`.
    """
    kept = headline.kept
    text = f"{kept.plain_label} {kept.text(setting.utility)}"
    if setting.utility_share is not None:
        text += f", {100 * setting.utility_share:.0f}\N{NO-BREAK SPACE}% of the start model's"
    seed_count = len(setting.seeds)
    text += "; 1 seed" if seed_count == 1 else f"; {seed_count} seeds"
    if setting.chosen_on:
        noun = "seed" if len(setting.chosen_on) == 1 else "seeds"
        text += f", chosen on {noun} {', '.join(map(str, setting.chosen_on))}"
    return text


def utility_doubt(setting: RecommendedSetting, headline: Headline) -> str:
    """Say that the interval of the utility reaches below the minimum; empty if it does not."""
    if not setting.may_keep_too_little:
        return ""
    kept = headline.kept
    ends = f"[{kept.text(setting.utility_low)}, {kept.text(setting.utility_high)}]"
    return f"its interval {ends} reaches below the minimum, {kept.text(setting.least_utility)}"


def basis_of(setting: RecommendedSetting) -> str:
    """Say how many seeds the answers are based on, and what would make them surer."""
    count = len(setting.seeds)
    if count < ENOUGH_SEEDS:
        return f"Intervals and places need {ENOUGH_SEEDS} seeds (now {count})."
    return f"More seeds (now {count}), learning rates or {setting.unit}s would make this surer."


def method_lines(facts: Recommendation, headline: Headline) -> tuple[MethodLine, ...]:
    """Word what each method keeps and has forgotten, and how the recommended one compares."""
    compared_by_name = {method.name: method for method in facts.compared}
    lines: list[MethodLine] = []
    for standing in facts.standings:
        compared = compared_by_name.get(standing.name)
        is_better = "" if compared is None else IS_BETTER[compared.verdict]
        if facts.setting is not None and standing.name == facts.setting.name:
            is_better = "recommended" if facts.outcome is Outcome.RECOMMENDED else "comes closest"
        utility_in_full = f"{headline.kept.plain_label} {headline.kept.text(standing.utility)}"
        line = MethodLine(
            standing=standing,
            utility=_utility_share(standing, headline),
            utility_in_full=utility_in_full,
            forgotten=_forgotten(facts, standing, headline),
            is_better=is_better,
            without_setting=_without_setting(standing),
            compared=compared,
        )
        lines.append(line)
    return tuple(lines)


def _utility_share(standing: MethodStanding, headline: Headline) -> str:
    """Return the utility as a fraction of the start model's, or the utility if that is unknown."""
    if standing.utility_share is None:
        return headline.kept.text(standing.utility)
    return percent(standing.utility_share)


def percent(share: float) -> str:
    """Return a fraction of the start model's utility in per cent, such as `83 %`.

    A fraction slightly below the least that a best setting must keep has a decimal, because
    rounding would lift it to this least.
    """
    is_lifted = share < UTILITY_SHARE <= round(share, 2)
    digits = 1 if is_lifted else 0
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _forgotten(facts: Recommendation, standing: MethodStanding, headline: Headline) -> str:
    if not facts.score_name:
        return headline.forgotten.text(standing.forgotten)
    return "–" if standing.score is None else f"{standing.score:.2f}"


def _without_setting(standing: MethodStanding) -> str:
    """Say why a method has no usable setting. Empty if it has one."""
    if standing.is_usable:
        return ""
    if standing.most_kept is not None:
        return f"no usable setting: keeps at most {percent(standing.most_kept)} of the utility"
    if standing.utility_share is not None:
        return f"no usable setting: keeps {percent(standing.utility_share)} of the utility"
    return f"no usable setting: {standing.why_not}"


def usable_methods(standings: Sequence[MethodStanding], headline: Headline) -> str:
    """Say how many methods have a usable setting. Empty without a method."""
    count = len(standings)
    if count == 0:
        return ""
    usable = sum(standing.is_usable for standing in standings)
    least = f"{100 * UTILITY_SHARE:g}\N{NO-BREAK SPACE}%"
    rule = f"(at least {least} of the {headline.kept.plain_short})"
    if count == 1:
        has = "has a" if usable else "has no"
        return f"The only method {has} usable setting {rule}."
    if usable == count:
        methods_have = "Both methods have" if count == 2 else f"All {count} methods have"
    elif usable == 0:
        methods_have = "No method has"
    else:
        methods_have = f"{usable} of {count} methods {'has' if usable == 1 else 'have'}"
    return f"{methods_have} a usable setting {rule}."


def about_places(standings: Sequence[MethodStanding], headline: Headline) -> str:
    """Say what places are by, and what a shared place means if there is one.

    Empty if no method has a place.
    """
    places = [standing.place for standing in standings if standing.place is not None]
    if not places:
        return ""
    text = f"Places: by {headline.forgotten.name}"
    if len({*places}) == len(places):
        return f"{text}."
    return f"{text}. Methods that share a place differ by less than seeds do."


def about_comparison(facts: Recommendation, headline: Headline) -> str:
    """Say what the last column of the list compares. Empty without a comparison."""
    if facts.setting is None or not facts.compared:
        return ""
    kept = headline.kept.plain_short
    return f"Last column: does {facts.setting.name} forget more at equal {kept}?"


def about_signs(standings: Sequence[MethodStanding]) -> str:
    """Explain the signs before the numbers of a list. Empty if the list has none."""
    usable = [standing for standing in standings if standing.is_usable]
    signs: list[str] = []
    if any(standing.is_over_forgotten for standing in usable):
        signs.append("⚠: over-forgotten, knows less than the retain model")
    if any(standing.is_little and not standing.is_unmoved for standing in usable):
        signs.append(f"little: {LITTLE}")
    return f"{'. '.join(signs)}." if signs else ""


def verdict_of(facts: Recommendation) -> tuple[str, str]:
    """Say how sure the recommendation is, by a comparison with the runner-up.

    Returns:
        A word such as `Better`, and the rest of the sentence. The word is empty without a
        runner-up, and both are empty without a recommended setting.
    """
    if facts.setting is None:
        return "", ""
    has_few_seeds = len(facts.setting.seeds) < ENOUGH_SEEDS
    advice = f" Use at least {ENOUGH_SEEDS} seeds to rank methods." if has_few_seeds else ""
    runner_up = facts.runner_up
    if runner_up is None:
        only = "No other method has a usable setting." if facts.compared else "The only method."
        return "", only + advice

    name = f"{runner_up.name}, the runner-up"
    if runner_up.verdict is Verdict.BETTER:
        return "Better", f"than {name}, at equal utility.{advice}"
    if runner_up.verdict is Verdict.WORSE:
        return "Worse", f"than {name}, at equal utility.{advice}"
    if runner_up.verdict is Verdict.UNDECIDED:
        # With few seeds, the advice says why nothing is decided.
        reason = "" if has_few_seeds else ": the difference may be chance"
        return "Undecided", f"against {name}{reason}.{advice}"
    reason = f": {runner_up.short_reason}" if runner_up.short_reason else ""
    return "Not comparable", f"with {name}{reason}, so nothing is decided.{advice}"
