"""The result of an optimiser step. It imports no torch, for commands that only read records."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from unlearnbench.config.unit import Unit

TOKENS = ("tokens_read", "tokens_back")
"""Names of values that every step reports.

They are the number of tokens that the model read, and the number of tokens with a backward pass.
"""


@dataclass(frozen=True)
class StepResult:
    """One optimiser step.

    Attributes:
        step: Its number, from 1.
        epoch: Number of its epoch, from 1.
        learning_rate: Learning rate of the step.
        loss: The loss.
        terms: The loss by term (`forget`, `retain`). The sum of the terms is the loss.
        grad_norm: Norm of the gradient before clipping.
        reported: Other values that the loss reported, see `LossBatch.report`.
    """

    step: int
    epoch: int
    learning_rate: float
    loss: float
    terms: Mapping[str, float]
    grad_norm: float
    reported: Mapping[str, float] = field(default_factory=dict[str, float])

    def moment(self, unit: Unit) -> int:
        """Return the number of the epoch or of the step, depending on the unit of the run."""
        return self.epoch if unit is Unit.EPOCH else self.step


def not_finite(
    step: int,
    epoch: int,
    loss: float,
    grad_norm: float,
    *,
    has_moved: bool,
    in_float16: bool = False,
) -> str:
    """Explain why a run ends at a step, if its loss or gradient is NaN or infinite.

    Args:
        step: The optimiser step, from 1.
        epoch: The epoch, from 1.
        loss: Loss of the step.
        grad_norm: Norm of the gradient before clipping.
        has_moved: Whether an optimiser has changed a weight before this step.
        in_float16: Whether products are in float16, which has no number above 65,504.

    Returns:
        The fact in the first line, and the remedy in the second. Empty if both numbers are finite.
    """
    if math.isfinite(loss) and math.isfinite(grad_norm):
        return ""
    if math.isfinite(loss):
        fact = f"{_word(grad_norm)} gradient at step {step} (epoch {epoch}), of a loss of {loss:g}"
    else:
        fact = f"{_word(loss)} loss at step {step} (epoch {epoch})"
    check = "`unlearnbench methods check NAME` tests a method's loss"
    if in_float16:
        return (
            f"{fact}\nfloat16 has no numbers above 65,504, which activations of some models and "
            "gradients of some losses exceed: set training.precision to fp32, or to bf16 if the "
            "GPU has it. If that run fails, too, a lower learning rate often avoids it"
        )
    if not has_moved:
        return (
            f"{fact}\nNo optimiser step had changed a weight by then, so the learning rate is not "
            f"the cause: it is a fault of the loss, of the start model or of a modifier; {check}"
        )
    return f"{fact}\nA lower learning rate often avoids this; where it does not, {check}"


def _word(value: float) -> str:
    """Return the word for a number that is not finite."""
    return "NaN" if math.isnan(value) else "infinite"
