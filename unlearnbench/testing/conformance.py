"""All checks on one method: from a test (`MethodConformance`) or a command (`check_method`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from unlearnbench import registry
from unlearnbench.errors import PluginError, UnlearnbenchError, did_you_mean
from unlearnbench.fresh_process import FreshError
from unlearnbench.method import Method, Wrapper
from unlearnbench.plugin_code import describe
from unlearnbench.problems import in_words
from unlearnbench.retain import source_file
from unlearnbench.testing import basics, contract, fresh, invariance, positions, reach, values
from unlearnbench.testing.check import Check, Outcome, not_applicable, not_run, raised
from unlearnbench.testing.laboratory import Laboratory

CHECKS: tuple[Check, ...] = (
    basics.loss,
    basics.read_only,
    basics.repeatable,
    invariance.padding,
    invariance.order,
    invariance.accumulation,
    invariance.doubling,
    invariance.processes,
    fresh.fresh,
    positions.prompt,
    positions.shift,
    positions.labels,
    values.extremes,
    values.one_token,
    values.empty,
    values.reference,
    values.step,
    values.direction,
    values.bf16,
    contract.needs,
    reach.parts,
    reach.tokens,
    reach.references,
    reach.balance,
    contract.hyper_parameters,
    contract.docstring,
)


@dataclass(frozen=True)
class Result:
    """A check and what it came to."""

    check: Check
    outcome: Outcome
    seconds: float


def example(
    method: type[Method | Wrapper] | str, hyperparameters: Mapping[str, Any] | None = None
) -> Method | Wrapper:
    """A method with its defaults; required values come from a field's `examples`.

    Raises: PluginError where a value is missing or refused.
    """
    kind = registry.load_method(method) if isinstance(method, str) else method
    given = dict(hyperparameters or {})
    for key, info in kind.model_fields.items():
        if info.get_default(call_default_factory=False) is PydanticUndefined and info.examples:
            given.setdefault(key, info.examples[0])
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        told = [
            f"{'.'.join(map(str, one['loc'])) or 'hyper-parameters'}: {in_words(one)}"
            for one in wrong
        ]
        missing = any(one["type"] == "missing" for one in wrong)
        hint = ". Give a value: --set KEY=VALUE, or `examples=[…]` in its Field" if missing else ""
        name = method if isinstance(method, str) else kind.__name__
        raise PluginError(f"{name} cannot be made: {'; '.join(told)}{hint}") from None


def check_method(
    method: type[Method | Wrapper] | str,
    hyperparameters: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Carry out all checks, or `only` those named, on a method or on what has that name.

    Where a check that comes first fails, those that build on it are not run, and its own result is
    there whether it is named or not.

    Raises: PluginError where there is no such method or check, or its values are refused.
    """
    known = [check.name for check in CHECKS]
    for name in only:
        if name not in known:
            near = did_you_mean(name, known) or "."
            raise PluginError(f"unknown check {name!r}{near} There are: {', '.join(known)}")
    made = example(method, hyperparameters)
    lab = Laboratory(made) if isinstance(made, Method) and made.needed().parts else None
    if lab is not None and (not only or fresh.fresh.name in only):
        with suppress(FreshError, TypeError):  # the check itself says why
            fresh.begin(lab)
    results: list[Result] = []
    failed, seen = "", dict[str, str]()
    with _one_thread():
        for check in CHECKS:
            asked = not only or check.name in only
            if not asked and not check.first:
                continue
            if failed and not check.alone:
                if asked:
                    results.append(Result(check, not_run(f"{failed!r} failed"), 0.0))
                continue
            result = _once(_carried_out(check, made, lab), seen)
            faulty = result.outcome.verdict == "fault"
            if check.first and faulty:
                failed = check.name
            if asked or faulty:
                results.append(result)
    return results


def _once(result: Result, seen: dict[str, str]) -> Result:
    """The result, with an error that another check was `seen` to end in named by that check."""
    outcome = result.outcome
    if not outcome.error:
        return result
    first = seen.setdefault(outcome.seen, result.check.name)
    if first == result.check.name:
        return result
    return replace(result, outcome=raised(f"the same error as in {first!r}", first))


@contextmanager
def _one_thread() -> Generator[None, None, None]:
    """One thread: the tensors are small, and threads that wait for one another only take time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _carried_out(check: Check, method: Method | Wrapper, lab: Laboratory | None) -> Result:
    begin = time.perf_counter()
    if lab is None and not check.alone:
        outcome = not_applicable("it trains nothing")
    else:
        try:
            outcome = check.run(method if check.alone else lab)
        except UnlearnbenchError as error:  # names the method and the place already
            outcome = raised(str(error))
        except Exception as error:  # whatever a stranger's method does
            outcome = raised(f"raised {describe(error, source_file(type(method)))}")
    return Result(check, outcome, time.perf_counter() - begin)


class MethodConformance:
    """Every check as a test; derive a class, and name the method.

    class TestMyMethod(MethodConformance):
        method = MyMethod
    """

    method: ClassVar[type[Method | Wrapper] | str]
    """The class, or the name it is registered under."""
    hyperparameters: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per check."""
        if "check" in metafunc.fixturenames:
            metafunc.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])

    def test_conforms(self, check: Check) -> None:
        """What the check claims holds."""
        import pytest

        if not hasattr(self, "method"):
            raise TypeError(f"{type(self).__name__} names no method: write `method = MyMethod`")
        results = check_method(self.method, self.hyperparameters, [check.name])
        (result,) = (one for one in results if one.check.name == check.name)
        if result.outcome.verdict == "fault":
            raise AssertionError(
                f"{check.claim}\nseen  {result.outcome.seen}\nwhy   {check.why}\nmend  {check.mend}"
            )
        if result.outcome.verdict != "passed":
            pytest.skip(f"{result.outcome.verdict}: {result.outcome.seen}")
