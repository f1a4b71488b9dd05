"""The one training loop, for fine-tuning and for unlearning.

A step draws its items, computes the gradient (`step_passes.py`), lets modifiers change it
(`modified_step.py`), clips it, and lets the optimisers move the weights. The rows of a step depend
on the seed and the number of the step only, so a training may pause and resume anywhere.
"""

import json
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from unlearnbench.api.method import LossBatch, Method, Needs
from unlearnbench.api.modifier import Gradients, Modifier, OptimizerKind, RunStep
from unlearnbench.api.retain_terms import retain_nll
from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.distributed import barrier, is_main_process
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.fsdp import as_shard, full_tensor, full_tensors, local_shard, unsharded
from unlearnbench.base.out_of_memory import optimizer_oom
from unlearnbench.base.tensor_file import byte_size, write_tensors
from unlearnbench.config.unit import Unit
from unlearnbench.models.dropout import ModelDropout
from unlearnbench.models.epoch_order import Item, TrainingRows
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.micro_batches import MicroBatches, StepContext, StepRows, Sums
from unlearnbench.training.modified_step import Modifiers
from unlearnbench.training.objective import Objective, called
from unlearnbench.training.optimizer_state import load_state, state_tensors
from unlearnbench.training.optimizers import TrainerSettings, check_gradients, make_optimizers
from unlearnbench.training.reference_model import ReferenceParts
from unlearnbench.training.step_passes import LossValues, StepPasses
from unlearnbench.training.step_result import StepResult, not_finite
from unlearnbench.training.trained_model import TrainedModel, freeze_untrained, make_accelerator

_EDITED = "edited"
"""Key in the metadata of a checkpoint if a modifier has changed weights after a step."""


class NonFiniteError(TrainingError):
    """The loss or the gradient is NaN or infinite: the model has collapsed."""


