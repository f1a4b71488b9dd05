"""The comparison of two methods in words: verdict, significance, caveats, and the rule."""

from collections.abc import Iterator

from unlearnbench.analysis.compare import PanelComparison, Side
from unlearnbench.analysis.wording import best_rule, counted, listed_seeds
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.stats.ks_test import SIGNIFICANCE
from unlearnbench.stats.paired_test import POWER, PairedTest
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval


def compare_rule(tolerance: float, headline: Headline, *, chooses: bool = False) -> str:
    """Return the rule of a comparison, which is printed below it.

    Args:
        tolerance: Most that equal utilities differ.
        headline: Headline of the benchmark.
        chooses: Whether the sweep of a side has chosen its setting on some seeds.
    """
    kept = headline.kept.plain_short
    text = (
        f"A side's best setting has {best_rule(headline)}. Both sides must have about the same "
        f"{kept} (within {tolerance:g}): the higher {kept} of the two best settings counts, and "
        "the other method is represented by its best setting with at least that."
    )
    if not chooses:
        return text
    return (
        f"{text} A side whose sweep has chosen its setting on some seeds takes part with this "
        "setting only, on the other seeds."
    )


def verdict(panel: PanelComparison, a: str, b: str, tests: int) -> tuple[str, ...]:
    """Return the result of one panel in lines: verdict, significance, caveats.

    Args:
        panel: The comparison.
        a: Name of side A.
        b: Name of side B.
        tests: Number of tested panels, over which p-values are adjusted.
    """
    lacks_test = panel.test is None and panel.headline.forgotten.test is not None
    if panel.a is None or panel.b is None or lacks_test:
        advice = f" {panel.advice}." if panel.advice else ""
        return (f"{panel.place}: {a} and {b} are not compared. {panel.why_not}.{advice}",)
    lines = [f"{panel.place}: {_claim(panel, panel.a, panel.b)}"]
    if panel.test is None:
        lines.append(_seeds_differ(panel.over_seeds, panel.headline.forgotten))
    else:
        lines.append(_significance(panel, panel.test, tests))
    caveats = list(_caveats(panel, panel.a, panel.b))
    if caveats:
        lines.append(f"Caveats: {'; '.join(caveats)}.")
    if panel.sensitivity is not None:
        lines.append(panel.sensitivity.summary)
    return tuple(lines)


def _claim(panel: PanelComparison, a: Side, b: Side) -> str:
    """Say which side forgets more, with the numbers of the test, or else of the headline."""
    b_is_better = panel.better is b
    # Without a better side, A is named first.
    better, worse = (b, a) if b_is_better else (a, b)
    kept = panel.headline.kept
    forgotten = panel.headline.forgotten
    sentence = f"{better.name} forgets more than {worse.name}"
    if panel.better is None:
        sentence = f"these runs do not show whether {a.name} or {b.name} forgets more"

    utilities = f"{kept.plain_label} {kept.text(better.utility)} and {kept.text(worse.utility)}"
    if panel.equal_utility:
        condition = f"at equal {kept.plain_short} ({utilities})"
    elif panel.better is not None:
        condition = f"and keeps more {kept.plain_short} ({utilities})"
    else:
        keeper = better if better.utility > worse.utility else worse
        condition = f"({utilities}: {keeper.name} keeps more)"

    test = panel.test
    if test is None:
        shown = f"{a.name} {forgotten.text(a.quality)}, {b.name} {forgotten.text(b.quality)}"
        return f"{sentence} {condition}. {forgotten.name}: {shown}; {forgotten.better} is better."
    distance_of_better = test.distance_b if b_is_better else test.distance_a
    distance_of_worse = test.distance_a if b_is_better else test.distance_b
    return (
        f"{sentence} {condition}. {better.name} is at D = {distance_of_better:.3f}, "
        f"{worse.name} at {distance_of_worse:.3f}; D is the distance of a model's truth "
        "ratios from those of a model that never saw the forget set, 0 at best and 1 at worst."
    )


def _seeds_differ(interval: Interval | None, metric: HeadlineMetric) -> str:
    """Say how large the difference over seeds is."""
    if interval is None:
        return "One pair of runs gives no interval: run both on at least three seeds."
    return (
        f"The difference of {metric.text(interval.mean)} lies between {metric.text(interval.low)} "
        f"and {metric.text(interval.high)} ({interval.name})."
    )


def _significance(panel: PanelComparison, test: PairedTest, tests: int) -> str:
    """Say how large the difference over questions is, and what would have been detected."""
    low, high = test.low, test.high
    if test.difference < 0:
        # The sentence has the difference without a sign.
        low, high = -high, -low
    adjusted = test.p_value if panel.p_adjusted is None else panel.p_adjusted
    holm = f" (Holm-adjusted over {tests} panels)" if tests > 1 else ""
    text = (
        f"The difference of {abs(test.difference):.3f} has p = {adjusted:.2g}{holm} and a "
        f"{100 * test.level:.0f} % interval from {low:.3f} to {high:.3f}, over {test.n} questions "
        f"and {counted(test.seeds, 'seed')}."
    )
    if panel.better is not None:
        return text
    if low <= 0 <= high and adjusted <= SIGNIFICANCE:
        text += " The answers differ, but the interval contains 0."
    return (
        f"{text} A difference of about {test.detectable:.2f} would be detected in "
        f"{100 * POWER:.0f} % of cases; a smaller one may remain undetected."
    )


def _caveats(panel: PanelComparison, a: Side, b: Side) -> Iterator[str]:
    """Say what the comparison does not allow for, a clause each."""
    sides = (a, b)
    test = panel.test
    if test is not None and test.seeds < ENOUGH_SEEDS:
        verb = "is" if test.seeds == 1 else "are"
        yield (
            f"there {verb} only {counted(test.seeds, 'seed')}, and "
            "the test generalizes to other questions, not to other seeds"
        )
    not_chosen = [side for side in sides if not side.chosen_on]
    if any(side.tried > 1 for side in not_chosen):
        counts = ", ".join(f"{side.name}: {side.tried}" for side in not_chosen)
        moments = " or ".join(sorted({side.unit.plural for side in sides}))
        allowance = "p and the interval allow" if test else "the interval does not allow"
        yield (
            "settings were chosen by the numbers they are compared on, which favours the method "
            f"with more settings tried ({counts}, as learning rates × hyperparameters × "
            f"{moments}); {allowance} for that"
        )
    for side in sides:
        if side.chosen_on:
            yield (
                f"{side.name} was chosen from {side.tried} settings on "
                f"{listed_seeds(side.chosen_on)}, and is compared on "
                "other seeds, but over the same questions"
            )
    if a.seeds != b.seeds:
        yield "the sides have no seed in common; runs are paired in seed order"
    if panel.unequal:
        yield f"they are trained differently: {', '.join(panel.unequal)}"
