"""`list`, `show`, `check` and `new` of every kind of plug-in; facts are in `plugin_kinds.py`."""

# Annotations are not postponed: those of the commands refer to names of the function around them.

import inspect
import keyword
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import PluginError, UnlearnbenchError
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, dotted_values, register_plugins
from unlearnbench.cli.plugin_kinds import LISTED, facts

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from unlearnbench.testing import Result


_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FAULT = 1
"""Exit code where a check found a fault, or could not be run."""

Name = Annotated[str, argument("NAME")]


def plugin_group(kind: registry.Kind) -> typer.Typer:
    """The commands of a kind of plug-in; modifiers have no suite of checks and no template."""
    a_word = _with_article(kind.removesuffix("s"))
    verbs = "List and show" if kind == "modifiers" else "List, show, check and write"
    app = new_group(f"{verbs} {kind}.")

    @command(app, "list", text=f"List the {kind} that are installed; broken ones with their fault.")
    def list_plugins(as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        rows, console = [_row(kind, name) for name in registry.names(kind)], Console()
        if as_json:
            console.print_json(rows)
            return
        columns = ("name", *LISTED[kind], "summary", "source")
        console.table(columns, [[_cell(row[key]) for key in columns] for row in rows])

    @command(app, "show", text=f"Show {a_word}'s equation, what it reads, and its settings.")
    def show(name: Name, as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        _show(kind, name, as_json=as_json)

    del list_plugins, show  # the group has them
    if kind != "modifiers":
        _add_check_and_new(app, kind)
    return app


def _add_check_and_new(app: typer.Typer, kind: registry.Kind) -> None:
    word = kind.removesuffix("s")
    a_word = _with_article(word)

    @command(
        app,
        "check",
        text=f"Check {a_word} for mistakes of published harnesses; takes seconds, and no GPU.\n\n"
        "Exit code 1 where there is a fault.\n\n"
        f"Examples:\n  unlearnbench {kind} check NAME --set KEY=VALUE --only CHECK\n"
        f"  unlearnbench {kind} check my_{word}.py\n"
        f"  unlearnbench {kind} check --all --json",
    )
    def check(
        names: Annotated[
            list[str] | None, argument("NAME", f"{kind.capitalize()} to check, or files.")
        ] = None,
        check_all: Annotated[bool, flag("--all", f"Check every {word} that is installed.")] = False,
        only: Annotated[
            list[str] | None, option("CHECK", "Run this check only (repeatable).")
        ] = None,
        settings: Annotated[
            list[str] | None,
            option("KEY=VALUE", "A setting in place of its default (repeatable).", "--set"),
        ] = None,
        plugins: Plugins = None,
        as_json: Json = False,
    ) -> int:
        from unlearnbench.testing import check_plugin

        from_files = register_plugins(plugins)
        if check_all and names:
            raise UnlearnbenchError(f"give {word} names or --all, not both")
        named = [registry.register_file(n) if n.endswith(".py") else n for n in names or ()]
        chosen = [*registry.names(kind)] if check_all else named or from_files
        if not chosen:
            raise UnlearnbenchError(
                f"no {word} to check: give {a_word}'s name, --all or --plugin FILE"
            )
        for name in chosen:
            registry.load(kind, name)  # raises for an unknown or broken one, before any work
        values = dotted_values(settings or ())
        if values and len(chosen) != 1:
            raise UnlearnbenchError(f"--set is for one {word}: name it in place of --all")
        console = Console()
        results: dict[str, Sequence[Result]] = {}
        for name in chosen:
            if len(chosen) > 1:
                console.note(f"checking {name}")
            results[name] = check_plugin(kind, name, values, only or ())
        if as_json:
            console.print_json({name: [_plain(r) for r in rs] for name, rs in results.items()})
        else:
            modules = [*(plugins or ()), *(name for name in names or () if name.endswith(".py"))]
            options = [f" --plugin {file}" for file in modules]
            options += [f" --set {text}" for text in settings or ()]
            report(console, results, "".join(options))
        verdicts = {r.outcome.verdict for rs in results.values() for r in rs}
        return _FAULT if verdicts & {"fault", "not run"} else 0

    @command(
        app,
        "new",
        text=f"Write a package with {a_word} of your own: {word}, test, pyproject, README.\n\n"
        f"Examples:\n  unlearnbench {kind} new my-{word}\n"
        f"  cd my-{word} && pip install -e . pytest && pytest",
    )
    def new(
        name: Annotated[str, argument("NAME", f"Such as my-{word}.")],
        out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
    ) -> None:
        for offer in registry.offers(kind):
            if offer.name == name:
                text = f"{word} {name!r} is offered by {offer.source}; choose another name"
                raise PluginError(text)
        console, written = Console(), write_package(name, Path(out), kind)
        for file in written:
            console.print(str(file))
        console.print(
            f"\nnext:  cd {written[0].parent}\n"
            "       pip install -e . pytest && pytest\n"
            f"       unlearnbench {kind} check {name}"
        )

    del check, new  # the group has them


def write_package(name: str, folder: Path, kind: registry.Kind = "methods") -> tuple[Path, ...]:
    """Write the package of the plug-in `name` into `folder`/`name`; returns its files.

    The plug-in in it is complete, down to its source and test, and conforms: an author changes
    one thing at a time and sees at once what a change breaks.

    Raises: PluginError for a name that no plug-in can have, and for a folder that is not empty.
    """
    word, module, package = kind.removesuffix("s"), name.replace("-", "_"), folder / name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or find_spec(module) is not None:
        raise PluginError(
            f"{name!r} cannot be the name of {_with_article(word)}: use small letters "
            "and digits, with hyphens between words, a letter first; no keyword and no module "
            "of the Python here"
        )
    if package.exists() and any(package.iterdir()):
        raise PluginError(f"{package} exists already, so nothing was written; choose another --out")
    values = {
        "name": name,
        "module": module,
        "kind": kind,
        "a_word": _with_article(word),
        "cls": "".join(part.capitalize() for part in name.split("-")),
        "title": name.replace("-", " ").capitalize(),
    }
    targets = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{word}.py": f"{module}.py",
        f"test_{word}.py": f"tests/test_{module}.py",
    }
    (package / "tests").mkdir(parents=True, exist_ok=True)
    for template, path in targets.items():
        text = (files("unlearnbench.cli") / "packages" / f"{template}.txt").read_text("utf-8")
        (package / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return tuple(package / path for path in targets.values())


def report(console: Console, results: Mapping[str, Sequence["Result"]], options: str) -> None:
    """Print the results by plug-in: a table, faults explained, and a last line.

    options  of the command that shows a fault again
    """
    every = [(name, result) for name, each in results.items() for result in each]
    checks = [*dict.fromkeys(r.check.name for _, r in every)]
    if len(results) == 1:
        seen = [(r.check.name, r.outcome.verdict, r.outcome.seen) for _, r in every]
        console.table(("check", "verdict", "what was seen"), seen)
    else:
        verdicts = {(name, r.check.name): r.outcome.verdict for name, r in every}
        rows = [[name, *(verdicts.get((name, check)) for check in checks)] for name in results]
        console.table(("name", *checks), rows)
    faults = [(name, r) for name, r in every if r.outcome.verdict == "fault"]
    for name, result in faults:
        console.print("\n".join(["", *_explained(name, result, options)]))
    checked = every[0][0] if len(results) == 1 else f"{len(results)} {every[0][1].check.kind}"
    count = f"{len(faults) or 'no'} fault{'s' if len(faults) > 1 else ''}"
    not_run = sum(r.outcome.verdict == "not run" for _, r in every)
    skipped = f", {not_run} checks not run" if not_run else ""
    console.print(f"\n{checked}: {count}{skipped}, {sum(r.seconds for _, r in every):.1f} s")


def _explained(name: str, result: "Result", options: str) -> Iterator[str]:
    check = result.check
    blocks = {"seen": result.outcome.seen, "to see it": f"{check.see(name)}{options}"}
    if not result.outcome.error:  # else the check broke off, and its advice does not apply
        blocks = {"what": check.claim, **blocks, "why it matters": check.why, "look for": check.fix}
    yield f"{name}: {check.name}"
    for title, text in blocks.items():
        yield textwrap.fill(
            text,
            100,
            initial_indent=f"  {title:15} ",
            subsequent_indent=" " * 18,
            break_long_words=False,
            break_on_hyphens=False,
        )


def _plain(result: "Result") -> dict[str, Any]:
    check = result.check
    return {
        "check": check.name,
        "verdict": result.outcome.verdict,
        "seen": result.outcome.seen,
        "claim": check.claim,
        "why": check.why,
        "mend": check.fix,
        "seconds": round(result.seconds, 3),
    }


def _row(kind: registry.Kind, name: str) -> dict[str, Any]:
    """A line of `list`."""
    row: dict[str, Any] = {"name": name, "source": ""}
    try:
        plugin = registry.load(kind, name)
        every = facts(kind, name, plugin)
        row |= {"source": registry.find(kind, name).source}
        return row | {key: every[key] for key in LISTED[kind]} | {"summary": _first_line(plugin)}
    except PluginError as error:
        return row | {key: [] for key in LISTED[kind]} | {"summary": str(error)}


def _show(kind: registry.Kind, name: str, *, as_json: bool) -> None:
    """Print a plug-in's docstring, facts and settings."""
    from unlearnbench.base.hashing import json_ready

    plugin, offer, console = registry.load(kind, name), registry.find(kind, name), Console()
    settings = [_field(key, info) for key, info in plugin.model_fields.items()]
    text, every = inspect.cleandoc(plugin.__doc__ or ""), facts(kind, name, plugin)
    config = every.pop("config", "")
    if as_json:
        row = {"name": name, "source": offer.source, "summary": _first_line(plugin)}
        shown = row | every | {"target": offer.target, "description": text, "settings": settings}
        console.print_json(json_ready(shown))
        return
    console.print(f"{name}  ({offer.source}, {offer.target})\n\n{text}\n")
    tables = {"settings": settings}
    for key, value in every.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            tables[key] = value
        else:
            console.print(f"{f'{key}:':12} {_cell(value)}")
    for key, rows in tables.items():
        if used := [k for k in (rows[0] if rows else ()) if any(row[k] != "" for row in rows)]:
            console.print()
            console.table(used, [[_cell(row[k]) for k in used] for row in rows], key)
    if config:
        console.print(f"\nin a config:  {config}")


def _with_article(noun: str) -> str:
    """The noun behind its indefinite article: `a method`, `an attack`."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _first_line(plugin: type[Any]) -> str:
    """The first line of the module's docstring, or of the class's where it has none."""
    module = inspect.getmodule(plugin)
    text = inspect.cleandoc((module.__doc__ if module else None) or plugin.__doc__ or "")
    return text.partition("\n")[0]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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
