"""The contract of an edit: it changes a model's weights, and says when the model is evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Literal, Protocol

from unlearnbench.api.attack_rows import AttackRows
from unlearnbench.api.benchmark import Benchmark, Question

OptimizerName = Literal["adamw", "muon", "adamw-8bit", "paged-adamw-8bit"]
"""Optimisers by name; `training.optimizers` makes them."""
Point = str
"""Name of what is evaluated: a step, or "" where there is one."""


class FineTune(Protocol):
    """Trains a model in place, with all its weights or with an adapter; part of `EditTools`."""

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
        """Yield after each optimiser step its number, from 1, with the model ready to be evaluated.

        rows       repeated, in another order, until `steps` are done
        lora_rank  of an adapter on every linear layer but the output, which is gone at the end;
                   None: all weights

        The first steps of the same seed are the same, whatever happens between them. Raises:
        TrainingError where the loss is not finite any more.
        """
        ...


class EditTools(Protocol):
    """Help of the harness for an edit."""

    @property
    def rows(self) -> AttackRows:
        """The rows that the edit may use."""
        ...

    @property
    def fine_tune(self) -> FineTune:
        """Trains a model in place."""
        ...

    def start_model(self) -> Any:
        """The model that runs begin from, in evaluation mode; not to be changed."""
        ...

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The training rows of another benchmark, or the rows of a file.

        The file has passages of text between blank lines, or, by its ending `.jsonl`, an object
        with `question` and `answer`, or with `text`, on each line. Raises: DataError.
        """
        ...


class ModelEdit(ABC):
    """Base of what changes a model in place, such as attacks on weights."""

    @abstractmethod
    def change(self, model: Any, tools: EditTools) -> Iterator[Point]:
        """Change `model` in place; yield a point each time that the model is to be evaluated.

        model  in evaluation mode, whole in each process

        The harness restores weights and buffers, and which of them have gradients, bit for bit
        afterwards; what else it changes (modules, hooks) it restores itself, in a `finally`.
        """
