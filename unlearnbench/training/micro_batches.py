"""Micro-batches: one forward pass over the rows of all parts of some items, as a loss reads it.

An *item* is one draw of an epoch: a forget row with the retain row, the refusal and so on that were
drawn for it. The rows of all parts of all items of a micro-batch go through the model together, and
are then cut into the predictions of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unlearnbench.api.method import PARTS, LossBatch, Needs, Part, References
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.models.batching import send
from unlearnbench.models.epoch_order import Item, TrainingRows
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.models.token_row import Row
from unlearnbench.training.answer_sampling import SampledAnswers
from unlearnbench.training.reference_model import ReferenceParts, ReferenceRows

if TYPE_CHECKING:
    from accelerate import Accelerator

Counts = Mapping[Part, tuple[int, int]]
"""By part, the number of scored tokens and of rows in a whole optimiser step."""
ReadRows = Callable[[Sequence[Row], Collection[int]], RowStates]
"""Runs a forward pass over rows, and returns also the states of some decoder layers."""


@dataclass(frozen=True)
class StepContext:
    """What every micro-batch has to know of its whole optimiser step."""

    counts: Counts
    state: Mapping[str, float] = field(default_factory=dict[str, float])
    """The method's state: `LossBatch.state`."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """The method's statistics of the step: `LossBatch.statistics`."""
    samples: Mapping[int, SampledAnswers] = field(default_factory=dict[int, SampledAnswers])
    """The policy's answers in this step, by the index of the forget row whose question it is."""
    progress: float = 0.0
    """Fraction of the run's steps that come before this one: `LossBatch.progress`."""
    separate: bool = False
    """Whether gradients of forget and retain rows are taken apart: `LossBatch.separate`."""
    at_start: bool = False
    """Whether the weights are still those of the start model."""


@dataclass(frozen=True)
class StepRows:
    """The items of an optimiser step, and what was drawn once for them."""

    step: int
    """Number of steps before this one."""
    items: Sequence[Item]
    """The items of all processes."""
    mine: Sequence[Item]
    """The items of this process; empty if there are more processes than items."""
    context: StepContext


@dataclass(frozen=True)
class Budget:
    """The largest micro-batch."""

    rows: int
    """Number of forget rows of usual length."""
    tokens: int | None = None
    """Tokens of all parts, a limit in place of `rows`. A single row may exceed it. None if rows are
    padded, because padding costs as much as tokens."""


class MicroBatches:
    """Turns items of an epoch into the predictions of each part."""

    def __init__(
        self,
        model: Any,
        rows: TrainingRows,
        needs: Needs,
        pad: int,
        references: ReferenceParts,
    ) -> None:
        """Try out how the model can be read.

        Args:
            model: The model, not sharded.
            rows: The training rows of all parts.
            needs: The inputs of the loss.
            pad: Id of the padding token.
            references: Predictions of the start model for the parts that need them.
        """
        self.rows = rows
        self.needs = needs
        self.references = references
        self.reader = RowReader(model, pad, rows.longest)

    def counts(self, items: Sequence[Item]) -> dict[Part, tuple[int, int]]:
        """Count scored tokens and rows of all items of a step, for each part that is needed.

        Samples are counted elsewhere, because they exist only after the model has answered.
        """
        counts: dict[Part, tuple[int, int]] = {}
        for part in self.needs.all_parts - {"sample"}:
            rows = self.rows.of(part, items, self.needs)
            counts[part] = (sum(row.scored for row in rows), len(rows))
        return counts

    def tokens(self, items: Sequence[Item], context: StepContext, parts: Iterable[Part]) -> int:
        """Count the tokens of some parts of items, prompts included."""
        return sum(len(row.ids) for part in parts for row in self.rows_of(part, items, context))

    def rows_of(self, part: Part, items: Sequence[Item], context: StepContext) -> list[Row]:
        """Return the rows of a part; samples of the same question are adjacent."""
        if part == "sample":
            return [row for item in items for row in context.samples[item.index].rows]
        return self.rows.of(part, items, self.needs)

    def batch(
        self,
        model: Any,
        items: Sequence[Item],
        context: StepContext,
        only: Iterable[Part] | None = None,
        group: Collection[Part] = PARTS,
        read: ReadRows | None = None,
    ) -> LossBatch:
        """Run one forward pass and return the predictions of each part.

        Args:
            model: The model to read, which may be a wrapper that sums gradients.
            items: The items of the micro-batch.
            context: Values of the whole step.
            only: Parts of the batch; None for the parts that the loss needs.
            group: Parts that have rows. The other parts of the batch are empty.
            read: Runs the forward pass in place of `reader`.
        """
        included = self.needs.parts if only is None else set(only)
        rows: dict[Part, list[Row]] = {}
        for part in PARTS:
            if part in included:
                rows[part] = self.rows_of(part, items if part in group else (), context)

        rows_of_all_parts = [row for part_rows in rows.values() for row in part_rows]
        if read is None:
            states = self.reader(model, rows_of_all_parts, self.needs.layers)
        else:
            states = read(rows_of_all_parts, self.needs.layers)
        scores: dict[Part, Tensor] = {}
        for part, part_rows in rows.items():
            if part in self.needs.scores:
                scores[part] = _sent((score for row in part_rows for score in row.scores), states)
        parts = split(states, rows, context.counts, scores, self.rows.text)
        return LossBatch(
            parts,
            self._references(items if "forget" in group else (), rows, parts, states, context),
            context.state,
            context.statistics,
            self._rewards(items, rows["sample"], states, context) if "sample" in rows else None,
            context.progress,
            context.separate,
        )

    def _references(
        self,
        forget_items: Sequence[Item],
        rows: Mapping[Part, Sequence[Row]],
        parts: Mapping[Part, Predictions],
        states: RowStates,
        context: StepContext,
    ) -> References:
        """Look up the start model's predictions of the rows of a micro-batch."""
        device = states.hidden.device
        references: dict[Part, Reference] = {}
        prompted: list[Reference] = []
        for part, reference in self.references.items():
            if isinstance(part, int):
                behind_prompt = self.rows.of(part, forget_items, self.needs)
                prompted.append(reference.batch(behind_prompt, device))
            elif part in rows:
                # A live model cannot run without rows.
                can_be_empty = isinstance(reference, ReferenceRows)
                if rows[part] or can_be_empty:
                    references[part] = reference.batch(rows[part], device)
                else:
                    references[part] = _empty(states)
                if context.at_start:
                    references[part] = self._own_predictions(part, references[part], parts[part])
        return References(references, prompted)

    def _rewards(
        self,
        items: Sequence[Item],
        rows: Sequence[Row],
        states: RowStates,
        context: StepContext,
    ) -> Tensor:
        """Return the reward of each sampled answer [samples]; empty if samples have no rows."""
        sampled = items if rows else ()
        return _sent(
            (reward for item in sampled for reward in context.samples[item.index].rewards), states
        )

    def _own_predictions(
        self, part: Part, reference: Reference, predictions: Predictions
    ) -> Reference:
        """Return the start model's predictions as the policy has made them in this pass.

        As long as no weight has moved, the two models are one. The stored predictions differ by
        rounding, as they were computed in other batches. A divergence that has its minimum there
        would have a gradient of rounding errors in place of 0, which Adam, signs and norms enlarge.
        """
        own = {layer: predictions.hidden_states(layer).detach() for layer in reference.states}
        reference = replace(reference, states=own)
        if reference.hidden is not None:
            projection = predictions.projection.detach()
            hidden = predictions.hidden.detach()
            reference = replace(reference, hidden=hidden, projection=projection)
        if part == "sample" and part in self.needs.logprobs:
            return replace(reference, token_logprob=predictions.token_logprob.detach())
        return reference


