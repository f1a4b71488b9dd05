"""The page of the YAML keys, from the settings' classes: type, default, bounds and meaning."""

import inspect
import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from markup import code, escaped, from_docstring, table
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unlearnbench.api import registry
from unlearnbench.benchmarks.own_tables import PythonRows, TableSection
from unlearnbench.config.schema import TINY_PREPARATION, MethodGrid, RetainSpec, SweepConfig
from unlearnbench.config.search import Range

BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"), ("min_length", "length ≥"))
HEADINGS = ("key", "type", "default", "bounds", "meaning")
NAMES: dict[Any, str] = {
    str: "text",
    float: "number",
    int: "whole number",
    bool: "true or false",
    NoneType: "null",
    TableSection: "section of a table",
}
APART = (MethodGrid, Range, TableSection, PythonRows)
"""Classes that have a section of their own, or that YAML cannot state."""
INTRODUCTION = """\
# Configuration

This page lists every key of a configuration file. Your file contains only the keys whose values
differ from the defaults. The key `extends: NAME` takes all other values from a configuration that
comes with the project, or from a file in the same folder. On the command line, the option `--set`
overrides one key, for example `--set models.0.preparation.epochs=3`. An unknown key is an error.
All errors of a file are reported at once, with their lines.
"""
METHODS = """\
## methods {#methods}

The value is a list with one entry for each method. An entry is either a name, such as `ce-u`, or a
mapping `{method: NAME, …}` with any of the following keys. If keys have lists as values, all
combinations are run.

| key | meaning |
|---|---|
| `method` | the name of the method ([Methods](../methods/index.md)) |
| a setting of the method | a value, a list of values, or, in a search, a [range](#range) |
| `retain` | a term added to the method's own loss: `{term: nll}`, `{term: kl, weight: 2.0}` |
| `learning_rates` | the learning rates of this method, which replace those of the sweep |
| `training` | the keys of [training](#training) that differ for this method |
"""
ATTACKS = """\
## attacks {#attacks}

The value is either a list of names, such as `[relearning, paraphrase]`, or a mapping with settings,
such as `{relearning: {steps: [1, 3, 13]}, paraphrase: {}}`. These are the settings of each attack:
"""
METRICS = """\
## evaluation.metrics {#evaluation.metrics-entries}

The value is either a list of names, such as `[fluency]`, or a mapping with settings, such as
`{mia-min-k: {share: 0.2}}`. The following metrics have settings:
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    yield "## The file {#file}\n"
    yield _table(SweepConfig, "")
    for key, field in SweepConfig.model_fields.items():
        if key == "data":
            yield (
                "## data {#data}\n\nThe key `source` names the benchmark. The other keys depend on "
                "the benchmark.\n"
            )
            for name in registry.names("benchmarks"):
                yield _plugin("benchmarks", name, f"data, source: {name}", "data")
        elif key == "methods":
            yield METHODS
            yield _section(RetainSpec, "methods.retain", 3)
        elif key == "attacks":
            yield ATTACKS
            yield from (_plugin("attacks", name, name) for name in registry.names("attacks"))
        else:
            yield from _nested(field, key)
        if key == "evaluation":
            yield METRICS
            for name in registry.names("metrics"):
                if registry.load("metrics", name).model_fields:
                    yield _plugin("metrics", name, name)
    yield _section(Range, "range", 2)
    yield _section(TableSection, "table", 2)


def _nested(field: FieldInfo, key: str) -> Iterator[str]:
    """Sections of the settings that a field has, each followed by those below it."""
    for kind in _settings_in(field.annotation):
        yield _section(kind, key, 2 + key.count("."))
        for name, below in kind.model_fields.items():
            yield from _nested(below, f"{key}.{name}")


def _section(kind: type[BaseModel], key: str, level: int) -> str:
    about = from_docstring(inspect.cleandoc(kind.__doc__ or ""))
    parts = [f"{'#' * level} {key} {{#{key}}}\n", f"{about}\n", _table(kind, key)]
    if kind is type(TINY_PREPARATION):
        usual, tiny = kind().model_dump(), TINY_PREPARATION.model_dump()
        other = ", ".join(f"`{k}: {json.dumps(v)}`" for k, v in tiny.items() if v != usual[k])
        parts.append(f"With `base: tiny`, some defaults are different: {other}.\n")
    return "\n".join(parts)


def _plugin(kind: registry.Kind, name: str, title: str, key: str = "") -> str:
    """A section of a plug-in's settings."""
    plugin = registry.load(kind, name)
    where = f"{kind}.{name}"
    about = inspect.cleandoc(plugin.__doc__ or "").partition("\n\n")[0]
    part = _table(plugin, where, apart=("source",) if key else ())
    settings = part or "This plug-in has no settings."
    return f"### {title} {{#{where}}}\n\n{escaped(about)}\n\n{settings}\n"


def _table(kind: type[BaseModel], key: str, apart: tuple[str, ...] = ()) -> str:
    rows = [_row(name, info, key) for name, info in kind.model_fields.items() if name not in apart]
    return table(HEADINGS, rows) if rows else ""


def _row(name: str, info: FieldInfo, above: str) -> tuple[str, ...]:
    path = f"{above}.{name}".lstrip(".")
    bounds = [
        f"{sign} {getattr(rule, attribute)}"
        for rule in info.metadata
        for attribute, sign in BOUNDS
        if getattr(rule, attribute, None) is not None
    ]
    bounds += [f"matches {code(rule.pattern)}" for rule in info.metadata if _pattern(rule)]
    # A key with a section of its own has its anchor there.
    below = _below(name, info, path)
    shown = f"[{code(name)}](#{below})" if below else f'<span id="{path}">{code(name)}</span>'
    kind = "" if below else escaped(_type(info.annotation))
    meaning = escaped((info.description or "").partition(" [source: ")[0])
    if below:
        link = f"see [{below}](#{below})"
        meaning = f"{meaning} ({link})" if meaning else link
    return shown, kind, "" if below else _default(info), ", ".join(bounds), meaning


def _below(name: str, info: FieldInfo, path: str) -> str:
    """The anchor of the section that a key has."""
    if path in ("data", "methods", "attacks"):
        return path
    return path if any(_settings_in(info.annotation)) and name != "learning_rates" else ""


def _pattern(rule: Any) -> bool:
    return getattr(rule, "pattern", None) is not None


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return "none" if value is None else code(json.dumps(value, ensure_ascii=False))


def _settings_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The settings' classes of a type, but for those that are written otherwise in YAML."""
    if isinstance(kind, type) and not get_args(kind):
        if issubclass(kind, BaseModel) and kind not in APART:
            yield kind
        return
    for arg in get_args(kind):
        yield from _settings_in(arg)


def _type(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return ", ".join(map(str, parts))
    if origin in (Union, UnionType):
        stated = [part for part in parts if PythonRows not in get_args(part)]
        return " or ".join(dict.fromkeys(map(_type, stated)))
    if origin is dict:
        return f"mapping of {_type(parts[0])} to {_type(parts[1])}"
    if parts:
        several = [_type(part) for part in parts if part is not Ellipsis]
        return f"list of {several[0]}" if len({*several}) == 1 else f"list: {', '.join(several)}"
    return NAMES.get(kind) or getattr(kind, "__name__", str(kind)).lower()
