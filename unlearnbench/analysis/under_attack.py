"""One setting under one variant of an attack: what comes back, as a share of what was removed.

A *variant* is an attack at one of its points, for example `relearning@13`: the attack `relearning`
after 13 steps. A model's number *before* the attack is the one at point `0` of an attack that
trains. For other attacks it is the plain number on the rows that the attack asked
(`results/asked_rows.py`).

Symbols: m is the setting, s the start model and r the retain model, all under the attack. m₀, s₀
and r₀ are their numbers before it. A *gain* is the former less the latter.

`KnownNumbers.lasting_by_seed` has the formula. `UnderAttack` says for which settings it is defined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

from unlearnbench.analysis.question_gains import QuestionGains
from unlearnbench.analysis.settings import mean_of
from unlearnbench.analysis.tuned_attacker import TunedAttacker
from unlearnbench.analysis.wording import variant_label
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.results.attack_variants import attack_of
from unlearnbench.stats.t_interval import LEVEL, Interval, interval_of_all

LEAST_REMOVED = 0.25
"""Least share of what the start model knows more than the retain model that a method must have
removed to be scored. If less was removed, the share of it that comes back is noise."""
SCORE_BOUNDS = (0.0, 1.0)
"""0: everything comes back. 1: nothing does. The number itself may lie beyond, because noise makes
an attack return more than everything, or less than nothing."""


def worst_of_level(points: int) -> float:
    """Return the level of an interval for the worst of several points (Bonferroni)."""
    return 1 - (1 - LEVEL) / points


@dataclass(frozen=True)
class Shift:
    """A model's number before an attack and under it."""

    before: float | None
    after: float | None

    @property
    def gain(self) -> float | None:
        """After − before."""
        return None if self.before is None or self.after is None else self.after - self.before


class KnownNumbers(NamedTuple):
    """The numbers that lasting is computed from, if all of them are known."""

    start: float
    """s₀, the start model before the attack."""
    taught: float
    """t, what the attack teaches a model that never saw the rows: max(0, r − r₀)."""
    before: tuple[float, ...]
    """m₀ by seed, the setting before the attack."""
    gains: tuple[float, ...]
    """m − m₀ by seed."""

    @property
    def mean_removed(self) -> float:
        """s₀ − mean of m₀: what the method has removed."""
        return self.start - fmean(self.before)

    def lasting_by_seed(self) -> tuple[float, ...]:
        """Compute the share of what was removed that the attack does not give back, by seed.

        With several seeds, lasting is 1 less a ratio of means over seeds:

            lasting = 1 − R,  R = (mean(m − m₀) − t) / (s₀ − mean(m₀))

        An interval over seeds needs one value for each seed. Each seed's own ratio would not do,
        because the mean of the ratios does not follow from the means that are shown beside it, and
        because a seed that removed little has a large ratio of noise. So the ratio of means is
        linearised (delta method). With g = (m − m₀) − t and d = s₀ − m₀ of a seed, its value is

            1 − R − (g − R d) / mean(d)

        The mean of these values is `lasting`, and their spread is that of the ratio of means to
        first order. With one seed, the last term is 0.
        """
        mean_removed = self.mean_removed
        ratio = (fmean(self.gains) - self.taught) / mean_removed
        lasting: list[float] = []
        for before, gain in zip(self.before, self.gains, strict=True):
            given_back = gain - self.taught
            removed = self.start - before
            lasting.append(1 - ratio - (given_back - ratio * removed) / mean_removed)
        return tuple(lasting)


