"""Settings of the search, of early stopping by a scheduler, and of the selection.

A search decides which runs there are and how long they last. It never changes a run's numbers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from unlearnbench.api.identity import ALWAYS, NEVER
from unlearnbench.api.ranges import Range as Range
from unlearnbench.config.section import Settings

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Headline

Metric = str | dict[str, float]
"""A column of `results.csv`, or a weighted sum of columns. Higher is better."""


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
