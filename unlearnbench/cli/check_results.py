"""The results of `unlearnbench methods check` and its like, as tables, explanations and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.api import registry
from unlearnbench.cli.options import dotted_values, register_plugins, with_article
from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError

if TYPE_CHECKING:
    from unlearnbench.api.registry import Kind
    from unlearnbench.testing import Result

FAULT = 1
"""Exit code where a check found a fault, or could not be run."""
_SHORT = {
    "passed": "pass",
    "fault": "FAULT",
    "not declared": "-",
    "not applicable": "n/a",
    "not run": "skip",
}


def print_results(
    console: Console,
    found: Mapping[str, Sequence[Result]],
    options: Sequence[tuple[str, str]],
    unseen: str,
    *,
    as_json: bool,
) -> int:
    """Print the results by plug-in; returns the exit code.

    options  of the command that shows a fault again;  unseen  the end of the last line
    """
    if as_json:
        console.print_json({name: [_plain(r) for r in results] for name, results in found.items()})
    else:
        report(console, found, "".join(f" {name} {value}" for name, value in options), unseen)
    verdicts = {r.outcome.verdict for results in found.values() for r in results}
    return FAULT if verdicts & {"fault", "not run"} else 0


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
        raise UnlearnbenchError(
            f"no {one} to check: give {with_article(one)}'s name, --all or --plugin FILE"
        )
    for name in chosen:
        registry.load(kind, name)  # raises for an unknown or broken one, before any work
    values = dotted_values(settings or ())
    if values and len(chosen) != 1:
        raise UnlearnbenchError(f"--set is for one {one}: name it in place of --all")
    return chosen, values


def report(
    console: Console, found: Mapping[str, Sequence[Result]], options: str, unseen: str
) -> None:
    """Print the table, explanations, and a last line, which ends in `unseen`."""
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
            console.print("skip it builds on another check that failed, or on rows out of reach")
    wrong = [(n, r) for n, rs in found.items() for r in rs if r.outcome.verdict == "fault"]
    for name, result in wrong:
        if result.outcome.as_in:
            continue  # explained at the check that saw it first
        console.print("\n".join(["", *_explained(name, result, options)]))
    seconds = sum(r.seconds for results in found.values() for r in results)
    checked = f"{len(found)} {kind}" if len(found) > 1 else next(iter(found))
    faults = f"{len(wrong) or 'no'} fault{'s' if len(wrong) > 1 else ''}"
    not_run = sum(r.outcome.verdict == "not run" for rs in found.values() for r in rs)
    skipped = f", {not_run} checks not run" if not_run else ""
    console.print(f"\n{checked}: {faults}{skipped}, {seconds:.1f} s{unseen}")


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
