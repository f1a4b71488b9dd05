"""`list`, `show`, `check` and `new` of every kind of plug-in, see `plugin_kinds.py`."""

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
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, completion, dotted_values, register_plugins
from unlearnbench.cli.plugin_kinds import KINDS
from unlearnbench.console import Console
from unlearnbench.errors import PluginError, UnlearnbenchError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from unlearnbench.testing import Result


_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FAULT = 1
"""Exit code where a check found a fault, or could not be run."""


def plugin_group(kind: registry.Kind) -> typer.Typer:
    """The commands of a kind of plug-in."""
    word, its = kind.removesuffix("s"), KINDS[kind]
    a_word = _with_article(word)
    app = new_group(f"List, show, check and write {kind}.")
    completed = completion(kind)
    example, setting, its_check = its.example

    @command(app, "list", text=f"List the {kind} that are installed; broken ones with their fault.")
    def list_plugins(as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        rows, console = [_row(kind, name) for name in registry.names(kind)], Console()
        if as_json:
            console.print_json(rows)
            return
        keys = ("name", *its.listed, "summary", "source")
        headings = [word, *its.listed, "what it is", "from"]
        console.table(headings, [[_cell(row[key]) for key in keys] for row in rows])

    @command(app, "show", text=f"Show {a_word}'s {its.about} and {its.settings}.")
    def show(
        name: Annotated[str, argument("NAME", autocompletion=completed)],
        as_json: Json = False,
        plugins: Plugins = None,
    ) -> None:
        from unlearnbench.files.canonical_json import json_ready

        register_plugins(plugins)
        plugin, offer = registry.load(kind, name), registry.find(kind, name)
        settings = [_field(key, info) for key, info in plugin.model_fields.items()]
        text, console = inspect.cleandoc(plugin.__doc__ or ""), Console()
        facts = its.facts(name, plugin)
        if as_json:
            row = {"name": name, "source": offer.source, "summary": _first_line(plugin)}
            shown = row | facts | {"target": offer.target, "description": text}
            console.print_json(json_ready(shown | {its.settings.replace("-", ""): settings}))
            return
        console.print(f"{name}  ({offer.source}, {offer.target})\n\n{text}\n")
        tables: dict[str, list[dict[str, Any]]] = {}
        for key, value in facts.items():
            if isinstance(value, dict):
                tables[key] = [
                    {"": str(k), **(v if isinstance(v, dict) else {"value": v})}
                    for k, v in value.items()
                ]
            elif isinstance(value, list) and value and isinstance(value[0], dict):
                tables[key] = value
            else:
                console.print(f"{f'{key}:':12} {_cell(value)}")
        for key, rows in (tables | {its.settings: settings}).items():
            used = [k for k in (rows[0] if rows else ()) if any(row[k] != "" for row in rows)]
            if used:
                console.print()
                headings = [key if k in ("", "name") else k for k in used]
                console.table(headings, [[_cell(row[k]) for k in used] for row in rows])
        if in_config := its.config(name, plugin):
            console.print(f"\nin a config:  {in_config}")

    @command(
        app,
        "check",
        text=f"Check {a_word} for mistakes of published harnesses; takes seconds, and no GPU.\n\n"
        "Exit code 1 where there is a fault.\n\n"
        f"Examples:\n  unlearnbench {kind} check {example}\n"
        f"  unlearnbench {kind} check my_{word}.py\n"
        f"  unlearnbench {kind} check {example} --set {setting} --only {its_check}\n"
        f"  unlearnbench {kind} check --all --json",
    )
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
                f"One of the {its.settings} in place of its default; the value is YAML "
                "(repeatable).",
                "--set",
            ),
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
        fresh = {"methods": "fresh-process", "benchmarks": "fingerprint"}.get(kind)
        if fresh and (not only or fresh in only):
            from unlearnbench.runtime.fresh_process import fresh_process

            fresh_process()  # its imports take as long as ours
        console = Console()
        results: dict[str, Sequence[Result]] = {}
        for name in chosen:
            if len(chosen) > 1:
                console.note(f"checking {name}")
            results[name] = check_plugin(kind, name, values, only or ())
        if as_json:
            console.print_json({name: [_plain(r) for r in rs] for name, rs in results.items()})
        else:
            options = [f" --plugin {file}" for file in plugins or ()]
            options += [f" --plugin {file}" for file in names or () if file.endswith(".py")]
            options += [f" --set {text}" for text in settings or ()]
            report(console, results, "".join(options))
        verdicts = {r.outcome.verdict for rs in results.values() for r in rs}
        return _FAULT if verdicts & {"fault", "not run"} else 0

    @command(
        app,
        "new",
        writes=[Output("out", "the package", kind="folder")],
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

    del list_plugins, show, check, new  # the group has them
    return app


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
        "a_one": _with_article(word),
        "cls": "".join(part.capitalize() for part in name.split("-")),
        "title": name.replace("-", " ").capitalize(),
    }
    targets = {
        "pyproject.toml": "pyproject.toml",
        f"README_{word}.md": "README.md",
        f"{word}.py": f"{module}.py",
        f"test_{word}.py": f"tests/test_{module}.py",
    }
    (package / "tests").mkdir(parents=True, exist_ok=True)
    for template, path in targets.items():
        text = (files("unlearnbench.cli") / "packages" / f"{template}.txt").read_text("utf-8")
        (package / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return tuple(package / path for path in targets.values())


def report(console: Console, found: Mapping[str, Sequence["Result"]], options: str) -> None:
    """Print the results by plug-in: a table, faults explained, and a last line.

    options  of the command that shows a fault again
    """
    every = [(name, result) for name, results in found.items() for result in results]
    kind = every[0][1].check.kind
    if len(found) == 1:
        seen = [(r.check.name, r.outcome.verdict, r.outcome.seen) for _, r in every]
        console.table(("check", "verdict", "what was seen"), seen)
    else:
        names = [*dict.fromkeys(r.check.name for _, r in every)]
        verdicts = {(name, r.check.name): r.outcome.verdict for name, r in every}
        rows = [
            [name, *(verdicts.get((name, check), "not run") for check in names)] for name in found
        ]
        console.table((kind.removesuffix("s"), *names), rows)
    wrong = [(name, r) for name, r in every if r.outcome.verdict == "fault"]
    for name, result in wrong:
        if not result.outcome.as_in:  # else explained at the check that saw it first
            console.print("\n".join(["", *_explained(name, result, options)]))
    seconds = sum(r.seconds for _, r in every)
    checked = f"{len(found)} {kind}" if len(found) > 1 else every[0][0]
    faults = f"{len(wrong) or 'no'} fault{'s' if len(wrong) > 1 else ''}"
    not_run = sum(r.outcome.verdict == "not run" for _, r in every)
    skipped = f", {not_run} checks not run" if not_run else ""
    console.print(f"\n{checked}: {faults}{skipped}, {seconds:.1f} s")


def _explained(name: str, result: "Result", options: str) -> Iterator[str]:
    check = result.check
    blocks = {
        "what": check.claim,
        "seen": result.outcome.seen,
        "why it matters": check.why,
        "to see it": f"{check.see(name)}{options}",
        "look for": check.fix,
    }
    if result.outcome.error:  # the check broke off, so that its advice does not apply
        blocks = {title: blocks[title] for title in ("seen", "to see it")}
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
    its = KINDS[kind]
    try:
        plugin = registry.load(kind, name)
        facts = its.facts(name, plugin)
        source, summary = registry.find(kind, name).source, _first_line(plugin)
    except PluginError as error:
        facts, source, summary = {key: [] for key in its.listed}, "", str(error)
    if isinstance(headline := facts.get("headline"), dict):
        facts["headline"] = [metric["label"] for metric in headline.values()]
    return {
        "name": name,
        "source": source,
        **{key: facts[key] for key in its.listed},
        "summary": summary,
    }


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
