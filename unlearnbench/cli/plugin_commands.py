"""`list`, `show`, `check` and `new` of every kind of plug-in.

The commands are the same for all kinds; `plugin_kinds.KINDS` has their differences.
"""

# Annotations are not postponed: those of the commands refer to names of the function around them.

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import PluginError, UnlearnbenchError
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, Wide, dotted_values, register_plugins
from unlearnbench.cli.plugin_kinds import KINDS, summary_of, with_article, word_of

_FAULT = 1
"""Exit code if a check found a fault, or could not be run."""

_BROKEN = "broken"
"""Group of the plug-ins that cannot be loaded, in `list`."""

Name = Annotated[str, argument("NAME")]


def plugin_group(kind: registry.Kind) -> typer.Typer:
    """Return the commands of a kind of plug-in."""
    word = word_of(kind)
    a_word = with_article(word)
    example = KINDS[kind].shown_in_help
    app = new_group(f"List, show, check and write {kind}.")

    @command(
        app,
        "list",
        text=f"List the {kind} that are installed, each with a summary; a broken one with its "
        f"fault.\n\nExamples:\n  unlearnbench {kind} list\n  unlearnbench {kind} list --wide",
    )
    def list_plugins(wide: Wide = False, as_json: Json = False, plugins: Plugins = None) -> None:
        register_plugins(plugins)
        _list_plugins(kind, is_wide=wide, as_json=as_json)

    @command(
        app,
        "show",
        text=f"Show what {a_word} is, what it reads, and its settings.\n\n"
        f"Examples:\n  unlearnbench {kind} show {example}\n"
        f"  unlearnbench {kind} show {example} --json",
    )
    def show(name: Name, as_json: Json = False, plugins: Plugins = None) -> None:
        from unlearnbench.cli.plugin_page import show_plugin

        register_plugins(plugins)
        show_plugin(kind, name, as_json=as_json)

    @command(
        app,
        "check",
        text=f"Check {a_word} for common mistakes, in seconds and without a GPU.\n\n"
        "The exit code is 1 if there is a fault.\n\n"
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
        from_files = register_plugins(plugins)
        named = [registry.register_file(n) if _is_file(n) else n for n in names or ()]
        chosen = registry.names(kind) if check_all else named or from_files
        if not chosen:
            raise UnlearnbenchError(
                f"no {word} to check: give {a_word}'s name, --all or --plugin FILE"
            )
        for name in chosen:
            # Raises an error for an unknown or broken plug-in, before any work.
            registry.load(kind, name)
        values = dotted_values(settings or (), "KEY=VALUE")
        if values and len(chosen) != 1:
            raise UnlearnbenchError(f"--set is for one {word}: name it in place of --all")

        files = [*(plugins or ()), *filter(_is_file, names or ())]
        options = "".join(f" --plugin {file}" for file in files)
        options += "".join(f" --set {text}" for text in settings or ())
        return _check_plugins(kind, chosen, values, only or (), options, as_json=as_json)

    @command(
        app,
        "new",
        text=f"Write a package with {a_word} of your own: {word}, test, pyproject, README.\n\n"
        f"Examples:\n  unlearnbench {kind} new my-{word}\n"
        f"  cd my-{word} && pip install -e . pytest && pytest",
    )
    def new(
        name: Annotated[str, argument("NAME", f"Name of the {word}, such as my-{word}.")],
        out: Annotated[str, option("DIR", "The package becomes a folder in it.")] = ".",
    ) -> None:
        from unlearnbench.cli.plugin_package import write_package

        for offer in registry.offers(kind):
            if offer.name == name:
                text = f"{offer.source} already has {a_word} {name!r}; choose another name"
                raise PluginError(text)
        console = Console()
        written = write_package(name, Path(out), kind)
        for file in written:
            console.print(str(file))
        console.print(
            f"\nnext:  cd {written[0].parent}\n"
            "       pip install -e . pytest && pytest\n"
            f"       unlearnbench {kind} check {name}"
        )

    del list_plugins, show, check, new  # `app` has them
    return app


def _is_file(name: str) -> bool:
    """Whether an argument of `check` is a file and not a name."""
    return name.endswith(".py")


def _list_plugins(kind: registry.Kind, *, is_wide: bool, as_json: bool) -> None:
    """Print names and summaries, or with `is_wide` and `as_json` the listed facts, too."""
    from unlearnbench.cli.catalogue import Entry, print_catalogue
    from unlearnbench.cli.plugin_page import fact_text

    console = Console()
    rows: list[dict[str, Any]] = []
    entries: list[Entry] = []
    for name in registry.names(kind):
        row, group = _listed(kind, name)
        rows.append(row)
        entries.append(Entry(name, row["summary"], group))
    if as_json:
        console.print_json(rows)
    elif is_wide:
        columns = ("name", *KINDS[kind].listed, "summary", "source")
        lines = [[fact_text(row[key]) for key in columns] for row in rows]
        console.table(columns, lines, is_wide=True)
    else:
        hint = f"unlearnbench {kind} show NAME explains one of them, with its settings."
        print_catalogue(entries, KINDS[kind].headings, hint, console)


def _listed(kind: registry.Kind, name: str) -> tuple[dict[str, Any], str]:
    """Return the row of a plug-in in `list`, and the group in which it is printed.

    The summary of a broken plug-in is its fault.
    """
    row: dict[str, Any] = {"name": name, "source": ""}
    try:
        plugin = registry.load(kind, name)
        facts = KINDS[kind].facts_of(name, plugin)
        row["source"] = registry.find(kind, name).source
        for key in KINDS[kind].listed:
            row[key] = facts[key]
        row["summary"] = summary_of(kind, name, plugin)
        return row, KINDS[kind].group_of(name, plugin)
    except PluginError as error:
        for key in KINDS[kind].listed:
            row[key] = []
        row["summary"] = str(error)
        return row, _BROKEN


def _check_plugins(
    kind: registry.Kind,
    names: Sequence[str],
    settings: dict[str, Any],
    only: Sequence[str],
    options: str,
    *,
    as_json: bool,
) -> int:
    """Run the checks of plug-ins, print their outcomes, and return the exit code.

    Args:
        kind: Of all plug-ins.
        names: Of the plug-ins.
        settings: In place of the defaults.
        only: Names of checks; empty for all checks.
        options: That make a command repeat the checks, such as ` --set beta=1`.
        as_json: Whether to print a document instead of texts.
    """
    from unlearnbench.cli.plugin_verdicts import print_faults, print_table, result_document
    from unlearnbench.testing import check_plugin

    console = Console()
    documents: dict[str, Any] = {}
    verdicts: set[str] = set()
    for name in names:
        results = check_plugin(kind, name, settings, only)
        verdicts.update(result.outcome.verdict for result in results)
        documents[name] = [result_document(result) for result in results]
        if as_json:
            continue
        if len(names) == 1:
            print_table(results, console)
        checked = f"unlearnbench {kind} check {name}"
        print_faults(console, name, results, command=checked, options=options)
    if as_json:
        console.print_json(documents)
    return _FAULT if verdicts & {"fault", "not run"} else 0
