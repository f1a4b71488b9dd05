"""A comparison in words that need no statistics, each number with what it is worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from unlearnbench.comparison import Comparison, PanelComparison
from unlearnbench.intervals import ENOUGH_SEEDS
from unlearnbench.matching import Side
from unlearnbench.paired import POWER, Paired
from unlearnbench.power import SIGNIFICANCE
from unlearnbench.ranking import UTILITY_SHARE


def overview(comparison: Comparison) -> str:
    """How often which side forgets more, in one sentence; empty for one panel, which says so."""
    panels = comparison.panels
    if len(panels) < 2:
        return ""
    wins = [
        sum(p.better is not None and p.better.name == name for p in panels)
        for name in (comparison.a, comparison.b)
    ]
    rest = len(panels) - sum(wins)
    return (
        f"Of {len(panels)} panels (models × forget fractions), {comparison.a} forgets more on "
        f"{wins[0]}, {comparison.b} on {wins[1]}; {rest} {'is' if rest == 1 else 'are'} undecided."
    )


def verdict(panel: PanelComparison, a: str, b: str, tests: int) -> tuple[str, ...]:
    """What came of one panel: the verdict, how sure it is, and what it cannot say; a line each.

    tests  panels that were tested, over which p-values are adjusted
    """
    place = f"{panel.model}, forget {100 * panel.forget_fraction:g} %"
    if panel.test is None or panel.a is None or panel.b is None:
        return (f"{place}: {a} and {b} are not compared. {panel.why_not}.",)
    return (
        f"{place}: {_claim(panel, panel.test, panel.a, panel.b)}",
        _sureness(panel, panel.test, tests),
        *_limits(panel, panel.test, panel.a, panel.b),
    )


def _claim(panel: PanelComparison, test: Paired, a: Side, b: Side) -> str:
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
    utilities = f"Model Utility {first.utility:.3f} and {second.utility:.3f}"
    if panel.equal_utility:
        return f"at equal utility ({utilities})"
    if panel.better is not None:
        return f"and keeps more utility ({utilities})"
    keeps = first if first.utility > second.utility else second
    return f"({utilities}: {keeps.name} keeps more)"


def _sureness(panel: PanelComparison, test: Paired, tests: int) -> str:
    low, high = test.low, test.high
    if test.difference < 0:
        low, high = -high, -low
    adjusted = panel.p_adjusted if panel.p_adjusted is not None else test.p_value
    holm = f" (Holm-adjusted over {tests} panels)" if tests > 1 else ""
    told = (
        f"The difference of {abs(test.difference):.3f} has p = {adjusted:.2g}{holm} and a "
        f"{100 * test.level:.0f} % interval from {low:.3f} to {high:.3f}, over {test.n} questions "
        f"asked of {_seeds(test)}."
    )
    if test.seeds > 1:
        same = sum(one * test.difference > 0 for one in test.by_seed)
        told += f" It has the same sign in {same} of {test.seeds} seeds."
    if panel.better is not None:
        return told
    if low <= 0 <= high and adjusted <= SIGNIFICANCE:
        told += " The answers differ, but the interval holds 0."
    return (
        f"{told} A difference of about {test.detectable:.2f} would show in {100 * POWER:.0f} % of "
        "cases; a smaller one may be there unseen."
    )


def _limits(panel: PanelComparison, test: Paired, a: Side, b: Side) -> tuple[str, ...]:
    caveats = [*_chosen(a, b)]
    if test.seeds < ENOUGH_SEEDS:
        caveats.insert(
            0,
            f"there {'is' if test.seeds == 1 else 'are'} {_seeds(test)} only, and the test speaks "
            "for other questions, not for other seeds",
        )
    if a.seeds != b.seeds:
        caveats.append("the sides have no seed in common, and were paired in the order of theirs")
    if panel.unequal:
        caveats.append(f"they are not trained alike: {', '.join(panel.unequal)}")
    told = (f"Beware: {'; '.join(caveats)}.",) if caveats else ()
    return told if panel.sensitivity is None else (*told, panel.sensitivity.told)


def _chosen(a: Side, b: Side) -> Iterator[str]:
    """How many settings the sides were chosen from, and whether on numbers of their own."""
    by_numbers = [one for one in (a, b) if not one.chosen_on]
    if any(one.tried > 1 for one in by_numbers):
        counts = ", ".join(f"{one.name}: {one.tried}" for one in by_numbers)
        yield (
            "settings were chosen by the numbers they are compared on, which favours the method "
            f"with more settings tried ({counts}, as learning rates × hyper-parameters × epochs); "
            "p and the interval allow for that"
        )
    for one in (a, b):
        if one.chosen_on:
            seeds = f"seed{'s' * (len(one.chosen_on) > 1)} {', '.join(map(str, one.chosen_on))}"
            yield (
                f"{one.name} was chosen from {one.tried} settings on {seeds}, and is compared on "
                "other seeds, but over the same questions"
            )


def _seeds(test: Paired) -> str:
    return f"{test.seeds} seed{'s' * (test.seeds > 1)}"


def rule(tolerance: float) -> str:
    """What is compared with what, for people."""
    return (
        "Compared are the settings and epochs of highest Forget Quality that keep "
        f"{100 * UTILITY_SHARE:g} % of the fine-tuned model's utility, at about the same utility. "
        "The higher utility of the two sets the level; the other side takes part with its best "
        f"setting at that level or above, less {tolerance:g}."
    )
