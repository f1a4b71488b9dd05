"""The one training loop, for fine-tuning and for unlearning.

All parts of a step (forget, retain, refusal) go through the model in one forward pass, and every
reduction divides by the counts of the whole optimiser step, so that a batch of 32 equals 4 × 8
accumulated and 2 processes × 16. The order of rows depends on the seed and the epoch alone.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unlearnbench.data.draws import Draw, TrainingRows
from unlearnbench.errors import TrainingError
from unlearnbench.footprint import Budget
from unlearnbench.group import leads, of_all, wait
from unlearnbench.method import LossBatch, Method, Needs, Part
from unlearnbench.minibatch import Carried, Minibatches, Sums
from unlearnbench.optimisation import Optimisation, check_gradients, make_optimizers, reseed
from unlearnbench.optimizer_state import load_state, state_tensors
from unlearnbench.reference import LiveReference, ReferenceRows
from unlearnbench.retain import Objective, called
from unlearnbench.sampling import Sampler
from unlearnbench.sharding import gathered, is_sharded, parted, shard, whole, whole_tensors
from unlearnbench.shortage import Shortages, no_fewer_rows_help
from unlearnbench.step import StepResult, not_finite
from unlearnbench.tensor_file import Snapshot, byte_size, host_copy, write_tensors


class NonFiniteError(TrainingError):
    """The loss or the gradient is NaN or infinite: the model has collapsed."""


class Learn(Method):
    """Fine-tuning: mean negative log-likelihood of the answer tokens."""

    needs = Needs(parts=frozenset({"retain"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return batch.retain.mean_tokens(batch.retain.cross_entropy())


class Trainer:
    """A model, an objective and an optimiser, advanced an epoch at a time."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        rows: TrainingRows,
        optimisation: Optimisation,
        pad: int,
        references: Mapping[Part, ReferenceRows | LiveReference] | None = None,
        sampler: Sampler | None = None,
    ) -> None:
        """`sampler`: for an objective that needs samples."""
        self.sampler = sampler
        self.objective, self.rows, self.how = objective, rows, optimisation
        with called(objective.method, "start"):
            self.state: Mapping[str, float] = objective.method.start()
        self.accelerator = _accelerator(optimisation.precision)
        _freeze(model, objective.method)
        # It tries the model out, which has to be whole for that.
        with whole(model, exact=True):
            self.batches = Minibatches(model, rows, objective.needs, pad, references or {})
        several = self.accelerator.num_processes > 1
        if optimisation.parallel == "fsdp" and several and not is_sharded(model):
            mixed = self.accelerator.mixed_precision == "bf16"
            shard(model.to(self.accelerator.device), mixed=mixed)
        # Before the optimisers are made, which choose their kernels by the weights' device.
        self.model: Any = model if is_sharded(model) else _placed(model, self.accelerator)
        self._start = _copies(model) if objective.method.update_scale() != 1 else {}
        self.optimizers: list[Any] = [*make_optimizers(model, optimisation)]
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.step, self._checked = 0, False
        self.shortages = Shortages(optimisation.micro_batch_size)
        self.budget: Budget | None = None
        """Of a micro-batch; None for the rows that `shortages` states, or all of a step."""
        primary = len(rows.primary(objective.needs))
        if primary == 0:
            raise TrainingError("nothing to train on: the set of rows is empty")
        self.schedule = optimisation.plan_steps(primary)

    def epoch(self, number: int) -> Iterator[StepResult]:
        """Train epoch `number` (from 1), or what is left of it; yields after each step."""
        # Of more than one epoch where the schedule carries rows over from one to the next.
        draws: dict[int, list[Draw]] = {}
        self.model.train()
        for step in range(self.step, self.schedule.end(number)):
            chosen: list[Draw] = []
            for position in self.schedule.drawn(step):
                past, index = divmod(position, self.schedule.rows)
                if past not in draws:
                    draws[past] = self.rows.draws(self.objective.needs, self.how.seed, past + 1)
                chosen.append(draws[past][index])
            yield self._step(chosen, number)

    def _step(self, draws: Sequence[Draw], epoch: int) -> StepResult:
        # What is random in a step, such as dropout, is the same wherever a run is taken up.
        reseed(self.how.seed, self.step, self.accelerator.process_index)
        factor = self.schedule.factor(self.step)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        terms, reported = self.shortages.step(
            lambda: self._backward(draws, epoch),
            self._zero,
            number=self.step + 1,
            rows=len(draws[rank::world]),
            alone=world == 1,
        )
        if not self._checked:
            check_gradients(self.model)
            self._checked = True
        norm, loss = float(self._clip()), sum(terms.values())
        if what := not_finite(self.step + 1, epoch, loss, norm):
            raise NonFiniteError(what)
        with no_fewer_rows_help(self.step + 1):
            for optimizer in self.optimizers:
                optimizer.step()
        self._zero()
        self.step += 1
        rate = self.how.learning_rate * factor
        return StepResult(self.step, epoch, rate, loss, terms, norm, reported)

    def _zero(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _clip(self) -> Tensor:
        """Clip the gradient; returns its norm before that."""
        norm: Any = self.accelerator.clip_grad_norm_(self.parameters, self.how.max_grad_norm)
        return gathered(torch.as_tensor(norm))

    def _backward(
        self, draws: Sequence[Draw], epoch: int
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Compute the gradient of a step; returns the loss by term, and what the loss reports."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        mine = draws[rank::world]
        step = self.carried(draws, mine)
        chunks = [(chunk, 1) for chunk in self._micro_batches(mine, step)]
        # All processes make as many passes, which each takes part in where weights are sharded
        # or gradients reduced; one that has no rows left does so with weight 0.
        passes = max(of_all(len(chunks)))
        chunks += [((mine or draws)[:1], 0)] * (passes - len(chunks))
        step = replace(step, statistics=self._statistics(chunks, step))
        terms, reported = Sums(), Sums()
        for i, (chunk, weight) in enumerate(chunks):
            last = i == len(chunks) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    batch = self.batches.batch(self.model, chunk, step)
                    found = self.objective.terms(batch)
                # Data parallelism averages over processes; the sum is wanted.
                self.accelerator.backward(torch.stack([*found.values()]).sum() * world * weight)
            terms.add(found, weight)
            reported.add(batch.reported, weight)
        told = reported.floats(self.accelerator)
        with called(self.objective.method, "advance"):
            self.state = self.objective.method.advance(self.state, told, epoch)
        return terms.floats(self.accelerator), told

    def _micro_batches(self, mine: Sequence[Draw], step: Carried) -> list[Sequence[Draw]]:
        """`mine` in order, in as few parts as rows and tokens at a time allow."""
        rows, tokens = self.shortages.rows or max(len(mine), 1), None
        if self.budget is not None and self.budget.tokens is None:
            rows = min(rows, self.budget.rows)
        elif self.budget is not None:
            tokens = self.budget.tokens
        parts: list[list[Draw]] = []
        used = 0
        for draw in mine:
            size = self.batches.tokens(draw, step) if tokens else 0
            if not parts or len(parts[-1]) == rows or (tokens and used + size > tokens):
                parts.append([])
                used = 0
            parts[-1].append(draw)
            used += size
        return [*parts]

    def carried(self, draws: Sequence[Draw], mine: Sequence[Draw]) -> Carried:
        """What a step over `draws` needs to know, with samples for `mine`, this process's part."""
        counts = self.batches.counts(draws)
        if "sample" not in self.objective.needs.parts:
            return Carried(counts, self.state)
        if self.sampler is None:
            raise TrainingError("the method needs samples, and there is nothing to sample with")
        asked = [draw.index for draw in mine or draws[:1]]
        model = self.accelerator.unwrap_model(self.model)
        with self.accelerator.autocast(), whole(model):
            samples = self.sampler(model, asked, self.step)
        tokens = sum(row.scored for found in samples.values() for row in found.rows)
        sums = Sums()
        sums.add({"tokens": torch.tensor(tokens, device=self.accelerator.device)}, int(bool(mine)))
        scored = int(sums.reduced(self.accelerator)["tokens"])
        counts["sample"] = (scored, len(draws) * self.sampler.how.count)
        return Carried(counts, self.state, samples=samples)

    @torch.no_grad()
    def _statistics(
        self, chunks: Sequence[tuple[Sequence[Draw], int]], step: Carried
    ) -> Mapping[str, Tensor]:
        """What the method wants to know of the whole step before its loss."""
        sums, only = Sums(), self.objective.needs.statistics
        if not only:
            return {}
        for chunk, weight in chunks:
            with self.accelerator.autocast():
                batch = self.batches.batch(self.model, chunk, step, only)
                with called(self.objective.method, "statistics"):
                    found = self.objective.method.statistics(batch)
                sums.add(found, weight)
        return sums.reduced(self.accelerator)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds, by name, as it lies here: trained weights, optimiser state."""
        found: dict[str, Tensor] = {f"model.{name}": p for name, p in self._trained().items()}
        for i, optimizer in enumerate(self.optimizers):
            for name, value in state_tensors(optimizer).items():
                found[f"optimizer.{i}.{name}"] = value
        # The largest types first, so that each value lies in the file where its type may begin.
        return dict(sorted(found.items(), key=lambda item: -item[1].element_size()))

    def size(self) -> int:
        """Bytes of a checkpoint."""
        return sum(byte_size(tensor) for tensor in self.tensors().values())

    def save(self, path: Path) -> str:
        """Write weights and optimiser state, from which `load` goes on exactly; collective.

        What is written is whole, so that any number of processes can go on from it. It goes
        through host memory a tensor at a time. Returns its SHA-256 in the leader.
        """
        tensors = self.tensors()
        whole = whole_tensors(tensors)
        try:
            digest = write_tensors(path, tensors, whole, self._metadata()) if leads() else ""
        finally:
            for _ in whole:  # the other processes gather to the end, whatever the disk does
                pass
            wait()
        return digest

    def snapshot(self) -> Snapshot:
        """A copy in the leader's host memory, to be written while training goes on; collective."""
        whole = whole_tensors(self.tensors())
        copies = {name: host_copy(tensor) for name, tensor in whole}
        if self.accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        return Snapshot(copies, self._metadata())

    def _metadata(self) -> dict[str, str]:
        return {"step": str(self.step), "state": json.dumps(dict(self.state))}

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            with torch.no_grad():
                for name, value in self._trained().items():
                    value.copy_(parted(file.get_tensor(f"model.{name}"), value))
            for i, optimizer in enumerate(self.optimizers):
                prefix = f"optimizer.{i}."
                own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
                load_state(optimizer, own, partial(_whole, file, prefix))
            carried = file.metadata()
        self.step, self.state = int(carried["step"]), json.loads(carried["state"])

    @contextmanager
    @torch.no_grad()
    def evaluated(self, *, exact: bool = True) -> Generator[Any, None, None]:
        """The model to evaluate, in evaluation mode: start + `update_scale` · what was learned.

        exact  with weights as they are stored; else in bf16 where shared layers are trained so
        """
        model = self.accelerator.unwrap_model(self.model).eval()
        scale = self.objective.method.update_scale()
        trained = {name: p.clone() for name, p in self._trained().items() if name in self._start}
        for name, parameter in self._trained().items():
            if name in self._start:
                start = self._start[name]
                parameter.copy_(start + scale * (parameter - start))
        try:
            with whole(model, exact=exact):
                yield model
        finally:
            for name, parameter in self._trained().items():
                if name in trained:
                    parameter.copy_(trained[name])

    def _trained(self) -> dict[str, nn.Parameter]:
        model = self.accelerator.unwrap_model(self.model)
        return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _whole(file: Any, prefix: str, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(prefix + name)
    return tensor


def _placed(model: nn.Module, accelerator: Accelerator) -> nn.Module:
    """The model on this process's device, its gradients summed over processes where there are some.

    Not by `Accelerator.prepare`: that leaves an autocast around `forward`, so that a model trained
    in bf16 would be evaluated in another precision than those it is compared with; and it numbers
    devices by LOCAL_RANK, where a process that Ray started sees its own alone, as number 0.
    """
    model = model.to(accelerator.device)
    return DistributedDataParallel(model) if accelerator.num_processes > 1 else model


def _freeze(model: nn.Module, method: Method) -> None:
    """Leave out of training what the method does not train."""
    config: Any = getattr(model, "config", None)
    layers = int(config.get_text_config().num_hidden_layers) if config is not None else 0
    for name, parameter in model.named_parameters():
        with called(method, "trains"):
            trained = method.trains(name, layers)
        if not trained:
            parameter.requires_grad_(False)


@torch.no_grad()
def _copies(model: nn.Module) -> dict[str, Tensor]:
    """The weights that stand for the start; of a LoRA pair the one that begins as zeros.

    The product of the pair is the update, so that scaling one of the two scales it.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {name: p.clone() for name, p in trained.items() if "lora_A" not in name}


def _accelerator(precision: str) -> Accelerator:
    # A worker is reused for runs of another precision, which the shared state would refuse.
    AcceleratorState._reset_state()  # pyright: ignore[reportPrivateUsage]  # no public name
    on_cpu = not torch.cuda.is_available()  # said, so that several processes on CPUs are one run
    return Accelerator(mixed_precision="bf16" if precision == "bf16" else "no", cpu=on_cpu)
