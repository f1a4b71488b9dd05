"""Which settings belong to ids: each field declares it, and one function reads the declarations.

An id is a hash of the values that numbers depend on. So equal work is found again, and different
work is never taken for it. Each field of the settings declares with its type whether it counts:

    batch_size: Annotated[int, ALWAYS]
    deterministic: Annotated[bool, IF_SET] = False
    batch_tokens: Annotated[int | None, NEVER] = None

If you add a field, choose by what it does:

- It changes no number: `NEVER`.
- It changes numbers: `IF_SET`, with a default under which every number is as before. Ids of what
  was computed before the field existed stay as they are. `ALWAYS` would change all of them.
- It changes numbers only together with another setting: a `Rule` of your own. See
  `IF_WEIGHTS_DECAY` in `config/training_settings.py`.
- It belongs only to some kinds of ids: `IF_SET.of(Id.RUN, …)`. A field may have one declaration for
  some kinds and another one for other kinds.
- It is derived from files or from the version of the program, and no configuration states it:
  `IF_SET.because("the rows have changed")`. The reason is shown if runs are repeated.

A field without a declaration is an error. The fields of methods, modifiers and attacks need none:
they always count, except for fields that are declared as `IF_SET` and have their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property, lru_cache
from typing import Any, Final, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from unlearnbench.base.hashing import content_hash, json_ready


class Id(Enum):
    """What an id is of."""

    RUN = auto()
    """A run."""
    SETTING = auto()
    """The setting of a run: everything except its seed. Runs of one setting are averaged."""
    STATED = auto()
    """The settings of a run that a configuration states, not values from files and versions."""
    PREPARED = auto()
    """A start or retain model that is trained here."""
    BASE = auto()
    """The tiny model that prepared models begin from."""
    EVALUATION = auto()
    """The evaluation of a start or retain model, whose weights are named by their own hash."""
    ATTACK = auto()
    """The evaluation of a start or retain model under an attack."""
    CHOICE = auto()
    """What `select` or `tune` has chosen, which depends on the rule and on the trials."""


RUNS: Final = (Id.RUN, Id.SETTING, Id.STATED)
"""The kinds of ids of runs."""


class _LeftOut(Enum):
    """Stands for a field that does not count."""

    LEFT_OUT = auto()


LEFT_OUT: Final = _LeftOut.LEFT_OUT
"""Entry of a field that does not count."""


@dataclass(frozen=True, slots=True)
class Place:
    """A field with its value, as rules see it. All values are ready for JSON.

    Attributes:
        name: Name of the field.
        value: Its value.
        default: Its default, or `LEFT_OUT` if the field is required.
        section: Values of the settings that the field belongs to, by name.
        kind: What the id is of.
        whole: Values of the run, or of whatever else the id is made for.
        reads: Names of the values of `whole` that the rule has declared.
    """

    name: str
    value: Any
    default: Any
    section: Mapping[str, Any]
    kind: Id
    whole: Mapping[str, Any]
    reads: tuple[str, ...]

    def read(self, path: str) -> Any:
        """Return a value of the run, or None if the run has no such value.

        Args:
            path: Names of settings, such as `training.precision`.

        Raises:
            LookupError: The rule has not declared that it reads the value.
        """
        name, *names_below = path.split(".")
        if name not in self.reads:
            raise LookupError(f"the rule of {self.name!r} does not declare that it reads {name!r}")
        value = self.whole.get(name)
        for name_below in names_below:
            value = value.get(name_below) if isinstance(value, Mapping) else None
        return value


@dataclass(frozen=True)
class Rule:
    """Whether a field counts in ids, and which value stands there for it.

    Attributes:
        words: The rule for people, such as `only if set`.
        entry: Returns the value that stands in the id, or `LEFT_OUT`.
        reads: Names of the values of a run that the rule reads, outside the field's own section.
        kinds: Kinds of ids in which the field counts by this rule.
        reason: What has happened if the field differs in a repeated run. Empty if a configuration
            states the field.
    """

    words: str
    entry: Callable[[Place], Any]
    reads: tuple[str, ...] = ()
    kinds: frozenset[Id] = frozenset(Id)
    reason: str = ""

    def of(self, *kinds: Id) -> Rule:
        """Return the rule for only these kinds of ids."""
        return replace(self, kinds=frozenset(kinds))

    def because(self, reason: str) -> Rule:
        """Return the rule of a field that no configuration states.

        Args:
            reason: What has happened if the field differs, a sentence without a full stop.
        """
        return replace(self, kinds=self.kinds - {Id.STATED}, reason=reason)


def _the_value(place: Place) -> Any:
    return place.value


def _the_value_if_set(place: Place) -> Any:
    return LEFT_OUT if place.value == place.default else place.value


ALWAYS: Final = Rule("always", _the_value)
"""For fields that change numbers, and did so when ids were first made."""
IF_SET: Final = Rule("only if set", _the_value_if_set)
"""For fields that are left out at their defaults, as in ids from before the field existed."""
NEVER: Final = Rule("never", _the_value, kinds=frozenset())
"""For fields that change no number, or whose effect another field has."""


def identity_of(value: BaseModel, kind: Id = Id.RUN, **beside: Any) -> dict[str, Any]:
    """Return the values that an id is made from, ready for JSON.

    Args:
        value: Settings.
        kind: What the id is of.
        beside: Further values that rules read, by name.
    """
    values = json_ready(value.model_dump(mode="json"))
    return stored_identity(type(value), values, kind, **beside)


def stored_identity(
    model: type[BaseModel], values: Mapping[str, Any], kind: Id, **beside: Any
) -> dict[str, Any]:
    """Return the same as `identity_of`, for settings that are stored as JSON.

    The settings are not read as objects, because settings of other versions, or of plug-ins that
    are not installed here, cannot be. A field that is missing has its default. A key that is no
    field always counts.

    Args:
        model: Type of the settings.
        values: The settings as JSON.
        kind: What the id is of.
        beside: Further values that rules read, by name.
    """
    completed = _completed(model, values)
    return _entries(model, completed, kind, {**completed, **beside})


class Entries(dict[str, tuple[Any, str]]):
    """Entries of an identity, each with its canonical JSON, by field."""

    @cached_property
    def hash(self) -> str:
        """A hash that is equal for equal entries."""
        return content_hash({name: text for name, (_, text) in self.items()})


class StoredIdentities:
    """Entries of many settings that were stored as JSON, most of which are equal.

    Seeds of one setting have the same entries, and all runs of a sweep have the same model,
    training and evaluation. So each different entry is computed once.
    """

    def __init__(self, model: type[BaseModel], kind: Id) -> None:
        """Find out which values the entries depend on.

        Args:
            model: Type of the settings.
            kind: What the ids are of.
        """
        self._model = model
        self._kind = kind
        # An entry depends on its own value, and on the values that its rule reads.
        self._reads = {name: field.reads for name, field in _counted(model, kind).items()}
        self._needed = set(self._reads)
        for reads in self._reads.values():
            self._needed.update(reads)
        self._entry_of: dict[tuple[str, ...], tuple[Any, str]] = {}
        """Entries and their JSON. The key is a field, and the JSON of the values it depends on."""
        self._entries_of: dict[str, Entries] = {}
        """By the JSON of all values that count."""

    def entries(self, values: Mapping[str, Any]) -> Entries:
        """Return the entries of `stored_identity`."""
        fields = _names(self._model)
        counted = {
            name: value
            for name, value in values.items()
            if name in self._needed or name not in fields
        }
        text = json.dumps(counted)
        if text not in self._entries_of:
            self._entries_of[text] = self._entries(counted)
        return self._entries_of[text]

    def _entries(self, values: Mapping[str, Any]) -> Entries:
        """Return the entries of settings, each from `_entry_of` if it is there."""
        texts = {name: json.dumps(value) for name, value in values.items()}
        unknown = [name for name in values if name not in _names(self._model)]
        entries = Entries()
        for name in (*self._reads, *unknown):
            sources = (name, *self._reads.get(name, ()))
            key = (name, *[texts.get(source, "") for source in sources])
            if key not in self._entry_of:
                needed = {source: values[source] for source in sources if source in values}
                self._entry_of[key] = self._entry(name, needed)
            entry, text = self._entry_of[key]
            if entry is not LEFT_OUT:
                entries[name] = entry, text
        return entries

    def _entry(self, name: str, values: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the entry of a field and its JSON, or `LEFT_OUT` and an empty text."""
        entry = stored_identity(self._model, values, self._kind).get(name, LEFT_OUT)
        text = "" if entry is LEFT_OUT else json.dumps(entry, sort_keys=True)
        return entry, text


