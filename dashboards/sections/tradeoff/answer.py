"""The words beside a panel: titles and labels of the facts that the first screen shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlearnbench.analysis.recommendation import (
    ComparedMethod,
    Outcome,
    Recommendation,
    RecommendedSetting,
    Verdict,
)
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
GROUPS: Mapping[Verdict, str] = {
    Verdict.WORSE: "Worse than",
    Verdict.BETTER: "Better than",
    Verdict.UNDECIDED: "Undecided",
    Verdict.NOT_COMPARABLE: "Not comparable",
    Verdict.NO_SETTING: "No usable setting",
}
"""Labels of the groups of methods, in their order."""
WARNING_LABELS: Mapping[str, str] = {
    "over-forgotten": "over-forgotten",
    "unfamiliar": "forget rows stand out as unfamiliar",
    "repetitive": "repetitive answers",
    "bypassed": "bypassed",
}


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
    verdict_word: str
    """`Undecided`, `Better` or `Worse`; empty if nothing is compared."""
    verdict: str
    groups: tuple[tuple[str, tuple[ComparedMethod, ...]], ...]
    """The other methods by how they compare, with labels; empty groups are left out."""
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
    groups = ((label, facts.with_verdict(kind)) for kind, label in GROUPS.items())
    return Answer(
        facts,
        title,
        _without_title(conclusion.found, title),
        facts.outcome is not Outcome.RECOMMENDED,
        "" if facts.setting is None else utility_of(facts.setting, panel.headline),
        word,
        verdict,
        tuple((label, methods) for label, methods in groups if methods),
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
    return "Undecided:", f"{name}, is not comparable{reason}.{few}"
