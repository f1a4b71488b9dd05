"""What every setting is: a frozen value, checked when it is made."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from unlearnbench.bounded import name_problem, shortened


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


def _nameable(text: str) -> str:
    if wrong := name_problem(text):
        raise ValueError(f"{shortened(text)} {wrong}")
    return text


Name = Annotated[str, AfterValidator(_nameable)]
"""A text that is a name, an address or a path: on one line, and such as a file system takes."""
