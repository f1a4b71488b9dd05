"""The base class of all settings: a frozen value that is validated when it is made."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from pydantic import BaseModel, ConfigDict


class Identity(Enum):
    """The part that a field has in the ids of what its settings describe, where not always one.

    Stands beside the field: `batch_tokens: Annotated[int | None, NEVER]`.
    """

    NEVER = auto()
    """It changes no number, or another field has its effect."""
    IF_SET = auto()
    """It is left out at its default, as in ids from before there was such a field."""


NEVER, IF_SET = Identity.NEVER, Identity.IF_SET


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

    def identity_fields(self, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The fields that ids are made from, ready for JSON.

        values  all fields, ready for JSON; default: dumped here
        """
        if values is None:
            values = self.model_dump(mode="json")
        counted: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            value, marks = getattr(self, name), info.metadata
            left_out = IF_SET in marks and value == info.get_default(call_default_factory=True)
            if NEVER not in marks and not left_out:
                below = isinstance(value, Settings)
                counted[name] = value.identity_fields(values[name]) if below else values[name]
        return counted
