"""The result of an optimiser step. It imports no torch, for commands that only read records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

TOKENS = ("tokens_read", "tokens_back")
"""Reported of each step: tokens that the model read, and those that gradients went back through."""


@dataclass(frozen=True)
class StepResult:
    """One optimiser step."""

    step: int
    epoch: int
    learning_rate: float
    loss: float
    terms: Mapping[str, float]
    """The loss by term (`forget`, `retain`); they sum to `loss`."""
    grad_norm: float
    """Before clipping."""
    reported: Mapping[str, float] = field(default_factory=dict[str, float])
    """Other values that the loss reported: `LossBatch.report`."""


def not_finite(step: int, epoch: int, loss: float, grad_norm: float) -> str:
    """Why a run ends at a step, if its loss or gradient is NaN or infinite; else an empty text.

    The first line is the fact, the second the remedy. `step` counts from 1.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return ""
    fact = f"{_word(loss)} loss at step {step} (epoch {epoch})"
    if math.isfinite(loss):
        fact = f"{_word(grad_norm)} gradient at step {step} (epoch {epoch}), of a loss of {loss:g}"
    check = "`unlearnbench methods check NAME` tests a method's loss"
    if step == 1:
        return (
            f"{fact}\nNo weight had changed by then, so the learning rate is not the cause: it is "
            f"a fault of the loss or of the start model; {check}"
        )
    return f"{fact}\nA lower learning rate often avoids this; where it does not, {check}"


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"
