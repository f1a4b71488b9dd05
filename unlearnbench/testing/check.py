"""What a check is: a question to a method, why it is asked, and what was seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from unlearnbench.method import HyperParameters
from unlearnbench.testing.laboratory import Laboratory

Verdict = Literal["passed", "fault", "not declared", "not applicable", "not run"]


@dataclass(frozen=True)
class Outcome:
    """What a check came to."""

    verdict: Verdict
    seen: str
    """The numbers behind it, in a line."""
    error: bool = False
    """Whether the method raised: what the check is about was not seen."""
    as_in: str = ""
    """Name of the check that has ended in the same error before."""


def passed(seen: str) -> Outcome:
    """All is as it should be."""
    return Outcome("passed", seen)


def fault(seen: str) -> Outcome:
    """Something is wrong."""
    return Outcome("fault", seen)


def not_declared(seen: str) -> Outcome:
    """The method does not say what to compare with: nothing was checked."""
    return Outcome("not declared", seen)


def not_applicable(seen: str) -> Outcome:
    """The question does not arise for this method."""
    return Outcome("not applicable", seen)


def not_run(seen: str) -> Outcome:
    """Another check failed, without which this one means nothing."""
    return Outcome("not run", seen)


def raised(seen: str, as_in: str = "") -> Outcome:
    """The method raised an error, the same as in the check `as_in`."""
    return Outcome("fault", seen, error=True, as_in=as_in)


@dataclass(frozen=True)
class Check:
    """One question to a method."""

    name: str
    claim: str
    """What has to hold."""
    why: str
    """Why it matters: what went wrong, and where, when it did not hold."""
    mend: str
    """What to look for in a method that fails."""
    run: Callable[[Any], Outcome]
    """Takes the laboratory, or where `alone` the method itself."""
    alone: bool = False
    first: bool = False

    def see(self, method: str) -> str:
        """The command that shows it again."""
        return f"unlearnbench methods check {method} --only {self.name}"


_T = TypeVar("_T", Laboratory, HyperParameters)


def check(
    name: str, *, why: str, mend: str, alone: bool = False, first: bool = False
) -> Callable[[Callable[[_T], Outcome]], Check]:
    """Make a check of a function, whose docstring's first paragraph is the claim.

    alone  the function takes the method itself: it asks what a method says, not what it does
    first  the others, but for those `alone`, mean nothing where this one fails
    """

    def made(function: Callable[[_T], Outcome]) -> Check:
        claim = " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].split())
        return Check(name, claim, why, mend, function, alone, first)

    return made
