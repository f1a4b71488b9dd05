"""A range of values, from which a search draws the settings of a method or of an attacker."""

from __future__ import annotations

import math
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Number = int | float


class Range(BaseModel):
    """Values of one axis of a search, both ends included: `{low: 1e-6, high: 1e-4, log: true}`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # The docstring is a part of the JSON schema. For those who read the code: a *share* is a place
    # in the range, from 0 at the low end to 1 at the high end. A search draws shares, and `value`
    # makes values of them.

    low: Number = Field(description="least value")
    high: Number = Field(description="greatest value")
    log: bool = Field(default=False, description="uniform in the logarithm")
    step: Number | None = Field(default=None, gt=0, description="low, low + step, …")

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        """Refuse a range without values, and a logarithm that does not exist or has steps."""
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs low above 0, got {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; leave one out")
        return self

    @property
    def of_floats(self) -> Range:
        """The range with floats in place of whole numbers."""
        numbers = self.model_dump(include={"low", "high", "step"}, exclude_none=True)
        return self.model_copy(update={name: float(number) for name, number in numbers.items()})

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers: 10 to 20, but not with a step of 0.125."""
        return all(isinstance(number, int | None) for number in (self.low, self.high, self.step))

    @property
    def count(self) -> int | None:
        """Number of values; None for a continuum."""
        step = self.step
        if step is None and self.whole:
            step = 1
        if step is None:
            return None
        # The small number lets steps of 0.1 from 0 reach 0.3, in spite of rounding errors.
        return math.floor((self.high - self.low) / step + 1e-9) + 1

    def value(self, share: float) -> int | float:
        """Return the value at a share, 0 ≤ share < 1.

        If shares are uniform, all values are equally likely; with `log`, all logarithms are.
        """
        if self.log:
            # Each whole number has the interval up to the next one, also the last.
            top = self.high + 1 if self.whole else self.high
            value = math.exp(math.log(self.low) + share * (math.log(top) - math.log(self.low)))
            return self.clipped(math.floor(value) if self.whole else value)
        if self.count is not None:
            return self.at(int(share * self.count))
        return self.clipped(self.low + share * (self.high - self.low))

    def at(self, index: int) -> int | float:
        """Return the value after `index` steps: 0.3 for a low end of 0.1 and two steps of 0.1."""
        step = 1 if self.step is None else self.step
        value = self.low + index * step
        if self.whole:
            return int(value)
        if abs(value) < 1e-9 * step:
            value = 0.0  # -0.3 + 3 * 0.1 is 5.6e-17
        # Twelve digits, because 0.1 + 2 * 0.1 is 0.30000000000000004.
        return float(min(max(float(f"{value:.12g}"), self.low), self.high))

    def index(self, value: float) -> int:
        """Return the number of steps from the low end to the value that is nearest to `value`."""
        step = 1 if self.step is None else self.step
        return round((value - self.low) / step)

    def share(self, value: float) -> float:
        """Return the share of `value`, which with `log` is a share of the logarithms."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def clipped(self, value: float) -> int | float:
        """Clip `value` to the ends, and round it to a whole number or to four digits.

        Drawn values have four digits because tables show four.
        """
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.whole else self._short(inside)

    def _short(self, value: float) -> float:
        """Round a value to four significant digits, within the range."""
        return float(min(max(float(f"{value:.4g}"), self.low), self.high))

    def contains(self, value: object) -> bool:
        """Whether `value` is one of the range's values.

        Earlier versions rounded steps to four digits. Runs with these values also count.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not self.low <= value <= self.high:
            return False
        if self.whole and not isinstance(value, int):
            return False
        if self.step is None:
            return True
        index = self.index(value)
        if not 0 <= index < (self.count or 0):
            return False
        nearest = self.at(index)
        return value == nearest or (not self.whole and value == self._short(nearest))
