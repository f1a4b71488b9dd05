"""The recommended setting of a panel as facts: its scores, the other methods, and the next step.

These are only the facts. `recommend.py` collects them, with `score_facts.py` and `next_step.py`.
The first screen of the page draws them, `conclusion.json` stores them, and the sentences of the
conclusion are made from the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter


class Outcome(StrEnum):
    """How far the methods of a panel got."""

    RECOMMENDED = "recommended"
    """A setting has forgotten and has enough utility."""
    NOT_ENOUGH = "not enough forgotten"
    """The best setting has forgotten something, and the headline's test still finds the rest."""
    NOTHING = "nothing forgotten"
    """No setting with enough utility has forgotten more than the start model."""
    NO_UTILITY = "not enough utility"
    """No setting has enough utility."""
    NO_RESULT = "no result"
    """The start model has a fault, or nothing was evaluated."""


class Verdict(StrEnum):
    """How the recommended setting compares with another method."""

    BETTER = "better"
    """It forgets significantly more than the other method at equal utility."""
    WORSE = "worse"
    """The other method forgets significantly more at equal utility."""
    UNDECIDED = "undecided"
    """It was compared at equal utility, and the difference may be chance, or there are too few
    seeds to claim one."""
    NOT_COMPARABLE = "not comparable"
    """No test at equal utility is possible."""
    NO_SETTING = "no usable setting"
    """The other method has no setting with enough utility, or no number."""


@dataclass(frozen=True)
class RecommendedSetting:
    """The best setting of a panel's first method."""

    method: str
    """Label of the setting: `npo+nll (beta=0.5)`."""
    name: str
    """Name of the method among the others of its panel: `npo+nll`."""
    family: str
    """Method with its retain term, by which it is coloured."""
    learning_rate: float | None
    unit: str
    """What `at` counts: `epoch` or `step`."""
    at: int
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    """Ids of its runs, one per seed."""
    chosen_on: tuple[int, ...]
    """Seeds that it was chosen on; empty if it is the best by the page's rule."""
    utility: float | None
    start_utility: float | None
    utility_share: float | None
    """Its utility as a share of the start model's."""
    forgotten: float | None
    """The headline's number of what is forgotten."""
    utility_low: float | None = None
    """Lower end of the interval of its utility; None without an interval."""
    utility_high: float | None = None
    utility_interval: str = ""
    """What these ends are: `95 % t interval of the mean over 3 seeds`."""
    least_utility: float | None = None
    """The utility that a setting must have to be recommended."""
    may_keep_too_little: bool = False
    """Whether the interval of its utility reaches below `least_utility`."""


@dataclass(frozen=True)
class ScoreFact:
    """One of the four scores, ready to be drawn."""

    name: str
    """`Forgotten`, `Private`, `Kept` or `Lasting`; `Removed` in the place of `Forgotten` in a sweep
    without a retain model."""
    value: float | None
    """None if it is not scored."""
    low: float | None = None
    """Lower end of its interval, see `Interval.within`; None without an interval."""
    high: float | None = None
    interval: str = ""
    """What `low` and `high` are: `95 % t interval of the mean over 3 seeds`."""
    start: float | None = None
    """Score of the start model."""
    retain: float | None = None
    """Score of the retain model."""
    under: str = ""
    """The attack that gives most back, of Lasting: `relearning, 13 steps`."""
    given_back: str = ""
    """What comes back of the removed knowledge under this attack: `8 % [5, 11 %]`."""
    warnings: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sentences by kind: `over-forgotten`, `unfamiliar`, `repetitive`, `bypassed`."""
    not_scored: str = ""
    """Why there is no value, in a few words; empty if there is one."""
    to_add: str = ""
    """What to write into the configuration to get a value, or a surer one; empty if nothing
    helps."""


@dataclass(frozen=True)
class ComparedMethod:
    """Another method of the panel, compared with the recommended setting."""

    name: str
    family: str
    verdict: Verdict
    is_runner_up: bool = False
    reason: str = ""
    """The numbers that the verdict follows from, or why there are none."""
    short_reason: str = ""
    """The same in a few words: `it has more utility (0.832)`."""


@dataclass(frozen=True)
class MethodStanding:
    """What a method's best setting keeps and has forgotten, or why the method has none."""

    name: str
    family: str
    place: int | None = None
    """Place among the methods. Between methods that share a place, the difference may be chance.
    None without a usable setting, and for a setting of fewer than `ENOUGH_SEEDS` seeds."""
    learning_rate: float | None = None
    at: int | None = None
    """Epoch or step of the best setting."""
    utility: float | None = None
    utility_share: float | None = None
    """Its utility as a share of the start model's."""
    forgotten: float | None = None
    """The headline's number of what is forgotten."""
    score: float | None = None
    """Its score `Recommendation.score_name`."""
    is_little: bool = False
    """Whether its score is below `LEAST_REMOVED`, the share that Lasting needs, and not because it
    is over-forgotten."""
    is_over_forgotten: bool = False
    """Whether it knows less of the forget rows than the retain model, beyond chance."""
    is_unmoved: bool = False
    """Whether it has forgotten no more than the start model."""
    why_not: str = ""
    """Why the method has no usable setting; empty if it has one."""
    most_kept: float | None = None
    """Largest share of the start model's utility that any of its settings keeps. Only for a method
    whose settings all keep too little."""

    @property
    def is_usable(self) -> bool:
        """Whether it has a setting that keeps enough utility."""
        return not self.why_not


@dataclass(frozen=True)
class NextStep:
    """What would decide an open question, as an edit of the configuration."""

    purpose: str
    """`to compare it with general-ce-u`."""
    action: str
    """`try npo+nll at a learning rate between 0.0001 and 0.001`."""
    edit: str
    """A line of YAML: `learning_rates: [1.0e-4, 3.0e-4, 1.0e-3]`."""
    entry: str = ""
    """Method in whose entry of `methods` the line belongs, such as `npo+nll`. There it replaces the
    learning rates of this method only. Empty for a line that belongs at the top of the file."""
    entry_text: str = ""
    """The same as YAML has it: "`npo` with `retain: {term: nll}`"."""
    reason: str = ""
    """Why this may help: `0.0001 has less utility (0.298)`; empty if the action says it."""


@dataclass(frozen=True)
class Recommendation:
    """All facts about a panel."""

    outcome: Outcome
    setting: RecommendedSetting | None = None
    """None without a best setting, and if nothing was forgotten."""
    scores: tuple[ScoreFact, ...] = ()
    compared: tuple[ComparedMethod, ...] = ()
    """The other methods, in the order of the page's tables."""
    next_step: NextStep | None = None
    """None if nothing is open, or if the sentence of the conclusion says what to do."""
    standings: tuple[MethodStanding, ...] = ()
    """All methods of the panel, best first; those without a usable setting come last."""
    score_name: str = ""
    """`Forgotten` or `Removed`: the score of the standings; empty if none has a number."""

    @property
    def runner_up(self) -> ComparedMethod | None:
        """The first of the other methods that has a usable setting."""
        return next((method for method in self.compared if method.is_runner_up), None)

    def with_verdict(self, verdict: Verdict) -> tuple[ComparedMethod, ...]:
        """List the methods with a verdict."""
        return tuple(method for method in self.compared if method.verdict is verdict)

    @staticmethod
    def from_json(stored: Mapping[str, Any] | None) -> Recommendation | None:
        """Read what `asdict` wrote; None if an earlier version wrote nothing."""
        if stored is None:
            return None
        return TypeAdapter(Recommendation).validate_python(stored)
