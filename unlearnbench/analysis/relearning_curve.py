"""Curves of a memorisation number over the steps of an attack that trains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unlearnbench.analysis.settings import mean_of
from unlearnbench.stats.relearning import (
    area_between,
    steps_to_half,
    symmetric_relearning_robustness,
)
from unlearnbench.stats.t_interval import Interval, interval_of_all


@dataclass(frozen=True)
class RelearningCurve:
    """A setting's number over the steps of an attack that is evaluated after several of them."""

    attack: str
    steps: tuple[int, ...]
    """From 0, before the attack."""
    seeds: tuple[tuple[float | None, ...], ...]
    """A curve for each seed, with a number for each step."""
    retain: tuple[float | None, ...]
    """Curve of the retain model under the same attack."""
    start: tuple[float | None, ...]
    """Curve of the start model under the same attack."""
    sign: float = 1.0
    """−1 if a smaller number means that more is memorised."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """Least and largest possible number."""

    @property
    def mean(self) -> tuple[float | None, ...]:
        """Means over seeds."""
        return tuple(mean_of(values) for values in zip(*self.seeds, strict=True))

    @property
    def intervals(self) -> tuple[Interval | None, ...]:
        """Intervals over seeds, for each step."""
        by_step = zip(*self.seeds, strict=True)
        return tuple(interval_of_all(values, self.bounds) for values in by_step)

    @property
    def area(self) -> float | None:
        """Area between the curves of the setting and the retain model, see `area_between`."""
        model = self._oriented(self.mean)
        retain = self._oriented(self.retain)
        start = self._oriented(self.start)
        return area_between(self.steps, model, retain, start[0])

    @property
    def steps_to_half(self) -> float | None:
        """Steps to half of the start model's number; infinity if it is not reached."""
        model = self._oriented(self.mean)
        start = self._oriented(self.start)
        return steps_to_half(self.steps, model, start[0])

    @property
    def symmetric_robustness(self) -> float | None:
        """The symmetric form of open-unlearning's R at the last step."""
        model = self._oriented(self.mean)
        retain = self._oriented(self.retain)
        return symmetric_relearning_robustness(model[0], model[-1], retain[0], retain[-1])

    def _oriented(self, values: Sequence[float | None]) -> list[float | None]:
        """Turn numbers so that a larger one means that more is memorised."""
        return [None if value is None else self.sign * value for value in values]
