"""The next step of a sweep: which seeds or learning rates would decide what is still open.

A step has a purpose, an action in words, and the edit of the configuration that does it. Rates are
tried between two rates that were tried (their geometric mean), or a factor of 3 beyond the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from unlearnbench.analysis.recommendation import ComparedMethod, NextStep, Outcome, Verdict
from unlearnbench.base.number_text import float_text
from unlearnbench.config.schema import RetainTermName
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

if TYPE_CHECKING:
    from unlearnbench.analysis.best_settings import Best, Panel
    from unlearnbench.analysis.settings import Setting

_FACTOR = 3
"""Factor between the last rate that was tried and a rate beyond it."""


class _RateTrial(NamedTuple):
    """A learning rate to try."""

    action: str
    """`try npo+nll at a learning rate below 0.0001`."""
    edit: str
    """`learning_rates: [3.0e-5, 1.0e-4]`."""


def next_step(
    panel: Panel,
    best: Best,
    setting: Setting,
    outcome: Outcome,
    compared: Sequence[ComparedMethod],
) -> NextStep | None:
    """Return what would make a recommendation surer; None if nothing is open.

    Args:
        panel: The panel.
        best: Its best method.
        setting: The best method's setting.
        outcome: How far the methods of the panel got.
        compared: The other methods.
    """
    if outcome is Outcome.NOT_ENOUGH:
        return _more_forgetting(panel, best, setting)
    seed_count = len({row.seed for row in setting.rows})
    if seed_count < ENOUGH_SEEDS:
        return _more_seeds(panel, ENOUGH_SEEDS - seed_count, "to rank methods")
    open_verdicts = (Verdict.UNDECIDED, Verdict.NOT_COMPARABLE)
    open_methods = [method for method in compared if method.verdict in open_verdicts]
    if not open_methods:
        return None
    # The runner-up matters most. Without one among them, the first method in the tables does.
    other = next((method for method in open_methods if method.is_runner_up), open_methods[0])
    if other.verdict is Verdict.UNDECIDED:
        return _more_seeds(panel, 2, f"to decide between {best.name} and {other.name}")
    if best.choice is not None:
        return None
    return _rate_with_more_utility(panel, best, setting, f"to compare it with {other.name}")


def step_without_setting(panel: Panel, outcome: Outcome) -> NextStep | None:
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
        action = f"try a learning rate above {float_text(rates[-1])}"
        new_rate = _rounded(_FACTOR * rates[-1], rates)
        return NextStep("to forget something", action, _rates_edit([*rates, new_rate]))
    if outcome is Outcome.NO_UTILITY:
        action = f"try a learning rate below {float_text(rates[0])}"
        new_rate = _rounded(rates[0] / _FACTOR, rates)
        return NextStep("to keep the model usable", action, _rates_edit([*rates, new_rate]))
    return None


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


def _more_seeds(panel: Panel, count: int, purpose: str) -> NextStep:
    """Add the smallest seeds that were not run."""
    seeds = {row.seed for row in panel.rows if row.kind == "run"}
    candidates = range(len(seeds) + count)  # at least `count` of them were not run
    unused = [seed for seed in candidates if seed not in seeds]
    listed = ", ".join(map(str, sorted([*seeds, *unused[:count]])))
    noun = "seed" if count == 1 else "seeds"
    return NextStep(purpose, f"run {count} more {noun}", f"seeds: [{listed}]")


def _more_forgetting(panel: Panel, best: Best, setting: Setting) -> NextStep | None:
    """Try a higher learning rate of the method that has forgotten most."""
    rate = setting.learning_rate
    if rate is None or best.choice is not None:
        return None
    rates = _rates(panel, best.family)
    _, higher = _neighbours(rate, rates)
    if higher is None:
        trial = _try_beyond(best.family, rates, rate, "above")
    else:
        trial = _try_between(best.family, rates, rate, higher)
    return _step_of_entry("to forget more", trial, best.family)


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
    family = best.family
    rates = _rates(panel, family)
    utility_by_rate = _utility_by_rate(panel, family, setting.epoch)
    lower, higher = _neighbours(rate, rates)
    for neighbour in (higher, lower):
        if neighbour is not None and utility_by_rate.get(neighbour, -math.inf) > setting.kept:
            trial = _try_between(family, rates, rate, neighbour)
            reason = _utility_at(panel, neighbour, utility_by_rate, "more")
            return _step_of_entry(purpose, trial, family, reason)
    if lower is None:
        trial = _try_beyond(family, rates, rate, "below")
        reason = _utility_at(panel, higher, utility_by_rate, "less")
        if higher is None:
            reason = f"a gentler training usually has more {panel.headline.kept.plain_short}"
        return _step_of_entry(purpose, trial, family, reason)
    if higher is None:
        trial = _try_beyond(family, rates, rate, "above")
        reason = _utility_at(panel, lower, utility_by_rate, "less")
        return _step_of_entry(purpose, trial, family, reason)
    return None


def _step_of_entry(purpose: str, trial: _RateTrial, family: str, reason: str = "") -> NextStep:
    """Return a step whose edit belongs in the entry of one method."""
    return NextStep(purpose, trial.action, trial.edit, family, entry_in_yaml(family), reason)


# Learning rates


def _rates(panel: Panel, family: str) -> list[float]:
    """List the learning rates that were tried for a method, in order."""
    return sorted(
        {
            setting.learning_rate
            for setting in panel.settings
            if setting.family == family and setting.learning_rate is not None
        }
    )


def _neighbours(rate: float, rates: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the next lower and the next higher rate that were tried; None if there is none."""
    lower = max((other for other in rates if other < rate), default=None)
    higher = min((other for other in rates if other > rate), default=None)
    return lower, higher


