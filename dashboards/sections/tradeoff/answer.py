"""The words beside a panel: titles and labels of the facts that the first screen shows."""

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


LITTLE = f"a score below {LEAST_REMOVED:g}"
"""What `little` stands for in the list of methods."""


@dataclass(frozen=True)
class MethodLine:
    """A method in the list of methods beside a panel."""

    standing: MethodStanding
    utility: str
    """`83 %` of the start model's utility."""
    utility_in_full: str
    """`Model Utility 0.749`."""
    forgotten: str
    """The score, or the headline's number if the benchmark has no such score."""
    is_better: str
    """Whether the recommended setting is better: `yes`, `undecided`; empty without a comparison."""
    without_setting: str
    """`no usable setting: keeps at most 11 % of the utility`; empty with a usable setting."""
    compared: ComparedMethod | None
    """None of the recommended method, and without a recommended setting."""

    @property
    def reason(self) -> str:
        """The numbers behind the answer in `is_better`."""
        return "" if self.compared is None else self.compared.reason


@dataclass(frozen=True)
class Answer:
    """What stands beside a panel."""

    facts: Recommendation
    title: str
    lead: str
    """The first sentence without the title, for panels without a setting."""
    is_bad: bool
    """Whether there is no recommended setting."""
    utility: str
    """`Model Utility 0.749, 83 % of the start model's; 3 seeds`; empty without a setting."""
    utility_doubt: str
    """`its interval [0.695, 0.803] reaches below the minimum, 0.722`; empty if it does not."""
    verdict_word: str
    """`Undecided`, `Not comparable`, `Better` or `Worse`; empty if nothing is compared."""
    verdict: str
    basis: str
    """The number of seeds, and what would make the answers surer; empty without a setting."""
    methods: tuple[MethodLine, ...]
    """All methods, best first."""
    usable: str
    """How many of the methods have a usable setting."""
    about_places: str
    """What places are by, and what it means to share one; empty if no method has a place."""
    about_comparison: str
    """What the last column of the list compares; empty without a comparison."""
    signs: str
    """What the signs in the list mean; empty without one."""
    about_little: str
    forgotten_label: str
    """Head of the column with what is forgotten."""
    sentences: tuple[str, ...]
    has_retain: bool
    warning_labels: Mapping[str, str]


def answer_of(panel: TradeOffPanel, conclusion: Conclusion) -> Answer | None:
    """Word the facts of a conclusion; None if it was stored without facts."""
    facts = conclusion.facts
    if facts is None:
        return None
    title = TITLES[facts.outcome]
    word, verdict = verdict_of(facts)
    return Answer(
        facts,
        title,
        _without_title(conclusion.found, title),
        facts.outcome is not Outcome.RECOMMENDED,
        "" if facts.setting is None else utility_of(facts.setting, panel.headline),
        "" if facts.setting is None else utility_doubt(facts.setting, panel.headline),
        word,
        verdict,
        "" if facts.setting is None else basis_of(facts.setting),
        method_lines(facts, panel.headline),
        usable_methods(facts.standings, panel.headline),
        about_places(facts.standings, panel.headline),
        about_comparison(facts, panel.headline),
        about_signs(facts.standings),
        LITTLE,
        facts.score_name or panel.headline.forgotten.short,
        conclusion.sentences,
        panel.retain is not None,
        WARNING_LABELS,
    )


def _without_title(sentence: str, title: str) -> str:
    """`The start model knows nothing` for `No result: the start model knows nothing`."""
    rest = sentence.removeprefix(f"{title}: ")
    return rest[0].upper() + rest[1:]


def utility_of(setting: RecommendedSetting, headline: Headline) -> str:
    """`Model Utility 0.749, 83 % of the start model's; 3 seeds`."""
    kept = headline.kept
    parts = [f"{kept.plain_label} {kept.text(setting.utility)}"]
    if setting.utility_share is not None:
        parts.append(f"{100 * setting.utility_share:.0f}\N{NO-BREAK SPACE}% of the start model's")
    count = len(setting.seeds)
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    if setting.chosen_on:
        chosen = ", ".join(map(str, setting.chosen_on))
        seeds += f", chosen on seed{'s' * (len(setting.chosen_on) > 1)} {chosen}"
    return f"{', '.join(parts)}; {seeds}"


def utility_doubt(setting: RecommendedSetting, headline: Headline) -> str:
    """Say that the interval of the utility reaches below the minimum; empty if it does not."""
    if not setting.may_keep_too_little:
        return ""
    kept = headline.kept
    ends = f"[{kept.text(setting.utility_low)}, {kept.text(setting.utility_high)}]"
    return f"its interval {ends} reaches below the minimum, {kept.text(setting.least_utility)}"


