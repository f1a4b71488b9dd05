"""The JSON schema of a configuration's YAML, for editors that complete and check while one types.

It has the keys of `schema.py` with their ranges, defaults and descriptions, and those of every
installed method, metric, benchmark and attack. What one key requires of another is the loader's to
check; so are the names and settings of plug-ins in files of their own (`plugins:`).
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from unlearnbench.api import registry
from unlearnbench.api.registry import Kind
from unlearnbench.config.benchmark_section import DEFAULT
from unlearnbench.config.loader import WrittenConfig
from unlearnbench.config.schema import RetainSpec

Json = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NULL: Json = {"type": "null"}
_POSITIVE: Json = {"type": "number", "exclusiveMinimum": 0}
_RANGE: Json = {"$ref": "#/$defs/Range"}
_OF_TRAINING: Json = {
    "retain": {
        "description": "a term that keeps the other rows: its name, or {term: …, weight: …}",
        "anyOf": [
            {"$ref": "#/$defs/Retain"},
            {"type": "array", "items": {"$ref": "#/$defs/Retain"}, "minItems": 1},
        ],
    },
    "modifiers": {"description": "names, or {sam: {rho: 0.01}}", "$ref": "#/$defs/Modifiers"},
    "learning_rates": {"description": "in place of the sweep's", "$ref": "#/$defs/Rates"},
    "training": {
        "description": "changes of the sweep's training settings",
        "anyOf": [{"$ref": "#/$defs/TrainingSettings"}, NULL],
    },
}
"""Keys of the entry of a method that trains, besides its hyper-parameters."""


def config_schema() -> Json:
    """The schema, ready for JSON, of draft 2020-12."""
    found = _untitled(WrittenConfig.model_json_schema())
    definitions, keys = found.pop("$defs"), found["properties"]
    for name in ("MethodGrid", "MethodSpec", "RetainSpec"):  # resolved ones, which no YAML has
        del definitions[name]
    definitions["Rates"] = {"anyOf": [_many(_POSITIVE), _RANGE, NULL]}
    definitions["Retain"] = _retain_term()
    definitions["Modifiers"] = {"type": "array", "items": {"type": ["string", "object"]}}
    for kind in registry.CLASSES:
        for name in registry.names(kind):
            definitions |= _plugin(kind, name)
    definitions["Method"] = {
        "type": ["string", "object"],
        "if": {"type": "object"},
        "then": {"required": ["method"], **_by_name("methods", "method")},
        "else": _named("methods"),
    }
    metrics = definitions["EvaluationSettings"]["properties"]
    metrics["metrics"] = _about(metrics["metrics"]) | _entries("metrics")
    keys["methods"] = _about(keys["methods"]) | _many({"$ref": "#/$defs/Method"})
    keys["data"] = _about(keys["data"]) | {"type": "object", **_by_name("benchmarks", "source")}
    keys["attacks"] = _about(keys["attacks"]) | _entries("attacks")
    keys["learning_rates"] = _about(keys["learning_rates"]) | {"anyOf": [_many(_POSITIVE), _RANGE]}
    for key in ("forget_fractions", "splits"):  # null leaves out what an extended file has
        about = {k: v for k, v in _about(keys[key]).items() if k != "default"}
        keys[key] = about | {"anyOf": [_rule(keys[key]), NULL]}
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
    found = _untitled(plugin.model_json_schema(ref_template=f"#/$defs/{key}.{{model}}"))
    below = {f"{key}.{one}": value for one, value in found.get("$defs", {}).items()}
    text = inspect.cleandoc(plugin.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    keys: Json = found.get("properties", {})
    if kind in ("methods", "modifiers"):
        keys = {setting: _axis(one) for setting, one in keys.items()}
    if kind == "methods":
        keys = {"method": {"const": name, "description": text}} | keys
        if registry.trains(name):
            keys |= _OF_TRAINING
    elif kind == "benchmarks":
        keys["source"] = {"const": name, "description": text}
    # A benchmark may give what a metric requires.
    required = [] if kind == "metrics" else found.get("required", [])
    settings = {"description": text, "type": "object", "properties": keys}
    settings |= {"required": required} if required else {}
    return {key: settings | {"additionalProperties": False}} | below


def _axis(value: Json) -> Json:
    """A hyper-parameter: one value, a list that spans the grid, or the range of a search."""
    rule = _rule(value)
    kinds = [one for one in rule.get("anyOf", [rule]) if one != NULL]
    one = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    return _about(value) | {"anyOf": [one, _many(one), _RANGE]}


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
    return {"anyOf": [{"type": "array", "items": _named(kind)}, section]}


def _retain_term() -> Json:
    """A retain term: its name, or a section whose values may be lists."""
    keys = _untitled(RetainSpec.model_json_schema())["properties"]
    term, weight = _rule(keys["term"]), _rule(keys["weight"])
    section = {
        "term": _about(keys["term"]) | {"anyOf": [term, _many(term)]},
        "weight": _about(keys["weight"]) | {"anyOf": [weight, _many(weight), _RANGE]},
    }
    entry = {"type": "object", "properties": section, "required": ["term"]}
    return {"anyOf": [term, entry | {"additionalProperties": False}, NULL]}


def _listed(kind: Kind) -> Json:
    return {"enum": [*registry.names(kind)]}


def _named(kind: Kind) -> Json:
    """A name: an installed one, which editors complete, or that of a file."""
    return {"anyOf": [_listed(kind), {"type": "string"}]}


def _many(one: Json) -> Json:
    return {"type": "array", "items": one, "minItems": 1}


def _about(value: Json) -> Json:
    """The part of a key's schema that is for people."""
    return {key: value[key] for key in _FOR_PEOPLE if key in value}


def _rule(value: Json) -> Json:
    """The part of a key's schema that checks its value."""
    return {key: one for key, one in value.items() if key not in _FOR_PEOPLE}


_FOR_PEOPLE = ("description", "default", "examples")


def _untitled(value: Any, *, names: bool = False) -> Any:
    """A schema without pydantic's titles, which repeat the keys.

    names  the keys of `value` are names of settings, of which one may be `title`
    """
    if isinstance(value, list):
        return [_untitled(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _untitled(one, names=key in ("properties", "$defs") and not names)
        for key, one in value.items()
        if names or key != "title"
    }