def reasons_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the reasons of the fields that no configuration states, by field."""
    reasons: dict[str, str] = {}
    for name, info in model.model_fields.items():
        for declared in rules_of_field(info):
            if declared.reason:
                reasons[name] = declared.reason
    return reasons


def rules_of_field(info: FieldInfo) -> tuple[Rule, ...]:
    """Return the declarations of a field."""
    return tuple(mark for mark in info.metadata if isinstance(mark, Rule))


def settings_below(info: FieldInfo) -> type[BaseModel] | None:
    """Return the type of the settings in a field, or None if it has no settings of its own.

    For example, it is `LoRA` for a field of type `LoRA | None` or `tuple[LoRA, ...]`.
    """
    waiting = [info.annotation]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return annotation
        waiting += get_args(annotation)
    return None


@dataclass(frozen=True)
class _Counted:
    """A field that counts in ids of a kind.

    Attributes:
        rule: Its rule.
        default: Its default, or `LEFT_OUT`.
        below: Type of the settings in the field, if there are any.
        reads: Names of other values of the run that the entry depends on: those that its rule
            reads, and those that the rules of the settings in the field read.
    """

    rule: Rule
    default: Any
    below: type[BaseModel] | None
    reads: tuple[str, ...]


@lru_cache(maxsize=256)
def _counted(model: type[BaseModel], kind: Id) -> dict[str, _Counted]:
    """Return the fields that count in ids of a kind, by name.

    Raises:
        TypeError: A field has no declaration.
    """
    counted: dict[str, _Counted] = {}
    for name, info in model.model_fields.items():
        declared = rules_of_field(info)
        if not declared:
            raise TypeError(f"{model.__name__}.{name}: declare its part in ids, see {__name__}")
        rules_of_kind = [rule for rule in declared if kind in rule.kinds]
        if not rules_of_kind:
            continue
        rule = rules_of_kind[0]
        below = settings_below(info)
        reads = set(rule.reads)
        if below is not None:
            for field_below in _counted(below, kind).values():
                reads.update(field_below.reads)
        reads.discard(name)
        counted[name] = _Counted(rule, _default_of(info), below, tuple(sorted(reads)))
    return counted


@lru_cache(maxsize=256)
def _names(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of all fields."""
    return frozenset(model.model_fields)


