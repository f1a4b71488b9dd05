"""Schedules: the optimiser steps of a run, their rows, and their share of the learning rate.

Pure, so that a plan can print what the trainer will do. Steps count from 0, epochs from 1.
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

    Except with `tofu`, each epoch has ceil(rows / batch_size) steps, the last of them on the
    remaining rows, and no step has rate 0: warm-up is (step + 1) / (warmup_steps + 1), and decay
    begins after it.

    `tofu` reproduces TOFU's trainer (locuslab/tofu@8c49eee forget.py, with transformers before 4.46
    and DeepSpeed): floor(epochs · rows / batch_size) steps in all; a warm-up from rate 0 over
    floor(rows / batch_size) steps, which is an epoch; then a linear decay to 0. Micro-batches are
    counted across epochs (`total_batched_samples % gradient_accumulation_steps`), so that a step
    may contain rows of two epochs, and only the last, incomplete step of the run is dropped. Its
    checkpoints are floor(rows / batch_size) steps apart (`save_steps`), and the model after the
    last step is saved as well: here an epoch ends at its checkpoint, and the last one with the run.
    """

    name: ScheduleName
    rows: int
    """Rows of an epoch, at least 1."""
    batch_size: int
    epochs: int
    warmup_steps: int = 0
    """Not used by `tofu`, whose warm-up is an epoch."""
    most_steps: int | None = None
    """Last step of the training, within its epochs; None: all of the epochs' steps."""

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
        """Return the schedule of a training that ends after `steps`, wherever in an epoch that is.

        The rows of each step are those of a training by epochs. The learning rate decays over
        `steps`.
        """
        if name == "tofu":
            epochs = math.ceil(steps * batch_size / rows)
        else:
            epochs = math.ceil(steps / math.ceil(rows / batch_size))
        return cls(name, rows, batch_size, epochs, warmup_steps, steps)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps from the end of an epoch to the end of the next; `tofu`'s last has more
        if incomplete steps add up to whole ones.
        """
        if self.name == "tofu":
            return self.rows // self.batch_size
        return math.ceil(self.rows / self.batch_size)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.end(self.epochs)

    def end(self, epoch: int) -> int:
        """Number of steps until the end of `epoch`; 0 for epoch 0."""
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
        """Positions of the step's rows in the concatenation of all epochs."""
        if self.name == "tofu":
            return range(step * self.batch_size, (step + 1) * self.batch_size)
        epoch, number = divmod(step, self.steps_per_epoch)
        begin = epoch * self.rows + number * self.batch_size
        return range(begin, min(begin + self.batch_size, (epoch + 1) * self.rows))

    @property
    def rows_drawn(self) -> int:
        """Rows of all steps, counted with repetition."""
        if self.name == "tofu":
            return self.steps * self.batch_size
        whole_epochs, more_steps = divmod(self.steps, self.steps_per_epoch)
        return whole_epochs * self.rows + min(more_steps * self.batch_size, self.rows)

    def factor(self, step: int) -> float:
        """Share of the learning rate at `step`; 0 at the first step of `tofu`, and only there."""
        if self.name == "tofu":
            # get_linear_schedule_with_warmup of transformers.
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
