"""Settings of a run's optimiser steps."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from unlearnbench.api.edit import OptimizerName
from unlearnbench.config.section import IF_SET, NEVER, Settings
from unlearnbench.config.step_schedule import ScheduleName

EIGHT_BIT = frozenset({"adamw-8bit", "paged-adamw-8bit"})
"""Optimisers of bitsandbytes, which cannot update sharded weights."""
ONE_PROCESS = (
    "bitsandbytes cannot update sharded weights; set optimizer: adamw, which shards its "
    "states, or one process for a run (resources.gpu: 1, or resources.processes: 1 on a CPU)"
)

MAX_LENGTH = 500
"""Default tokens of a training sequence, as TOFU trains."""


def decays_by_kind(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out which weights decay if none does, because no number depends on it."""
    if not fields.get("weight_decay"):
        fields.pop("decay_norms_and_biases", None)
    return fields


class TrainingSettings(Settings):
    """One optimisation; the defaults are the CE-U paper's where it states them."""

    batch_size: int = Field(default=32, ge=1, description="forget rows of an optimiser step")
    micro_batch_size: int | None = Field(
        default=None,
        ge=1,
        description="forget rows of a forward pass; default: all of a step",
    )
    optimizer: Annotated[OptimizerName, IF_SET] = Field(
        default="adamw",
        description="8-bit: one byte per state; paged: host memory where the GPU's is short",
    )
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled, as AdamW's")
    decay_norms_and_biases: Annotated[bool, IF_SET] = Field(
        default=True,
        description="false: weight decay leaves out normalisation weights and all biases, as the "
        "trainers of transformers, TOFU and open-unlearning do",
    )
    schedule: ScheduleName = Field(
        default="constant",
        description="tofu: as TOFU's trainer, warm-up from 0 over an epoch, then linear to 0, "
        "incomplete steps dropped",
    )
    warmup_steps: int = Field(default=0, ge=0, description="not of tofu, which has its own")
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="norm that a step's gradient is clipped to"
    )
    max_length: int = Field(default=MAX_LENGTH, ge=8, description="tokens of a training sequence")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="bf16: autocast")
    deterministic: Annotated[bool, IF_SET] = Field(
        default=False,
        description="bit-identical repeats on GPUs too, with slower kernels there",
    )
    dropout: Annotated[Literal["auto", "keep", "remove"], NEVER] = Field(
        default="auto",
        description="dropout of the model's own configuration while runs train; auto: removed for "
        "losses that compare with the start model, because that has none, and kept for all others "
        "(adapters have `models.lora.dropout`)",
    )
    ignore_label: Annotated[bool, NEVER] = Field(
        default=True,
        description="a method that ignores the first answer tokens also ignores the template's "
        "label in front of them (phi's `Answer:`); false: the label's tokens count as the first",
    )

    def identity_fields(self, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the fields that ids are made from; see `decays_by_kind`."""
        return decays_by_kind(super().identity_fields(values))

    @property
    def of_attacks(self) -> dict[str, Any]:
        """Those of a sweep by which attacks train, too."""
        return {"max_length": self.max_length, "precision": self.precision}