@lru_cache(maxsize=256)
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Return the defaults of all fields that have one, ready for JSON."""
    defaults = {name: _default_of(info) for name, info in model.model_fields.items()}
    return {name: default for name, default in defaults.items() if default is not LEFT_OUT}


@lru_cache(maxsize=256)
def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the fields that contain settings and count in ids of some kind, with their types."""
    sections: dict[str, type[BaseModel]] = {}
    for name, info in model.model_fields.items():
        below = settings_below(info)
        counts_in_some_ids = any(rule.kinds for rule in rules_of_field(info))
        if below is not None and counts_in_some_ids:
            sections[name] = below
    return sections


def _default_of(info: FieldInfo) -> Any:
    """Return the default of a field, ready for JSON, or `LEFT_OUT` if the field is required."""
    if info.is_required():
        return LEFT_OUT
    return json_ready(to_jsonable_python(info.get_default(call_default_factory=True)))


def _completed(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored settings with the defaults of the fields that they do not have."""
    completed = {**_defaults(model), **values}
    for name, below in _sections(model).items():
        value = completed.get(name)
        if isinstance(value, Mapping):
            completed[name] = _completed(below, value)
        elif isinstance(value, list | tuple):
            completed[name] = [
                _completed(below, part) if isinstance(part, Mapping) else part for part in value
            ]
    return completed


def _entries(
    model: type[BaseModel], values: Mapping[str, Any], kind: Id, whole: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entries of completed settings.

    Args:
        model: Type of the settings.
        values: The settings.
        kind: What the id is of.
        whole: The run, or whatever else the settings are part of.
    """
    entries: dict[str, Any] = {}
    for name, field in _counted(model, kind).items():
        if name not in values:
            continue
        entry = values[name]
        make_entry = field.rule.entry
        # Nearly all fields have one of the two rules that need nothing else of the run.
        if make_entry is _the_value_if_set:
            if entry == field.default:
                continue
        elif make_entry is not _the_value:
            reads = field.rule.reads
            place = Place(name, entry, field.default, values, kind, whole, reads)
            entry = make_entry(place)
        if entry is LEFT_OUT:
            continue
        if field.below is not None:
            entry = _entries_below(field.below, entry, kind, whole)
        entries[name] = entry
    fields = _names(model)
    if not values.keys() <= fields:  # values of other versions
        entries |= {name: value for name, value in values.items() if name not in fields}
    return entries


def _entries_below(model: type[BaseModel], entry: Any, kind: Id, whole: Mapping[str, Any]) -> Any:
    """Return the entry of a field that contains settings, or a list of settings.

    Args:
        model: Type of the settings.
        entry: The settings. Anything else, such as None, is returned as it is.
        kind: What the id is of.
        whole: The run, or whatever else the settings are part of.
    """
    if isinstance(entry, Mapping):
        settings: Mapping[str, Any] = entry
        return _entries(model, settings, kind, whole)
    if not isinstance(entry, list):
        return entry
    entries: list[Any] = []
    for settings_or_value in entry:
        if isinstance(settings_or_value, Mapping):
            entries.append(_entries(model, settings_or_value, kind, whole))
        else:
            entries.append(settings_or_value)
    return entries
