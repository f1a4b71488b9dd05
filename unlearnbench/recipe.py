"""How the optimiser steps of a run are made, as a configuration states it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from unlearnbench.frozen import Settings
from unlearnbench.schedule import ScheduleName

EIGHT_BIT = frozenset({"adamw-8bit", "paged-adamw-8bit"})
"""Optimisers of bitsandbytes, which knows of no weights that several processes share."""
ONE_PROCESS = (
    "bitsandbytes cannot update sharded weights; set optimizer: adamw, which shards its "
    "states, or one process for a run (resources.gpu: 1, or resources.processes: 1 on a CPU)"
)


class TrainingSettings(Settings):
    """One optimisation; the defaults are the CE-U paper's where it states them."""

    batch_size: int = Field(default=32, ge=1, description="forget rows of an optimiser step")
    micro_batch_size: int | None = Field(
        default=None,
        ge=1,
        description="forget rows that go through the model at once; default: all",
    )
    optimizer: Literal["adamw", "adamw-8bit", "paged-adamw-8bit"] = Field(
        default="adamw",
        description="8-bit: states in a byte each; paged: in the host's memory where short",
    )
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: ScheduleName = Field(
        default="constant",
        description="tofu: as TOFU's trainer, warm-up from 0 over an epoch, then linear to 0, "
        "incomplete steps dropped",
    )
    warmup_steps: int = Field(default=0, ge=0, description="not of tofu, which has its own")
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_length: int = Field(default=500, ge=8, description="tokens of a training sequence")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast")
    deterministic: bool = Field(
        default=False,
        description="a run repeats to the last bit on GPUs too, with slower kernels there",
    )
    ignore_label: bool = Field(
        default=True,
        description="what leaves out the first answer tokens leaves out the template's label in "
        "front of them as well (phi's `Answer:`); false: the label's tokens count as the first",
    )

    @model_validator(mode="after")
    def _has_one_warmup(self) -> Self:
        if self.schedule == "tofu" and self.warmup_steps:
            raise ValueError(
                f"schedule tofu warms up over the first epoch, so warmup_steps must be left out, "
                f"got {self.warmup_steps}"
            )
        return self
