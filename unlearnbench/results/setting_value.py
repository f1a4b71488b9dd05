"""The setting of a run as a structured value.

A setting is everything that a run depends on except its seed. It consists of the method with its
fields, the retain term and the modifiers with their settings, the learning rate, and all other
values in which the runs of a table differ.

Two values may have the same name, such as the `retain_weight` of a method and the weight of an
added retain term. Each value therefore has a path, which says where it stands in the specification
of a run: `("method", "hyperparameters", "retain_weight")` and `("method", "retain", "weight")`.
CSV files, labels and trackers need a name for each value instead. These names are made here, and
only from the structured value.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final

from unlearnbench.base.hashing import content_hash

Path = tuple[str, ...]
"""Where a value stands in the specification of a run: `("training", "batch_size")`."""
FIELDS: Final[Path] = ("method", "hyperparameters")
"""Path of the method's fields and of the settings of modifiers: `sam.rho`."""
RETAIN: Final[Path] = ("method", "retain")
"""Path of the retain term."""


class _Unset(Enum):
    """Stands for a value that a specification leaves out because it has its default."""

    UNSET = "default"

    def __str__(self) -> str:
        return self.value


UNSET: Final = _Unset.UNSET
"""Value of a setting that a specification leaves out. It equals no text, not even "default"."""


@dataclass(frozen=True, eq=False)
class SettingValue:
    """The setting of a run. Start and retain models have an empty one.

    Two settings are equal if they have one id and the same values of the same types. The numbers 1
    and 1.0, true and the text "1" are four different values.
    """

    id: str = ""
    """Hash of everything that the numbers depend on, except the seed. Equal for the seeds of one
    setting, and only for them."""
    method: str = ""
    """Name of the method: `npo`."""
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Hyperparameters of the method, by name."""
    retain: Mapping[str, Any] | None = None
    """Retain term: `{"term": "kl", "weight": 2.0}`."""
    modifiers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Settings of each modifier, in the order in which modifiers are applied."""
    learning_rate: float | None = None
    """None for a method that trains nothing."""
    others: Mapping[Path, Any] = field(default_factory=dict[Path, Any])
    """All other settings in which the runs of this method, model and split differ. `UNSET` stands
    for the default of a setting that ids leave out."""

    @classmethod
    def of(
        cls,
        method: Mapping[str, Any],
        learning_rate: float | None = None,
        others: Mapping[Path, Any] | None = None,
        setting_id: str = "",
    ) -> SettingValue:
        """Make the value from the specification of a run.

        Args:
            method: Specification of the method, ready for JSON. Names of modifiers' settings begin
                with the modifier: `sam.rho`.
            learning_rate: None for a method that trains nothing.
            others: Other values in which runs differ.
            setting_id: See `id`.
        """
        modifiers: dict[str, dict[str, Any]] = {name: {} for name in method.get("modifiers") or {}}
        fields: dict[str, Any] = {}
        for key, value in (method.get("hyperparameters") or {}).items():
            modifier, _, name = key.rpartition(".")
            if modifier:
                modifiers.setdefault(modifier, {})[name] = value
            else:
                fields[key] = value
        retain = method.get("retain")
        return cls(
            id=setting_id,
            method=method.get("name", ""),
            fields=fields,
            retain=retain,
            modifiers=modifiers,
            learning_rate=learning_rate,
            others=others or {},
        )

    @cached_property
    def own(self) -> dict[str, Any]:
        """Fields of the method, and settings of modifiers as `sam.rho`."""
        own = dict(self.fields)
        for modifier, settings in self.modifiers.items():
            own |= {f"{modifier}.{name}": value for name, value in settings.items()}
        return own

    @cached_property
    def values(self) -> dict[Path, Any]:
        """All values except the learning rate, by path."""
        values: dict[Path, Any] = {(*FIELDS, name): value for name, value in self.own.items()}
        values |= {(*RETAIN, name): value for name, value in (self.retain or {}).items()}
        return values | dict(self.others)

    @cached_property
    def text(self) -> str:
        """Everything except the learning rate as text, which is equal only for equal settings."""
        # The empty text ends a path, so that no path with its value looks like a longer path.
        values = [[*path, "", value_text(value)] for path, value in sorted(self.values.items())]
        return json.dumps([self.method, values, sorted(self.modifiers), self.retain is None])

    @cached_property
    def names(self) -> dict[Path, str]:
        """A name for each value, no two of which are the same."""
        return names_of([self])

    @cached_property
    def flat(self) -> dict[str, Any]:
        """The values by name, ready for JSON: a column of `results.csv`.

        The weight of a retain term is called `retain_weight`, or `retain.weight` for methods that
        have a hyperparameter called `retain_weight`.
        """
        flat: dict[str, Any] = {}
        for path, name in self.names.items():
            value = self.values[path]
            is_list = path in self.others and isinstance(value, list | tuple)
            if value is UNSET:
                flat[name] = str(UNSET)
            elif is_list:
                flat[name] = json.dumps(value)
            else:
                flat[name] = value
        return flat

    def to_json(self) -> dict[str, Any]:
        """Return the setting ready for JSON. A default that ids leave out has no `value`."""
        others: list[dict[str, Any]] = []
        for path, value in self.others.items():
            entry: dict[str, Any] = {"path": path}
            if value is not UNSET:
                entry["value"] = value
            others.append(entry)
        return {
            "id": self.id,
            "method": self.method,
            "fields": self.fields,
            "retain": self.retain,
            "modifiers": self.modifiers,
            "learning_rate": self.learning_rate,
            "others": others,
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SettingValue):
            return NotImplemented
        own = self.id, self.text, value_text(self.learning_rate)
        return own == (other.id, other.text, value_text(other.learning_rate))

    def __hash__(self) -> int:
        return hash((self.id, self.text))


