"""Settings of a run's optimiser steps."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from unlearnbench.api.edit import OptimizerName
from unlearnbench.api.identity import (
    ALWAYS,
    IF_SET,
    LEFT_OUT,
    RUNS,
    Id,
    Place,
    Rule,
    identity_of,
)
from unlearnbench.config.precision import Precision
from unlearnbench.config.section import Settings
from unlearnbench.config.step_schedule import ScheduleName

EIGHT_BIT = frozenset({"adamw-8bit", "paged-adamw-8bit"})
"""Optimisers of bitsandbytes, which cannot update sharded weights."""
ONE_PROCESS = (
    "bitsandbytes cannot update sharded weights; set optimizer: adamw, which shards its "
    "states, or one process for a run (resources.gpu: 1, or resources.processes: 1 on a CPU)"
)

MAX_LENGTH = 500
"""Default tokens of a training sequence, as TOFU trains."""


def _if_weights_decay(place: Place) -> Any:
    is_set = place.value != place.default
    return place.value if is_set and place.section.get("weight_decay") else LEFT_OUT


IF_WEIGHTS_DECAY: Final = Rule("only if set, and weights decay", _if_weights_decay)
"""Which weights decay changes no number if none does."""
OF_RUNS: Final = ALWAYS.of(*RUNS)
"""Attacks on start and retain models do not train by it."""


class TrainingSettings(Settings):
    """One optimisation; the defaults are the CE-U paper's where it states them."""

    batch_size: Annotated[int, OF_RUNS] = Field(
        default=32, ge=1, description="forget rows of an optimiser step"
    )
    micro_batch_size: Annotated[int | None, OF_RUNS] = Field(
        default=None,
        ge=1,
        description="forget rows of a forward pass; default: all of a step",
    )
    optimizer: Annotated[OptimizerName, IF_SET.of(*RUNS)] = Field(
        default="adamw",
        description="8-bit: one byte per state; paged: host memory where the GPU's is short",
    )
    weight_decay: Annotated[float, OF_RUNS] = Field(
        default=0.0, ge=0, description="decoupled, as AdamW's"
    )
    decay_norms_and_biases: Annotated[bool, IF_WEIGHTS_DECAY.of(*RUNS)] = Field(
        default=True,
        description="false: weight decay leaves out normalisation weights and all biases, as the "
        "trainers of transformers, TOFU and open-unlearning do",
    )
    schedule: Annotated[ScheduleName, OF_RUNS] = Field(
        default="constant",
        description="tofu: as TOFU's trainer, warm-up from 0 over an epoch, then linear to 0, "
        "incomplete steps dropped",
    )
    warmup_steps: Annotated[int, OF_RUNS] = Field(
        default=0, ge=0, description="not of tofu, which has its own"
    )
    max_grad_norm: Annotated[float, OF_RUNS] = Field(
        default=1.0, gt=0, description="norm that a step's gradient is clipped to"
    )
    max_length: Annotated[int, ALWAYS] = Field(
        default=MAX_LENGTH, ge=8, description="tokens of a training sequence"
    )
    precision: Annotated[Precision, ALWAYS] = Field(
        default="fp32",
        description="bf16: products in bfloat16 (autocast); fp16: in float16, with a scaled loss, "
        "for GPUs without bfloat16 (T4, V100)",
    )
    deterministic: Annotated[bool, IF_SET.of(*RUNS)] = Field(
        default=False,
        description="bit-identical repeats on GPUs too, with slower kernels there",
    )
    # Ids of runs have the effect of these two: `RunSpec.removes_dropout` and `leaves_out_label`.
    dropout: Annotated[Literal["auto", "keep", "remove"], ALWAYS.of(Id.STATED)] = Field(
        default="auto",
        description="dropout of the model's own configuration while runs train; auto: removed for "
        "losses that compare with the start model, because that has none, and kept for all others "
        "(adapters have `models.lora.dropout`)",
    )
    ignore_label: Annotated[bool, ALWAYS.of(Id.STATED)] = Field(
        default=True,
        description="a method that ignores the first answer tokens also ignores the template's "
        "label in front of them (phi's `Answer:`); false: the label's tokens count as the first",
    )

    @property
    def of_attacks(self) -> dict[str, Any]:
        """The settings of a sweep by which attacks train, too."""
        return identity_of(self, Id.ATTACK)
