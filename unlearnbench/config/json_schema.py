"""The JSON schema of a configuration's YAML, for editors that complete and check while one types.

It is pydantic's of `WrittenConfig`, with the settings of every method, modifier, metric, benchmark
and attack that is installed, or was registered from a file. What one key requires of another is the
loader's to check.
"""

import json
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from unlearnbench.api import registry
from unlearnbench.api.registry import Kind
from unlearnbench.config.method_entry import axes_model, entry_model
from unlearnbench.config.written import WrittenConfig


def schema_text() -> str:
    """The schema as a file has it."""
    evaluation: Any = WrittenConfig.model_fields["evaluation"].annotation
    modifiers = _entries("modifiers")
    method: Any = _names("methods") | _any_of("methods", "method", modifiers=modifiers)
    fields: dict[str, Any] = {
        "data": (_any_of("benchmarks", "source"), _like(WrittenConfig, "data")),
        "methods": (
            Annotated[tuple[method, ...], Field(min_length=1)],
            _like(WrittenConfig, "methods"),
        ),
        "modifiers": (modifiers, _like(WrittenConfig, "modifiers")),
        "attacks": (_entries("attacks") | None, _like(WrittenConfig, "attacks")),
        "evaluation": (
            create_model(
                "Evaluation",
                __base__=evaluation,
                metrics=(_entries("metrics"), _like(evaluation, "metrics")),
            ),
            _like(WrittenConfig, "evaluation"),
        ),
    }
    model: Any = create_model("Configuration", __base__=WrittenConfig, **fields)
    schema: dict[str, Any] = model.model_json_schema()
    del schema["required"]  # a file that extends another may leave them out
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _like(model: type[BaseModel], key: str) -> Any:
    return Field(default_factory=tuple, description=model.model_fields[key].description)


def _names(kind: Kind) -> Any:
    return Literal[registry.names(kind)]


def _any_of(kind: Kind, key: str, **entries: Any) -> Any:
    """The section of each plug-in, which its `key` names; `entries` by key, where it has that."""
    models: list[Any] = []
    for name in registry.names(kind):
        base = entry_model(name) if kind == "methods" else registry.load(kind, name)
        default = ... if kind == "methods" else name
        text = registry.load(kind, name).__doc__
        fields: dict[str, Any] = {key: (Literal[name], Field(default, description=text))}
        for each in entries.keys() & base.model_fields.keys():
            fields[each] = (entries[each], _like(base, each))
        models.append(create_model(base.__name__, __base__=base, **fields))
    return reduce(or_, models)


def _entries(kind: Kind) -> Any:
    """A list of names and of sections of settings by name, or one such section."""
    fields: dict[str, Any] = {
        name: (_settings(kind, name), Field({}, description="its settings"))
        for name in registry.names(kind)
    }
    section: Any = create_model(kind.title(), __config__=ConfigDict(extra="forbid"), **fields)
    item: Any = _names(kind) | section
    return tuple[item, ...] | section


def _settings(kind: Kind, name: str) -> Any:
    """The settings of a plug-in; what it requires, its benchmark may give."""
    plugin = registry.load(kind, name)
    if kind == "modifiers":
        return axes_model(plugin)
    fields: dict[str, Any] = {
        key: (info.annotation, Field(None, description=info.description))
        for key, info in plugin.model_fields.items()
        if info.is_required()
    }
    return create_model(plugin.__name__, __base__=plugin, **fields) if fields else plugin
