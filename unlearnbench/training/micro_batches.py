"""Micro-batches: one forward pass over all parts of some items, and the values a loss reads."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from unlearnbench.api.method import PARTS, LossBatch, Needs, Part, References
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.models.batching import send
from unlearnbench.models.encoding import Row
from unlearnbench.models.epoch_order import Item, TrainingRows
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.training.answer_sampling import SampledAnswers
from unlearnbench.training.reference_model import ReferenceParts, ReferenceRows

Counts = Mapping[Part, tuple[int, int]]
"""By part, the number of scored tokens and of rows in a whole optimiser step."""


@dataclass(frozen=True)
class StepContext:
    """Values of the whole optimiser step that its micro-batches need."""

    counts: Counts
    state: Mapping[str, float] = field(default_factory=dict[str, float])
    statistics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    samples: Mapping[int, SampledAnswers] = field(default_factory=dict[int, SampledAnswers])
    """By forget row, the policy's answers to its question in this step."""
    progress: float = 0.0
    separate: bool = False
    """This and `progress`: see `LossBatch`."""
    at_start: bool = False
    """Whether the weights are still those of the start model."""


@dataclass(frozen=True)
class StepRows:
    """The rows of an optimiser step, and what was drawn once for them."""

    draws: Sequence[Item]
    mine: Sequence[Item]
    """Those of this process."""
    context: StepContext


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
        self.rows, self.needs, self.references = rows, needs, references
        self.reader = RowReader(model, pad, rows.longest)

    def counts(self, draws: Sequence[Item]) -> dict[Part, tuple[int, int]]:
        """Scored tokens and rows of each part but the samples, over all of a step's items."""
        counts: dict[Part, tuple[int, int]] = {}
        for part in self.needs.all_parts - {"sample"}:
            rows = self.rows.of(part, draws, self.needs)
            counts[part] = (sum(row.scored for row in rows), len(rows))
        return counts

    def tokens(self, draws: Sequence[Item], step: StepContext, parts: Iterable[Part]) -> int:
        """Tokens of some parts of items."""
        rowss = (self.rows_of(part, draws, step) for part in parts)
        return sum(len(row.ids) for rows in rowss for row in rows)

    def rows_of(self, part: Part, draws: Sequence[Item], step: StepContext) -> list[Row]:
        """The rows of `part`; samples of one question are adjacent."""
        if part == "sample":
            return [row for draw in draws for row in step.samples[draw.index].rows]
        return self.rows.of(part, draws, self.needs)

    def batch(
        self,
        model: Any,
        draws: Sequence[Item],
        step: StepContext,
        only: Iterable[Part] | None = None,
        group: Collection[Part] = PARTS,
    ) -> LossBatch:
        """One forward pass of `model` over the parts of the loss, or `only` those named.

        group  parts that have rows; the others are empty
        """
        names = self.needs.parts if only is None else set(only)
        rows: dict[Part, list[Row]] = {
            p: self.rows_of(p, draws if p in group else (), step) for p in PARTS if p in names
        }
        together = [row for part in rows.values() for row in part]
        result = self.reader(model, together, self.needs.layers)
        device = result.hidden.device
        # Like the values that they are compared with.
        dtype = at_least_fp32(result.hidden[:0]).dtype

        def sent(numbers: Iterable[float]) -> Tensor:
            return send([torch.tensor([*numbers], dtype=dtype)], device)[0]

        scores: dict[Part, Tensor] = {
            part: sent(score for row in rows[part] for score in row.scores)
            for part in rows
            if part in self.needs.scores
        }
        references: dict[Part, Reference] = {}
        prompted: list[Reference] = []
        forgotten = draws if "forget" in group else ()
        for part, reference in self.references.items():
            if isinstance(part, int):
                behind = self.rows.of(part, forgotten, self.needs)
                prompted.append(reference.batch(behind, device))
            elif part in rows:
                has_any = rows[part] or isinstance(reference, ReferenceRows)
                references[part] = (
                    reference.batch(rows[part], device) if has_any else _empty(result)
                )
        sampled = draws if rows.get("sample") else ()
        rewards = [reward for draw in sampled for reward in step.samples[draw.index].rewards]
        parts = split(result, rows, step.counts, scores, self.rows.text)
        if step.at_start:
            references = {
                part: self._own_predictions(part, reference, parts[part])
                for part, reference in references.items()
            }
        return LossBatch(
            parts,
            References(references, prompted),
            step.state,
            step.statistics,
            sent(rewards) if "sample" in rows else None,
            step.progress,
            step.separate,
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


def _empty(states: RowStates) -> Reference:
    """A reference of no rows, by the model whose states are `states`."""
    none = {layer: state[:0].detach() for layer, state in states.inner.items()}
    hidden, logprobs = states.hidden[:0].detach(), at_least_fp32(states.hidden.new_zeros(0))
    return Reference(logprobs, states.rows[:0], 0, hidden, states.projection, none)


def split(
    states: RowStates,
    rows: Mapping[Part, Sequence[Row]],
    counts: Counts,
    scores: Mapping[Part, Tensor] | None = None,
    text: Sequence[int] = (),
) -> dict[Part, Predictions]:
    """Cut the states of all parts' rows, in that order, into the predictions of each part.

    scores  [N] by token, of the parts that have scores
    text    tokens for `Predictions.text_labels`
    """
    parts: dict[Part, Predictions] = {}
    begin = first_row = 0
    for part, part_rows in rows.items():
        end = begin + sum(row.scored for row in part_rows)
        span = slice(begin, end)
        parts[part] = Predictions(
            states.hidden[span],
            states.projection,
            states.labels[span],
            states.rows[span] - first_row,
            len(part_rows),
            *counts[part],
            {layer: state[span] for layer, state in states.inner.items()},
            (scores or {}).get(part),
            _repeated(text, part_rows, states.labels) if text else None,
        )
        begin, first_row = end, first_row + len(part_rows)
    return parts


def _repeated(text: Sequence[int], rows: Sequence[Row], like: Tensor) -> Tensor:
    """[N] the tokens of `text` from each row's first scored one, again and again."""
    tokens = [text[index % len(text)] for row in rows for index in range(row.scored)]
    return send([torch.tensor(tokens, dtype=like.dtype)], like.device)[0]


class Sums:
    """Named values, summed over micro-batches and then over processes."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, tensors: Mapping[str, Tensor], weight: int = 1) -> None:
        """Add each value to the sum of its name; `weight` 0 for rows of another process."""
        for name, value in tensors.items():
            part = value.detach() * weight
            self.values[name] = self.values[name] + part if name in self.values else part

    def reduced(self, accelerator: Accelerator) -> Mapping[str, Tensor]:
        """The sums over all processes."""
        if accelerator.num_processes == 1:
            return self.values
        reduce: Any = accelerator.reduce
        return {name: reduce(value, reduction="sum") for name, value in self.values.items()}

    def floats(self, accelerator: Accelerator) -> dict[str, float]:
        """The sums as numbers, in one copy from a GPU."""
        result = self.reduced(accelerator)
        if not result:
            return {}
        numbers = torch.stack([value.double().reshape(()) for value in result.values()]).tolist()
        return dict(zip(result, numbers, strict=True))


@dataclass(frozen=True)
class Budget:
    """The largest micro-batch."""

    rows: int
    """Forget rows, of usual length."""
    tokens: int | None = None
    """Tokens of all parts, the limit in place of `rows`; None where rows are padded. One row alone
    may have more."""
