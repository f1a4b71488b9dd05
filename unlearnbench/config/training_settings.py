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
from unlearnbench.config.step_schedule import Schedule, ScheduleName, make_schedule
from unlearnbench.config.unit import Unit

EIGHT_BIT = frozenset({"adamw-8bit", "paged-adamw-8bit"})
"""Optimisers from bitsandbytes. They cannot update sharded weights."""
ONE_PROCESS = (
    "bitsandbytes cannot update sharded weights; set optimizer: adamw, which shards its "
    "states, or one process for a run (resources.gpu: 1, or resources.processes: 1 on a CPU)"
)

MAX_LENGTH = 500
"""Default length of a training sequence in tokens, as in TOFU's trainer."""


def _if_weights_decay(place: Place) -> Any:
    is_set = place.value != place.default
    return place.value if is_set and place.section.get("weight_decay") else LEFT_OUT


IF_WEIGHTS_DECAY: Final = Rule("only if set, and weights decay", _if_weights_decay)
"""For the field that says which weights decay. It changes no number if no weight decays."""
OF_RUNS: Final = ALWAYS.of(*RUNS)
"""For fields by which attacks on start and retain models do not train."""


class TrainingSettings(Settings):
    """Training of each run. The defaults come from the CE-U paper, where it states them."""

    batch_size: Annotated[int, OF_RUNS] = Field(
        default=32, ge=1, description="number of forget rows in an optimiser step"
    )
    micro_batch_size: Annotated[int | None, OF_RUNS] = Field(
        default=None,
        ge=1,
        description="number of forget rows in a forward pass; default: all forget rows of a step",
    )
    optimizer: Annotated[OptimizerName, IF_SET.of(*RUNS)] = Field(
        default="adamw",
        description="optimiser; 8-bit: each state takes one byte; paged: states move to the "
        "host's memory if the GPU has too little",
    )
    weight_decay: Annotated[float, OF_RUNS] = Field(
        default=0.0, ge=0, description="decoupled weight decay, as in AdamW"
    )
    decay_norms_and_biases: Annotated[bool, IF_WEIGHTS_DECAY.of(*RUNS)] = Field(
        default=True,
        description="false: weight decay leaves out normalisation weights and all biases, as the "
        "trainers of transformers, TOFU and open-unlearning do",
    )
    schedule: Annotated[ScheduleName, OF_RUNS] = Field(
        default="constant",
        description="schedule of the learning rate; tofu: as in TOFU's trainer, a warm-up from 0 "
        "over one epoch and then a linear decrease to 0, without incomplete steps",
    )
    warmup_steps: Annotated[int, OF_RUNS] = Field(
        default=0, ge=0, description="number of steps of the warm-up (ignored for `schedule: tofu`)"
    )
    max_grad_norm: Annotated[float, OF_RUNS] = Field(
        default=1.0, gt=0, description="norm to which the gradient of a step is clipped"
    )
    max_length: Annotated[int, ALWAYS] = Field(
        default=MAX_LENGTH, ge=8, description="maximal number of tokens of a training sequence"
    )
    precision: Annotated[Precision, ALWAYS] = Field(
        default="fp32",
        description="precision of the training; bf16: products in bfloat16 (autocast); fp16: "
        "products in float16 with a scaled loss, for GPUs without bfloat16 (T4, "
        "V100)",
    )
    deterministic: Annotated[bool, IF_SET.of(*RUNS)] = Field(
        default=False,
        description="whether repeated runs are equal to the last bit on GPUs, too; the kernels "
        "for this are slower",
    )
    # Ids of runs have the effect of these two: `RunSpec.removes_dropout` and `leaves_out_label`.
    dropout: Annotated[Literal["auto", "keep", "remove"], ALWAYS.of(Id.STATED)] = Field(
        default="auto",
        description="dropout of the model's own configuration during training; auto: no dropout "
        "for losses that compare with the start model, because that model has none, "
        "and dropout for all other losses (adapters have `models.lora.dropout`)",
    )
    ignore_label: Annotated[bool, ALWAYS.of(Id.STATED)] = Field(
        default=True,
        description="true: a method that ignores the first answer tokens also ignores the label "
        "that the template puts before them (phi's `Answer:`); false: the tokens of "
        "the label count as the first tokens",
    )

    @property
    def of_attacks(self) -> dict[str, Any]:
        """The settings by which attacks also train, ready for JSON."""
        return identity_of(self, Id.ATTACK)


def schedule_of(training: TrainingSettings, rows: int, unit: Unit, budget: int) -> Schedule:
    """Return the optimiser steps of a training.

    Args:
        training: Settings of the training.
        rows: Number of forget rows.
        unit: Unit of the budget.
        budget: Length of the training in this unit.

    Raises:
        TrainingError: There would be no steps.
    """
    return make_schedule(
        training.schedule,
        rows,
        training.batch_size,
        epochs=budget if unit is Unit.EPOCH else None,
        most_steps=budget if unit is Unit.STEP else None,
        warmup_steps=training.warmup_steps,
    )