def _sent(numbers: Iterable[float], states: RowStates) -> Tensor:
    """Send numbers to the device of the states, in the precision of the losses."""
    dtype = at_least_fp32(states.hidden[:0]).dtype
    return send([torch.tensor([*numbers], dtype=dtype)], states.hidden.device)[0]


def _empty(states: RowStates) -> Reference:
    """Return a reference of no rows, with the shapes and dtypes of `states`."""
    return Reference(
        at_least_fp32(states.hidden.new_zeros(0)),
        states.rows[:0],
        0,
        states.hidden[:0].detach(),
        states.projection,
        {layer: state[:0].detach() for layer, state in states.inner.items()},
    )


def split(
    states: RowStates,
    rows: Mapping[Part, Sequence[Row]],
    counts: Counts,
    scores: Mapping[Part, Tensor] | None = None,
    text: Sequence[int] = (),
) -> dict[Part, Predictions]:
    """Cut the states of the rows of all parts into the predictions of each part.

    Args:
        states: States of the rows, part after part.
        rows: The rows of each part, in the order of the states.
        counts: Scored tokens and rows of each part in the whole step.
        scores: The score of each token [N], for the parts that have scores.
        text: Ids of the text for `Predictions.text_labels`; empty without one.
    """
    parts: dict[Part, Predictions] = {}
    begin = 0
    first_row = 0
    for part, part_rows in rows.items():
        end = begin + sum(row.scored for row in part_rows)
        span = slice(begin, end)
        step_tokens, step_rows = counts[part]
        parts[part] = Predictions(
            states.hidden[span],
            states.projection,
            states.labels[span],
            states.rows[span] - first_row,
            len(part_rows),
            step_tokens,
            step_rows,
            {layer: state[span] for layer, state in states.inner.items()},
            (scores or {}).get(part),
            _repeated(text, part_rows, states.labels) if text else None,
        )
        begin = end
        first_row += len(part_rows)
    return parts


def _repeated(text: Sequence[int], rows: Sequence[Row], like: Tensor) -> Tensor:
    """Repeat a text over the scored tokens of each row [N], from its beginning in every row."""
    tokens = [text[index % len(text)] for row in rows for index in range(row.scored)]
    return send([torch.tensor(tokens, dtype=like.dtype)], like.device)[0]


class Sums:
    """Named values, summed over micro-batches and then over processes."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: int = 1) -> None:
        """Add each value to the sum of its name.

        Args:
            tensors: Values by name.
            weight: 1, or 0 for items that only keep this process in step with the others.
        """
        for name, value in tensors.items():
            summand = value.detach() * weight
            if name in self.values:
                self.values[name] = self.values[name] + summand
            else:
                self.values[name] = summand

    def reduced(self, accelerator: Accelerator) -> Mapping[str, Tensor]:
        """Return the sums over all processes. Collective."""
        if accelerator.num_processes == 1:
            return self.values
        reduce: Any = accelerator.reduce
        return {name: reduce(value, reduction="sum") for name, value in self.values.items()}

    def floats(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the sums over all processes as numbers, in one copy from a GPU. Collective."""
        sums = self.reduced(accelerator)
        if not sums:
            return {}
        numbers = torch.stack([value.double().reshape(()) for value in sums.values()]).tolist()
        return dict(zip(sums, numbers, strict=True))