def basis_of(setting: RecommendedSetting) -> str:
    """Return the number of seeds behind the answers, and what would make them surer."""
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
        lines.append(
            MethodLine(
                standing,
                _utility_share(standing, headline),
                f"{headline.kept.plain_label} {headline.kept.text(standing.utility)}",
                _forgotten(facts, standing, headline),
                is_better,
                _without_setting(standing),
                compared,
            )
        )
    return tuple(lines)


def _utility_share(standing: MethodStanding, headline: Headline) -> str:
    if standing.utility_share is None:
        return headline.kept.text(standing.utility)
    return percent(standing.utility_share)


def percent(share: float) -> str:
    """Return `83 %`; with a decimal if rounding would lift the share to the least that counts."""
    is_lifted = share < UTILITY_SHARE <= round(share, 2)
    return f"{100 * share:.{int(is_lifted)}f}\N{NO-BREAK SPACE}%"


def _forgotten(facts: Recommendation, standing: MethodStanding, headline: Headline) -> str:
    if not facts.score_name:
        return headline.forgotten.text(standing.forgotten)
    return "–" if standing.score is None else f"{standing.score:.2f}"


def _without_setting(standing: MethodStanding) -> str:
    if standing.is_usable:
        return ""
    if standing.most_kept is not None:
        return f"no usable setting: keeps at most {percent(standing.most_kept)} of the utility"
    if standing.utility_share is not None:
        return f"no usable setting: keeps {percent(standing.utility_share)} of the utility"
    return f"no usable setting: {standing.why_not}"


def usable_methods(standings: Sequence[MethodStanding], headline: Headline) -> str:
    """Return `All 9 methods have a usable setting`, or how many of them."""
    count = len(standings)
    usable = sum(standing.is_usable for standing in standings)
    least = f"{100 * UTILITY_SHARE:g}\N{NO-BREAK SPACE}%"
    rule = f"(at least {least} of the {headline.kept.plain_short})"
    if count == 0:
        return ""
    if count == 1:
        has = "has" if usable else "has no"
        return f"The only method {has} {'a ' * bool(usable)}usable setting {rule}."
    if usable == count:
        return f"All {count} methods have a usable setting {rule}."
    some = "No method has" if usable == 0 else f"{usable} of {count} methods have"
    return f"{some} a usable setting {rule}."


def about_places(standings: Sequence[MethodStanding], headline: Headline) -> str:
    """Return `Places: by Forget Quality`, and what a shared place means if there is one."""
    places = [standing.place for standing in standings if standing.place is not None]
    if not places:
        return ""
    text = f"Places: by {headline.forgotten.name}"
    if len({*places}) == len(places):
        return f"{text}."
    return f"{text}. Methods that share a place differ by less than seeds do."


def about_comparison(facts: Recommendation, headline: Headline) -> str:
    """Return what the last column of the list compares; empty without a comparison."""
    if facts.setting is None or not facts.compared:
        return ""
    name, kept = facts.setting.name, headline.kept.plain_short
    return f"Last column: does {name} forget more at equal {kept}?"


def about_signs(standings: Sequence[MethodStanding]) -> str:
    """Return what the signs before the numbers of a list mean; empty without one."""
    usable = [standing for standing in standings if standing.is_usable]
    signs: list[str] = []
    if any(standing.is_over_forgotten for standing in usable):
        signs.append("⚠: over-forgotten, knows less than the retain model")
    if any(standing.is_little and not standing.is_unmoved for standing in usable):
        signs.append(f"little: {LITTLE}")
    return f"{'. '.join(signs)}." if signs else ""


def verdict_of(facts: Recommendation) -> tuple[str, str]:
    """Return how sure the recommendation is: a word, and the rest of the sentence."""
    if facts.setting is None:
        return "", ""
    few = ""
    if len(facts.setting.seeds) < ENOUGH_SEEDS:
        few = f" Use at least {ENOUGH_SEEDS} seeds to rank methods."
    runner_up = facts.runner_up
    if runner_up is None:
        only = "No other method has a usable setting." if facts.compared else "The only method."
        return "", only + few
    name = f"{runner_up.name}, the runner-up"
    if runner_up.verdict is Verdict.BETTER:
        return "Better", f"than {name}, at equal utility.{few}"
    if runner_up.verdict is Verdict.WORSE:
        return "Worse", f"than {name}, at equal utility.{few}"
    if runner_up.verdict is Verdict.UNDECIDED and few:
        return "Undecided", f"against {name}.{few}"
    if runner_up.verdict is Verdict.UNDECIDED:
        return "Undecided", f"against {name}: the difference may be chance.{few}"
    reason = f": {runner_up.short_reason}" if runner_up.short_reason else ""
    return "Not comparable", f"with {name}{reason}, so nothing is decided.{few}"
