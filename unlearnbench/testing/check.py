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
    """The first fault and the number of others; without one, the check has passed."""
    first, others = next(faults, ""), sum(1 for _ in faults)
    return fault(f"{first} (and {others} more)" if others else first) if first else passed(seen)


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
    first: bool = False
    kind: Kind = "methods"


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
    """Turn a function into a check: the paragraphs of its docstring are claim, why and fix.

    name   if not the function's
    alone  the function takes the plug-in itself: it checks declarations, not computed values
    first  if this check fails, the others (except those `alone`) are not run
    """

    def decorate(function: Callable[[Any], Outcome]) -> Check:
        text = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        claim, why, fix = (" ".join(paragraph.split()) for paragraph in text)
        label = name or function.__name__.replace("_", "-")
        SUITES[kind].append(Check(label, claim, why, fix, function, alone, first, kind))
        return SUITES[kind][-1]

    return decorate


def run_checks(
    checks: Sequence[Check], plugin: HyperParameters, subject: Any, only: Collection[str]
) -> list[Result]:
    """Run all checks, or `only` those named.

    If one of the first checks fails, those that build on it are not run, and its result is
    included even if it was not named.

    subject  what checks that are not `alone` take; None: they do not apply to the plug-in

    Raises: PluginError for an unknown check.
    """
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            near = did_you_mean(name, names) or "."
            raise PluginError(f"unknown check {name!r}{near} There are: {', '.join(names)}")
    results: list[Result] = []
    failed = ""
    for check in checks:
        selected = not only or check.name in only
        begin = time.perf_counter()
        if failed and not check.alone:
            outcome = Outcome("not run", f"{failed!r} failed")
        elif not (selected or check.first):
            continue
        elif subject is None and not check.alone:
            outcome = not_applicable("it trains nothing")
        else:
            outcome = _run(check, plugin, plugin if check.alone else subject)
            if check.first and outcome.verdict in ("fault", "not run"):
                failed, selected = check.name, True
        if selected:
            results.append(Result(check, outcome, time.perf_counter() - begin))
    return results


def _run(check: Check, plugin: HyperParameters, subject: Any) -> Outcome:
    """The outcome of a check on its subject; whatever the plug-in raises is a fault."""
    try:
        return check.run(subject)
    except UnavailableError as error:
        return not_applicable(str(error))
    except UnlearnbenchError as error:  # its message names the plug-in and the place already
        text = str(error)
    except Exception as error:  # a plug-in may raise anything; it becomes an outcome
        text = f"raised {describe(error, source_file(type(plugin)))}"
    return Outcome("fault", text, error=True)
