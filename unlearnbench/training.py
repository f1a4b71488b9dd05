"""The one training loop, for fine-tuning and for unlearning.

All parts of a step (forget, retain, refusal) go through the model in one forward pass, and every
reduction divides by the counts of the whole optimiser step, so that a batch of 32 equals 4 × 8
accumulated and 2 processes × 16. The order of rows depends on the seed and the epoch alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from unlearnbench.data.batching import collate
from unlearnbench.data.draws import Draw, TrainingRows
from unlearnbench.data.encoding import Row
from unlearnbench.errors import TrainingError
from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import PARTS, LossBatch, Method, Needs, Part, References
from unlearnbench.models.forward import predict
from unlearnbench.reference import ReferenceRows
from unlearnbench.retain import Objective
from unlearnbench.step import StepResult

COSINE_FLOOR = 0.02
"""Share of the learning rate at which a cosine schedule ends."""


class NonFiniteError(TrainingError):
    """The loss or the gradient is NaN or infinite: the model has collapsed."""


@dataclass(frozen=True)
class Optimisation:
    """Everything that decides the steps, apart from the loss and the rows."""

    epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    micro_batch_size: int | None = None
    optimizer: Literal["adamw", "muon"] = "adamw"
    embedding_learning_rate: float = 2e-3
    """Muon: AdamW's rate for what is no matrix of a block."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"


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
        references: Mapping[Part, ReferenceRows] | None = None,
    ) -> None:
        self.objective, self.rows, self.how, self.pad = objective, rows, optimisation, pad
        self.references = dict(references or {})
        self.accelerator = _accelerator(optimisation.precision)
        optimizers = [*make_optimizers(model, optimisation)]
        model, *self.optimizers = self.accelerator.prepare(model, *optimizers)
        self.model: Any = model
        self.rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.step = 0
        primary = len(rows.primary(objective.needs))
        if primary == 0:
            raise TrainingError("nothing to train on: the set of rows is empty")
        self.steps = optimisation.epochs * math.ceil(primary / optimisation.batch_size)

    def epoch(self, number: int) -> Iterator[StepResult]:
        """Train epoch `number` (from 1); yields after each optimiser step."""
        needs, size = self.objective.needs, self.how.batch_size
        draws = self.rows.draws(needs, self.how.seed, number)
        self.model.train()
        for begin in range(0, len(draws), size):
            yield self._step(draws[begin : begin + size], number)

    def _step(self, draws: Sequence[Draw], epoch: int) -> StepResult:
        factor = schedule(self.how.schedule, self.step, self.steps, self.how.warmup_steps)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        terms = self._backward(draws)
        norm = float(self._clip())
        loss = sum(terms.values())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteError(
                f"step {self.step + 1} (epoch {epoch}): loss {loss}, gradient norm {norm}; "
                "the run stops here. A lower learning rate avoids this"
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return StepResult(self.step, epoch, self.how.learning_rate * factor, loss, terms, norm)

    def _clip(self) -> Tensor:
        """Clip the gradient; returns its norm before that."""
        norm: Any = self.accelerator.clip_grad_norm_(self.parameters, self.how.max_grad_norm)
        return torch.as_tensor(norm)

    def _backward(self, draws: Sequence[Draw]) -> dict[str, float]:
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        counts = self.counts(draws)
        mine = draws[rank::world]
        size = self.how.micro_batch_size or len(draws)
        # A process without rows still takes part in the gradient's reduction, with weight 0.
        chunks = [mine[i : i + size] for i in range(0, len(mine), size)] or [draws[:1]]
        totals: dict[str, Tensor] = {}
        for i, chunk in enumerate(chunks):
            last = i == len(chunks) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                with self.accelerator.autocast():
                    terms = self.objective.terms(self.batch(chunk, counts))
                # Data parallelism averages over processes; the sum is wanted.
                weight = world if mine else 0
                self.accelerator.backward(torch.stack([*terms.values()]).sum() * weight)
            for name, value in terms.items():
                part = value.detach() * (1 if mine else 0)
                totals[name] = totals[name] + part if name in totals else part
        if world > 1:
            reduce: Any = self.accelerator.reduce
            totals = {k: reduce(v, reduction="sum") for k, v in totals.items()}
        return {name: float(value) for name, value in totals.items()}

    def counts(self, draws: Sequence[Draw]) -> dict[Part, tuple[int, int]]:
        """Scored tokens and rows of each part, over all of a step's items."""
        needs = self.objective.needs
        counts: dict[Part, tuple[int, int]] = {}
        for part in needs.parts:
            rows = self.rows.of(part, draws, needs)
            counts[part] = (sum(row.scored for row in rows), len(rows))
        return counts

    def batch(self, draws: Sequence[Draw], counts: Mapping[Part, tuple[int, int]]) -> LossBatch:
        """One forward pass over all parts; predictions are split by part afterwards."""
        needs, device = self.objective.needs, self.accelerator.device
        rows: dict[Part, list[Row]] = {}
        for part in PARTS:
            if part in needs.parts:
                rows[part] = self.rows.of(part, draws, needs)
        tokens = collate([row for part in rows.values() for row in part], self.pad, device)
        logits, _ = predict(
            self.model,
            tokens.predicts,
            input_ids=tokens.ids,
            attention_mask=tokens.attention,
            use_cache=False,
        )
        parts: dict[Part, Predictions] = {}
        begin = first_row = 0
        for part, part_rows in rows.items():
            end = begin + sum(row.scored for row in part_rows)
            span = slice(begin, end)
            parts[part] = Predictions(
                logits[span],
                tokens.labels[span],
                tokens.rows[span] - first_row,
                len(part_rows),
                *counts[part],
            )
            begin, first_row = end, first_row + len(part_rows)
        references: dict[Part, Reference] = {}
        for part, known in self.references.items():
            references[part] = known.batch(rows[part], device)
        return LossBatch(parts, References(references))

    def save(self, path: Path) -> None:
        """Write weights and optimiser state, from which `load` goes on exactly."""
        tensors: dict[str, Tensor] = {
            f"model.{name}": value for name, value in self._trained().items()
        }
        for i, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                for key, value in state.items():
                    tensors[f"optimizer.{i}.{index}.{key}"] = torch.as_tensor(value)
        contiguous = {name: t.detach().contiguous() for name, t in tensors.items()}
        save_file(contiguous, path, metadata={"step": str(self.step)})

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            with torch.no_grad():
                for name, value in self._trained().items():
                    value.copy_(file.get_tensor(f"model.{name}"))
            for i, optimizer in enumerate(self.optimizers):
                state: dict[int, dict[str, Tensor]] = {}
                for name in names:
                    if name.startswith(f"optimizer.{i}."):
                        _, _, index, key = name.split(".")
                        state.setdefault(int(index), {})[key] = file.get_tensor(name)
                optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
            self.step = int(file.metadata()["step"])

    def _trained(self) -> dict[str, nn.Parameter]:
        model = self.accelerator.unwrap_model(self.model)
        return {name: p for name, p in model.named_parameters() if p.requires_grad}


def schedule(kind: str, step: int, steps: int, warmup: int) -> float:
    """Factor of the learning rate at `step` (from 0) of `steps`; never 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = (step - warmup) / max(steps - warmup, 1)  # [0, 1)
    if kind == "linear":
        return 1 - done
    if kind == "cosine":
        return COSINE_FLOOR + (1 - COSINE_FLOOR) * 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


def _accelerator(precision: str) -> Accelerator:
    # A worker is reused for runs of another precision, which the shared state would refuse.
    AcceleratorState._reset_state()  # pyright: ignore[reportPrivateUsage]  # no public name
    return Accelerator(mixed_precision="bf16" if precision == "bf16" else "no")


def make_optimizers(model: nn.Module, how: Optimisation) -> Iterator[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise TrainingError("no weight of the model requires a gradient; nothing would change")
    if how.optimizer == "adamw":
        parameters = [p for _, p in trained]
        yield torch.optim.AdamW(parameters, how.learning_rate, weight_decay=how.weight_decay)
        return
    # Muon orthogonalises the update of a matrix; embeddings are tables, not maps, and stay out.
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for _, p in trained if p.ndim == 2 and id(p) not in tables]
    rest = [p for _, p in trained if p.ndim != 2 or id(p) in tables]
    yield torch.optim.Muon(
        matrices,
        lr=how.learning_rate,
        weight_decay=how.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )
    yield torch.optim.AdamW(rest, how.embedding_learning_rate, weight_decay=how.weight_decay)