NO_SETTING: Final = SettingValue()
"""The setting of start and retain models."""


def value_text(value: Any) -> str:
    """Return a value as JSON, or `default` without quotes for `UNSET`."""
    return str(value) if value is UNSET else json.dumps(value, sort_keys=True)


def free_name(name: str, taken: Collection[str], section: str, key: str | None = None) -> str:
    """Return a name for a value that no other value has.

    Args:
        name: The wanted name: `retain_weight`.
        taken: Names of other values.
        section: Section of the value in the configuration: `retain`.
        key: Name of the value in its section: `weight`. None for `name`.

    Returns:
        `name`, or `retain.weight` if `name` is taken.
    """
    if name not in taken:
        return name
    qualified = f"{section}.{name if key is None else key}"
    # This name is taken only if a modifier is called like the section, which is then repeated.
    return free_name(qualified, taken, section)


def names_of(settings: Iterable[SettingValue]) -> dict[Path, str]:
    """Return a different name for each value of some settings, by path.

    Fields of the method have their own names. Values of the retain term follow, as `retain` and
    `retain_weight`, and then all others by their whole paths: `training.batch_size`.
    """
    paths = dict.fromkeys(path for setting in settings for path in setting.values)
    fields = [path for path in paths if path[:2] == FIELDS]
    retain = [path for path in paths if path[:2] == RETAIN]
    names = {path: path[-1] for path in fields}
    for path in retain:
        key = path[-1]
        name = "retain" if key == "term" else f"retain_{key}"
        names[path] = free_name(name, {*names.values()}, "retain", key)
    for path in paths:
        if path not in names:
            names[path] = free_name(".".join(path), {*names.values()}, "run")
    return names


class Labels:
    """Labels of methods, with the values in which their settings differ.

    Different settings have different labels, except for the learning rate, which tables show in a
    column of its own.
    """

    def __init__(self) -> None:
        self._settings: dict[str, dict[str, SettingValue]] = {}
        """By family, then by the setting as text."""
        self._labels: dict[str, dict[str, str]] = {}
        """By the same keys. The labels of a family are made when one of them is needed."""

    def add(self, family: str, setting: SettingValue) -> None:
        """Take a setting into account.

        Args:
            family: The method with its retain term and modifiers: `npo+nll`.
            setting: One of its settings.
        """
        self._settings.setdefault(family, {}).setdefault(setting.text, setting)
        self._labels.pop(family, None)

    def label(self, family: str, setting: SettingValue) -> str:
        """Return the label of a setting: `npo+nll (beta=0.1)`."""
        if family not in self._labels:
            self._labels[family] = _labels_of(family, self._settings.get(family, {}))
        return self._labels[family].get(setting.text, family)


def _labels_of(family: str, settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """Return the label of each setting of a family.

    Args:
        family: The method with its retain term and modifiers.
        settings: All of its settings, by their texts.

    Returns:
        Labels by the same texts.
    """
    names = names_of(settings.values())
    differing = [path for path in names if _differ(settings.values(), path)]
    name_of_path = {path: names[path] for path in sorted(differing, key=names.__getitem__)}

    labels = {
        text: _label(family, setting, name_of_path, in_full=False)
        for text, setting in settings.items()
    }
    if not _look_different(labels.values()):
        # Values may look alike: 0.12345671 and 0.12345672, or the number 1 and the text "1".
        labels = {
            text: _label(family, setting, name_of_path, in_full=True)
            for text, setting in settings.items()
        }
    if not _look_different(labels.values()):
        # Names and texts may contain the characters that separate values in a label.
        labels = {text: f"{label} #{content_hash(text)[:8]}" for text, label in labels.items()}
    return labels


def _differ(settings: Iterable[SettingValue], path: Path) -> bool:
    """Whether some settings have different values at a path."""
    texts: set[str] = set()
    for setting in settings:
        # A hyperparameter that was added later is stored only if it differs from its default.
        is_stored = path in setting.values
        texts.add(value_text(setting.values[path]) if is_stored else "")
    return len(texts) > 1


def _label(
    family: str, setting: SettingValue, name_of_path: Mapping[Path, str], *, in_full: bool
) -> str:
    """Return the label of a setting: `npo+nll (beta=0.1)`.

    Args:
        family: The method with its retain term and modifiers.
        setting: The setting.
        name_of_path: Names of the values to show, in their order.
        in_full: Whether values are written as JSON.
    """
    values = [
        f"{name}={_short(setting.values[path], in_full=in_full)}"
        for path, name in name_of_path.items()
        if path in setting.values
    ]
    return f"{family} ({', '.join(values)})" if values else family


def _look_different(labels: Collection[str]) -> bool:
    """Whether no two labels look alike. A page shows several spaces as one."""
    return len({" ".join(label.split()) for label in labels}) == len(labels)


def _short(value: Any, *, in_full: bool) -> str:
    """Return a value as text for a label."""
    breaks_line = isinstance(value, str) and not value.isprintable()
    if in_full or breaks_line:
        return value_text(value)
    if isinstance(value, list | tuple):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
