"""The one training loop, for fine-tuning and for unlearning.

All parts of a step (forget, retain, refusal) go through the model in one forward pass, and every
reduction divides by the counts of the whole optimiser step, so that a batch of 32 equals 4 × 8
accumulated and 2 processes × 16. The order of rows depends on seed and epoch alone.
"""

import json
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unlearnbench.api.method import PARTS, LossBatch, Method, Needs, Part, Terms
from unlearnbench.api.modifier import Gradients, Modifier, OptimizerKind, RunStep
from unlearnbench.api.retain_terms import retain_nll
from unlearnbench.base.distributed import all_gather, barrier, is_main_process
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.fsdp import (
    as_shard,
    full_tensor,
    full_tensors,
    is_sharded,
    local_part,
    local_shard,
    shard,
    unsharded,
)
from unlearnbench.base.out_of_memory import OomRetry, optimizer_oom
from unlearnbench.base.tensor_file import byte_size, write_tensors
from unlearnbench.config.precision import FLOAT16_IS_NOT_TRAINED
from unlearnbench.config.unit import Unit
from unlearnbench.models.dropout import ModelDropout
from unlearnbench.models.epoch_order import Item, TrainingRows
from unlearnbench.models.towers import freeze_unreached
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.loss_scale import LossScale
from unlearnbench.training.micro_batches import Budget, MicroBatches, StepContext, StepRows, Sums
from unlearnbench.training.modified_step import Modifiers
from unlearnbench.training.objective import Objective, called
from unlearnbench.training.optimizers import (
    PRODUCTS,
    TrainerSettings,
    check_gradients,
    load_state,
    make_optimizers,
    reseed,
    state_tensors,
)
from unlearnbench.training.reference_model import ReferenceParts
from unlearnbench.training.step_result import TOKENS, StepResult, not_finite

T = TypeVar("T")


_EDITED = "edited"
"""Key in a checkpoint if a modifier has changed weights after a step."""


class NonFiniteError(TrainingError):
    """The loss or the gradient is NaN or infinite: the model has collapsed."""


