"""The attacks that a configuration names: `attacks: [relearning, paraphrase]`, or with settings,
`attacks: {relearning: {steps: [1, 3, 13]}, paraphrase: {}}`.

Each becomes a spec with every setting resolved, from which any process makes the attack again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError, ValidationInfo

from unlearnbench.api.attack import Attack
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import file_digest, load
from unlearnbench.config.messages import describe_error, raise_faults, repeats
from unlearnbench.config.plugin_entries import entries_of, read_entries
from unlearnbench.config.plugin_settings import made, with_tuples
from unlearnbench.config.section import Settings
from unlearnbench.errors import PluginError, UnlearnbenchError


class AttackSpec(Settings):
    """One attack with every setting resolved; part of the identity of a run under it."""

    name: str
    settings: dict[str, Any]
    """As JSON, every field of the attack."""
    version: int = 1
    source: str | None = None
    """Content hash of the plug-in file; None for an installed attack."""
    content: str = ""
    """Hash of files that the settings name."""

    @property
    def identity(self) -> dict[str, Any]:
        """Values that the numbers of a model under the attack depend on: all but `at`."""
        found = self.model_dump(mode="json")
        return found | {"settings": {k: v for k, v in self.settings.items() if k != "at"}}


def attack_spec(name: str, attack: Attack) -> AttackSpec:
    """The spec of an attack. Raises: PluginError where its `content` fails."""
    with plugin_code(f"`content` of attack {name!r}", passing=UnlearnbenchError):
        content = attack.content()
    return AttackSpec(
        name=name,
        settings=attack.model_dump(mode="json"),
        version=attack.version,
        source=file_digest(name) or None,
        content=content,
    )


def attack_from_spec(spec: AttackSpec) -> Attack:
    """Make the attack of a spec. Raises: PluginError where another one is installed here."""
    kind: type[Attack] = load("attacks", spec.name)
    now = kind.version, file_digest(spec.name) or None
    if now != (spec.version, spec.source):
        raise PluginError(
            f"attack {spec.name!r} differs from the one that was planned: its version or its "
            "plugin file changed; start again with the same --plugin"
        )
    return made(kind, with_tuples(spec.settings), f"attack {spec.name!r}")


def _read(value: Any, info: ValidationInfo) -> tuple[AttackSpec, ...]:
    if info.mode == "json" or isinstance(value, list):  # written by `_plain`; YAML gives tuples
        return tuple(AttackSpec.model_validate(one) for one in value)
    if isinstance(value, tuple) and value and all(isinstance(one, AttackSpec) for one in value):
        return value
    entries = entries_of(value, "attacks")
    raise_faults(repeats(name for _, name, _ in entries))
    return tuple(sorted(read_entries(entries, "attacks", _spec), key=lambda spec: spec.name))


def _spec(name: str, kind: type[Attack], settings: Mapping[str, Any]) -> AttackSpec:
    return attack_spec(name, kind.model_validate(with_tuples(settings)))


def _plain(specs: tuple[AttackSpec, ...]) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json") for spec in specs]


AttackEntries = Annotated[tuple[AttackSpec, ...], PlainValidator(_read), PlainSerializer(_plain)]
"""Specs by name, each name once."""


def attack_specs(settings: Mapping[str, Mapping[str, Any]]) -> tuple[AttackSpec, ...]:
    """The specs of attacks, sorted by name, from their settings by name.

    Raises: PluginError with a line for each unknown attack, and each wrong setting.
    """
    try:
        return TypeAdapter[tuple[AttackSpec, ...]](AttackEntries).validate_python(dict(settings))
    except ValidationError as error:
        lines = [
            f"attack {'.'.join(map(str, one['loc']))}: {describe_error(one)}"
            for one in error.errors(include_url=False)
        ]
        raise PluginError("\n".join(lines)) from None
