"""What `check` prints about a plug-in: a table of verdicts, and an explanation of each fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unlearnbench.base.console import Console
from unlearnbench.testing import Result


def result_document(result: Result) -> dict[str, Any]:
    """Return the result of a check as JSON."""
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


def print_table(results: Sequence[Result], console: Console) -> None:
    """Print a line for each check."""
    rows = [(r.check.name, r.outcome.verdict, r.outcome.seen) for r in results]
    console.table(("check", "verdict", "what was seen"), rows, flowing={"what was seen"})


def print_faults(
    console: Console, name: str, results: Sequence[Result], *, command: str, options: str
) -> None:
    """Explain the faults of a plug-in, and count the verdicts in a last line.

    Args:
        console: Where to print.
        name: Of the plug-in.
        results: Of all checks that were run.
        command: Without options: `unlearnbench methods check npo`.
        options: That make the command repeat a check, such as ` --set beta=1`. They begin with a
            space unless they are empty.
    """
    faults = [result for result in results if result.outcome.verdict == "fault"]
    for fault in faults:
        again = f"{command} --only {fault.check.name}{options}"
        _print_fault(console, name, fault, again)

    count = "no fault" if not faults else _counted(len(faults), "fault")
    warning_count = sum(result.outcome.verdict == "warning" for result in results)
    if warning_count:
        count += f", {_counted(warning_count, 'warning')}"
    not_run_count = sum(result.outcome.verdict == "not run" for result in results)
    if not_run_count:
        count += f", {_counted(not_run_count, 'check')} not run"
    seconds = sum(result.seconds for result in results)
    console.print(f"{name}: {count}, {seconds:.1f} s")


def _print_fault(console: Console, name: str, fault: Result, again: str) -> None:
    """Explain a fault; `again` is the command that shows it again."""
    check = fault.check
    console.print(f"\n{name}: {check.name}")

    def print_block(title: str, text: str) -> None:
        console.paragraph(f"  {title:15} {text}", indent=" " * 18)

    # If the plug-in raised an error, the check's claim and advice do not apply.
    is_about_claim = not fault.outcome.error
    if is_about_claim:
        print_block("what", check.claim)
    print_block("seen", fault.outcome.seen)
    # A command is copied, so it stays in one line.
    console.print(f"  {'to see it':15} {again}")
    if is_about_claim:
        print_block("why it matters", check.why)
        print_block("look for", check.fix)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
