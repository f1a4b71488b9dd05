"""The unit in which a sweep counts the budget of its runs and the moments of their evaluations.

A budget is stated in epochs (`epochs: 5`) or in optimiser steps (`steps: 125`). Records, tables and
the state of a run have one whole number for such a moment, in the field `epoch`. Its unit is a
property of the configuration, and everything that names a moment to a person takes the word from
here: `epoch 3`, `step 75`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Unit(StrEnum):
    """What a moment of a run is counted in."""

    EPOCH = "epoch"
    """Passes over the forget rows."""
    STEP = "step"
    """Optimiser steps."""

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Unit:
        """Return the unit of a run, or of a sweep, from its settings as they are stored."""
        return cls.STEP if spec.get("steps") is not None else cls.EPOCH

    @property
    def plural(self) -> str:
        """`epochs`, the key of a configuration that states the budget."""
        return f"{self}s"

    @property
    def heading(self) -> str:
        """`Epoch`, the heading of a column."""
        return self.capitalize()

    def at(self, moment: object) -> str:
        """Name a moment: `epoch 3`."""
        return f"{self} {moment}"

    def counted(self, number: int) -> str:
        """Name a number of epochs or steps: `1 epoch`, `125 steps`."""
        return f"{number} {self if number == 1 else self.plural}"


def budget_of_spec(spec: Mapping[str, Any]) -> int:
    """Return the length of a run, in its own unit, from its specification as it is stored."""
    steps = spec.get("steps")
    return int(spec["epochs"] if steps is None else steps)
