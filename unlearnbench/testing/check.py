"""A check of a plug-in: what it claims, why it matters, how to fix a fault, and its outcome."""

import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.plugin_code import describe, source_file
from unlearnbench.api.registry import Kind
from unlearnbench.base.errors import PluginError, UnavailableError, UnlearnbenchError, did_you_mean

Verdict = Literal["passed", "warning", "fault", "not declared", "not applicable", "not run"]
"""The outcome in a word.

- `warning`: the plug-in works, but its readers miss something.
- `not declared`: there is no value to compare with.
- `not applicable`: the claim has no meaning for the plug-in.
- `not run`: a check that it builds on has failed, or what it reads is out of reach.
"""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    verdict: Verdict
    seen: str
    """The numbers behind the verdict, on one line."""
    error: bool = False
    """True if the plug-in raised an error, so that the claim could not be checked."""


passed = partial(Outcome, "passed")
fault = partial(Outcome, "fault")
warning = partial(Outcome, "warning")
not_applicable = partial(Outcome, "not applicable")


def unless(faults: Iterator[str], seen: str) -> Outcome:
    """Return a fault with the first text and the number of others, or a pass if there is none.

    Args:
        faults: Descriptions of faults.
        seen: The numbers behind a pass.
    """
    first = next(faults, "")
    if not first:
        return passed(seen)
    other_count = sum(1 for _ in faults)
    return fault(f"{first} (and {other_count} more)" if other_count else first)


@dataclass(frozen=True)
class Check:
    """One claim about a plug-in, and the function that tests it."""

    name: str
    claim: str
    """The property that must hold."""
    why: str
    """Why it matters: which harness had the bug, and its effect."""
    fix: str
    """How to correct a plug-in that fails."""
    run: Callable[[Any], Outcome]
    """Takes what the plug-in is tried on, such as a `TinyLab`; the plug-in itself if `alone`."""
    alone: bool = False
    """Whether it checks declarations, not computed values."""
    first: bool = False
    """Whether other checks are not run if this one fails."""
    kind: Kind = "methods"
    """Of the plug-ins that it checks."""


@dataclass(frozen=True)
class Result:
    """A check with its outcome."""

    check: Check
    outcome: Outcome
    seconds: float


SUITES: defaultdict[Kind, list[Check]] = defaultdict(list)
"""The checks of each kind, in the order in which they are defined, and run."""


def check(
    *, name: str = "", alone: bool = False, first: bool = False, kind: Kind = "methods"
) -> Callable[[Callable[[Any], Outcome]], Check]:
    """Return a decorator that turns a function into a check.

    The docstring of the function has three paragraphs: claim, why and fix. They are printed if the
    check fails.

    Args:
        name: Of the check. By default, it is the function's name with hyphens.
        alone: Whether the function takes the plug-in itself, because it checks declarations and not
            computed values.
        first: Whether the other checks, except those that are `alone`, are not run if this check
            fails.
        kind: Of the plug-ins that it checks.
    """

    def decorate(function: Callable[[Any], Outcome]) -> Check:
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        claim, why, fix = (" ".join(paragraph.split()) for paragraph in paragraphs)
        declared = Check(
            name=name or function.__name__.replace("_", "-"),
            claim=claim,
            why=why,
            fix=fix,
            run=function,
            alone=alone,
            first=first,
            kind=kind,
        )
        SUITES[kind].append(declared)
        return declared

    return decorate


def run_checks(
    checks: Sequence[Check], plugin: HyperParameters, subject: Any, only: Collection[str]
) -> list[Result]:
    """Run the checks of a plug-in.

    If one of the first checks fails, those that build on it are not run, and its result is
    included even if it was not named.

    Args:
        checks: All checks of the kind, in their order.
        plugin: With settings.
        subject: What the plug-in is tried on. None if only checks that are `alone` apply to it.
        only: Names of the checks to run. Empty means all.

    Returns:
        The results of the checks that were to run.

    Raises:
        PluginError: If there is no check of a name.
    """
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            near = did_you_mean(name, names) or "."
            raise PluginError(f"unknown check {name!r}{near} There are: {', '.join(names)}")
    results: list[Result] = []
    failed = ""
    """Name of the first check that failed and that others build on."""
    for check in checks:
        is_selected = not only or check.name in only
        begin = time.perf_counter()
        if failed and not check.alone:
            outcome = Outcome("not run", f"{failed!r} failed")
        elif not (is_selected or check.first):
            continue
        elif subject is None and not check.alone:
            outcome = not_applicable("it trains nothing")
        else:
            outcome = _run(check, plugin, plugin if check.alone else subject)
            if check.first and outcome.verdict in ("fault", "not run"):
                failed = check.name
                is_selected = True
        if is_selected:
            results.append(Result(check, outcome, time.perf_counter() - begin))
    return results


def _run(check: Check, plugin: HyperParameters, subject: Any) -> Outcome:
    """Return the outcome of a check on its subject. Whatever the plug-in raises is a fault."""
    try:
        return check.run(subject)
    except UnavailableError as error:
        return not_applicable(str(error))
    except UnlearnbenchError as error:
        # Its message names the plug-in and the place already.
        text = str(error)
    except Exception as error:  # a plug-in may raise anything
        text = f"raised {describe(error, source_file(type(plugin)))}"
    return Outcome("fault", text, error=True)
