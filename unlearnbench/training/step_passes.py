"""Loss and gradient of an optimiser step, computed in as few passes as memory allows.

A *pass* takes one micro-batch through the model: forward, and backward if gradients are on. All
parts of its items (forget, retain, refusal …) go through the model together. Every mean divides by
the counts of the whole step. So one micro-batch of 32 items gives the same gradient as 4 of 8, or
as 2 processes with 16 each. The gradients of the passes add up in the weights' `grad`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from unlearnbench.api.method import PARTS, LossBatch, Part, Terms
from unlearnbench.base.distributed import all_gather
from unlearnbench.base.fsdp import reshard
from unlearnbench.base.out_of_memory import OomRetry, empty_cache, is_out_of_memory
from unlearnbench.models.epoch_order import Item
from unlearnbench.training.loss_scale import LossScale
from unlearnbench.training.micro_batches import (
    Budget,
    MicroBatches,
    ReadRows,
    StepContext,
    StepRows,
    Sums,
)
from unlearnbench.training.objective import Objective, called
from unlearnbench.training.optimizers import TrainerSettings, reseed
from unlearnbench.training.step_replays import StepReplays
from unlearnbench.training.step_result import TOKENS
from unlearnbench.training.trained_model import TrainedModel

T = TypeVar("T")


class LossValues(NamedTuple):
    """The loss of a step, or of the rows of one role in it."""

    terms: dict[str, float]
    """The loss by term (`forget`, `retain`)."""
    reported: dict[str, float]
    """Other values that the loss reported: `LossBatch.report`."""


class _MicroBatch(NamedTuple):
    """Items that go through the model together."""

    items: Sequence[Item]
    weight: int
    """1, or 0 for items that only keep this process in step with the others."""


class _Pass(NamedTuple):
    """A micro-batch, restricted to some parts."""

    micro_batch: _MicroBatch
    group: Collection[Part]
    """Parts that have rows in this pass."""
    is_of_first_group: bool


class StepPasses:
    """Computes the loss of a step and its gradient."""

    def __init__(
        self,
        model: TrainedModel,
        objective: Objective,
        batches: MicroBatches,
        settings: TrainerSettings,
    ) -> None:
        """Keep what all steps share.

        Args:
            model: The model, placed on the devices of the run.
            objective: The loss.
            batches: Turns items into predictions.
            settings: Settings of the training, of which seed, precision and rows are read.
        """
        self.model = model
        self.accelerator = model.accelerator
        self.objective = objective
        self.batches = batches
        self.seed = settings.seed
        self.scale = LossScale() if settings.precision == "fp16" else None
        """Scale of the loss; None in precisions whose range is that of float32."""
        self.replays = StepReplays(model, batches.reader)
        self.oom_retry = OomRetry(settings.micro_batch_size)
        self.budget: Budget | None = None
        """Largest micro-batch; None for the rows that `oom_retry` states, or all of a step."""
        self.tokens: dict[str, float] = {}
        """Tokens of the current step by the names of `TOKENS`, summed over all its passes."""

    def reseed(self, step: int) -> None:
        """Seed random numbers such as dropout's, which are the same in all evaluations of a step.

        Args:
            step: Number of steps before this one.
        """
        reseed(self.seed, step, self.accelerator.process_index)

    def retried(self, work: Callable[[], T], items: Sequence[Item], step: int) -> T:
        """Do `work`, again in smaller micro-batches if memory runs out.

        Args:
            work: Passes over the items. Before a repetition, the gradient is discarded.
            items: The items of all processes.
            step: Number of steps before this one.
        """
        rank = self.accelerator.process_index
        world = self.accelerator.num_processes
        return self.oom_retry.step(
            lambda: self._with_or_without_replays(work),
            self.model.discard_gradient,
            number=step + 1,
            rows=len(items[rank::world]),
            alone=world == 1,
        )

    def _with_or_without_replays(self, work: Callable[[], T]) -> T:
        """Do `work`, again without recorded passes if memory runs out: they take some."""
        try:
            return work()
        except RuntimeError as error:
            if not (self.replays.passes and is_out_of_memory(error)):
                raise
        # Outside of the handler the error no longer refers to tensors of `work`.
        self.replays.stop()
        self.model.discard_gradient()
        empty_cache()
        return work()

    def backward(self, rows: StepRows, groups: Sequence[Collection[Part]] = (PARTS,)) -> LossValues:
        """Compute the loss of a step and add its gradient to that of the weights, which has none.

        Under `torch.no_grad` only the loss is computed. In float16 the passes are repeated with a
        smaller scale of the loss until no gradient overflows.

        Args:
            rows: The rows of the step.
            groups: Parts with rows in passes of their own. By default all parts share each pass.
        """
        values = self._all_passes(rows, groups)
        while torch.is_grad_enabled() and self._overflows(values.terms):
            self.model.discard_gradient()
            # Dropout draws the same numbers when a run is resumed with the smaller scale.
            self.reseed(rows.step)
            values = self._all_passes(rows, groups)
        return values

    def forward_one_item(self, rows: StepRows) -> tuple[LossBatch, Terms]:
        """Compute the loss on one item of each process, to look at its graph.

        No token is counted, and there is no backward pass.
        """
        item = _MicroBatch((rows.mine or rows.items)[:1], weight=1)
        context = replace(rows.context, statistics=self._statistics([item], rows.context))
        with self.accelerator.no_sync(self.model.model):
            batch, terms = self._forward(item.items, context, PARTS, read=None)
        # FSDP frees the root module's weights in the backward pass.
        reshard(self.model.module)
        return batch, terms

    def _overflows(self, terms: Mapping[str, float]) -> bool:
        """Unscale the gradient; return whether to compute it again, with the scale now lowered.

        Collective: all processes come to the same answer.
        """
        if self.scale is None:
            return False
        gradients = [p.grad for p in self.model.parameters if p.grad is not None]
        is_finite = all(all_gather(self.scale.unscale_(gradients)))
        # If the loss is infinite itself, no scale helps.
        if is_finite or not math.isfinite(sum(terms.values())):
            return False
        return self.scale.lower()

    def _all_passes(self, rows: StepRows, groups: Sequence[Collection[Part]]) -> LossValues:
        """Add the gradient of the scaled loss of a step to that of the weights."""
        micro_batches = self._micro_batches(rows)
        context = replace(rows.context, statistics=self._statistics(micro_batches, rows.context))
        passes = [
            _Pass(micro_batch, group, is_of_first_group=group is groups[0])
            for group in groups
            for micro_batch in micro_batches
        ]
        term_sums = Sums()
        reported_sums = Sums()
        for each in passes:
            # Replicas sum their gradients once, in the last backward pass.
            is_last = each is passes[-1]
            with nullcontext() if is_last else self.accelerator.no_sync(self.model.model):
                items = each.micro_batch.items
                batch, terms = self._forward(items, context, each.group, self.replays.read)
                if torch.is_grad_enabled():
                    self._backward(terms, each.micro_batch.weight)
            term_sums.add(terms, each.micro_batch.weight)
            tokens = self._token_counts(each, context)
            # One mapping, so that all numbers are copied from the device at once.
            reported_sums.add(batch.reported | tokens, each.micro_batch.weight)
        reported = reported_sums.floats(self.accelerator)
        for name in TOKENS:
            self.tokens[name] = self.tokens.get(name, 0.0) + reported.pop(name)
        return LossValues(term_sums.floats(self.accelerator), reported)

    def _forward(
        self,
        items: Sequence[Item],
        context: StepContext,
        group: Collection[Part],
        read: ReadRows | None,
    ) -> tuple[LossBatch, Terms]:
        """Compute the predictions of a micro-batch, and the terms of its loss."""
        with self.model.autocast():
            batch = self.batches.batch(self.model.model, items, context, group=group, read=read)
            return batch, self.objective.terms(batch)

    def _backward(self, terms: Terms, weight: int) -> None:
        """Add the gradient of a micro-batch to that of the weights."""
        # Data parallelism averages gradients over processes, but the loss is a sum.
        processes = self.accelerator.num_processes
        loss = torch.stack([*terms.values()]).sum() * processes * weight
        scaled = loss if self.scale is None else loss * self.scale.value
        if not self.replays.backward(scaled):
            self.accelerator.backward(scaled)

    def _micro_batches(self, rows: StepRows) -> list[_MicroBatch]:
        """Divide this process's items into micro-batches, as many as each other process has.

        Passes over shards and reductions of gradients are collective. So a process that has fewer
        micro-batches than another repeats one of its items, with weight 0.
        """
        micro_batches = [
            _MicroBatch(items, weight=1) for items in self.divided(rows.mine, rows.context)
        ]
        most = max(all_gather(len(micro_batches)))
        without_weight = _MicroBatch((rows.mine or rows.items)[:1], weight=0)
        return micro_batches + [without_weight] * (most - len(micro_batches))

    def divided(self, items: Sequence[Item], context: StepContext) -> list[Sequence[Item]]:
        """Divide items in order, into as few micro-batches as the limits on rows and tokens allow.

        A single item is never divided, even if it exceeds the limit on tokens.
        """
        most_rows = self.oom_retry.rows or max(len(items), 1)
        most_tokens: int | None = None
        if self.budget is not None and self.budget.tokens is None:
            most_rows = min(most_rows, self.budget.rows)
        elif self.budget is not None:
            most_tokens = self.budget.tokens

        micro_batches: list[list[Item]] = []
        token_count = 0
        for item in items:
            item_tokens = 0
            if most_tokens is not None:
                item_tokens = self.batches.tokens([item], context, self.objective.needs.parts)
            is_full = bool(micro_batches) and len(micro_batches[-1]) == most_rows
            if most_tokens is not None and token_count + item_tokens > most_tokens:
                is_full = True
            if not micro_batches or is_full:
                micro_batches.append([])
                token_count = 0
            micro_batches[-1].append(item)
            token_count += item_tokens
        return [*micro_batches]

    def _token_counts(self, each: _Pass, context: StepContext) -> dict[str, Tensor]:
        """Count the tokens of a pass by the names of `TOKENS`."""
        needs = self.objective.needs
        items = each.micro_batch.items
        in_loss = self.batches.tokens(items, context, needs.parts & {*each.group})
        read = in_loss
        if each.is_of_first_group:
            # Statistics are computed once, before the passes of all groups.
            read += self.batches.tokens(items, context, needs.statistics)
        with_backward = in_loss if torch.is_grad_enabled() else 0
        counts = torch.tensor([float(read), float(with_backward)], device=self.accelerator.device)
        return dict(zip(TOKENS, counts, strict=True))

    @torch.no_grad()
    def _statistics(
        self, micro_batches: Iterable[_MicroBatch], context: StepContext
    ) -> Mapping[str, Tensor]:
        """Compute the statistics of the whole step that the method's loss reads.

        They take forward passes of their own, because each micro-batch needs those of all.
        """
        parts = self.objective.needs.statistics
        if not parts:
            return {}
        sums = Sums()
        for micro_batch in micro_batches:
            with self.model.autocast():
                batch = self.batches.batch(self.model.model, micro_batch.items, context, parts)
                with called(self.objective.method, "statistics"):
                    statistics = self.objective.method.statistics(batch)
                sums.add(statistics, micro_batch.weight)
        return sums.reduced(self.accelerator)