class FineTuning(Method):
    """Fine-tuning: mean negative log-likelihood of the answer tokens."""

    needs = Needs(parts=frozenset({"retain"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Return the mean over the tokens of all answers."""
        return retain_nll(batch)


class _Update(NamedTuple):
    """What a step has computed and done."""

    terms: Mapping[str, float]
    """The loss by term."""
    reported: Mapping[str, float]
    """Values that the loss and the modifiers report."""
    grad_norm: float
    """Norm of the gradient before clipping."""


class Trainer:
    """A model, an objective and optimisers, advanced to the end of an epoch or to a step."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        rows: TrainingRows,
        settings: TrainerSettings,
        pad: int,
        references: ReferenceParts | None = None,
        sampler: Sampler | None = None,
        modifiers: Sequence[Modifier] = (),
        *,
        starts_at_reference: bool = False,
    ) -> None:
        """Place the model on the devices of this run and make its optimisers.

        Args:
            model: The start model. It is trained in place.
            objective: The loss.
            rows: The training rows of all parts.
            settings: Settings of the steps.
            pad: Id of the padding token.
            references: Predictions of the start model for the parts that the loss compares.
            sampler: Samples answers, if the loss needs the part `sample`.
            modifiers: Changes of gradients, updates or weights.
            starts_at_reference: Whether `references` are predictions of `model` as it is now.

        Raises:
            TrainingError: There is no row to train on, or the weights cannot be trained.
        """
        method = objective.method
        self.objective = objective
        self.rows = rows
        self.settings = settings
        self.sampler = sampler
        self.modifiers = Modifiers(modifiers) if modifiers else None
        with called(method, "start"):
            self.state: Mapping[str, float] = method.start()

        self.accelerator = make_accelerator(settings.precision)
        freeze_untrained(model, method, settings.precision)
        # Three steps in this order: micro-batches try out the whole model, then it may be sharded,
        # and the optimisers choose their kernels by the device of the weights.
        self.batches = MicroBatches(model, rows, objective.needs, pad, references or {})
        self._trained_model = TrainedModel(model, self.accelerator, settings)
        self.passes = StepPasses(self._trained_model, objective, self.batches, settings)

        self._dropout = ModelDropout(model) if settings.removes_dropout else None
        if self._dropout is not None:
            self._dropout.remove()
        self._start: Mapping[str, Tensor] = {}
        """Start weights by name, if the method scales its update when it is evaluated."""
        if method.update_scale() != 1:
            self._start = self._trained_model.copy_of_update_factors()

        optimizer_kinds = [kind for kind in modifiers if isinstance(kind, OptimizerKind)]
        with deferred_imports():
            self.optimizers: list[Any] = [*make_optimizers(model, settings, *optimizer_kinds)]
        self._full_rates = [
            [group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers
        ]
        """Learning rates by optimiser and group, before the schedule scales them."""
        self.step = 0
        """Number of steps taken."""
        self._gradients_are_checked = False
        self._items_by_epoch: dict[int, list[Item]] = {}
        """Items of the epochs that the current step has rows of, by the number of epochs before."""
        self._is_start = starts_at_reference and not self._changes_start(model)
        self._is_edited = False
        """Whether a modifier has changed weights after a step."""

        primary_rows = len(rows.primary(objective.needs))
        if primary_rows == 0:
            raise TrainingError("nothing to train on: the set of rows is empty")
        self.schedule = settings.plan_steps(primary_rows)

    @property
    def model(self) -> Any:
        """What a forward pass calls: the model, or its wrapper that sums gradients."""
        return self._trained_model.model

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained weights."""
        return self._trained_model.parameters

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained weights by name."""
        return self._trained_model.trained()

    @property
    def epochs_done(self) -> int:
        """Number of epochs that have ended."""
        return self.schedule.epochs_ended(self.step)

    def done(self, unit: Unit) -> int:
        """Return how far the training is, in epochs that have ended or in steps."""
        return self.epochs_done if unit is Unit.EPOCH else self.step

    def epoch(self, number: int) -> Iterator[StepResult]:
        """Train epoch `number` (from 1), or the rest of it; yields after each step."""
        return self.until(self.schedule.end(number))

    def until(self, end: int) -> Iterator[StepResult]:
        """Train until `end` steps are taken in all; yields after each step.

        The steps are the same wherever a training pauses: the rows of a step depend on its number.
        """
        self.model.train()
        for step in range(self.step, end):
            yield self._step(self._items_of(step), self.schedule.epoch_of(step))

    def _items_of(self, step: int) -> list[Item]:
        """Return the items of a step, from two epochs if the schedule carries rows over.

        Args:
            step: Number of steps before this one.
        """
        positions = self.schedule.positions(step)
        first_epoch = positions[0] // self.schedule.rows
        items: list[Item] = []
        for position in positions:
            epochs_before, index = divmod(position, self.schedule.rows)
            if epochs_before not in self._items_by_epoch:
                self._draw_epoch(epochs_before, first_epoch)
            items.append(self._items_by_epoch[epochs_before][index])
        return items

    def _draw_epoch(self, epochs_before: int, first_epoch: int) -> None:
        """Draw the items of an epoch, and forget the epochs that no later step has rows of.

        Args:
            epochs_before: Number of epochs before this one.
            first_epoch: Number of epochs before the first one that steps still have rows of.
        """
        kept = {
            epoch: items for epoch, items in self._items_by_epoch.items() if epoch >= first_epoch
        }
        needs = self.objective.needs
        kept[epochs_before] = self.rows.items(needs, self.settings.seed, epochs_before + 1)
        self._items_by_epoch = kept

    @deferred_imports()
    def _step(self, items: Sequence[Item], epoch: int) -> StepResult:
        """Take a step over the items of all processes."""
        # Random numbers of a step, such as dropout's, are the same when a run is resumed.
        self.passes.reseed(self.step)
        self.passes.tokens = {}
        factor = self._set_learning_rates()
        if self.modifiers is not None and self.step == 0:
            self.begin(self.modifiers)

        rows = self.passes.retried(lambda: self.step_rows(items), items, self.step)
        if self.modifiers is None:
            update = self._plain(rows, epoch)
        else:
            update = self._modified(self.modifiers, rows, epoch)

        with called(self.objective.method, "advance"):
            self.state = self.objective.method.advance(self.state, update.reported, epoch)
        self.step += 1
        return StepResult(
            step=self.step,
            epoch=epoch,
            learning_rate=self.settings.learning_rate * factor,
            loss=sum(update.terms.values()),
            terms=update.terms,
            grad_norm=update.grad_norm,
            reported=dict(update.reported) | self.passes.tokens | self._loss_scale(),
        )

    def _set_learning_rates(self) -> float:
        """Set the learning rates of the next step; return the factor of the schedule."""
        factor = self.schedule.factor(self.step)
        for optimizer, rates in zip(self.optimizers, self._full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        return factor

    def _loss_scale(self) -> dict[str, float]:
        """Count the step for the scale of the loss, and return what to report of the scale."""
        scale = self.passes.scale
        if scale is None:
            return {}
        scale.step_taken()
        return {"loss_scale": scale.value, "overflows": float(scale.overflows)}

    def begin(self, modifiers: Modifiers) -> None:
        """Let modifiers prepare the first step, on the rows of the first epoch."""
        modifiers.make_memories(self._trained_model.weights)
        if modifiers.reads_first_epoch:
            items = self.rows.items(self.objective.needs, self.settings.seed, 1)
            rows = self.passes.retried(
                lambda: self.step_rows(items, by_role=True), items, self.step
            )
            modifiers.begin(self.passes, rows)

    def _plain(self, rows: StepRows, epoch: int) -> _Update:
        """Take a step without modifiers."""
        values = self.passes.retried(lambda: self.passes.backward(rows), rows.items, self.step)
        grad_norm = self._update(self.optimizers, epoch, values.terms)
        return _Update(values.terms, values.reported, grad_norm)

    def _modified(self, modifiers: Modifiers, rows: StepRows, epoch: int) -> _Update:
        """Take a step with modifiers."""
        step = RunStep(self.step + 1, self.schedule.steps)
        evaluation = modifiers.step(self.passes, rows)
        with optimizer_oom(self.step + 1):
            gradients = modifiers.gradients(evaluation, step)
        values = _summed(evaluation.values.values())
        self._check_finite(gradients, epoch, values.terms)

        grad_norms: list[float] = []
        # Gradients that were computed without a backward pass may have reached any weight.
        reached = evaluation.reached or {*self.trained()}
        with modifiers.frozen(self._trained_model.weights, self.optimizers):
            for index, gradient in enumerate(gradients):
                for name, weight in self.trained().items():
                    if name in reached:
                        weight.grad = as_shard(gradient.tensors[name].to(weight.dtype), weight)
                # All optimisers share a single gradient. If there are two, each has its own.
                is_shared = len(gradients) == 1
                optimizers = self.optimizers if is_shared else [self.optimizers[index]]
                grad_norms.append(self._update(optimizers, epoch, values.terms))
        self._edit(modifiers, step)
        return _Update(values.terms, values.reported | evaluation.measured, math.hypot(*grad_norms))

    def _edit(self, modifiers: Modifiers, step: RunStep) -> None:
        """Let modifiers change the weights after a step, whatever its learning rate was."""
        weights = self._trained_model.weights
        writes = _writes(weights)
        modifiers.edit(weights, step)
        if _writes(weights) != writes:
            self._is_edited = True

    def _update(self, optimizers: Sequence[Any], epoch: int, terms: Mapping[str, float]) -> float:
        """Let optimisers step on the clipped gradient.

        Returns:
            The norm of the gradient before it was clipped.
        """
        if not self._gradients_are_checked:
            check_gradients(self.model)
            self._gradients_are_checked = True
        grad_norm = float(self._clip())
        self._refuse_not_finite(epoch, sum(terms.values()), grad_norm)
        with optimizer_oom(self.step + 1):
            for optimizer in optimizers:
                optimizer.step()
        self._trained_model.discard_gradient()
        self.passes.replays.start()
        return grad_norm

    def _check_finite(
        self, gradients: Sequence[Gradients], epoch: int, terms: Mapping[str, float]
    ) -> None:
        """Check all gradients of a step before the first of several optimisers moves a weight."""
        if len(gradients) > 1:
            grad_norm = math.hypot(*(gradient.norm() for gradient in gradients))
            self._refuse_not_finite(epoch, sum(terms.values()), grad_norm)

    def _refuse_not_finite(self, epoch: int, loss: float, grad_norm: float) -> None:
        """Raise NonFiniteError if the step's loss or gradient norm is NaN or infinite."""
        reason = not_finite(
            self.step + 1,
            epoch,
            loss,
            grad_norm,
            has_moved=self._has_moved(),
            in_float16=self.passes.scale is not None,
        )
        if reason:
            raise NonFiniteError(reason)

    def _has_moved(self) -> bool:
        """Whether an optimiser has changed a weight before this step."""
        # A warm-up begins at a learning rate of 0, with which no weight moves.
        return any(self.schedule.factor(step) for step in range(self.step))

    def _is_at_start(self) -> bool:
        """Whether the model is the one that the references are predictions of."""
        return self._is_start and not self._is_edited and not self._has_moved()

    def _changes_start(self, model: nn.Module) -> bool:
        """Whether the first step is not taken by the start model itself."""
        has_dropout = self._dropout is None and bool(ModelDropout(model))
        return has_dropout or (self.modifiers is not None and self.modifiers.edits_start)

    def free_states(self) -> None:
        """Discard the optimisers' states and recorded passes, after the last step."""
        self.passes.replays.stop()
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def _clip(self) -> Tensor:
        """Clip the gradient; return its norm before that."""
        norm: Any = self.accelerator.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        return full_tensor(torch.as_tensor(norm))

    def step_rows(self, items: Sequence[Item], *, by_role: bool = False) -> StepRows:
        """Return the rows of the next step, including samples.

        Args:
            items: The items of all processes.
            by_role: Take the gradients of the roles apart, even if the step itself does not.
        """
        mine = items[self.accelerator.process_index :: self.accelerator.num_processes]
        context = self.step_context(items, mine)
        context = replace(context, separate=context.separate or by_role)
        return StepRows(self.step, items, mine, context)

    def step_context(self, items: Sequence[Item], mine: Sequence[Item]) -> StepContext:
        """Collect what every micro-batch of the next step has to know of the whole step.

        Args:
            items: The items of all processes.
            mine: This process's share of them, which answers are sampled for.
        """
        context = StepContext(
            self.batches.counts(items),
            self.state,
            progress=self.step / self.schedule.steps,
            separate=self.modifiers is not None and self.modifiers.by_role,
            at_start=self._is_at_start(),
        )
        if "sample" not in self.objective.needs.parts:
            return context
        return self._with_samples(context, items, mine)

    def _with_samples(
        self, context: StepContext, items: Sequence[Item], mine: Sequence[Item]
    ) -> StepContext:
        """Add the policy's answers to the questions of this process, and count those of all."""
        if self.sampler is None:
            raise TrainingError("the method needs samples, and there is nothing to sample with")
        # A process without items takes part with an answer that does not count.
        questions = [item.index for item in mine or items[:1]]
        model = self._trained_model.module
        with self._trained_model.autocast(), unsharded(model):
            samples = self.sampler(model, questions, self.step)
        tokens = sum(row.scored for sample in samples.values() for row in sample.rows)
        sums = Sums()
        sums.add({"tokens": torch.tensor(tokens, device=self.accelerator.device)}, int(bool(mine)))
        tokens_of_all = int(sums.reduced(self.accelerator)["tokens"])
        rows_of_all = len(items) * self.sampler.how.count
        counts = {**context.counts, "sample": (tokens_of_all, rows_of_all)}
        return replace(context, counts=counts, samples=samples)

    def tensors(self) -> dict[str, Tensor]:
        """Return this process's tensors of a checkpoint by name: weights, states, memories."""
        tensors: dict[str, Tensor] = {
            f"model.{name}": weight for name, weight in self.trained().items()
        }
        for i, optimizer in enumerate(self.optimizers):
            for name, value in state_tensors(optimizer).items():
                tensors[f"optimizer.{i}.{name}"] = value
        if self.modifiers is not None:
            tensors |= self.modifiers.tensors(self.trained())
        # The largest types first, so that values are aligned in the file.
        return dict(sorted(tensors.items(), key=lambda named: -named[1].element_size()))

    def size(self) -> int:
        """Return the size of a checkpoint in bytes."""
        return sum(byte_size(tensor) for tensor in self.tensors().values())

    def save(self, path: Path) -> None:
        """Write a checkpoint, from which `load` resumes exactly. Collective.

        Tensors are written whole, so that any number of processes can resume. They go through the
        main process's memory one at a time.
        """
        tensors = self.tensors()
        whole_tensors = full_tensors(tensors)
        try:
            if is_main_process():
                write_tensors(path, tensors, whole_tensors, self._metadata())
        finally:
            # The other processes gather to the end, and so does this one if writing fails.
            for _ in whole_tensors:
                pass
            barrier()

    def _metadata(self) -> dict[str, str]:
        metadata = {"step": str(self.step), "epochs": str(self.epochs_done)}
        if self._is_edited:
            metadata[_EDITED] = "yes"
        if self.passes.scale is not None:
            metadata |= self.passes.scale.metadata()
        return metadata | {"state": json.dumps(dict(self.state))}

    @deferred_imports()
    def load(self, path: Path) -> None:
        """Resume from a checkpoint of `save`."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            with torch.no_grad():
                for name, weight in self.trained().items():
                    weight.copy_(local_shard(file.get_tensor(f"model.{name}"), weight))
            for i, optimizer in enumerate(self.optimizers):
                prefix = f"optimizer.{i}."
                in_state = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
                load_state(optimizer, in_state, partial(_whole, file, prefix))
            if self.modifiers is not None:
                in_memory = [name for name in names if name.startswith("modifier.")]
                self.modifiers.load(self._trained_model, in_memory, partial(_whole, file, ""))
            metadata = file.metadata()
        self.step = int(metadata["step"])
        self.state = json.loads(metadata["state"])
        self._is_edited = _EDITED in metadata
        if self.passes.scale is not None:
            self.passes.scale.load(metadata)

    @contextmanager
    @torch.no_grad()
    def evaluation_model(self, *, exact: bool = True) -> Generator[Any, None, None]:
        """Lend the model in evaluation mode; the trained weights are restored at the end.

        Its weights may differ from the trained ones. A modifier may average them, for example, and
        a method may scale its update, to start + `update_scale` · (trained − start).

        Args:
            exact: Use the weights as stored. If False, sharded layers have the weights that they
                are gathered in, which are of 16 bits if products are.
        """
        model = self._trained_model.module.eval()
        scale = self.objective.method.update_scale()
        weights = self._trained_model.weights
        evaluated = self.modifiers.evaluated(weights) if self.modifiers else weights
        is_from_modifier = evaluated is not weights
        changed = self.trained() if is_from_modifier else self._start
        stored = {name: p.clone() for name, p in self.trained().items() if name in changed}
        if is_from_modifier:
            weights.set_(evaluated)
        for name, parameter in self.trained().items():
            if name in self._start:
                start = self._start[name]
                parameter.copy_(start + scale * (parameter - start))
        try:
            if self._dropout is not None:
                # An attack trains this model as it trains the retain model, which has dropout.
                self._dropout.put_back()
            with unsharded(model, exact=exact):
                yield model
        finally:
            if self._dropout is not None:
                self._dropout.remove()
            for name, parameter in self.trained().items():
                if name in stored:
                    parameter.copy_(stored[name])


def _summed(values_of_roles: Iterable[LossValues]) -> LossValues:
    """Add up losses over the roles."""
    by_term: dict[str, float] = {}
    reported: dict[str, float] = {}
    for values in values_of_roles:
        for name, value in values.terms.items():
            by_term[name] = by_term.get(name, 0) + value
        for name, value in values.reported.items():
            reported[name] = reported.get(name, 0) + value
    return LossValues(by_term, reported)


def _writes(weights: Gradients) -> list[int]:
    """Return how often each weight has been written in place, as autograd counts it."""
    return [
        tensor._version  # pyright: ignore[reportPrivateUsage]  # comparing values needs a copy
        for tensor in weights.tensors.values()
    ]


def _whole(file: Any, prefix: str, name: str) -> Tensor:
    """Read a tensor of a checkpoint."""
    tensor: Tensor = file.get_tensor(prefix + name)
    return tensor
