"""The base of attacks that train the model, and evaluate it after some of the steps."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, field_validator

from unlearnbench.api.attack import AttackRows, AttackTools, WeightAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.api.edit import OptimizerName

LONGEST = 100_000
"""Largest number of steps of an attack."""


class TrainingAttack(WeightAttack):
    """Base: fine-tuning, evaluated before the first step (point `0`) and after some steps.

    The loss is the answers' mean negative log-likelihood. The optimiser is AdamW with an empty
    state, without warm-up and weight decay, and gradients are clipped to norm 1. Learning rate,
    batch size and the last step are those of open-unlearning's relearning, where an epoch of TOFU's
    forget10 has 13 steps (Dorna et al. 2025, arXiv:2506.12618). An epoch of half its rows has
    seven. The constant rate is a choice of this project.
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

    @field_validator("steps")
    @classmethod
    def _increase(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        increase = all(earlier < later for earlier, later in pairwise(steps))
        if steps[0] < 1 or steps[-1] > LONGEST or not increase:
            raise ValueError(f"expected increasing numbers of steps, from 1 to {LONGEST}")
        return steps

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
        """Return `0`, before the first step, and the steps."""
        return ("0", *map(str, self.steps))

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Train the model, and yield the steps at which it is evaluated."""
        rows = self.training_rows(tools)
        yield "0"
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
