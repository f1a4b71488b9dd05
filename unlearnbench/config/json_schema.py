"""The JSON schema of a configuration's YAML, for editors that complete keys and check them.

Pydantic generates it from `WrittenConfig`, with the settings of every method, modifier, metric,
benchmark and attack that is installed or was registered from a file. It has no rules across keys.
Only the loader checks them.
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
    """Return the schema as the text of a file."""
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
    # A file that extends another one may leave out any key.
    del schema["required"]
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _like(model: type[BaseModel], key: str) -> Any:
    """Make an optional field that has the description of the model's own field `key`."""
    return Field(default_factory=tuple, description=model.model_fields[key].description)


def _names(kind: Kind) -> Any:
    """Make the type of a plug-in's name, which is one of those that can be loaded."""
    return Literal[registry.names(kind)]


def _any_of(kind: Kind, key: str, **entries: Any) -> Any:
    """Make the union of the sections of all plug-ins of a kind.

    Args:
        kind: Kind of the plug-ins.
        key: Key that names the plug-in in its section, such as `method`.
        entries: Types of keys of the sections, in place of the types that the plug-ins have.
    """
    models: list[Any] = []
    for name in registry.names(kind):
        plugin = registry.load(kind, name)
        base = entry_model(name) if kind == "methods" else plugin
        default = ... if kind == "methods" else name
        fields: dict[str, Any] = {
            key: (Literal[name], Field(default, description=plugin.__doc__)),
        }
        for replaced in entries.keys() & base.model_fields.keys():
            fields[replaced] = (entries[replaced], _like(base, replaced))
        models.append(create_model(base.__name__, __base__=base, **fields))
    return reduce(or_, models)


def _entries(kind: Kind) -> Any:
    """Make the type of a key that lists plug-ins of a kind, see the examples in `entries.py`."""
    fields: dict[str, Any] = {
        name: (_settings(kind, name), Field({}, description="its settings"))
        for name in registry.names(kind)
    }
    section: Any = create_model(kind.title(), __config__=ConfigDict(extra="forbid"), **fields)
    entry: Any = _names(kind) | section
    return tuple[entry, ...] | section


def _settings(kind: Kind, name: str) -> Any:
    """Make the type of a plug-in's settings. A setting of a modifier may have several values."""
    plugin = registry.load(kind, name)
    if kind == "modifiers":
        return axes_model(plugin)
    # A benchmark may give a setting that its metric requires.
    fields: dict[str, Any] = {
        key: (info.annotation, Field(None, description=info.description))
        for key, info in plugin.model_fields.items()
        if info.is_required()
    }
    return create_model(plugin.__name__, __base__=plugin, **fields) if fields else plugin
