"""The base of every kind of plug-in: a frozen value whose fields are its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from unlearnbench.api.identity import IF_SET
from unlearnbench.base.errors import PluginError

OWN_KEYS = ("method", "retain", "modifiers", "learning_rates", "training", "evaluation")
"""Keys of a method's entry in a configuration that are not hyper-parameters."""
_RESERVED = (*OWN_KEYS, "learning_rate")
"""Names that hyper-parameters cannot have: configurations and searches use them."""


@dataclass(frozen=True)
class TypeName:
    """Name of a field's type for people: `Annotated[…, TypeName("table | null")]`.

    For types that are unions of many forms, whose own text fills the screen.
    """

    text: str


class HyperParameters(BaseModel):
    """Base of plug-ins: immutable, no unknown keys, no silent conversion between types."""

    # An infinite value is refused unless its field declares it: Field(allow_inf_nan=True).
    # It is then kept in JSON text, which would have null in its place.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )

    reserved: ClassVar[tuple[str, ...]] = _RESERVED
    """Names that fields cannot have."""
    later: ClassVar[frozenset[str]] = frozenset()
    """No longer supported. Fields that count in ids only if they are set are declared with
    `IF_SET`."""

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Lowest and highest value of the hyperparameters that `tune` draws.

    Values are drawn uniformly in the logarithm if the lowest value is above 0. For example
    `{"beta": (0.01, 1.0)}`.
    """

    def resolved(self) -> dict[str, Any]:
        """Return the hyperparameters that belong to a run's id, by name.

        All of them do, except those that are declared as `IF_SET` and have their defaults: fields
        that were added after runs had been published.
        """
        values: dict[str, Any] = {}
        for name, value in self.model_dump().items():
            info = type(self).model_fields[name]
            is_default = value == info.get_default(call_default_factory=True)
            if not (is_default and IF_SET in info.metadata):
                values[name] = value
        return values

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse fields with reserved names, which no configuration could set."""
        if cls.later:
            # Ids of earlier runs would change without a word.
            raise PluginError(
                f"{cls.__name__}.later has no effect any more: declare each of these fields as "
                "`Annotated[…, IF_SET]`, from unlearnbench.api.identity, so that ids of earlier "
                "runs stay"
            )
        reserved = ", ".join(cls.reserved)
        for key in cls.model_fields.keys() & set(cls.reserved):
            raise PluginError(
                f"{cls.__name__}.{key}: a hyperparameter cannot be called {key!r}, which means "
                f"something else in a configuration; rename it (reserved: {reserved})"
            )

    @field_validator("*")
    @classmethod
    def _is_a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("must be a number, got nan")  # it equals nothing, not even itself
        return value


def setting(default: Any, description: str, source: str, **rules: Any) -> Any:
    """Declare a hyperparameter with the source of its default.

    Args:
        default: The default.
        description: What the hyperparameter means.
        source: Paper and equation, or `owner/repository@commit:path`.
        rules: Keyword arguments of pydantic's `Field`, such as `gt=0`.
    """
    return Field(default=default, description=f"{description} [source: {source}]", **rules)


def refuse_unused(parameters: HyperParameters, other: str, *names: str) -> None:
    """Refuse hyperparameters that have no effect with the value of another one.

    A validator of a method calls this.

    Args:
        parameters: All hyperparameters.
        other: Name of the hyperparameter whose value makes the others useless.
        names: Names of the hyperparameters that have no effect.

    Raises:
        ValueError: One of `names` does not have its default.
    """
    for name in names:
        if getattr(parameters, name) != type(parameters).model_fields[name].default:
            raise ValueError(
                f"{name} has no effect with {other}: {getattr(parameters, other)}; "
                "drop one of the two"
            )
