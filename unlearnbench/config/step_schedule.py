"""Schedules: the optimiser steps of a run, their rows, and their fraction of the learning rate.

A schedule is computed only from numbers of rows, epochs and steps, so a plan can print what the
trainer will do. Steps count from 0, epochs from 1. `make_schedule` returns one of two kinds:

    EpochSchedule    each epoch is divided into steps by itself (constant, linear, cosine)
    TofuSchedule     the rows of all epochs follow each other in one sequence, as in TOFU's trainer
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from unlearnbench.base.errors import TrainingError

ScheduleName = Literal["constant", "linear", "cosine", "tofu"]
COSINE_FLOOR = 0.02
"""Fraction of the learning rate at which a cosine schedule ends."""


@dataclass(frozen=True)
class Schedule(ABC):
    """The optimiser steps of one training.

    Trainer, plan and `results/effort.py` ask a schedule for steps and rows. Two estimates count by
    themselves, and have to follow if a schedule leaves out rows: the sampled answers in
    `effort.effort_of`, and `time_to_go.cost`, which orders runs before any row is read.
    """

    rows: int
    """Number of forget rows, at least 1. Each epoch has all of them."""
    batch_size: int
    epochs: int
    most_steps: int | None
    """Number of steps after which the training ends, within its last epoch. None if it has all
    steps of its epochs."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch. The last epoch of a training may have others."""

    @abstractmethod
    def _full_steps(self, epochs: int) -> int:
        """Return the number of steps of some epochs, if `most_steps` does not end them earlier."""

    @abstractmethod
    def positions(self, step: int) -> range:
        """Return the positions of the rows of a step, counted through all epochs from 0."""

    @property
    @abstractmethod
    def rows_drawn(self) -> int:
        """Number of rows of all steps. A row counts once for each epoch."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """Return the fraction of the learning rate at a step."""

    @property
    def steps(self) -> int:
        """Number of optimiser steps of the whole training."""
        return self.end(self.epochs)

    def end(self, epoch: int) -> int:
        """Return the number of steps until the end of an epoch; 0 for epoch 0."""
        steps = self._full_steps(epoch)
        return steps if self.most_steps is None else min(steps, self.most_steps)

    def epoch_of(self, step: int) -> int:
        """Return the epoch in which `step` is taken."""
        return min(step // self.steps_per_epoch + 1, self.epochs)

    def epochs_ended(self, steps: int) -> int:
        """Return how many epochs have ended after a number of steps."""
        return self.epochs if steps >= self.steps else self.epoch_of(steps) - 1


@dataclass(frozen=True)
class EpochSchedule(Schedule):
    """Each epoch has ceil(rows / batch_size) steps, and its last step has the remaining rows.

    In the warm-up, the fraction of the learning rate is (step + 1) / (warmup_steps + 1), so no step
    has rate 0. The decay begins after the warm-up.
    """

    decay: Literal["constant", "linear", "cosine"]
    warmup_steps: int

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.rows / self.batch_size)

    def _full_steps(self, epochs: int) -> int:
        return epochs * self.steps_per_epoch

    def positions(self, step: int) -> range:
        epochs_before, step_in_epoch = divmod(step, self.steps_per_epoch)
        begin = epochs_before * self.rows + step_in_epoch * self.batch_size
        end_of_epoch = (epochs_before + 1) * self.rows
        return range(begin, min(begin + self.batch_size, end_of_epoch))

    @property
    def rows_drawn(self) -> int:
        whole_epochs, more_steps = divmod(self.steps, self.steps_per_epoch)
        return whole_epochs * self.rows + min(more_steps * self.batch_size, self.rows)

    def factor(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        progress = (step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1)  # [0, 1)
        if self.decay == "linear":
            return 1 - progress
        if self.decay == "cosine":
            return COSINE_FLOOR + (1 - COSINE_FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))
        return 1.0


@dataclass(frozen=True)
class TofuSchedule(Schedule):
    """The steps of TOFU's trainer.

    The source is locuslab/tofu@8c49eee forget.py, with transformers before 4.46 and DeepSpeed:

    - There are floor(epochs · rows / batch_size) steps in all. Micro-batches are counted across
      epochs (`total_batched_samples % gradient_accumulation_steps`). So a step may contain rows of
      two epochs, and only the last, incomplete step of the run is dropped.
    - The rate rises from 0 over floor(rows / batch_size) steps, which is an epoch, and then decays
      linearly to 0. The first step has rate 0.
    - Checkpoints are floor(rows / batch_size) steps apart (`save_steps`), and the model after the
      last step is also saved. So here an epoch ends at its checkpoint, and the last epoch ends with
      the run. It has more steps if the rows that other epochs leave over fill some.
    """

    def __post_init__(self) -> None:
        if self.rows < self.batch_size:
            raise TrainingError(
                f"schedule tofu drops incomplete steps, and {self.rows} rows do not fill a batch "
                f"of {self.batch_size}: an epoch would have no step; set batch_size to "
                f"{self.rows} or less, or choose another schedule"
            )

    @property
    def steps_per_epoch(self) -> int:
        return self.rows // self.batch_size

    def _full_steps(self, epochs: int) -> int:
        if epochs == self.epochs:
            return epochs * self.rows // self.batch_size
        return epochs * self.steps_per_epoch

    def positions(self, step: int) -> range:
        return range(step * self.batch_size, (step + 1) * self.batch_size)

    @property
    def rows_drawn(self) -> int:
        return self.steps * self.batch_size

    def factor(self, step: int) -> float:
        # As in get_linear_schedule_with_warmup of transformers.
        warmup_steps = self.steps_per_epoch
        if step < warmup_steps:
            return step / warmup_steps
        return (self.steps - step) / (self.steps - warmup_steps)


def make_schedule(
    name: ScheduleName,
    rows: int,
    batch_size: int,
    *,
    epochs: int | None = None,
    most_steps: int | None = None,
    warmup_steps: int = 0,
) -> Schedule:
    """Return the schedule of a training that ends after some epochs, or after some steps.

    Args:
        name: Schedule of the learning rate.
        rows: Number of forget rows.
        batch_size: Number of forget rows in a step.
        epochs: Number of epochs. None if `most_steps` gives the length of the training.
        most_steps: Number of steps after which the training ends, perhaps within an epoch. Each
            step has the same rows as in a training by epochs, and the rate decays over these steps.
        warmup_steps: Steps of the warm-up. Not used by `tofu`, whose warm-up is an epoch.

    Raises:
        TrainingError: `tofu` would have no step in an epoch.
    """
    if epochs is None:
        steps = most_steps or 0
        if name == "tofu":
            epochs = math.ceil(steps * batch_size / rows)
        else:
            epochs = math.ceil(steps / math.ceil(rows / batch_size))
    if name == "tofu":
        return TofuSchedule(rows, batch_size, epochs, most_steps)
    return EpochSchedule(rows, batch_size, epochs, most_steps, name, warmup_steps)