@dataclass(frozen=True)
class UnderAttack:
    """A setting under one variant, over its seeds."""

    variant: str
    shifts: tuple[Shift, ...]
    """The setting's numbers, one pair for each seed."""
    retain: Shift
    """The retain model's numbers; both None if it was not attacked."""
    start: Shift
    """The start model's numbers. Only the one before the attack is needed for lasting."""
    bypassed: bool = False
    """Whether the method works at inference time and the attack runs the model without it."""
    sign: float = 1.0
    """−1 if a smaller number means that more is memorised."""
    measured: Yardstick | None = None
    """The columns of the numbers; None if the attack can move no number. Then all are None."""
    floor: float | None = None
    """Number of a model that has memorised nothing. It stands in for the retain model's number in a
    sweep without a retain model; None if there is one."""
    missing: str = ""
    """Reason why a seed has no number, or why a number before the attack is unknown; empty if none
    is missing."""
    lacks_seeds: bool = False
    """Whether other seeds ended before this epoch, so that no mean is defined."""
    tuned: TunedAttacker | None = None
    """How the attacker was chosen, if the attack searches for the strongest one. Then all numbers
    are of the seeds and rows of the report."""
    read_questions: Callable[[], QuestionGains | None] = field(
        default=lambda: None, compare=False, repr=False
    )
    """Reads the gains by question; gives None if there are several seeds, or no observations."""

    @property
    def label(self) -> str:
        """Name for people: `relearning, 13 steps`; with a search, that it is the strongest."""
        if self.tuned is None:
            return variant_label(self.variant)
        return f"{attack_of(self.variant)}, {self.tuned.count_text}"

    @property
    def evaluated(self) -> str:
        """The variant whose evaluations the numbers are of: of a search, the attacker's."""
        return self.variant if self.tuned is None else self.tuned.variant

    @property
    def before(self) -> float | None:
        """Mean over seeds before the attack; None if a seed has no number."""
        return self._mean([shift.before for shift in self.shifts])

    @property
    def after(self) -> float | None:
        """Mean over seeds under the attack; None if a seed has no number."""
        return self._mean([shift.after for shift in self.shifts])

    @property
    def after_interval(self) -> Interval | None:
        """Interval over seeds of the number under the attack."""
        if self.after is None or self.measured is None:
            return None
        return interval_of_all([shift.after for shift in self.shifts], self.measured.after.bounds)

    @property
    def gain(self) -> float | None:
        """Mean gain over seeds."""
        return self._mean([shift.gain for shift in self.shifts])

    def _mean(self, values: Sequence[float | None]) -> float | None:
        return None if self.lacks_seeds else mean_of(values)

    @property
    def null(self) -> float | None:
        """The retain model's own gain under the attack (the null in a test's sense)."""
        return self.retain.gain

    @property
    def taught(self) -> float | None:
        """What the attack teaches a model that never saw the rows.

        It is the retain model's gain, or 0 if the retain model loses: a forgetful model is below
        the retain model and has less to lose, so a loss is not subtracted. Without a retain model
        nothing is known of what the attack teaches, and nothing is subtracted.
        """
        if self.floor is not None:
            return 0.0
        if self.null is None:
            return None
        return self.sign * max(0.0, self.sign * self.null)

    @property
    def excess(self) -> float | None:
        """Mean gain beyond what the attack teaches."""
        return None if self.gain is None or self.taught is None else self.gain - self.taught

    @property
    def removed(self) -> float | None:
        """Share that the method has removed: (s₀ − m₀) / (s₀ − r₀).

        The whole is what the start model s knows more than the retain model r. Without a retain
        model, r₀ is `floor`. It is at or below any retain model's number, so that the share is a
        lower limit. None if the start model knows no more.
        """
        start = self.start.before
        before = self.before
        floor = self.retain.before if self.floor is None else self.floor
        if start is None or before is None or floor is None:
            return None
        if self.sign * (start - floor) <= 0:
            return None
        return (start - before) / (start - floor)

    @property
    def removed_little(self) -> bool:
        """Whether too little was removed to measure what comes back."""
        return self.removed is not None and self.removed < LEAST_REMOVED

    @property
    def _known_numbers(self) -> KnownNumbers | None:
        """The numbers of `lasting`; None if one is unknown, or if too little was removed."""
        start, taught = self.start.before, self.taught
        if start is None or taught is None or self.lacks_seeds:
            return None
        before = tuple(shift.before for shift in self.shifts if shift.before is not None)
        gains = tuple(shift.gain for shift in self.shifts if shift.gain is not None)
        if not gains or len(gains) < len(self.shifts):
            return None
        if self.removed is None or self.removed_little:
            return None
        return KnownNumbers(start, taught, before, gains)

    @cached_property
    def shares(self) -> tuple[float | None, ...]:
        """Lasting by seed, see `KnownNumbers.lasting_by_seed`; None for each if it is undefined.

        1: nothing comes back, or no more than the retain model gains. 0: everything comes back.
        Values are not clipped.
        """
        known = self._known_numbers
        return (None,) * len(self.shifts) if known is None else known.lasting_by_seed()

    @property
    def lasting(self) -> float | None:
        """Mean of `shares` over seeds; None if it is undefined."""
        return mean_of(self.shares)

    @property
    def why_not(self) -> str:
        """Reason why there is no `lasting`; empty if there is one."""
        if self.lasting is not None:
            return ""
        if self.missing:
            return self.missing
        if self.lacks_retain_number:
            return f"the retain model was not attacked by {attack_of(self.variant)}"
        if self.start.before is None:
            return "the start model was not evaluated"
        if self.removed_little:
            least = f"less than {100 * LEAST_REMOVED:.0f} %"
            return f"it forgot too little ({least}) to measure recovery"
        return "a number behind it is undefined"

    @property
    def lacks_retain_number(self) -> bool:
        """Whether there should be a retain model's number under the attack, and is none."""
        return self.retain.after is None and self.floor is None

    @property
    def may_give_back_more(self) -> bool:
        """Whether a variant without a number might give back more than those that have one.

        An attack that can move no number does not. Neither does a variant under which hardly
        anything had been removed, if that is known of all seeds.
        """
        if self.measured is None:
            return False
        return bool(self.missing) or not self.removed_little

    @cached_property
    def questions(self) -> QuestionGains | None:
        """Gains by question of one seed."""
        return self.read_questions()

    @property
    def lasting_interval(self) -> Interval | None:
        """Interval of `lasting` over seeds; with one seed, over questions."""
        return self.interval_of_worst(points=1)

    def interval_of_worst(self, points: int) -> Interval | None:
        """Return the interval of `lasting` over seeds; with one seed, over questions.

        Args:
            points: Number of points of the attack, such as steps. This one gives back most among
                them. An interval over questions allows for that choice by its level (Bonferroni).
                An interval over seeds does not depend on it.

        Returns:
            An interval whose ends lie between 0 and 1, except if `lasting` itself lies beyond, see
            `Interval.within`; None if `lasting` or the gains by question are unknown.
        """
        known = self._known_numbers
        if known is None or len(self.shifts) > 1:
            return interval_of_all(self.shares, SCORE_BOUNDS)
        return self._interval_over_questions(known, worst_of_level(points))

    def _interval_over_questions(self, known: KnownNumbers, level: float) -> Interval | None:
        """Return the interval of one seed's lasting. What was removed counts as known."""
        if self.lasting is None or self.questions is None or self.questions.excess is None:
            return None
        ends_of_excess = self.questions.excess_interval(level)
        if ends_of_excess is None:
            return None
        least_given_back, most_given_back = ends_of_excess
        removed = self.sign * known.mean_removed
        interval = Interval(
            self.lasting,
            low=1 - most_given_back / removed,
            high=1 - least_given_back / removed,
            spread=float(self.questions.excess.std(ddof=1)) / removed,
            n=self.questions.count,
            level=level,
            over="questions",
        )
        return interval.within(SCORE_BOUNDS)
