"""Schedules: the optimiser steps of a run, their rows, and their share of the learning rate.

A schedule is computed only from numbers of rows, epochs and steps, so a plan can print what the
trainer will do. Steps count from 0, epochs from 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from unlearnbench.base.errors import TrainingError

ScheduleName = Literal["constant", "linear", "cosine", "tofu"]
COSINE_FLOOR = 0.02
"""Share of the learning rate at which a cosine schedule ends."""


@dataclass(frozen=True)
class Schedule:
    """The optimiser steps of one training.

    All schedules except `tofu`: each epoch has ceil(rows / batch_size) steps, and its last step has
    the remaining rows. In the warm-up, the share of the learning rate is
    (step + 1) / (warmup_steps + 1), so no step has rate 0. The decay begins after the warm-up.

    `tofu` reproduces TOFU's trainer (locuslab/tofu@8c49eee forget.py, with transformers before 4.46
    and DeepSpeed):

    - There are floor(epochs · rows / batch_size) steps in all. Micro-batches are counted across
      epochs (`total_batched_samples % gradient_accumulation_steps`). So a step may contain rows of
      two epochs, and only the last, incomplete step of the run is dropped.
    - The rate rises from 0 over floor(rows / batch_size) steps, which is an epoch, and then decays
      linearly to 0.
    - Checkpoints are floor(rows / batch_size) steps apart (`save_steps`), and the model after the
      last step is also saved. So here an epoch ends at its checkpoint, and the last epoch ends with
      the run.
    """

    name: ScheduleName
    rows: int
    """Number of forget rows, at least 1. Each epoch has all of them."""
    batch_size: int
    epochs: int
    warmup_steps: int = 0
    """Not used by `tofu`, whose warm-up is an epoch."""
    most_steps: int | None = None
    """Number of steps after which the training ends, within its last epoch. None: it has all steps
    of its epochs."""

    def __post_init__(self) -> None:
        if self.name == "tofu" and self.rows < self.batch_size:
            raise TrainingError(
                f"schedule tofu drops incomplete steps, and {self.rows} rows do not fill a batch "
                f"of {self.batch_size}: an epoch would have no step; set batch_size to "
                f"{self.rows} or less, or choose another schedule"
            )

    @classmethod
    def of_steps(
        cls, name: ScheduleName, rows: int, batch_size: int, steps: int, warmup_steps: int = 0
    ) -> Schedule:
        """Return the schedule of a training that ends after some steps, perhaps within an epoch.

        Each step has the same rows as in a training by epochs. The learning rate decays over
        `steps`.
        """
        if name == "tofu":
            epochs = math.ceil(steps * batch_size / rows)
        else:
            epochs = math.ceil(steps / math.ceil(rows / batch_size))
        return cls(name, rows, batch_size, epochs, warmup_steps, steps)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch.

        The last epoch of `tofu` has more steps if the rows that other epochs leave over fill some.
        """
        if self.name == "tofu":
            return self.rows // self.batch_size
        return math.ceil(self.rows / self.batch_size)

    @property
    def steps(self) -> int:
        """Number of optimiser steps of the whole training."""
        return self.end(self.epochs)

    def end(self, epoch: int) -> int:
        """Return the number of steps until the end of an epoch; 0 for epoch 0."""
        steps = epoch * self.steps_per_epoch
        if self.name == "tofu" and epoch == self.epochs:
            steps = epoch * self.rows // self.batch_size
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch in which `step` is taken."""
        return min(step // self.steps_per_epoch + 1, self.epochs)

    def epochs_ended(self, steps: int) -> int:
        """Return how many epochs have ended after a number of steps."""
        return self.epochs if steps >= self.steps else self.epoch_of(steps) - 1

    def positions(self, step: int) -> range:
        """Return the places of the rows of a step, counted through all epochs from 0."""
        if self.name == "tofu":
            return range(step * self.batch_size, (step + 1) * self.batch_size)
        epoch, number = divmod(step, self.steps_per_epoch)
        begin = epoch * self.rows + number * self.batch_size
        return range(begin, min(begin + self.batch_size, (epoch + 1) * self.rows))

    @property
    def rows_drawn(self) -> int:
        """Number of rows of all steps. A row counts once for each epoch."""
        if self.name == "tofu":
            return self.steps * self.batch_size
        whole_epochs, more_steps = divmod(self.steps, self.steps_per_epoch)
        return whole_epochs * self.rows + min(more_steps * self.batch_size, self.rows)

    def factor(self, step: int) -> float:
        """Return the share of the learning rate at a step. Only the first step of `tofu` has 0."""
        if self.name == "tofu":
            # As in get_linear_schedule_with_warmup of transformers.
            warmup = self.rows // self.batch_size
            if step < warmup:
                return step / warmup
            return (self.steps - step) / (self.steps - warmup)
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        done = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)  # [0, 1)
        if self.name == "linear":
            return 1 - done
        if self.name == "cosine":
            return COSINE_FLOOR + (1 - COSINE_FLOOR) * 0.5 * (1 + math.cos(math.pi * done))
        return 1.0
