"""The message about an unknown key: it names the key that was probably meant, or all known keys.

The keys of a configuration form a tree of settings, in which plug-ins have their own sections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from unlearnbench.api import registry
from unlearnbench.base.errors import did_you_mean
from unlearnbench.base.messages import Loc
from unlearnbench.config.entries import DEFAULT
from unlearnbench.config.method_entry import entry_model
from unlearnbench.config.written import WrittenConfig

LIKE_ENOUGH = 0.8
"""Least similarity to a key of the same section at which no other section is searched for the key.
`learning_rate` and `learning_rates` are that similar."""
_PLUGIN_SECTIONS = frozenset({"methods", "modifiers", "attacks", "metrics"})
"""Sections whose entries are plug-ins with settings of their own."""


def unknown_key_text(values: Any, path: Loc) -> str:
    """Name the nearest known key of this section or another one, or list the keys of this section.

    Args:
        values: The whole configuration.
        path: Path of the unknown key, such as `("methods", 0, "btea")`.
    """
    *above, last = path
    key = str(last)
    fields = list(_section(values, tuple(above)).model_fields)
    near = did_you_mean(key, fields, LIKE_ENOUGH)
    # A setting of a plug-in belongs to no other section, even if one has a key of the same name.
    if not near and not _PLUGIN_SECTIONS.intersection(above):
        near = _elsewhere(key)
    if not near:
        near = did_you_mean(key, fields)
    if near:
        return f"unknown key{near}"

    # The nearest name above the key, because a path also has the indices of lists.
    owner = next((step for step in reversed(above) if isinstance(step, str)), "")
    if owner == "methods":
        owner = values["methods"][above[-1]]["method"]
    listed = ", ".join(fields) or "no settings"
    return f"unknown key; {owner or 'a configuration'} takes: {listed}"


def _section(values: Any, path: Loc) -> type[BaseModel]:
    """Return the class whose fields are the keys of the section at a path.

    Args:
        values: The whole configuration, which names the plug-ins.
        path: Path of the section, such as `("evaluation", "metrics", "mia-min-k")`.
    """
    names = [step for step in path if isinstance(step, str)]
    model: Any
    match names:
        case ["data", *below]:
            model = registry.load("benchmarks", values["data"].get("source", DEFAULT))
        case ["methods", "modifiers", name, *below] | ["modifiers", name, *below]:
            model = registry.load("modifiers", name)
        case ["methods", *below]:
            model = entry_model(values["methods"][path[1]]["method"])
        case ["attacks", name, *below]:
            model = registry.load("attacks", name)
        case ["evaluation", "metrics", name, *below]:
            model = registry.load("metrics", name)
        case below:
            model = WrittenConfig
    # `below` is the rest of the path, from the plug-in's class or from the whole configuration.
    for name in below:
        model = _settings_in(model.model_fields[name].annotation) or model
    section: type[BaseModel] = model
    return section


def _elsewhere(key: str) -> str:
    """Return a hint at the sections that have a key of this name, or "" if none has it.

    If several sections have it, the hint names those nearest to the top.
    """
    paths = list(_paths_to(WrittenConfig, key))
    if not paths:
        return ""
    least_depth = min(path.count(".") for path in paths)
    nearest = [repr(path) for path in paths if path.count(".") == least_depth]
    return f"; did you mean {' or '.join(nearest)}?"


def _paths_to(model: type[BaseModel], key: str, above: str = "") -> Iterator[str]:
    """Yield the dotted path of every setting of a name, such as `models.0.name`."""
    for name, info in model.model_fields.items():
        if name == key:
            yield above + name
        if below := _settings_in(info.annotation):
            is_list = str(info.annotation).startswith("tuple")
            index = "0." if is_list else ""
            yield from _paths_to(below, key, f"{above}{name}.{index}")


def _settings_in(annotation: Any) -> type[BaseModel] | None:
    """Return the settings in the type of a key: `LoRA` for `LoRA | None`; None if it has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _settings_in(argument):
            return found
    return None
