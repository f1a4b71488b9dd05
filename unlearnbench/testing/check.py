"""A check of a plug-in: what it claims, why it matters, how to fix a fault, and its outcome."""

from __future__ import annotations

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.plugin_code import describe, source_file
from unlearnbench.api.registry import Kind
from unlearnbench.errors import (
    PluginError,
    UnavailableError,
    UnlearnbenchError,
    did_you_mean,
)

Verdict = Literal["passed", "fault", "not declared", "not applicable", "not run"]
"""`not declared`: there is no value to compare with; `not applicable`: the claim has no meaning for
the plug-in; `not run`: a check that it builds on has failed, or what it reads is out of reach."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    verdict: Verdict
    seen: str
    """The numbers behind the verdict, on one line."""
    error: bool = False
    """True if the plug-in raised an error, so that the claim could not be checked."""
    as_in: str = ""
    """Name of the earlier check that ended in the same error."""


passed = partial(Outcome, "passed")
fault = partial(Outcome, "fault")
not_applicable = partial(Outcome, "not applicable")


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

    def see(self, name: str) -> str:
        """The command that runs this check again."""
        return f"unlearnbench {self.kind} check {name} --only {self.name}"


@dataclass(frozen=True)
class Result:
    """A check with its outcome."""

    check: Check
    outcome: Outcome
    seconds: float


def check(
    name: str,
    *,
    why: str,
    fix: str,
    alone: bool = False,
    first: bool = False,
    kind: Kind = "methods",
) -> Callable[[Callable[[Any], Outcome]], Check]:
    """Turn a function into a check; the first paragraph of its docstring is the claim.

    alone  the function takes the plug-in itself: it checks declarations, not computed values
    first  if this check fails, the others (except those `alone`) are not run
    """

    def decorate(function: Callable[[Any], Outcome]) -> Check:
        text = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
        return Check(name, " ".join(text.split()), why, fix, function, alone, first, kind)

    return decorate


metric_check = partial(check, kind="metrics")
benchmark_check = partial(check, kind="benchmarks")
attack_check = partial(check, kind="attacks")


class Conformance(ABC):
    """Every check of a plug-in as a test: the base of the classes that authors derive theirs from.

    The checks run once for all tests of a class.
    """

    checks: ClassVar[tuple[Check, ...]]
    settings: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""
    _found: ClassVar[Mapping[str, Outcome]]

    @classmethod
    @abstractmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""

    @classmethod
    def named(cls, one: str) -> Any:
        """The plug-in of a class, in its attribute `one`. Raises: TypeError where it has none."""
        if not hasattr(cls, one):
            example = f"My{one.capitalize()}"
            raise TypeError(f"{cls.__name__} names no {one}: write `{one} = {example}`")
        return getattr(cls, one)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per check."""
        if "check" in metafunc.fixturenames:
            metafunc.parametrize("check", self.checks, ids=[check.name for check in self.checks])

    def test_conforms(self, check: Check) -> None:
        """Assert what the check claims."""
        import pytest

        outcome = self._outcomes()[check.name]
        if outcome.verdict == "fault":
            raise AssertionError(
                f"{check.claim}\nseen  {outcome.seen}\nwhy   {check.why}\nfix   {check.fix}"
            )
        if outcome.verdict != "passed":
            pytest.skip(f"{outcome.verdict}: {outcome.seen}")

    @classmethod
    def _outcomes(cls) -> Mapping[str, Outcome]:
        if "_found" not in vars(cls):
            cls._found = {result.check.name: result.outcome for result in cls.results()}
        return cls._found


def run_checks(
    checks: Sequence[Check], plugin: HyperParameters, subject: Any, only: Collection[str]
) -> list[Result]:
    """Run all checks, or `only` those named.

    If one of the first checks fails, those that build on it are not run, and its result is
    included even if it was not named.

    subject  what checks that are not `alone` take; None: they do not apply to the plug-in

    Raises: PluginError for an unknown check.
    """
    check_names(only, checks)
    results: list[Result] = []
    failed, seen = "", dict[str, str]()
    for check in checks:
        selected = not only or check.name in only
        if failed and not check.alone:
            if selected:
                results.append(Result(check, Outcome("not run", f"{failed!r} failed"), 0.0))
        elif selected or check.first:
            begin = time.perf_counter()
            if subject is None and not check.alone:
                outcome = not_applicable("it trains nothing")
            else:
                outcome = run_check(check, plugin if check.alone else subject, plugin, seen)
            faulty = outcome.verdict in ("fault", "not run")
            failed = check.name if check.first and faulty else failed
            if selected or faulty:
                results.append(Result(check, outcome, time.perf_counter() - begin))
    return results


def check_names(only: Collection[str], checks: Sequence[Check]) -> None:
    """Raise PluginError for a check that there is not."""
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            near = did_you_mean(name, names) or "."
            raise PluginError(f"unknown check {name!r}{near} There are: {', '.join(names)}")


def raised(text: str, check: Check, seen: dict[str, str]) -> Outcome:
    """A fault with an error's text, or with the name of the check in which it was `seen` first."""
    first = seen.setdefault(text, check.name)
    if first == check.name:
        return Outcome("fault", text, error=True)
    return Outcome("fault", f"the same error as in {first!r}", error=True, as_in=first)


def run_check(check: Check, subject: Any, plugin: HyperParameters, seen: dict[str, str]) -> Outcome:
    """The outcome of a check on its subject; whatever the plug-in raises is a fault."""
    try:
        return check.run(subject)
    except UnavailableError as error:
        return not_applicable(str(error))
    except UnlearnbenchError as error:  # its message names the plug-in and the place already
        return raised(str(error), check, seen)
    except Exception as error:  # a plug-in may raise anything; it becomes an outcome
        return raised(f"raised {describe(error, source_file(type(plugin)))}", check, seen)
