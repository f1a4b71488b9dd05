"""Settings of the search, of early stopping by a scheduler, and of the selection.

A search decides which runs there are and how long they last. It never changes a run's numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from unlearnbench.api.identity import ALWAYS, NEVER
from unlearnbench.config.section import Settings

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Headline

Metric = str | dict[str, float]
"""A column of `results.csv`, or a weighted sum of columns. Higher is better."""
Number = int | float


class Range(Settings):
    """Values of one axis of a search, both ends included: `{low: 1e-6, high: 1e-4, log: true}`."""

    # The docstring is a part of the JSON schema. For those who read the code: a *share* is a place
    # in the range, from 0 at the low end to 1 at the high end. A search draws shares, and `value`
    # makes values of them.

    low: Number = Field(description="least value")
    high: Number = Field(description="greatest value")
    log: bool = Field(default=False, description="uniform in the logarithm")
    step: Number | None = Field(default=None, gt=0, description="low, low + step, …")

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        """Refuse a range without values, and a logarithm that does not exist or has steps."""
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs low above 0, got {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; leave one out")
        return self

    @property
    def of_floats(self) -> Range:
        """The range with floats in place of whole numbers."""
        numbers = self.model_dump(include={"low", "high", "step"}, exclude_none=True)
        return self.model_copy(update={name: float(number) for name, number in numbers.items()})

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers: 10 to 20, but not with a step of 0.125."""
        return all(isinstance(number, int | None) for number in (self.low, self.high, self.step))

    @property
    def count(self) -> int | None:
        """Number of values; None for a continuum."""
        step = self.step
        if step is None and self.whole:
            step = 1
        if step is None:
            return None
        # The small number lets steps of 0.1 from 0 reach 0.3, in spite of rounding errors.
        return math.floor((self.high - self.low) / step + 1e-9) + 1

    def value(self, share: float) -> int | float:
        """Return the value at a share, 0 ≤ share < 1.

        If shares are uniform, all values are equally likely; with `log`, all logarithms are.
        """
        if self.log:
            # Each whole number has the interval up to the next one, also the last.
            top = self.high + 1 if self.whole else self.high
            value = math.exp(math.log(self.low) + share * (math.log(top) - math.log(self.low)))
            return self.clipped(math.floor(value) if self.whole else value)
        if self.count is not None:
            return self.at(int(share * self.count))
        return self.clipped(self.low + share * (self.high - self.low))

    def at(self, index: int) -> int | float:
        """Return the value after `index` steps: 0.3 for a low end of 0.1 and two steps of 0.1."""
        step = 1 if self.step is None else self.step
        value = self.low + index * step
        if self.whole:
            return int(value)
        if abs(value) < 1e-9 * step:
            value = 0.0  # -0.3 + 3 * 0.1 is 5.6e-17
        # Twelve digits, because 0.1 + 2 * 0.1 is 0.30000000000000004.
        return float(min(max(float(f"{value:.12g}"), self.low), self.high))

    def index(self, value: float) -> int:
        """Return the number of steps from the low end to the value that is nearest to `value`."""
        step = 1 if self.step is None else self.step
        return round((value - self.low) / step)

    def share(self, value: float) -> float:
        """Return the share of `value`, which with `log` is a share of the logarithms."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def clipped(self, value: float) -> int | float:
        """Clip `value` to the ends, and round it to a whole number or to four digits.

        Drawn values have four digits because tables show four.
        """
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.whole else self._short(inside)

    def _short(self, value: float) -> float:
        """Round a value to four significant digits, within the range."""
        return float(min(max(float(f"{value:.4g}"), self.low), self.high))

    def contains(self, value: object) -> bool:
        """Whether `value` is one of the range's values.

        Earlier versions rounded steps to four digits. Runs with these values also count.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high:
            return False
        if self.whole and not isinstance(value, int):
            return False
        if self.step is None:
            return True
        index = self.index(value)
        if not 0 <= index < (self.count or 0):
            return False
        nearest = self.at(index)
        return value == nearest or (not self.whole and value == self._short(nearest))


class Scheduler(Settings):
    """Asynchronous successive halving (Li et al. 2020): weak runs end early.

    The rule compares runs at the epochs (or steps) grace, grace · reduction and so on. A run
    continues if it is among the best 1/reduction of the runs of the same method, model and forget
    set that have reached this epoch. If a search draws trials, the entries of one method are
    compared separately.
    """

    kind: Literal["asha"] = Field(default="asha", description="name of the rule")
    metric: Metric = Field(description="a column of results.csv, or {column: weight, …}")
    grace: int = Field(
        default=1,
        ge=1,
        description="smallest number of epochs of a run; in a sweep by steps, the smallest "
        "number of steps, which must reach the first evaluation",
    )
    reduction: float = Field(default=3.0, gt=1, description="factor: one run in so many continues")


