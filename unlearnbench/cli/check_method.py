"""`unlearnbench methods check`: a method against the mistakes of published harnesses."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.api import registry
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Json, Plugins, complete_method, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError

if TYPE_CHECKING:
    from unlearnbench.api.registry import Kind
    from unlearnbench.testing import Result

FAULT = 1
"""Exit code where a check found a fault."""
_SHORT = {
    "passed": "pass",
    "fault": "FAULT",
    "not declared": "-",
    "not applicable": "n/a",
    "not run": "skip",
}

app = new_group()


@command(app, "check")
def check(
    names: Annotated[
        list[str] | None, argument("NAME", "Methods to check.", autocompletion=complete_method)
    ] = None,
    check_all: Annotated[bool, flag("--all", "Check every method that is installed.")] = False,
    only: Annotated[list[str] | None, option("CHECK", "Run this check only (repeatable).")] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "KEY=VALUE",
            "A hyper-parameter in place of its default; the value is YAML (repeatable).",
            "--set",
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """Check a method for the mistakes of published harnesses; takes seconds, and no GPU.

    On a tiny random model, through the code that trains. Exit code 1 where there is a fault.

    Examples:
      unlearnbench methods check npo
      unlearnbench methods check --plugin my_method.py
      unlearnbench methods check npo --set beta=0.5 --only reference
      unlearnbench methods check --all --json
    """
    chosen, values = chosen_plugins("methods", names, plugins, settings, check_all=check_all)
    if not only or "fresh-process" in only:
        from unlearnbench.runtime.fresh_process import fresh_process

        fresh_process()  # its imports take as long as ours
    from unlearnbench.testing import check_method

    console = Console()
    found: dict[str, Sequence[Result]] = {}
    for name in chosen:
        if len(chosen) > 1:
            console.note(f"checking {name}")
        found[name] = check_method(name, values, only or ())
    silent = [] if as_json else [name for name in chosen if _is_silent(name, values)]
    return print_results(console, found, plugins, settings, silent, as_json=as_json)


def print_results(
    console: Console,
    found: Mapping[str, Sequence[Result]],
    plugins: Sequence[str] | None,
    settings: Sequence[str] | None,
    silent: Sequence[str] = (),
    *,
    as_json: bool,
) -> int:
    """Print the results by plug-in; returns the exit code."""
    if as_json:
        console.print_json({name: [_plain(r) for r in results] for name, results in found.items()})
    else:
        options = [("--plugin", file) for file in plugins or ()]
        options += [("--set", text) for text in settings or ()]
        same_options = "".join(f" {option} {value}" for option, value in options)
        report(console, found, same_options, silent)
    faults = any(r.outcome.verdict == "fault" for results in found.values() for r in results)
    return FAULT if faults else 0


def chosen_plugins(
    kind: Kind,
    names: Sequence[str] | None,
    plugins: list[str] | None,
    settings: Sequence[str] | None,
    *,
    check_all: bool,
) -> tuple[list[str], dict[str, Any]]:
    """The plug-ins to check, those named, else all or those of files, and the values of `--set`.

    A name may also be a file's.
    """
    one = kind.removesuffix("s")
    files = register_plugins(plugins)
    if check_all and names:
        raise UnlearnbenchError(f"give {one} names or --all, not both")
    named = [registry.register_file(n) if n.endswith(".py") else n for n in names or ()]
    chosen = list(registry.names(kind)) if check_all else named or files
    if not chosen:
        raise UnlearnbenchError(f"no {one} to check: give a {one}'s name, --all or --plugin FILE")
    for name in chosen:
        registry.load(kind, name)  # raises for an unknown or broken one, before any work
    values = _values(settings or ())
    if values and len(chosen) != 1:
        raise UnlearnbenchError(f"--set is for one {one}: name it in place of --all")
    return chosen, values


def _values(texts: Sequence[str]) -> dict[str, Any]:
    """Hyper-parameters of the texts `key=value`, whose values are YAML."""
    from unlearnbench.config.yaml_tree import YamlNode, with_override
    from unlearnbench.errors import ConfigError, Problem

    problems: list[Problem] = []
    root = YamlNode({}, "--set")
    for text in texts:
        root = with_override(root, text, problems)
    if problems:
        raise ConfigError(problems)
    plain: dict[str, Any] = root.plain()
    return plain


def _is_silent(name: str, values: Mapping[str, Any]) -> bool:
    """True if the method reads a reference and does not declare its value where it begins."""
    from unlearnbench.api.method import Method
    from unlearnbench.testing import example

    one = example(name, values)
    return (
        isinstance(one, Method)
        and bool(one.needed().reference)
        and one.value_at_reference() is None
    )


def report(
    console: Console, found: Mapping[str, Sequence[Result]], options: str, silent: Sequence[str]
) -> None:
    """Print the table, explanations, and a last line, which names what no check could see.

    options  of the command that shows a fault again
    """
    kind = next(r.check.kind for results in found.values() for r in results)
    if len(found) == 1:
        (results,) = found.values()
        seen = [(r.check.name, r.outcome.verdict, r.outcome.seen) for r in results]
        console.table(("check", "verdict", "what was seen"), seen)
    else:
        names = [*dict.fromkeys(r.check.name for results in found.values() for r in results)]
        rows: list[tuple[str, ...]] = []
        for name, results in found.items():
            verdicts = {r.check.name: _SHORT[r.outcome.verdict] for r in results}
            rows.append((name, *(verdicts.get(check, "skip") for check in names)))
        one = kind.removesuffix("s")
        console.table((one, *names), rows)
        console.print(f"\n-    the {one} declares nothing to compare with\nn/a  it does not arise")
        if any(r.outcome.verdict == "not run" for results in found.values() for r in results):
            console.print("skip another check failed, without which it means nothing")
    wrong = [(n, r) for n, rs in found.items() for r in rs if r.outcome.verdict == "fault"]
    for name, result in wrong:
        if result.outcome.as_in:
            continue  # explained at the check that saw it first
        console.print("\n".join(["", *_explained(name, result, options)]))
    seconds = sum(r.seconds for results in found.values() for r in results)
    checked = f"{len(found)} {kind}" if len(found) > 1 else next(iter(found))
    faults = f"{len(wrong)} fault{'s' if len(wrong) != 1 else ''}"
    unseen = ""
    if silent:
        which = "it" if len(found) == 1 else ", ".join(silent)
        unseen = (
            f"; a wrong factor would not show: {which} declared no `value_at_reference` beside the "
            "reference"
        )
    console.print(f"\n{checked}: {faults if wrong else 'no fault'}, {seconds:.1f} s{unseen}")


def _explained(name: str, result: Result, options: str) -> list[str]:
    check = result.check
    blocks = {
        "what": check.claim,
        "seen": result.outcome.seen,
        "why it matters": check.why,
        "to see it": f"{check.see(name)}{options}",
        "look for": check.fix,
    }
    if result.outcome.error:  # the check broke off, so that its advice does not apply
        blocks = {what: blocks[what] for what in ("seen", "to see it")}
    filler = textwrap.TextWrapper(100, break_long_words=False, break_on_hyphens=False)
    filler.subsequent_indent = " " * 18
    lines = [f"{name}: {check.name}"]
    for what, text in blocks.items():
        filler.initial_indent = f"  {what:15} "
        lines += filler.wrap(text)
    return lines


def _plain(result: Result) -> dict[str, Any]:
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
