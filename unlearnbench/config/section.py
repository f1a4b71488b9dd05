"""The base class of all settings: a frozen value that is validated when it is made.

`api/identity.py` describes how a field declares whether it belongs to ids. The limits here are far
above any size in use. They stop a mistyped number before it costs memory or time.
"""

from pydantic import BaseModel, ConfigDict

MOST_EPOCHS = 10_000
"""Largest number of epochs of a run or of a preparation."""
LARGEST_SIZE = 1_000_000
"""Largest width, vocabulary, or number of steps."""


class Settings(BaseModel):
    """Base of all settings: frozen, without unknown keys, and without silent conversions."""

    # Infinite scores of a method survive a round trip through JSON text.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )


def is_none(value: object) -> bool:
    """Whether `exclude_if=is_none` leaves a value out of plans and records.

    A field that a version adds uses it, so that files of sweeps without the field stay the same.
    """
    return value is None


def is_true(value: object) -> bool:
    """Whether `exclude_if=is_true` leaves a value out of plans and records, see `is_none`."""
    return value is True