class FineTuning(Method):
    """Fine-tuning: mean negative log-likelihood of the answer tokens."""

    needs = Needs(parts=frozenset({"retain"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return retain_nll(batch)


class Trainer:
    """A model, an objective and an optimiser, advanced to the end of an epoch or to a step."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        rows: TrainingRows,
        optimisation: TrainerSettings,
        pad: int,
        references: ReferenceParts | None = None,
        sampler: Sampler | None = None,
        modifiers: Sequence[Modifier] = (),
        *,
        starts_at_reference: bool = False,
    ) -> None:
        """Prepare a training.

        Args:
            sampler: For an objective that needs samples.
            starts_at_reference: Whether `references` are predictions of `model` as it is now.
        """
        self.sampler = sampler
        self.modifiers = Modifiers(modifiers) if modifiers else None
        self.objective, self.rows, self.how = objective, rows, optimisation
        with called(objective.method, "start"):
            self.state: Mapping[str, float] = objective.method.start()
        self.accelerator = _accelerator(optimisation.precision)
        self.scale = LossScale() if optimisation.precision == "fp16" else None
        """Scale of the loss; None in precisions whose range is that of float32."""
        _freeze(model, objective.method)
        freeze_unreached(model)
        _check_float16(model, optimisation.precision)
        # Before the weights are sharded: it runs trials on the model.
        self.batches = MicroBatches(model, rows, objective.needs, pad, references or {})
        if optimisation.parallel == "fsdp" and self.accelerator.num_processes > 1:
            products = PRODUCTS.get(optimisation.precision)
            shard(model.to(self.accelerator.device), products=products)
        # Before the optimisers are made, which choose their kernels by the weights' device.
        self.model: Any = model if is_sharded(model) else _placed(model, self.accelerator)
        self._dropout = ModelDropout(model) if optimisation.removes_dropout else None
        if self._dropout is not None:
            self._dropout.remove()
        self._start = _copies(model) if objective.method.update_scale() != 1 else {}
        kinds = [modifier for modifier in modifiers if isinstance(modifier, OptimizerKind)]
        self.optimizers: list[Any] = [*make_optimizers(model, optimisation, *kinds)]
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.step, self._checked = 0, False
        self._drawn: dict[int, list[Item]] = {}
        """Items of the epochs that the current step has rows of, by the number of epochs before."""
        self._is_start = starts_at_reference and not self._changes_start(model)
        self._is_edited = False
        """Whether a modifier has changed weights after a step."""
        self.is_offset = False
        """Whether a modifier evaluates at other weights than those that are trained."""
        self.tokens: dict[str, float] = {}
        """Of a step: those read, and those of them that gradients went back through."""
        self.oom_retry = OomRetry(optimisation.micro_batch_size)
        self.budget: Budget | None = None
        """Budget of a micro-batch; None for the rows that `oom_retry` states, or all of a step."""
        primary = len(rows.primary(objective.needs))
        if primary == 0:
            raise TrainingError("nothing to train on: the set of rows is empty")
        self.schedule = optimisation.plan_steps(primary)

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
        """Return the items of a step; of two epochs, if the schedule carries rows over."""
        positions = self.schedule.positions(step)
        items: list[Item] = []
        for position in positions:
            past, index = divmod(position, self.schedule.rows)
            if past not in self._drawn:
                # Later steps need no earlier epochs than this step does.
                first = positions[0] // self.schedule.rows
                self._drawn = {p: drawn for p, drawn in self._drawn.items() if p >= first}
                needs, seed = self.objective.needs, self.how.seed
                self._drawn[past] = self.rows.items(needs, seed, past + 1)
            items.append(self._drawn[past][index])
        return items

    def _step(self, draws: Sequence[Item], epoch: int) -> StepResult:
        # Random numbers of a step, such as dropout's, are the same when a run is resumed.
        reseed(self.how.seed, self.step, self.accelerator.process_index)
        self.tokens = {}
        factor = self.schedule.factor(self.step)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        if self.modifiers is not None and self.step == 0:
            self.modifiers.begin(self)
        rows = self.retried(lambda: self.step_rows(draws), draws)
        if self.modifiers is None:
            terms, reported = self.retried(lambda: self.backward(rows), draws)
            norm = self._update(self.optimizers, epoch, terms)
        else:
            terms, reported, norm = self._modified(self.modifiers, rows, epoch)
        with called(self.objective.method, "advance"):
            self.state = self.objective.method.advance(self.state, reported, epoch)
        self.step += 1
        rate = self.how.learning_rate * factor
        loss, reported = sum(terms.values()), dict(reported) | self.tokens
        if self.scale is not None:
            self.scale.step_taken()
            reported["loss_scale"] = self.scale.value
            reported["overflows"] = float(self.scale.overflows)
        return StepResult(self.step, epoch, rate, loss, terms, norm, reported)

    def _modified(
        self, modifiers: Modifiers, rows: StepRows, epoch: int
    ) -> tuple[dict[str, float], dict[str, float], float]:
        """Take a step with modifiers; returns terms, reported values and the gradient's norm."""
        at, step = modifiers.step(self, rows), RunStep(self.step + 1, self.schedule.steps)
        with optimizer_oom(self.step + 1):
            gradients = modifiers.gradients(at, step)
        terms, reported = map(_summed, zip(*at.values.values(), strict=True))
        self._check_finite(gradients, epoch, terms)
        norms: list[float] = []
        reached = at.reached or {*self.trained()}  # without a backward pass nobody knows
        with modifiers.frozen(self):
            for i, gradient in enumerate(gradients):
                for name, weight in self.trained().items():
                    if name in reached:
                        weight.grad = as_shard(gradient.tensors[name].to(weight.dtype), weight)
                # One for each gradient, or all for one.
                part = self.optimizers if len(gradients) == 1 else self.optimizers[i : i + 1]
                norms.append(self._update(part, epoch, terms))
        self._edit(modifiers, step)
        return terms, reported | at.measured, math.hypot(*norms)

    def _edit(self, modifiers: Modifiers, step: RunStep) -> None:
        """Let modifiers change the weights after a step, whatever its learning rate was."""
        weights = self.weights
        writes = _writes(weights)
        for after, memory in modifiers.of("weights", "after"):
            after(weights, memory, step)
        if _writes(weights) != writes:
            self._is_edited = True

    def _update(self, optimizers: Sequence[Any], epoch: int, terms: Mapping[str, float]) -> float:
        """A step of the optimisers on the clipped gradient; returns its norm before that."""
        if not self._checked:
            check_gradients(self.model)
            self._checked = True
        norm, loss = float(self._clip()), sum(terms.values())
        self._refuse_not_finite(epoch, loss, norm)
        with optimizer_oom(self.step + 1):
            for optimizer in optimizers:
                optimizer.step()
        self.zero()
        return norm

    def _check_finite(
        self, gradients: Sequence[Gradients], epoch: int, terms: Mapping[str, float]
    ) -> None:
        """Check all gradients of a step before the first of several optimisers moves a weight."""
        if len(gradients) > 1:
            norm = math.hypot(*(gradient.norm() for gradient in gradients))
            self._refuse_not_finite(epoch, sum(terms.values()), norm)

    def _refuse_not_finite(self, epoch: int, loss: float, norm: float) -> None:
        """Raise NonFiniteError if the step's loss or gradient norm is NaN or infinite."""
        moved, in_float16 = self._has_moved(), self.scale is not None
        reason = not_finite(
            self.step + 1, epoch, loss, norm, has_moved=moved, in_float16=in_float16
        )
        if reason:
            raise NonFiniteError(reason)

    def _has_moved(self) -> bool:
        """Whether an optimiser has changed a weight before this step."""
        # A warm-up begins at a learning rate of 0, with which no weight moves.
        return any(self.schedule.factor(step) for step in range(self.step))

    def _is_at_start(self) -> bool:
        """Whether the model is the one that the references are predictions of."""
        has_changed = self.is_offset or self._is_edited or self._has_moved()
        return self._is_start and not has_changed

    def _changes_start(self, model: nn.Module) -> bool:
        """Whether the first step is not taken by the start model itself."""
        has_dropout = self._dropout is None and bool(ModelDropout(model))
        return has_dropout or (self.modifiers is not None and self.modifiers.edits_start)

    def zero(self) -> None:
        """Discard the gradient."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def free_states(self) -> None:
        """Discard the optimisers' states, where no step follows."""
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def _clip(self) -> Tensor:
        """Clip the gradient; returns its norm before that."""
        norm: Any = self.accelerator.clip_grad_norm_(self.parameters, self.how.max_grad_norm)
        return full_tensor(torch.as_tensor(norm))

    def step_rows(self, draws: Sequence[Item], *, by_role: bool = False) -> StepRows:
        """Return the rows of a step over `draws`, including samples.

        Args:
            by_role: Gradients of the roles are taken apart, even if the step itself needs none.
        """
        mine = draws[self.accelerator.process_index :: self.accelerator.num_processes]
        context = self.step_context(draws, mine)
        return StepRows(draws, mine, replace(context, separate=context.separate or by_role))

    def retried(self, work: Callable[[], T], draws: Sequence[Item]) -> T:
        """`work`, a pass over a step's rows, in smaller portions where memory runs out."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        share, alone = len(draws[rank::world]), world == 1
        return self.oom_retry.step(work, self.zero, number=self.step + 1, rows=share, alone=alone)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of a forward pass of this training."""
        if self.how.precision == "fp16":
            # accelerate refuses float16 on a CPU, and wraps optimisers with its scale elsewhere.
            return torch.autocast(self.accelerator.device.type, torch.float16)
        of_accelerate: AbstractContextManager[Any] = self.accelerator.autocast()
        return of_accelerate

    def backward(
        self,
        rows: StepRows,
        groups: Sequence[Collection[Part]] = (PARTS,),
        watch: Callable[[Terms, LossBatch], None] = lambda _terms, _batch: None,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Compute the gradient of a step; returns the loss by term, and the values it reports.

        There is no gradient before. Under `torch.no_grad` it only returns them. In float16 passes
        are repeated with a smaller scale until no gradient overflows.

        groups  parts with rows in a pass of their own; by default all in one
        watch   called with each micro-batch and its terms
        """
        values = self._passes(rows, groups, watch)
        while torch.is_grad_enabled() and self._overflows(values[0]):
            self.zero()
            # Dropout draws the same numbers when a run is resumed with the smaller scale.
            reseed(self.how.seed, self.step, self.accelerator.process_index)
            values = self._passes(rows, groups, watch)
        return values

    def _overflows(self, terms: Mapping[str, float]) -> bool:
        """Unscale the gradient; whether it has to be computed again with the scale now lowered.

        Collective: all processes come to the same answer.
        """
        if self.scale is None:
            return False
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        is_finite = all(all_gather(self.scale.unscale_(gradients)))
        # A loss that is itself infinite stays so with every scale.
        if is_finite or not math.isfinite(sum(terms.values())):
            return False
        return self.scale.lower()

    def _passes(
        self,
        rows: StepRows,
        groups: Sequence[Collection[Part]],
        watch: Callable[[Terms, LossBatch], None],
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Add the gradient of a step's rows, of the scaled loss; returns the loss by term."""
        world, step = self.accelerator.num_processes, rows.context
        chunks = [(chunk, 1) for chunk in self._micro_batches(rows.mine, step)]
        # All processes make the same number of passes, since sharded weights and reduced gradients
        # are collective; a process without rows left repeats one with weight 0.
        passes = max(all_gather(len(chunks)))
        chunks += [((rows.mine or rows.draws)[:1], 0)] * (passes - len(chunks))
        step = replace(step, at_start=self._is_at_start())
        step = replace(step, statistics=self._statistics(chunks, step))
        terms, reported = Sums(), Sums()
        parts, only = self.objective.needs.parts, self.objective.needs.statistics
        each = [(chunk, weight, group) for group in groups for chunk, weight in chunks]
        for i, (chunk, weight, group) in enumerate(each):
            last = i == len(each) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                with self.autocast():
                    batch = self.batches.batch(self.model, chunk, step, group=group)
                    result = self.objective.terms(batch)
                if gradients := torch.is_grad_enabled():
                    # Data parallelism averages over processes; this makes it a sum.
                    total = torch.stack([*result.values()]).sum() * world * weight
                    scaled = total if self.scale is None else total * self.scale.value
                    self.accelerator.backward(scaled)
            watch(result, batch)
            terms.add(result, weight)
            tokens = self.batches.tokens(chunk, step, parts & {*group})
            read = tokens + (self.batches.tokens(chunk, step, only) if group is groups[0] else 0)
            back = tokens if gradients else 0
            counts = torch.tensor([float(read), float(back)], device=self.accelerator.device)
            reported.add(batch.reported | dict(zip(TOKENS, counts, strict=True)), weight)
        values = reported.floats(self.accelerator)
        for name in TOKENS:
            self.tokens[name] = self.tokens.get(name, 0.0) + values.pop(name)
        return terms.floats(self.accelerator), values

    def _micro_batches(self, mine: Sequence[Item], step: StepContext) -> list[Sequence[Item]]:
        """`mine` in order, in as few parts as the limits on rows and tokens allow."""
        rows, tokens = self.oom_retry.rows or max(len(mine), 1), None
        if self.budget is not None and self.budget.tokens is None:
            rows = min(rows, self.budget.rows)
        elif self.budget is not None:
            tokens = self.budget.tokens
        parts: list[list[Item]] = []
        used = 0
        for draw in mine:
            size = self.batches.tokens([draw], step, self.objective.needs.parts) if tokens else 0
            if not parts or len(parts[-1]) == rows or (tokens and used + size > tokens):
                parts.append([])
                used = 0
            parts[-1].append(draw)
            used += size
        return [*parts]

    def step_context(self, draws: Sequence[Item], mine: Sequence[Item]) -> StepContext:
        """The context of a step over `draws`, with samples for `mine`, this process's share."""
        counts = self.batches.counts(draws)
        separate = self.modifiers is not None and self.modifiers.by_role
        step = StepContext(
            counts, self.state, progress=self.step / self.schedule.steps, separate=separate
        )
        if "sample" not in self.objective.needs.parts:
            return step
        if self.sampler is None:
            raise TrainingError("the method needs samples, and there is nothing to sample with")
        indices = [draw.index for draw in mine or draws[:1]]
        model = self.accelerator.unwrap_model(self.model)
        with self.autocast(), unsharded(model):
            samples = self.sampler(model, indices, self.step)
        tokens = sum(row.scored for sample in samples.values() for row in sample.rows)
        sums = Sums()
        sums.add({"tokens": torch.tensor(tokens, device=self.accelerator.device)}, int(bool(mine)))
        scored = int(sums.reduced(self.accelerator)["tokens"])
        counts["sample"] = (scored, len(draws) * self.sampler.how.count)
        return replace(step, samples=samples)

    @torch.no_grad()
    def _statistics(
        self, chunks: Sequence[tuple[Sequence[Item], int]], step: StepContext
    ) -> Mapping[str, Tensor]:
        """The method's statistics of the whole step, which its loss reads."""
        sums, only = Sums(), self.objective.needs.statistics
        if not only:
            return {}
        for chunk, weight in chunks:
            with self.autocast():
                batch = self.batches.batch(self.model, chunk, step, only)
                with called(self.objective.method, "statistics"):
                    statistics = self.objective.method.statistics(batch)
                sums.add(statistics, weight)
        return sums.reduced(self.accelerator)

    def tensors(self) -> dict[str, Tensor]:
        """The local tensors of a checkpoint by name: trained weights, optimiser state."""
        tensors: dict[str, Tensor] = {f"model.{name}": p for name, p in self.trained().items()}
        for i, optimizer in enumerate(self.optimizers):
            for name, value in state_tensors(optimizer).items():
                tensors[f"optimizer.{i}.{name}"] = value
        if self.modifiers is not None:
            tensors |= self.modifiers.tensors(self.trained())
        # The largest types first, so that values are aligned in the file.
        return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))

    def size(self) -> int:
        """Bytes of a checkpoint."""
        return sum(byte_size(tensor) for tensor in self.tensors().values())

    def save(self, path: Path) -> None:
        """Write weights and optimiser state, from which `load` resumes exactly; collective.

        Tensors are written whole, so that any number of processes can resume. They go through
        the main process's memory one at a time.
        """
        tensors = self.tensors()
        values = full_tensors(tensors)
        try:
            if is_main_process():
                write_tensors(path, tensors, values, self._metadata())
        finally:
            for _ in values:  # the other processes gather to the end, also if writing fails
                pass
            barrier()

    def _metadata(self) -> dict[str, str]:
        numbers = {"step": str(self.step), "epochs": str(self.epochs_done)}
        edited = {_EDITED: "yes"} if self._is_edited else {}
        scale = {} if self.scale is None else self.scale.metadata()
        return numbers | edited | scale | {"state": json.dumps(dict(self.state))}

    def load(self, path: Path) -> None:
        """Resume from a file of `save`."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            with torch.no_grad():
                for name, value in self.trained().items():
                    value.copy_(local_shard(file.get_tensor(f"model.{name}"), value))
            for i, optimizer in enumerate(self.optimizers):
                prefix = f"optimizer.{i}."
                part = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
                load_state(optimizer, part, partial(_whole, file, prefix))
            if self.modifiers is not None:
                kept = [name for name in names if name.startswith("modifier.")]
                self.modifiers.load(self, kept, partial(_whole, file, ""))
            metadata = file.metadata()
        self.step = int(metadata["step"])
        self.state = json.loads(metadata["state"])
        self._is_edited = _EDITED in metadata
        if self.scale is not None:
            self.scale.load(metadata)

    @contextmanager
    @torch.no_grad()
    def evaluation_model(self, *, exact: bool = True) -> Generator[Any, None, None]:
        """The model in evaluation mode, with weights start + `update_scale` · (trained − start).

        exact  with the stored weights; else with those that sharded layers are gathered in, of 16
               bits where products are
        """
        model = self.accelerator.unwrap_model(self.model).eval()
        scale, weights = self.objective.method.update_scale(), self.weights
        shown = self.modifiers.evaluated(weights) if self.modifiers else weights
        edited = self.trained() if shown is not weights else self._start
        trained = {name: p.clone() for name, p in self.trained().items() if name in edited}
        if shown is not weights:
            weights.set_(shown)
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
                if name in trained:
                    parameter.copy_(trained[name])

    def trained(self) -> dict[str, nn.Parameter]:
        """The trained weights by name."""
        model = self.accelerator.unwrap_model(self.model)
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    @property
    def weights(self) -> Gradients:
        """The trained weights, sharing their memory; this process's part of them."""
        return self.by_weight({n: local_part(p.detach()) for n, p in self.trained().items()})

    def by_weight(self, tensors: Mapping[str, Tensor]) -> Gradients:
        """This process's tensors by the weight that they belong to."""
        return Gradients(tensors, sharded=is_sharded(self.model))


def _summed(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the sum over the roles of each value, including values that only one role reports."""
    names = dict.fromkeys(name for of_role in values for name in of_role)
    return {name: sum(of_role.get(name, 0.0) for of_role in values) for name in names}


def _writes(weights: Gradients) -> list[int]:
    """Return how often each weight has been written in place, as autograd counts it."""
    return [
        tensor._version  # pyright: ignore[reportPrivateUsage]  # comparing values needs a copy
        for tensor in weights.tensors.values()
    ]


def _whole(file: Any, prefix: str, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(prefix + name)
    return tensor


def _placed(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model on this process's device, its gradients summed over processes where there are some.

    Not by `Accelerator.prepare`: that leaves an autocast around `forward`, so that a model trained
    in bf16 would be evaluated in another precision than those it is compared with; and it numbers
    devices by LOCAL_RANK, while a process that Ray started sees only its own, as number 0.
    """
    model = model.to(accelerator.device)
    return DistributedDataParallel(model) if accelerator.num_processes > 1 else model


def _freeze(model: nn.Module, method: Method) -> None:
    """Freeze the parameters that the method does not train."""
    config: Any = getattr(model, "config", None)
    layers = int(config.get_text_config().num_hidden_layers) if config is not None else 0
    for name, parameter in model.named_parameters():
        with called(method, "trains"):
            trained = method.trains(name, layers)
        if not trained:
            parameter.requires_grad_(False)


@torch.no_grad()
def _copies(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the start weights; of a LoRA pair the one that begins as zeros.

    The product of the pair is the update, so scaling one of the two scales it.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name: p.clone() for name, p in trained.items() if "lora_A" not in name}


def _check_float16(model: nn.Module, precision: str) -> None:
    """Raise TrainingError for float16 weights that are trained, or lie below ones that are.

    Gradients of adapters go through frozen weights, whose dtype they have on the way.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float16 and (parameter.requires_grad or precision != "fp16"):
            raise TrainingError(f"{name} is of float16: {FLOAT16_IS_NOT_TRAINED}")


def _accelerator(precision: str) -> Accelerator:
    # A worker may run several precisions, which accelerate's shared state would refuse.
    AcceleratorState._reset_state()  # pyright: ignore[reportPrivateUsage]  # no public name
    on_cpu = not torch.cuda.is_available()  # explicit: processes on CPUs are one run
    return Accelerator(mixed_precision="bf16" if precision == "bf16" else "no", cpu=on_cpu)
