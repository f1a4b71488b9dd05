"""How settings are searched, runs cut short and the best chosen; part of `settings.SweepConfig`.

A search decides which runs there are and how long they go on, never what a run's numbers are.
"""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from unlearnbench.frozen import Settings

Metric = str | dict[str, float]
"""A column of `results.csv`, or a weighted sum of several; higher is better."""
OBJECTIVES = ("model_utility", "log10_forget_quality")


class Range(Settings):
    """Values of one axis of a search, both ends included: `{low: 1e-6, high: 1e-4, log: true}`."""

    low: int | float
    high: int | float
    log: bool = Field(default=False, description="uniform in the logarithm")
    step: int | float | None = Field(default=None, gt=0, description="low, low + step, …")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs low above 0, got {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; leave one out")
        if self.whole and not isinstance(self.step, int | None):
            raise ValueError(f"step must be whole between whole numbers, got {self.step:g}")
        return self

    @property
    def whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def count(self) -> int | None:
        """How many values it has; None where they are a continuum."""
        step = self.step if self.step is not None else 1 if self.whole else None
        # A step that divides the range only but for rounding reaches its end all the same.
        return None if step is None else math.floor((self.high - self.low) / step + 1e-9) + 1

    def value(self, share: float) -> int | float:
        """The value at a share of the range, 0 ≤ share < 1, every value as likely as another."""
        if self.log:
            top = self.high + 1 if self.whole else self.high
            value = math.exp(math.log(self.low) + share * (math.log(top) - math.log(self.low)))
            return self.clipped(math.floor(value) if self.whole else value)
        if self.count is not None:
            step = 1 if self.step is None else self.step
            return self.clipped(self.low + step * int(share * self.count))
        return self.clipped(self.low + share * (self.high - self.low))

    def clipped(self, value: float) -> int | float:
        """`value` within the range, and of four digits where it is not whole.

        More digits tell no two settings apart, and tables could not show them.
        """
        held = min(max(value, self.low), self.high)
        if self.whole:
            return round(held)
        return float(min(max(float(f"{held:.4g}"), self.low), self.high))

    def holds(self, value: object) -> bool:
        """Whether it is a value of this axis."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high or (self.whole and not isinstance(value, int)):
            return False
        if self.step is None:
            return True
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-3  # four digits


class Scheduler(Settings):
    """Asynchronous successive halving (Li et al. 2020): weak runs end early.

    A run that reaches epoch grace, grace · reduction, … goes on if it is among the best 1/reduction
    of the runs of the same method, model and forget set that have come so far.
    """

    kind: Literal["asha"] = "asha"
    metric: Metric = Field(description="a column of results.csv, or {column: weight, …}")
    grace: int = Field(default=1, ge=1, description="epochs that every run gets")
    reduction: float = Field(default=3, gt=1, description="one in so many goes on")


class SearchSettings(Settings):
    """Which settings of each method are tried; every method entry gets the same number."""

    kind: Literal["grid", "random", "optuna"] = Field(
        default="grid",
        description="grid: all; random: drawn in advance; optuna: TPE, which learns from results",
    )
    trials: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="random, optuna: settings of each method entry, per model and forget fraction",
    )
    seed: int = Field(default=0, ge=0, description="of what is drawn")
    metric: Metric | None = Field(
        default=None,
        description="optuna: what is maximised, after the last epoch; default: Model Utility and "
        "log10 Forget Quality, as two objectives",
    )
    scheduler: Scheduler | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "grid" and self.trials is not None:
            raise ValueError(
                "a grid has all of its settings: leave trials out, or take kind random"
            )
        if self.kind != "grid" and self.trials is None:
            raise ValueError(f"kind {self.kind} needs trials: how many settings of each method")
        if self.metric is not None and self.kind != "optuna":
            raise ValueError(f"metric is what kind optuna maximises; kind {self.kind} uses none")
        return self

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What optuna maximises."""
        return OBJECTIVES if self.metric is None else (self.metric,)


class SelectSettings(Settings):
    """Choose each method's best setting on some seeds; the other seeds then run it alone.

    So the reported numbers are of runs that had no part in the choice.
    """

    rule: Literal["forget-quality", "hypervolume"] = Field(
        default="forget-quality",
        description="forget-quality: highest log10 Forget Quality that keeps `utility`; "
        "hypervolume: largest area that the setting's epochs span over `reference`",
    )
    utility: float = Field(
        default=0.8, gt=0, le=1, description="share of the fine-tuned model's Model Utility"
    )
    reference: tuple[float, float] | None = Field(
        default=None,
        description="hypervolume: Model Utility and log10 Forget Quality of the corner; default: 0 "
        "and the fine-tuned model's",
    )
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="some of the sweep's")


def weighted(metric: Metric, metrics: dict[str, float | None]) -> float | None:
    """The value of a metric; None where a part of it is undefined or not finite."""
    weights = {metric: 1.0} if isinstance(metric, str) else metric
    total = 0.0
    for name, weight in weights.items():
        value = metrics.get(name)
        if value is None or not math.isfinite(value):
            return None
        total += weight * value
    return total
