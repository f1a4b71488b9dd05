"""Schedules: the optimiser steps of a run, their rows, and their share of the learning rate.

Pure, so that a plan can print what the trainer will do. Steps count from 0, epochs from 1.
"""

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
    """Last step of the training, within its epochs; None: all of the epochs' steps. Not used by
    `tofu`."""

    def __post_init__(self) -> None:
        if self.name == "tofu" and self.rows < self.batch_size:
            raise TrainingError(
                f"schedule tofu drops incomplete steps, and {self.rows} rows do not fill a batch "
                f"of {self.batch_size}: an epoch would have no step; set batch_size to "
                f"{self.rows} or less, or choose another schedule"
            )

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        return self.end(self.epochs)

    def end(self, epoch: int) -> int:
        """Number of steps until the end of `epoch`; 0 for epoch 0."""
        if self.name != "tofu":
            steps = epoch * math.ceil(self.rows / self.batch_size)
            return steps if self.most_steps is None else min(steps, self.most_steps)
        if epoch == self.epochs:
            return epoch * self.rows // self.batch_size
        return epoch * (self.rows // self.batch_size)

    def positions(self, step: int) -> range:
        """Positions of the step's rows in the concatenation of all epochs."""
        if self.name == "tofu":
            return range(step * self.batch_size, (step + 1) * self.batch_size)
        epoch, number = divmod(step, math.ceil(self.rows / self.batch_size))
        begin = epoch * self.rows + number * self.batch_size
        return range(begin, min(begin + self.batch_size, (epoch + 1) * self.rows))

    @property
    def rows_drawn(self) -> int:
        """Rows of all steps, counted with repetition."""
        return self.steps * self.batch_size if self.name == "tofu" else self.epochs * self.rows

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
