"""How optimiser steps are made: learning rates, schedules, optimisers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from unlearnbench.errors import TrainingError

COSINE_FLOOR = 0.02
"""Share of the learning rate at which a cosine schedule ends."""


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
    parallel: Literal["fsdp", "ddp"] = "ddp"
    """Several processes hold parts of the weights, or copies."""


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
