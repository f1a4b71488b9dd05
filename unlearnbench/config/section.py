"""The base class of all settings: a frozen value that is validated when it is made."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from unlearnbench.api.hyperparameters import Name as Name


class Settings(BaseModel):
    """Base: immutable, no unknown keys, no silent conversion between types."""

    # Infinite scores of a method survive a round trip through JSON text.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )
