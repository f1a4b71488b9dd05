"""The base of attacks that train the model, and evaluate it after some of the steps."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from unlearnbench.api.attack import (
    FIRST_POINT,
    AttackRows,
    AttackTools,
    WeightAttack,
    trial_point,
)
from unlearnbench.api.benchmark import Question
from unlearnbench.api.edit import OptimizerName
from unlearnbench.api.hyperparameters import TypeName
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.metric import Role
from unlearnbench.attacks._attacker_search import (
    LEAST_TRIALS,
    MOST_TRIALS,
    SEARCHED,
    axes_of,
    drawn_settings,
    first_problem,
)

LONGEST = 100_000
"""Largest number of steps of an attack."""
_OF_SEARCH = ("trials", "keeps")
"""Settings that have an effect only with `search`."""
_UTILITY_ROLES: frozenset[Role] = frozenset({"retain", "general"})
"""Roles of the sets that show what is left of a model's utility."""


class TrainingAttack(WeightAttack):
    """Base: fine-tuning, evaluated before the first step (point `0`) and after some steps.

    The loss is the answers' mean negative log-likelihood. The optimiser is AdamW with an empty
    state, without warm-up and weight decay, and gradients are clipped to norm 1. Learning rate,
    batch size and the last step are those of open-unlearning's relearning, where an epoch of TOFU's
    forget10 has 13 steps (Dorna et al. 2025, arXiv:2506.12618). An epoch of half its rows has
    seven. The constant rate is a choice of this project.

    With `search`, several attackers are tried, and the strongest one that leaves the model useful
    is reported. The first attacker has the stated settings. Attackers are chosen on every second
    measured row and on the first seeds of a setting, and reported on the other rows and seeds, so
    that the worst of many is not reported as an effect. Tuned attackers are common in audits of
    models that resist fine-tuning; the bound of 10 % of utility is TamperBench's.
    """

    white_box = True
    trains = True
    points_are = "steps"

    steps: tuple[int, ...] = Field(
        default=(1, 3, 6, 13),
        min_length=1,
        description="steps after which the model is evaluated, in addition to the evaluation "
        "before the first step; the training ends after the last of them",
    )
    learning_rate: float = Field(
        default=2e-5,
        gt=0,
        description="learning rate of the attack; tiny models need a rate 50 times higher",
    )
    batch_size: int = Field(default=32, ge=1, description="number of rows in a step")
    schedule: Literal["constant", "linear"] = Field(
        default="constant",
        description="schedule of the learning rate; linear: the rate falls to 0 over the steps",
    )
    optimizer: OptimizerName = Field(
        default="adamw", description="optimiser of the attack; its state starts empty"
    )
    lora_rank: int | None = Field(
        default=None,
        ge=1,
        description="rank of adapters that are trained on every linear layer except the output "
        "layer; default: all weights are trained",
    )
    seed: int = Field(default=0, ge=0, description="seed of the order of rows and of the adapters")
    search: Annotated[
        Mapping[str, Any] | None, TypeName("ranges and lists by setting | null"), IF_SET
    ] = Field(
        default=None,
        description="settings of the attacker that are searched, each with a range {low, high, "
        f"log}} or a list of values: {', '.join(SEARCHED)}; default: one attacker",
    )
    trials: Annotated[int, IF_SET] = Field(
        default=8,
        ge=LEAST_TRIALS,
        le=MOST_TRIALS,
        description="number of attackers that a search tries; the first one has the settings that "
        "are stated outside `search`",
    )
    keeps: Annotated[float, IF_SET] = Field(
        default=0.9,
        ge=0,
        le=1,
        description="with `search`, the least share of its own utility that the attacked model "
        "keeps; an attacker that leaves less does not count",
    )

    @field_validator("steps")
    @classmethod
    def _increase(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        increase = all(earlier < later for earlier, later in pairwise(steps))
        if steps[0] < 1 or steps[-1] > LONGEST or not increase:
            raise ValueError(f"expected increasing numbers of steps, from 1 to {LONGEST}")
        return steps

    @field_validator("search", mode="before")
    @classmethod
    def _has_axes(cls, search: Any) -> Any:
        return axes_of(search) if isinstance(search, Mapping) else search

    @model_validator(mode="after")
    def _search_fits(self) -> Self:
        if self.search is None:
            for name in _OF_SEARCH:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} has no effect without search; add it, or drop {name}")
            return self
        # A value that an attacker refuses, such as a learning rate of 0, is refused here.
        _ = self._tried
        return self

    @cached_property
    def _tried(self) -> dict[str, Self]:
        """The attackers by number, from `1`."""
        if self.search is None:
            return {"": self}
        settings = {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name not in ("search", *_OF_SEARCH)
        }
        stated = {name: settings[name] for name in self.search}
        attackers: dict[str, Self] = {}
        for drawn in drawn_settings(self.search, self.trials, stated):
            try:
                attacker = type(self).model_validate({**settings, **drawn})
            except ValidationError as error:
                raise ValueError(f"search: {first_problem(error)}; narrow the search") from None
            attackers[str(len(attackers) + 1)] = attacker
        return attackers

    def attackers(self) -> Mapping[str, Self]:
        """Return the attackers by number; without a search, only this one."""
        return self._tried

    @property
    def evaluated_roles(self) -> frozenset[Role]:
        """Roles of the evaluated sets. A search also has to know what is left of the utility."""
        if self.search is None:
            return self.roles
        return self.roles | _UTILITY_ROLES

    @property
    def least_utility(self) -> float | None:
        """Least share of its own utility that an attacked model keeps; None without a search."""
        return None if self.search is None else self.keeps

    @abstractmethod
    def training_rows(self, tools: AttackTools) -> Sequence[Question]:
        """Return the rows to train on."""

    def rows_of_step(self, rows: AttackRows) -> int:
        """Return how many rows a step trains on, for an estimate of its time.

        Args:
            rows: The rows of the split. If an attack reads other rows, their number is not known
                here. It is assumed to fill a batch.
        """
        return self.batch_size

    def points(self) -> tuple[str, ...]:
        """Return `0`, before the first step, and the steps: of each attacker, with a search."""
        steps = [str(step) for step in self.steps]
        if self.search is None:
            return (FIRST_POINT, *steps)
        of_attackers = [trial_point(trial, step) for trial in self._tried for step in steps]
        return (FIRST_POINT, *of_attackers)

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Train the model, and yield the steps at which it is evaluated."""
        rows = self.training_rows(tools)
        yield FIRST_POINT
        steps = tools.fine_tune(
            model,
            rows,
            steps=self.steps[-1],
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            schedule=self.schedule,
            optimizer=self.optimizer,
            lora_rank=self.lora_rank,
            seed=self.seed,
        )
        with closing(steps):
            for step in steps:
                if step in self.steps:
                    yield str(step)
