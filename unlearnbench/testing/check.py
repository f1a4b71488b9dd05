"""A check of a plug-in: what it claims, why it matters, how to fix a fault, and its outcome."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ValidationError

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.metric import Metric, Summary
from unlearnbench.api.plugin_code import describe, source_file
from unlearnbench.api.registry import Kind
from unlearnbench.config.messages import describe_errors
from unlearnbench.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.testing.tiny_lab import TinyLab

Verdict = Literal["passed", "fault", "not declared", "not applicable", "not run"]
"""`not declared`: there is no value to compare with; `not applicable`: the claim has no meaning for
the method; `not run`: a check that this one builds on has failed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    verdict: Verdict
    seen: str
    """The numbers behind the verdict, on one line."""
    error: bool = False
    """True if the method raised an error, so that the claim could not be checked."""
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
    """Takes a `TinyLab`, or the plug-in itself if `alone`."""
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


_T = TypeVar("_T", TinyLab, HyperParameters)
_P = TypeVar("_P", bound=HyperParameters)


def check(
    name: str, *, why: str, fix: str, alone: bool = False, first: bool = False
) -> Callable[[Callable[[_T], Outcome]], Check]:
    """Turn a function into a check; the first paragraph of its docstring is the claim.

    alone  the function takes the method itself: it checks declarations, not computed values
    first  if this check fails, the others (except those `alone`) are not run
    """

    def decorate(function: Callable[[_T], Outcome]) -> Check:
        return Check(name, _claim(function), why, fix, function, alone, first)

    return decorate


def metric_check(
    name: str, *, why: str, fix: str, first: bool = False
) -> Callable[[Callable[[Metric | Summary], Outcome]], Check]:
    """Turn a function of a metric into a check, see `check`."""

    def decorate(function: Callable[[Metric | Summary], Outcome]) -> Check:
        return Check(name, _claim(function), why, fix, function, True, first, "metrics")

    return decorate


def _claim(function: Callable[..., Outcome]) -> str:
    return " ".join(inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0].split())


class Conformance(ABC):
    """Every check of a plug-in as a test: the base of the classes that authors derive theirs from.

    The checks run once for all tests of a class.
    """

    checks: ClassVar[tuple[Check, ...]]
    _found: ClassVar[Mapping[str, Outcome]]

    @classmethod
    @abstractmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""

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


def run_check(check: Check, subject: Any, plugin: type[Any], seen: dict[str, str]) -> Outcome:
    """The outcome of a check on its subject; whatever the plug-in raises is a fault."""
    try:
        return check.run(subject)
    except UnlearnbenchError as error:  # its message names the plug-in and the place already
        return raised(str(error), check, seen)
    except Exception as error:  # a plug-in may raise anything; it becomes an outcome
        return raised(f"raised {describe(error, source_file(plugin))}", check, seen)


def made(kind: type[_P], settings: Mapping[str, Any], name: str, what: str) -> _P:
    """A plug-in with its defaults; required values come from a field's `examples`.

    what  its fields are called, `hyper-parameters`

    Raises: PluginError where a value is missing or refused.
    """
    values = dict(settings)
    for key, info in kind.model_fields.items():
        if info.is_required() and info.examples:
            values.setdefault(key, info.examples[0])
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        missing = any(one["type"] == "missing" for one in error.errors(include_url=False))
        hint = ". Give a value: --set KEY=VALUE, or `examples=[…]` in its Field" if missing else ""
        text = describe_errors(error, what)
        raise PluginError(f"{name} cannot be made: {text}{hint}") from None
