"""Loss scaling, which keeps gradients of float16 products inside the range of float16.

Numbers below 6e-8 are 0 in float16, and most gradients of a mean over tokens are smaller. So the
loss is multiplied by a power of two before the backward pass, and the gradients are divided by it
before anything reads them: clipping, modifiers and optimisers see the gradients themselves.

The scale changes by the rule of `torch.amp.GradScaler`. It is halved if a gradient has overflowed,
and doubled after 2,000 steps without an overflow. There is one difference. GradScaler skips a step
that has overflowed. Here its gradient is computed again with the halved scale, because runs have
few steps and all methods are to take the same number of them. A power of two changes no digit of a
number in range, so a run has the same numbers as if it had begun with the smaller scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unlearnbench.base.fsdp import local_part

_KEY = "loss_scale"
"""Key in the metadata of a checkpoint."""


@dataclass
class LossScale:
    """The factor of the loss while gradients are computed.

    Attributes:
        value: The factor.
        steps_without_overflow: Steps since the factor has last changed.
        overflows: Number of the run's backward passes that were repeated.
    """

    value: float = 2.0**16
    steps_without_overflow: int = 0
    overflows: int = 0

    INTERVAL = 2000
    """Steps without an overflow after which the scale is doubled."""
    LEAST = 1.0
    """Smallest scale. If a gradient overflows without any scaling, a smaller scale is no remedy."""

    def lower(self) -> bool:
        """Halve the scale because a gradient has overflowed.

        Returns:
            False if the scale is the smallest one, and stays.
        """
        self.overflows += 1
        self.steps_without_overflow = 0
        if self.value <= self.LEAST:
            return False
        self.value /= 2
        return True

    def step_taken(self) -> None:
        """Count a step without an overflow, and double the scale after `INTERVAL` steps."""
        self.steps_without_overflow += 1
        if self.steps_without_overflow == self.INTERVAL:
            self.value *= 2
            self.steps_without_overflow = 0

    @torch.no_grad()
    def unscale_(self, gradients: Iterable[Tensor]) -> bool:
        """Divide gradients by the scale, in place.

        Returns:
            Whether this process's parts of the gradients are finite.
        """
        parts = [local_part(gradient) for gradient in gradients]
        if not parts:
            return True
        for part in parts:
            part.mul_(1 / self.value)
        norms = torch.stack([torch.linalg.vector_norm(part) for part in parts])
        return bool(norms.isfinite().all())

    def metadata(self) -> dict[str, str]:
        """Return the state as metadata of a checkpoint."""
        numbers = [self.value, self.steps_without_overflow, self.overflows]
        return {_KEY: json.dumps(numbers)}

    def load(self, metadata: Mapping[str, str]) -> None:
        """Restore the state from the metadata of a checkpoint."""
        value, steps, overflows = json.loads(metadata[_KEY])
        self.value = value
        self.steps_without_overflow = steps
        self.overflows = overflows
