"""The JSON schema of a configuration's YAML, for editors that complete and check while one types.

It has the keys of `schema.py` with their ranges, defaults and descriptions, and those of every
installed method, metric, benchmark and attack. What one key requires of another is the loader's to
check; so are the names and settings of plug-ins in files of their own (`plugins:`).
"""

import inspect
import json
from typing import Any

from unlearnbench.api import registry
from unlearnbench.api.registry import Kind
from unlearnbench.config.entries import DEFAULT
from unlearnbench.config.method_entries import axes_model, entry_model
from unlearnbench.config.written import WrittenConfig

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> Json:
    """The schema, ready for JSON, of draft 2020-12."""
    schema = _untitled(WrittenConfig.model_json_schema())
    definitions, keys = schema.pop("$defs"), schema["properties"]
    for kind in registry.CLASSES:
        for name in registry.names(kind):
            definitions |= _plugin(kind, name)
    definitions["Method"] = {
        "type": ["string", "object"],
        "if": {"type": "object"},
        "then": {"required": ["method"], **_by_name("methods", "method")},
        "else": _named("methods"),
    }
    definitions["EvaluationSettings"]["properties"]["metrics"] |= _entries("metrics")
    keys["attacks"] |= _entries("attacks")
    keys["methods"]["items"] = {"$ref": "#/$defs/Method"}
    keys["data"] |= {"type": "object", **_by_name("benchmarks", "source")}
    return {
        "$schema": DIALECT,
        "title": "unlearnbench configuration",
        "description": "A sweep: which methods unlearn which models on which data.",
        "type": "object",
        "properties": keys,
        "additionalProperties": False,
        "allOf": [
            {"if": {"not": {"required": ["extends"]}}, "then": _WHOLE},
            {
                "if": {"not": {"anyOf": [{"required": ["extends"]}, {"required": ["plugins"]}]}},
                "then": _installed_only(),
            },
        ],
        "$defs": definitions,
    }


_WHOLE: Json = {
    "required": ["name", "models", "methods"],
    "properties": {
        "data": {
            "if": {"not": {"required": ["source"]}},
            "then": {"$ref": f"#/$defs/benchmarks.{DEFAULT}"},
        }
    },
}
"""Rules of a file that extends no other."""


def schema_text() -> str:
    """The schema as a file has it."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def _installed_only() -> Json:
    """Rules of a file without plug-ins of its own: all names are installed ones."""
    methods, attacks = _listed("methods"), _listed("attacks")
    metrics, benchmarks = _listed("metrics"), _listed("benchmarks")
    one_method = {"anyOf": [methods, {"type": "object", "properties": {"method": methods}}]}
    return {
        "properties": {
            "methods": {"items": one_method},
            "data": {"properties": {"source": benchmarks}},
            "attacks": {"items": attacks, "propertyNames": attacks},
            "evaluation": {"properties": {"metrics": {"items": metrics, "propertyNames": metrics}}},
        }
    }


def _plugin(kind: Kind, name: str) -> Json:
    """The definitions of a plug-in: its settings and what they refer to."""
    plugin, key = registry.load(kind, name), f"{kind}.{name}"
    model = plugin
    if kind in ("methods", "modifiers"):
        model = entry_model(name) if kind == "methods" else axes_model(plugin)
    settings = _untitled(model.model_json_schema(ref_template=f"#/$defs/{key}.{{model}}"))
    below = {f"{key}.{name}": value for name, value in settings.pop("$defs", {}).items()}
    text = inspect.cleandoc(plugin.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    if kind in ("methods", "benchmarks"):
        names_it = "method" if kind == "methods" else "source"
        settings["properties"][names_it] = {"const": name, "description": text}
    if kind == "metrics":  # a benchmark may give what one requires
        settings.pop("required", None)
    return {key: settings | {"description": text}} | below


def _by_name(kind: Kind, key: str) -> Json:
    """The rules of a section whose `key` names a plug-in, with the settings of each of them."""
    return {
        "properties": {key: _named(kind)},
        "allOf": [
            {
                "if": {"required": [key], "properties": {key: {"const": name}}},
                "then": {"$ref": f"#/$defs/{kind}.{name}"},
            }
            for name in registry.names(kind)
        ],
    }


def _entries(kind: Kind) -> Json:
    """A list of names, or a section of settings by name."""
    settings = {name: {"$ref": f"#/$defs/{kind}.{name}"} for name in registry.names(kind)}
    section = {"type": "object", "properties": settings, "additionalProperties": {"type": "object"}}
    items = {"anyOf": [_named(kind), {"type": "object"}]}
    return {"anyOf": [{"type": "array", "items": items}, section]}


def _listed(kind: Kind) -> Json:
    return {"enum": [*registry.names(kind)]}


def _named(kind: Kind) -> Json:
    """A name: an installed one, which editors complete, or that of a file."""
    return {"anyOf": [_listed(kind), {"type": "string"}]}


def _untitled(value: Any, *, names: bool = False) -> Any:
    """A schema without pydantic's titles, which repeat the keys.

    names  the keys of `value` are names of settings, of which one may be `title`
    """
    if isinstance(value, list):
        return [_untitled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _untitled(item, names=key in ("properties", "$defs") and not names)
        for key, item in value.items()
        if names or key != "title"
    }
