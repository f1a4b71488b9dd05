"""`list`, `show`, `check` and `new`: the commands that every kind of plug-in has.

A kind declares the parts in which its commands differ, see `PluginCommands`.
"""

# Annotations are not postponed: those of the commands refer to names of the function around them.

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from unlearnbench.api import registry
from unlearnbench.cli.check_results import chosen_plugins, print_results
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.dry_run import DryRun
from unlearnbench.cli.new_package import print_package
from unlearnbench.cli.options import Json, Plugins, completion, register_plugins, with_article
from unlearnbench.console import Console
from unlearnbench.errors import PluginError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from unlearnbench.testing import Result

_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings and rows."""


@dataclass(frozen=True)
class Details:
    """The part of `show` that only one kind of plug-in has."""

    values: Mapping[str, Any]
    """As JSON, beyond the row of `list`."""
    blocks: Sequence[str | Table]
    """For people."""
    in_config: str = ""
    """How a configuration names the plug-in."""


@dataclass(frozen=True)
class PluginCommands:
    """The parts in which the commands of a kind of plug-in differ."""

    kind: registry.Kind
    headings: Mapping[str, str]
    """Columns of `list` between name and summary, by key of a row."""
    row: Callable[[str, Any], Mapping[str, Any]]
    """The values of those columns, from the name and class of a plug-in."""
    details: Callable[[str, Any, Mapping[str, Any]], Details]
    """The details of a plug-in, from its name, class and row."""
    check: "Callable[[str, Mapping[str, Any], Sequence[str]], Sequence[Result]]"
    """Runs the checks of a plug-in with these settings, or those named."""
    show_help: str
    check_help: str
    settings: str = "settings"
    """What its fields are called."""
    unseen: Callable[[Sequence[str], Mapping[str, Any]], str] = lambda _names, _values: ""
    """The end of the last line of `check`: a fault that it could not see."""


def plugin_group(one: PluginCommands) -> typer.Typer:
    """The commands of a kind of plug-in."""
    kind, word = one.kind, one.kind.removesuffix("s")
    app = new_group(f"List, show, check and write {kind}.")
    completed = completion(kind)

    def row(name: str) -> dict[str, Any]:
        try:
            plugin = registry.load(kind, name)
            source = registry.find(kind, name).source
            values = one.row(name, plugin)
            return {"name": name, "source": source, **values, "summary": _first_line(plugin)}
        except PluginError as error:
            empty: dict[str, Any] = {key: [] for key in one.headings}
            return {"name": name, "source": "", **empty, "summary": str(error)}

    @command(app, "list", text=f"List the {kind} that are installed; broken ones with their fault.")
    def list_plugins(as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        rows, console = [row(name) for name in registry.names(kind)], Console()
        if as_json:
            console.print_json(rows)
            return
        keys = ("name", *one.headings, "summary", "source")
        cells = [tuple(_cell(values[key]) for key in keys) for values in rows]
        console.table((word, *one.headings.values(), "what it is", "from"), cells)

    @command(app, "show", text=one.show_help)
    def show(
        name: Annotated[str, argument("NAME", autocompletion=completed)],
        as_json: Json = False,
        plugins: Plugins = None,
    ) -> None:
        from unlearnbench.files.canonical_json import json_ready

        register_plugins(plugins)
        plugin, offer = registry.load(kind, name), registry.find(kind, name)
        settings = [_field(key, info) for key, info in plugin.model_fields.items()]
        text = inspect.cleandoc(plugin.__doc__ or "")
        values = row(name)
        found, console = one.details(name, plugin, values), Console()
        if as_json:
            shown = values | {"target": offer.target, "description": text, **found.values}
            console.print_json(json_ready(shown | {one.settings.replace("-", ""): settings}))
            return
        console.print(f"{name}  ({offer.source}, {offer.target})\n\n{text}")
        blocks = [*found.blocks, *([_table_of(settings, one.settings)] if settings else [])]
        for block in blocks:
            console.print()
            if isinstance(block, str):
                console.print(block)
            else:
                console.table(*block)
        if found.in_config:
            console.print(f"\nin a config:  {found.in_config}")

    @command(app, "check", text=one.check_help)
    def check(
        names: Annotated[
            list[str] | None,
            argument("NAME", f"{kind.capitalize()} to check, or files.", autocompletion=completed),
        ] = None,
        check_all: Annotated[bool, flag("--all", f"Check every {word} that is installed.")] = False,
        only: Annotated[
            list[str] | None, option("CHECK", "Run this check only (repeatable).")
        ] = None,
        settings: Annotated[
            list[str] | None,
            option(
                "KEY=VALUE",
                f"One of the {one.settings} in place of its default; the value is YAML "
                "(repeatable).",
                "--set",
            ),
        ] = None,
        plugins: Plugins = None,
        as_json: Json = False,
    ) -> int:
        chosen, values = chosen_plugins(kind, names, plugins, settings, check_all=check_all)
        console, found = Console(), dict[str, Any]()
        for name in chosen:
            if len(chosen) > 1:
                console.note(f"checking {name}")
            found[name] = one.check(name, values, only or ())
        files = [*(plugins or ()), *(name for name in names or () if name.endswith(".py"))]
        options = [("--plugin", file) for file in files]
        options += [("--set", text) for text in settings or ()]
        unseen = "" if as_json else one.unseen(chosen, values)
        return print_results(console, found, options, unseen, as_json=as_json)

    @command(
        app,
        "new",
        writes=[Output("out", "the package", kind="folder")],
        text=f"Write a package with {with_article(word)} of your own: {word}, test, pyproject, "
        "README.\n\n"
        f"Examples:\n  unlearnbench {kind} new my-{word}\n"
        f"  cd my-{word} && pip install -e . pytest && pytest",
    )
    def new(
        name: Annotated[str, argument("NAME", f"Such as my-{word}.")],
        out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
        dry_run: DryRun = False,
    ) -> None:
        print_package(name, Path(out), kind, dry_run=dry_run)

    del list_plugins, show, check, new  # the group has them
    return app


def _first_line(plugin: type[Any]) -> str:
    """The first line of the module's docstring, or of the class's where it has none."""
    module = inspect.getmodule(plugin)
    text = inspect.cleandoc((module.__doc__ if module else None) or plugin.__doc__ or "")
    return text.partition("\n")[0]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _table_of(settings: Sequence[Mapping[str, Any]], what: str) -> Table:
    headings = {what.removesuffix("s"): "name", **{k: k for k in ("type", "default", "bounds")}}
    headings |= {"meaning": "meaning", "default from": "source"}
    used = {h: key for h, key in headings.items() if any(one[key] != "" for one in settings)}
    return (*used,), [tuple(str(one[key]) for key in used.values()) for one in settings]


def _field(key: str, info: "FieldInfo") -> dict[str, Any]:
    """A plug-in's field: type, default, bounds, meaning and source."""
    bounds = [
        f"{sign} {getattr(rule, name):g}"
        for rule in info.metadata
        for name, sign in _BOUNDS
        if getattr(rule, name, None) is not None
    ]
    meaning, _, source = (info.description or "").partition(" [source: ")
    return {
        "name": key,
        "type": _type_name(info.annotation),
        "default": "required" if info.is_required() else info.get_default(),
        "bounds": ", ".join(bounds),
        "meaning": meaning,
        "source": source.removesuffix("]"),
    }


def _type_name(kind: Any) -> str:
    """A field's type as an author writes it, without rules: `str | None`."""
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(map(_type_name, get_args(kind)))
    if kind is NoneType or (isinstance(kind, type) and not get_args(kind)):
        return "None" if kind is NoneType else kind.__name__
    return str(kind).replace("typing.", "")
