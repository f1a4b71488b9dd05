"""`unlearnbench methods list` and `show`: installed methods, with equations and settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.api import registry
from unlearnbench.cli import check_method, gradient, new_method
from unlearnbench.cli.command import argument, command, new_group
from unlearnbench.cli.options import Json, Plugins, complete_method, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import PluginError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method

_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))

app = new_group("List, show, check and write methods.")


@command(app, "list")
def list_methods(as_json: Json = False, plugins: Plugins = None) -> None:
    """List the methods that are installed; broken ones with their fault."""
    register_plugins(plugins)
    rows: list[dict[str, Any]] = []
    for name in registry.names("methods"):
        row: dict[str, Any] = {"name": name}
        try:
            method = registry.load_method(name)
            offer = registry.find("methods", name)
            row |= {"source": offer.source, "needs": _needs(method), "summary": first_line(method)}
        except PluginError as error:
            row |= {"source": "", "needs": [], "summary": str(error)}
        rows.append(row)
    console = Console()
    if as_json:
        console.print_json(rows)
    else:
        columns = ("method", "reads", "what it is", "from")
        cells = [(r["name"], ", ".join(r["needs"]), r["summary"], r["source"]) for r in rows]
        console.table(columns, cells)


@command(app, "show")
def show_method(
    name: Annotated[str, argument("NAME", autocompletion=complete_method)],
    as_json: Json = False,
    plugins: Plugins = None,
) -> None:
    """Show a method's equation, what it reads, and its hyper-parameters."""
    from unlearnbench.files.canonical_json import json_ready

    register_plugins(plugins)
    method, offer = registry.load_method(name), registry.find("methods", name)
    parameters = [parameter(key, info) for key, info in method.model_fields.items()]
    text = inspect.cleandoc(method.__doc__ or "")
    console = Console()
    if as_json:
        shown: dict[str, Any] = {"name": name, "source": offer.source, "target": offer.target}
        shown |= {"needs": _needs(method), "description": text, "hyperparameters": parameters}
        console.print_json(json_ready(shown))
        return
    console.print(f"{name}  ({offer.source}, {offer.target})\n\n{text}\n")
    console.print(f"reads: {', '.join(_needs(method))}\n")
    columns = ("hyper-parameter", "type", "default", "bounds", "meaning", "default from")
    keys = ("name", "type", "default", "bounds", "meaning", "source")
    cells = [tuple(p[key] for key in keys) for p in parameters]
    console.table(columns, cells)
    example = next((p for p in parameters if p["type"] == "float"), None)
    grid = f", {example['name']}: [{example['default']}]" if example else ""
    rates = ", learning_rates: [1.0e-5]" if registry.trains(name) else ""
    console.print(f"\nin a config:  - {{method: {name}{grid}{rates}}}")


for _part in (check_method.app, new_method.app, gradient.app):
    app.add_typer(_part)


def _needs(method: type[Method | Wrapper]) -> list[str]:
    """The parts of a batch that the loss reads; what it reads of the start model in brackets."""
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import PARTS

    if issubclass(method, Wrapper):
        return ["questions (trains nothing)"]
    needs = method.needs
    read = needs.parts | needs.statistics
    read_parts: list[str] = [part for part in PARTS if part in read]
    read_parts += [f"reference({part})" for part in sorted(needs.reference)]
    return read_parts


def first_line(plugin: type[Any]) -> str:
    """The first line of the module's docstring, or of the class's where it has none."""
    module = inspect.getmodule(plugin)
    text = inspect.cleandoc((module.__doc__ if module else None) or plugin.__doc__ or "")
    return text.partition("\n")[0]


def parameter(key: str, info: FieldInfo) -> dict[str, Any]:
    """A plug-in's field: type, default, bounds, meaning and source."""
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in info.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    kind = info.annotation
    meaning, _, source = (info.description or "").partition(" [source: ")
    return {
        "name": key,
        "type": kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", ""),
        "default": "required" if info.is_required() else info.get_default(),
        "bounds": ", ".join(bounds),
        "meaning": meaning,
        "source": source.removesuffix("]"),
    }
