"""Whether runs begin at a model that can show anything, and what their best setting comes to. Pure.

The page, the terminal and MLflow say the same of a start model and of the leading setting because
both are decided here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlearnbench.power import SIGNIFICANCE
from unlearnbench.ranking import UTILITY_SHARE, Best, at_start
from unlearnbench.table import Row

if TYPE_CHECKING:
    from unlearnbench.rivals import Rivals

UTILITY, QUALITY = "model_utility", "log10_forget_quality"
LEAST_UTILITY = 0.2
"""Model Utility below which a start model has learned nothing.

It is a harmonic mean of nine numbers: one that is near zero makes the whole near zero. TOFU's
published start models have 0.5 to 0.75, models of random weights 0.00 to 0.01.
"""
NAMED = 4
"""Methods that a sentence lists."""


@dataclass(frozen=True)
class Start:
    """Where the runs of one model and forget fraction begin: the fine-tuned model."""

    model: str
    forget_fraction: float
    utility: float | None
    """Model Utility; None where nobody evaluated it."""
    quality: float | None
    """log10 Forget Quality; None likewise, and without a retain model."""

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return f"{self.model}, forget {100 * self.forget_fraction:g} %"

    @property
    def fault(self) -> str:
        """Why runs that begin here show nothing about methods; empty where they may.

        A model that knows nothing has no utility to keep, so that every setting keeps it. One that
        the test cannot tell from the retain model before any unlearning passes it untouched.
        """
        if self.utility is not None and self.utility < LEAST_UTILITY:
            return (
                f"the start model knows nothing: its Model Utility is {self.utility:.2f}, below "
                f"{LEAST_UTILITY:g}, so that there is nothing to keep and nothing to forget. "
                "Prepare it with more epochs or at another learning rate (the model's "
                "preparation), or name one that has learned the data (fine_tuned)"
            )
        if self.quality is not None and self.quality > math.log10(SIGNIFICANCE):
            return (
                "the start model has nothing left to forget: before any unlearning its Forget "
                f"Quality is p = {p_value(self.quality)}, above {SIGNIFICANCE:g}, as of a model "
                "that never saw the forget set. Train it longer on the data, or evaluate more "
                "forget questions"
            )
        return ""

    def unmoved(self, quality: float | None) -> bool:
        """True where a log10 Forget Quality is no higher than before any unlearning."""
        return quality is not None and self.quality is not None and quality <= self.quality


@dataclass(frozen=True)
class Leading:
    """The setting of highest Forget Quality among those that keep their utility."""

    name: str
    """Method, rate and epoch, as they are called where this is printed."""
    utility: float
    quality: float


@dataclass(frozen=True)
class Conclusion:
    """What a panel comes to, in words."""

    text: str
    """Sentences."""
    won: bool
    """True where a setting has forgotten and kept its utility."""


def starts_of(rows: Sequence[Row]) -> tuple[Start, ...]:
    """The start of every model and forget fraction of a table, in its order."""
    places = dict.fromkeys((row.model, row.forget_fraction) for row in rows)
    return tuple(start_of(rows, *place) for place in places)


def start_of(rows: Iterable[Row], model: str, forget_fraction: float) -> Start:
    """The start of one model and forget fraction."""
    here = [row for row in rows if (row.model, row.forget_fraction) == (model, forget_fraction)]
    numbers = (at_start(here, model, forget_fraction, metric) for metric in (UTILITY, QUALITY))
    return Start(model, forget_fraction, *numbers)


def judged(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of panels whose start model can show something about methods."""
    faulty = {(s.model, s.forget_fraction) for s in starts_of(rows) if s.fault}
    return tuple(row for row in rows if (row.model, row.forget_fraction) not in faulty)


def winner(best: Iterable[Best]) -> Best | None:
    """The best of several methods' best settings; ties go to the higher utility."""
    found = [one for one in best if one.setting is not None]

    def merit(one: Best) -> tuple[float, float]:
        metrics = {} if one.setting is None else one.setting.metrics
        quality, utility = metrics.get(QUALITY), metrics.get(UTILITY)
        return (-math.inf if quality is None else quality, utility or 0.0)

    return max(found, key=merit, default=None)


def conclusion(start: Start, leading: Leading | None, rivals: Rivals | None = None) -> Conclusion:
    """What is to be said of a panel: a fault of its start, that nobody forgot, or who leads.

    rivals  of the leading method, where they were tested
    """
    if start.fault:
        return Conclusion(f"No result: {start.fault}.", won=False)
    if start.utility is None:
        text = "Without a fine-tuned model there is no best setting: nothing to keep utility of."
        return Conclusion(text, won=False)
    share = f"at least {100 * UTILITY_SHARE:g} % of the start's utility"
    if leading is None:
        return Conclusion(f"No setting keeps {share} ({start.utility:.2f}).", won=False)
    kept = f"it keeps {100 * leading.utility / start.utility:.0f} %"
    p = f"p = {p_value(leading.quality)}"
    if start.quality is not None and start.unmoved(leading.quality):
        return Conclusion(
            f"No method forgot: no setting that keeps {share} has a higher Forget Quality than the "
            f"start (p = {p_value(start.quality)}).",
            won=False,
        )
    if leading.quality <= math.log10(SIGNIFICANCE):
        return Conclusion(
            f"No method forgot enough: {leading.name}, has the highest Forget Quality ({p}) among "
            f"settings that keep {share} ({kept}). Up to p = {SIGNIFICANCE:g} the test still tells "
            f"a model from one that never saw the forget set.{_not_told_apart(rivals)}",
            won=False,
        )
    return Conclusion(
        f"{leading.name}, has the highest Forget Quality ({p}) among settings that keep {share} "
        f"({kept}).{_not_told_apart(rivals)}",
        won=True,
    )


def _not_told_apart(rivals: Rivals | None) -> str:
    """How many methods may be as good, in a sentence; empty where none was tested."""
    if rivals is None or not (rivals.same or rivals.apart):
        return ""
    tested = len(rivals.same) + len(rivals.apart)
    if not rivals.same:
        return f" It forgets more than each of the {tested} other methods that were tested."
    named = ", ".join(rivals.same[:NAMED])
    more = len(rivals.same) - NAMED
    return (
        f" {len(rivals.same)} of the {tested} other methods that were tested cannot be told apart "
        f"from it: {named}{f' and {more} more' if more > 0 else ''}."
    )


def p_value(log10: float) -> str:
    """A p-value from its logarithm: `0.82`, `1.3e-05`; a power of ten alone below 1e-300."""
    if log10 > -300:
        return f"{10**log10:.2g}"
    return f"1e{math.floor(log10)}"
