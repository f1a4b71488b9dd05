"""Settings of methods: the spec of one method, and the grid of specs that an entry spans.

`method_entry.py` and `method_grid.py` read the entries of a YAML file into these values.
`method_specs.py` makes the method of a spec.
"""

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)

from unlearnbench.api.identity import ALWAYS, IF_SET
from unlearnbench.api.registry import load, load_method
from unlearnbench.base.errors import PluginError
from unlearnbench.base.messages import fault
from unlearnbench.config.evaluation_settings import EntryEvaluation
from unlearnbench.config.search import Range
from unlearnbench.config.section import Settings
from unlearnbench.config.stored_values import INFINITE, restored
from unlearnbench.config.training_settings import TrainingSettings

RetainTermName = Literal["nll", "kl"]


class RetainSpec(Settings):
    """A retain term added to a method's own loss: `retain: {term: kl, weight: 1.0}`."""

    term: Annotated[RetainTermName, ALWAYS] = Field(
        description="nll: cross-entropy of the retain rows; kl: divergence from the start model "
        "on the retain rows"
    )
    weight: Annotated[float, ALWAYS] = Field(
        default=1.0, gt=0, description="factor of the retain term"
    )


HyperParameter = bool | int | float | str


class MethodSpec(Settings):
    """One method with all of its hyperparameters; part of a run's identity."""

    model_config = ConfigDict(allow_inf_nan=True)

    name: Annotated[str, ALWAYS]
    hyperparameters: Annotated[dict[str, HyperParameter], ALWAYS] = Field(default_factory=dict)
    retain: Annotated[RetainSpec | None, ALWAYS] = None
    source: Annotated[str | None, ALWAYS] = None
    """Content hash of the plug-in file; None for an installed method."""
    modifiers: Annotated[dict[str, str | None], IF_SET] = Field(
        default_factory=dict, exclude_if=lambda few: not few
    )
    """Content hashes as in `source`, by modifier, in the order in which modifiers are applied.
    Their settings are hyperparameters such as `sam.rho`. The field is left out if it is empty, as
    in runs from before there were modifiers."""

    @field_validator("hyperparameters")
    @classmethod
    def _with_infinite_floats(
        cls, values: dict[str, HyperParameter], info: ValidationInfo
    ) -> dict[str, HyperParameter]:
        """Read infinite floats, which are text in records and plans (`inf`).

        Only the plug-in's field tells whether `inf` is a float or a text.
        """
        floats: dict[str, HyperParameter] = {}
        for key, value in values.items():
            if value not in INFINITE:
                continue
            modifier, _, setting = key.rpartition(".")
            # A record may name a plug-in that is not available here.
            with suppress(PluginError, KeyError):
                plugin = load("modifiers", modifier) if modifier else load_method(info.data["name"])
                floats[key] = restored(plugin, {setting: value})[setting]
        return values | floats

    @property
    def label(self) -> str:
        """Name in tables and plots: the method, its retain term and its modifiers."""
        # Hyperparameters are left out, because they have columns of their own.
        retain = () if self.retain is None else (self.retain.term,)
        return "+".join((self.name, *retain, *self.modifiers))


def _positive_floats(values: Range) -> Range:
    """Check that the rates of a range are positive, and make them floats."""
    if values.low <= 0:
        raise fault(f"must be above 0, got {values.low:g}", "low")
    return values.of_floats


def _form_of_rates(value: Any) -> str:
    """Return the tag of the form in which rates are stated, for `Discriminator`."""
    return "<range>" if isinstance(value, dict | Range) else "<list>"


Positive = Annotated[float, Field(gt=0)]
Rates = Annotated[
    Annotated[tuple[Positive, ...], Field(min_length=1), Tag("<list>")]
    | Annotated[Range, AfterValidator(_positive_floats), Tag("<range>")],
    Discriminator(_form_of_rates),
]
"""Learning rates: a list, or a range that a search draws from.

The two forms are tagged. An error is then only about the form that is stated, while an untagged
union would report what is wrong by both forms."""


class MethodGrid(Settings):
    """A method entry of a sweep: the settings that its lists span, and its ranges."""

    specs: tuple[MethodSpec, ...]
    """A spec for each combination of the values that the entry lists."""
    learning_rates: Rates | None = None
    """Rates of this entry. None if it has the sweep's rates."""
    training: TrainingSettings | None = None
    """The sweep's training settings with the changes of this entry. None if it changes none."""
    evaluation: EntryEvaluation | None = None
    """When the runs of this entry are evaluated. None if the sweep's `evaluation` says it."""
    ranges: dict[str, Range] = Field(default_factory=dict)
    """Ranges that a search draws from, by hyperparameter or `retain.weight`. `specs` have the low
    ends of stated ranges, and the defaults in place of ranges that `tune` adds."""
    fixed: frozenset[str] = Field(default=frozenset(), exclude=True)
    """Hyperparameters that the entry states, which `tune` leaves as they are."""
