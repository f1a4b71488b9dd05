"""The base class of all settings: a frozen value that is validated when it is made.

`api/identity.py` describes how a field declares whether it belongs to ids.
"""

from pydantic import BaseModel, ConfigDict


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
