"""The start model of a panel: its headline numbers, and why runs from it may show nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from unlearnbench.analysis.settings import OnPanel
from unlearnbench.api.benchmark import Headline
from unlearnbench.config.profiles import UNLEARNBENCH
from unlearnbench.evaluation.start_check import StartCheck
from unlearnbench.evaluation.word_check import MOST_ANSWERS


@dataclass(frozen=True)
class Start(OnPanel):
    """The model that the runs of one model and split begin from."""

    utility: float | None
    """The headline's number of what is kept; None if the model was not evaluated."""
    quality: float | None
    """The headline's number of what is forgotten; None if the model was not evaluated, and if the
    number needs a retain model and there is none."""
    headline: Headline
    """Headline of the benchmark."""
    uncounted: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of true answers by set whose words the profile does not count."""
    check: StartCheck | None = None
    """What it knew of the rows; None if nothing was measured."""

    @property
    def corner(self) -> tuple[float, float] | None:
        """Reference point of hypervolumes: (0, `quality` as `HeadlineMetric.oriented`).

        A point above it keeps something and has forgotten something.
        """
        if self.quality is None:
            return None
        return 0.0, self.headline.forgotten.oriented(self.quality)

    @property
    def stops(self) -> bool:
        """Whether a sweep stops before the first run from this model, see `start_check`."""
        return self.check is not None and not self.check.passes

    @property
    def doubt(self) -> str:
        """Why it is not sure that this model has learned the forget rows; empty if it is."""
        return "" if self.check is None else self.check.doubt

    @property
    def fault(self) -> str:
        """Reason why runs from this model show nothing about methods; empty if there is none.

        A model that knows nothing has no utility to keep, so every setting keeps it. A model that
        the test does not distinguish from the retain model passes it without any unlearning. Both
        also follow from what `start_check` measures, which is more exact if it is known.
        """
        profile_fault = self._profile_fault()
        if profile_fault:
            return profile_fault
        if self.check is not None and self.check.fault:
            return self.check.fault
        if self.utility is not None and not self._has_utility:
            least = self.headline.least_kept or 0.0
            below = f", below {least:g}" if least else ""
            return (
                f"the start model knows nothing: its {self.headline.kept.plain_label} is "
                f"{self.utility:.2f}{below}, so that there is nothing "
                "to keep and nothing to forget. Prepare it with more epochs or at another learning "
                "rate (the model's preparation), or name one that has learned the data (fine_tuned)"
            )
        test = self.headline.forgotten.test
        if self.quality is not None and test and self.quality > math.log10(test.level):
            return (
                f"the start model has nothing left to forget: before any unlearning its "
                f"{test.label} is p = {p_value(self.quality)}, above {test.level:g}, as of a model "
                "that never saw the forget set. Train it longer on the data, or evaluate more "
                "forget questions"
            )
        return ""

    @property
    def _has_utility(self) -> bool:
        """Whether there is utility to keep, as far as known."""
        if self.utility is None:
            return True
        return self.utility > 0 and self.utility >= (self.headline.least_kept or 0.0)

    def _profile_fault(self) -> str:
        """Say that a number is small only because the profile does not count the answers' words.

        Empty if it counts them, or if no number is small.
        """
        if max(self.uncounted.values(), default=0.0) < MOST_ANSWERS:
            return ""
        if self.utility is not None and not self._has_utility:
            number = f"{self.headline.kept.plain_label} is {self.utility:.2f}"
        elif self.check is not None and self.check.answered and not self.check.has_answers:
            number = f"ROUGE on retain rows is {self.check.answered.start:.2f}"
        else:
            return ""
        sets = ", ".join(self.uncounted)
        return (
            f"the evaluation profile does not count the answers' words: {number} because "
            "the profile counts only words of a-z and 0-9, and the true answers of "
            f"{sets} are mostly in other scripts. Set evaluation.profile to "
            f"{UNLEARNBENCH.name} and run again"
        )

    def unmoved(self, quality: float | None) -> bool:
        """Return whether a setting with this number has forgotten no more than the start model."""
        if quality is None or self.quality is None:
            return False
        oriented = self.headline.forgotten.oriented
        return oriented(quality) <= oriented(self.quality)


def p_value(log10: float) -> str:
    """Return a p-value from its logarithm: `0.82`, `1.3e-05`; below 1e-300 only a power of ten."""
    # Below that, 10**log10 would be 0 in floating point.
    return f"{10**log10:.2g}" if log10 > -300 else f"1e{math.floor(log10)}"