class SearchSettings(Settings):
    """The search for settings. Each entry of a method has the same number of trials."""

    kind: Literal["grid", "random", "quasi-random", "optuna"] = Field(
        default="grid",
        description="grid: all combinations; random: random settings, drawn in advance; "
        "quasi-random: first the defaults, then evenly spread settings; optuna: "
        "settings that TPE chooses by earlier results",
    )
    trials: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="number of settings that are tried for each entry, model and split; not for "
        "a grid",
    )
    seed: int = Field(default=0, ge=0, description="seed of the draws")
    metric: Metric | None = Field(
        default=None,
        description="with optuna, the objective, which is maximised after the last epoch; "
        "default: the two numbers that the benchmark ranks by (Model Utility and "
        "log10 Forget Quality), as two objectives",
    )
    scheduler: Scheduler | None = Field(
        default=None, description="rule by which weak runs end early"
    )

    @model_validator(mode="after")
    def _trials_suit_kind(self) -> Self:
        """Check that a search has a number of trials, and a grid has none."""
        if self.kind == "grid" and self.trials is not None:
            raise ValueError("kind grid runs all settings: leave trials out, or use kind random")
        if self.kind != "grid" and self.trials is None:
            raise ValueError(
                f"kind {self.kind} needs trials, the number of settings of each method"
            )
        return self

    def objectives(self, headline: Headline) -> tuple[Metric, ...]:
        """Return the objectives of optuna, all of which are maximised.

        Args:
            headline: The benchmark's two numbers, which are the objectives if no metric is stated.
        """
        if self.metric is not None:
            return (self.metric,)
        forgotten = headline.forgotten
        if forgotten.better == "higher":
            return headline.kept.column, forgotten.column
        return headline.kept.column, {forgotten.column: -1.0}


RuleName = Literal["forget-quality", "hypervolume"]
"""Names of the rules of `select`. `analysis/selection_rule.py` has a class for each of them."""


class SelectSettings(Settings):
    """Choose each method's best setting on some seeds, and run only this setting on the others.

    After a search with `trials`, each entry has its own choice. The reported numbers then come from
    runs that had no part in the choice.
    """

    # The id of a choice is a hash of these settings, and the choices of earlier versions are kept
    # only if they were made with equal settings. So each key declares its part in ids. Declare a
    # new key as `IF_SET`, with a default under which the same settings are chosen as before: at its
    # default it is then left out, and the ids of all choices stay as they are.
    rule: Annotated[RuleName, ALWAYS] = Field(
        default="forget-quality",
        description="forget-quality: the setting that forgets most (highest log10 Forget "
        "Quality) among those that keep `utility`; hypervolume: the setting whose "
        "epochs span the largest area over `reference`",
    )
    utility: Annotated[float, ALWAYS] = Field(
        default=0.8,
        gt=0,
        le=1,
        description="share of the start model's utility (Model Utility) that must be kept",
    )
    reference: Annotated[tuple[float, float] | None, ALWAYS] = Field(
        default=None,
        description="with hypervolume, the corner of the area: a number for what is kept and one "
        "for what is forgotten (Model Utility, log10 Forget Quality); default: 0 "
        "and the start model's number",
    )
    seeds: Annotated[tuple[int, ...], ALWAYS] = Field(
        default=(0,),
        min_length=1,
        description="seeds on which settings are chosen; the sweep must have others, too",
    )


class TuneSettings(SelectSettings):
    """As many settings for each entry, from the ranges that methods and modifiers declare.

    It sets `search` (quasi-random) and `select`; learning rates without a range get one.
    """

    # The trials of a choice are hashed by their own ids.
    trials: Annotated[int, NEVER] = Field(
        default=24, ge=2, description="settings of each entry, the defaults first"
    )


RATES = Range(low=1e-6, high=2e-4, log=True)
"""Learning rates that `tune` draws if none are stated. The winners on TOFU among open-unlearning's
checkpoints have 5e-5, the highest rate that was tried there."""
RETAIN_WEIGHT = Range(low=0.5, high=10.0, log=True)
"""Weights of retain terms that `tune` draws if none is stated."""


def weighted(metric: Metric, metrics: dict[str, float | None]) -> float | None:
    """Return the value of a metric; None if one of its columns is undefined or not finite.

    Args:
        metric: A column, or weights by column: `{"model_utility": 1.0, "forget_loss": -0.5}`.
        metrics: Values of one evaluation, by column.
    """
    weights = {metric: 1.0} if isinstance(metric, str) else metric
    total = 0.0
    for name, weight in weights.items():
        value = metrics.get(name)
        if value is None or not math.isfinite(value):
            return None
        total += weight * value
    return total
