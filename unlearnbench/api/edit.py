"""The contract of an edit, which changes a model's weights and says when to evaluate the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, Protocol

from unlearnbench.api.attack_rows import AttackRows
from unlearnbench.api.benchmark import Benchmark, Question

OptimizerName = Literal["adamw", "muon", "adamw-8bit", "paged-adamw-8bit"]
"""Names of the optimisers that `training/optimizers.py` makes."""
Point = str
"""Name of a model to evaluate, such as `13` for an optimiser step. "" if there is only one."""


class FineTune(Protocol):
    """A part of `EditTools` that trains a model in place: all weights, or an adapter."""

    def __call__(
        self,
        model: Any,
        rows: Sequence[Question],
        *,
        steps: int,
        learning_rate: float,
        batch_size: int,
        schedule: Literal["constant", "linear"] = "constant",
        optimizer: str = "adamw",
        lora_rank: int | None = None,
        seed: int = 0,
    ) -> Generator[int, None, None]:
        """Train for some optimiser steps.

        The first steps of the same seed are the same, whatever happens between them.

        Args:
            model: The model.
            rows: The rows, repeated in another order until `steps` are done.
            steps: Number of optimiser steps.
            learning_rate: Learning rate at the beginning.
            batch_size: Rows of a step.
            schedule: How the learning rate changes over the steps.
            optimizer: One of `OptimizerName`.
            lora_rank: Rank of an adapter on every linear layer except the output layer. The adapter
                is removed at the end. None trains all weights.
            seed: Seed of the order of rows.

        Yields:
            The number of each step, from 1, when the model is ready to be evaluated.

        Raises:
            TrainingError: The loss is not finite any more.
        """
        ...


class EditTools(Protocol):
    """What the harness offers to an edit."""

    @property
    def rows(self) -> AttackRows:
        """The rows that the edit may use."""
        ...

    @property
    def fine_tune(self) -> FineTune:
        """Trains a model in place."""
        ...

    def start_model(self) -> Any:
        """Return the model that runs begin from, in evaluation mode. It must not be changed."""
        ...

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """Return the training rows of another benchmark, or the rows of a file.

        Args:
            source: The benchmark, or the path of the file. A file with the ending `.jsonl` has an
                object with `question` and `answer`, or with `text`, on each line. Any other file
                has passages of text between blank lines.

        Raises:
            DataError: The rows cannot be read.
        """
        ...


class ModelEdit(ABC):
    """Base of plug-ins that change a model in place, such as attacks on weights."""

    @abstractmethod
    def change(self, model: Any, tools: EditTools) -> Iterator[Point]:
        """Change a model in place.

        The harness restores weights, buffers and `requires_grad` afterwards, bit for bit. Anything
        else that the edit changes, such as modules or hooks, it has to restore in a `finally`.

        Args:
            model: The model, in evaluation mode and whole in each process.
            tools: Rows, and functions that train.

        Yields:
            A point, each time that the model is to be evaluated.
        """
