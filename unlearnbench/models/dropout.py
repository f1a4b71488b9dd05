"""Dropout of a model's own configuration, which a trainer can remove and put back.

A loss that compares the trained model with the frozen start model computes the start model without
dropout. If the trained model keeps its dropout, the two differ before the first step: NPO's first
loss, which is (2/β) log 2 for equal models, is 5 % larger for GPT-2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_NOISE = ("drop", "jitter")
"""Parts of the names that libraries give to rates of dropout, and of noise on a router's inputs."""
_OF_OTHER_HEADS = ("classifier", "summary")
"""Parts of the names of settings for other heads than the language model's."""
_OF_ADAPTERS = "lora_dropout"
"""Name of an adapter's dropout, which the user sets (`models.lora.dropout`)."""


def config_has_dropout(config: Any) -> bool:
    """Whether a configuration of transformers sets dropout for a language model."""
    text_config: Any = config.get_text_config()
    return any(_rates_of_config(text_config.to_dict()))


def _rates_of_config(settings: Mapping[Any, Any]) -> Iterator[float]:
    """Yield the rates above 0, also of nested sections such as DBRX's `attn_config`."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _rates_of_config(value)
        elif _sets_rate(str(key), value):  # keys of `id2label` are numbers
            yield value


def _sets_rate(name: str, value: Any) -> bool:
    """Whether a field of a configuration is a rate above 0 of a language model."""
    is_of_another_head = any(head in name for head in _OF_OTHER_HEADS)
    return _is_noise(name) and _is_rate(value) and not is_of_another_head


def _is_noise(name: str) -> bool:
    return any(part in name.lower() for part in _NOISE)


def _is_rate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


@dataclass(frozen=True)
class _Rate:
    """A rate above 0, and the attribute that holds it."""

    owner: Any
    """A module, or a configuration from which modules read the rate in each forward pass."""
    attribute: str
    value: float


def draws_random_numbers(model: "nn.Module") -> bool:
    """Whether a model draws random numbers when it trains, for its own dropout or an adapter's."""
    from torch import nn

    is_in_adapters = any(
        isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules()
    )
    return is_in_adapters or bool(ModelDropout(model))


class ModelDropout:
    """The dropout of a model except that of its adapters."""

    def __init__(self, model: "nn.Module") -> None:
        """Find the rates of a model. They are not changed yet."""
        self._rates = [*_rates_of_modules(model), *_rates_of_configurations(model)]

    def __bool__(self) -> bool:
        """Whether the model has any dropout."""
        return bool(self._rates)

    def remove(self) -> None:
        """Set all rates to 0."""
        for rate in self._rates:
            setattr(rate.owner, rate.attribute, 0.0)

    def put_back(self) -> None:
        """Set all rates to what they were."""
        for rate in self._rates:
            setattr(rate.owner, rate.attribute, rate.value)


def _rates_of_modules(model: "nn.Module") -> Iterator[_Rate]:
    """Yield the rates of dropout modules, and those that attention passes to its functions."""
    from torch import nn

    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    for path, module in model.named_modules():
        if _OF_ADAPTERS in path:
            continue
        if isinstance(module, kinds):
            if module.p > 0:
                yield _Rate(module, "p", module.p)
            continue
        for name, value in vars(module).items():
            if _is_noise(name) and _is_rate(value):
                yield _Rate(module, name, value)


def _rates_of_configurations(model: "nn.Module") -> Iterator[_Rate]:
    """Yield the rates in the configurations of modules.

    Persimmon's attention has no rate of its own, but reads the configuration.
    """
    from transformers import PretrainedConfig

    # Most modules of a model have the same configuration, whose rates are yielded once.
    configurations: dict[int, PretrainedConfig] = {}
    for module in model.modules():
        configuration = vars(module).get("config")
        if isinstance(configuration, PretrainedConfig):
            configurations[id(configuration)] = configuration
    for configuration in configurations.values():
        for name, value in vars(configuration).items():
            if _sets_rate(name, value):
                yield _Rate(configuration, name, value)
