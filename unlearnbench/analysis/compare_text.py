"""Text of a comparison for readers without statistics. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unlearnbench.analysis.best_settings import UTILITY_SHARE, panel_label, split_kind
from unlearnbench.analysis.compare import Comparison, PanelComparison
from unlearnbench.analysis.equal_utility import Side
from unlearnbench.api.benchmark import Headline
from unlearnbench.stats.ks_test import SIGNIFICANCE
from unlearnbench.stats.paired_test import POWER, PairedTest
from unlearnbench.stats.t_interval import ENOUGH_SEEDS


def overview(comparison: Comparison) -> str:
    """A sentence that counts the panels won by each side; empty for a single panel."""
    panels = comparison.panels
    if len(panels) < 2:
        return ""
    wins = [
        sum(p.better is not None and p.better.name == name for p in panels)
        for name in (comparison.a, comparison.b)
    ]
    rest = len(panels) - sum(wins)
    kind = split_kind((one.model, one.forget_fraction) for one in panels)
    return (
        f"Of {len(panels)} panels (models × {kind}s), {comparison.a} forgets more on {wins[0]}, "
        f"{comparison.b} on {wins[1]}; {rest} {'is' if rest == 1 else 'are'} undecided."
    )


def verdict(panel: PanelComparison, a: str, b: str, tests: int) -> tuple[str, ...]:
    """The result of one panel: verdict, significance and caveats, a line each.

    tests  number of tested panels, over which p-values are adjusted
    """
    place = panel_label(panel.model, panel.forget_fraction)
    if panel.a is not None and panel.b is not None and panel.headline.forgotten.test is None:
        return (
            f"{place}: {_value_claim(panel, panel.a, panel.b)}",
            _over_seeds(panel),
            *_caveats(panel, panel.a, panel.b),
        )
    if panel.test is None or panel.a is None or panel.b is None:
        return (f"{place}: {a} and {b} are not compared. {panel.why_not}.",)
    return (
        f"{place}: {_claim(panel, panel.test, panel.a, panel.b)}",
        _significance(panel, panel.test, tests),
        *_caveats(panel, panel.a, panel.b),
    )


def _value_claim(panel: PanelComparison, a: Side, b: Side) -> str:
    """The claim where no test is behind the headline: by its numbers."""
    metric = panel.headline.forgotten
    numbers = (
        f"{metric.name}: {a.name} {a.quality:.{metric.digits}f}, {b.name} "
        f"{b.quality:.{metric.digits}f}; {metric.better} is better."
    )
    if panel.better is None:
        return (
            f"these runs do not show whether {a.name} or {b.name} forgets more "
            f"{_condition(panel, a, b)}. {numbers}"
        )
    better, worse = (a, b) if panel.better is a else (b, a)
    return (
        f"{better.name} forgets more than {worse.name} {_condition(panel, better, worse)}. "
        f"{numbers}"
    )


def _over_seeds(panel: PanelComparison) -> str:
    found = panel.over_seeds
    if found is None:
        return "One pair of runs gives no interval: run both on at least three seeds."
    digits = panel.headline.forgotten.digits
    return (
        f"The difference of {found.mean:.{digits}f} lies between {found.low:.{digits}f} and "
        f"{found.high:.{digits}f} ({found.name})."
    )


def _claim(panel: PanelComparison, test: PairedTest, a: Side, b: Side) -> str:
    if panel.better is None:
        return (
            f"these runs do not show whether {a.name} or {b.name} forgets more "
            f"{_condition(panel, a, b)}. {a.name} is at D = {test.distance_a:.3f}, {b.name} at "
            f"{test.distance_b:.3f}; {_D}"
        )
    better, worse = (a, b) if panel.better is a else (b, a)
    distances = sorted((test.distance_a, test.distance_b))
    return (
        f"{better.name} forgets more than {worse.name} {_condition(panel, better, worse)}. "
        f"{better.name} is at D = {distances[0]:.3f}, {worse.name} at {distances[1]:.3f}; {_D}"
    )


_D = (
    "D is the distance of a model's truth ratios from those of a model that never saw the forget "
    "set, 0 at best and 1 at worst."
)


def _condition(panel: PanelComparison, first: Side, second: Side) -> str:
    kept = panel.headline.kept
    utilities = (
        f"{kept.plain_label} {first.utility:.{kept.digits}f} and {second.utility:.{kept.digits}f}"
    )
    if panel.equal_utility:
        return f"at equal {kept.plain_short} ({utilities})"
    if panel.better is not None:
        return f"and keeps more {kept.plain_short} ({utilities})"
    keeper = first if first.utility > second.utility else second
    return f"({utilities}: {keeper.name} keeps more)"


def _significance(panel: PanelComparison, test: PairedTest, tests: int) -> str:
    low, high = test.low, test.high
    if test.difference < 0:
        low, high = -high, -low
    adjusted = panel.p_adjusted if panel.p_adjusted is not None else test.p_value
    holm = f" (Holm-adjusted over {tests} panels)" if tests > 1 else ""
    text = (
        f"The difference of {abs(test.difference):.3f} has p = {adjusted:.2g}{holm} and a "
        f"{100 * test.level:.0f} % interval from {low:.3f} to {high:.3f}, over {test.n} questions "
        f"and {_seeds(test)}."
    )
    if test.seeds > 1:
        same = sum(one * test.difference > 0 for one in test.by_seed)
        text += f" It has the same sign in {same} of {test.seeds} seeds."
    if panel.better is not None:
        return text
    if low <= 0 <= high and adjusted <= SIGNIFICANCE:
        text += " The answers differ, but the interval contains 0."
    return (
        f"{text} A difference of about {test.detectable:.2f} would be detected in "
        f"{100 * POWER:.0f} % of cases; a smaller one may remain undetected."
    )


def _caveats(panel: PanelComparison, a: Side, b: Side) -> tuple[str, ...]:
    test, caveats = panel.test, [*_chosen(panel, a, b)]
    if test is not None and test.seeds < ENOUGH_SEEDS:
        caveats.insert(
            0,
            f"there {'is' if test.seeds == 1 else 'are'} only {_seeds(test)}, and the test "
            "generalizes to other questions, not to other seeds",
        )
    if a.seeds != b.seeds:
        caveats.append("the sides have no seed in common; runs are paired in seed order")
    if panel.unequal:
        caveats.append(f"they are trained differently: {', '.join(panel.unequal)}")
    lines = (f"Caveats: {'; '.join(caveats)}.",) if caveats else ()
    return lines if panel.sensitivity is None else (*lines, panel.sensitivity.summary)


def _chosen(panel: PanelComparison, a: Side, b: Side) -> Iterator[str]:
    """Caveats about choosing settings and comparing them on the same numbers."""
    allows = "p and the interval allow" if panel.test else "the interval does not allow"
    by_numbers = [one for one in (a, b) if not one.chosen_on]
    if any(one.tried > 1 for one in by_numbers):
        counts = ", ".join(f"{one.name}: {one.tried}" for one in by_numbers)
        yield (
            "settings were chosen by the numbers they are compared on, which favours the method "
            f"with more settings tried ({counts}, as learning rates × hyper-parameters × epochs); "
            f"{allows} for that"
        )
    for one in (a, b):
        if one.chosen_on:
            seeds = f"seed{'s' * (len(one.chosen_on) > 1)} {', '.join(map(str, one.chosen_on))}"
            yield (
                f"{one.name} was chosen from {one.tried} settings on {seeds}, and is compared on "
                "other seeds, but over the same questions"
            )


def _seeds(test: PairedTest) -> str:
    return f"{test.seeds} seed{'s' * (test.seeds > 1)}"


def rule(tolerance: float, headline: Headline) -> str:
    """The rule of the comparison, printed below it."""
    kept, forgotten = headline.kept.plain_short, headline.forgotten
    return (
        f"A side's best setting has the {forgotten.best_word} {forgotten.name} among those that "
        f"keep {100 * UTILITY_SHARE:g} % of the fine-tuned model's {kept}. Both sides must have "
        f"about the same {kept} (within {tolerance:g}): the higher {kept} of the two best settings "
        "counts, and the other side takes part with its best setting that reaches it."
    )