def _utility_by_rate(panel: Panel, family: str, epoch: int) -> dict[float, float]:
    """Return the highest utility of a method after an epoch or step, by learning rate."""
    utility_by_rate: dict[float, float] = {}
    for setting in panel.settings:
        if setting.family != family or setting.epoch != epoch:
            continue
        rate = setting.learning_rate
        kept = setting.kept
        if rate is not None and kept is not None:
            utility_by_rate[rate] = max(kept, utility_by_rate.get(rate, -math.inf))
    return utility_by_rate


def _utility_at(
    panel: Panel,
    rate: float | None,
    utility_by_rate: Mapping[float, float],
    comparison: Literal["more", "less"],
) -> str:
    """Return `0.0001 has less utility: 0.298`; empty if nothing is known of the learning rate."""
    if rate is None or rate not in utility_by_rate:
        return ""
    kept = panel.headline.kept
    utility = kept.text(utility_by_rate[rate])
    return f"{float_text(rate)} has {comparison} {kept.plain_short}: {utility}"


def _try_between(family: str, rates: Sequence[float], one: float, other: float) -> _RateTrial:
    low, high = sorted((one, other))
    action = f"try {family} at a learning rate between {float_text(low)} and {float_text(high)}"
    new_rate = _rounded(math.sqrt(low * high), rates)
    return _RateTrial(action, _rates_edit([*rates, new_rate]))


def _try_beyond(
    family: str, rates: Sequence[float], rate: float, side: Literal["below", "above"]
) -> _RateTrial:
    action = f"try {family} at a learning rate {side} {float_text(rate)}"
    new_rate = rate / _FACTOR if side == "below" else _FACTOR * rate
    return _RateTrial(action, _rates_edit([*rates, _rounded(new_rate, rates)]))


def _rounded(rate: float, tried: Sequence[float]) -> float:
    """Round to as few digits as tell a rate from those that were tried."""
    for digits in range(1, 6):
        rounded = float(f"{rate:.{digits}g}")
        if rounded not in tried:
            return rounded
    return rate


def _rates_edit(rates: Iterable[float]) -> str:
    """Return `learning_rates: [1.0e-4, 3.0e-4]`."""
    texts = ", ".join(_yaml_rate(rate) for rate in sorted(rates))
    return f"learning_rates: [{texts}]"


def _yaml_rate(rate: float) -> str:
    """Return a rate as `1.0e-4`. YAML reads 1e-4, without a point, as a text."""
    mantissa, _, exponent = f"{rate:e}".partition("e")
    digits = mantissa.rstrip("0")
    if digits.endswith("."):
        digits += "0"
    # A positive exponent has no sign: 1.0e0.
    return f"{digits}e{int(exponent)}"
