"""All checks on one method: from a test (`MethodConformance`) or a command (`check_method`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from torch.utils.benchmark import set_torch_threads

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.runtime.fresh_process import FreshError
from unlearnbench.testing import basics, fresh, invariance, reach
from unlearnbench.testing import declarations as contract
from unlearnbench.testing import loss_values as values
from unlearnbench.testing import scored_positions as positions
from unlearnbench.testing.check import (
    Check,
    Conformance,
    Outcome,
    Result,
    check_names,
    made,
    not_applicable,
    run_check,
)
from unlearnbench.testing.tiny_lab import TinyLab

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


def example(
    method: type[Method | Wrapper] | str, hyperparameters: Mapping[str, Any] | None = None
) -> Method | Wrapper:
    """A method with its defaults; required values come from a field's `examples`.

    Raises: PluginError where a value is missing or refused.
    """
    kind = registry.load_method(method) if isinstance(method, str) else method
    name = method if isinstance(method, str) else kind.__name__
    return made(kind, hyperparameters or {}, name, "hyper-parameters")


def check_method(
    method: type[Method | Wrapper] | str,
    hyperparameters: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a method (a class, or a registered name).

    If one of the first checks fails, those that build on it are not run, and its result is
    included even if it was not named.

    Raises: PluginError for an unknown method or check, or for refused values.
    """
    check_names(only, CHECKS)
    instance = example(method, hyperparameters)
    lab = TinyLab(instance) if isinstance(instance, Method) and instance.needed().parts else None
    if lab is not None and (not only or fresh.fresh.name in only):
        with suppress(FreshError, TypeError):  # the check itself reports the reason
            fresh.begin(lab)
    results: list[Result] = []
    failed, seen = "", dict[str, str]()
    # On tensors this small, synchronising threads costs more than it saves.
    with set_torch_threads(1):
        for check in CHECKS:
            selected = not only or check.name in only
            if not selected and not check.first:
                continue
            if failed and not check.alone:
                if selected:
                    skipped = Outcome("not run", f"{failed!r} failed")
                    results.append(Result(check, skipped, 0.0))
                continue
            result = _run(check, instance, lab, seen)
            faulty = result.outcome.verdict == "fault"
            if check.first and faulty:
                failed = check.name
            if selected or faulty:
                results.append(result)
    return results


def _run(
    check: Check, method: Method | Wrapper, lab: TinyLab | None, seen: dict[str, str]
) -> Result:
    begin = time.perf_counter()
    if lab is None and not check.alone:
        outcome = not_applicable("it trains nothing")
    else:
        outcome = run_check(check, method if check.alone else lab, type(method), seen)
    return Result(check, outcome, time.perf_counter() - begin)


class MethodConformance(Conformance):
    """Every check as a test; derive a class, and name the method.

    class TestMyMethod(MethodConformance):
        method = MyMethod
    """

    method: ClassVar[type[Method | Wrapper] | str]
    """The class, or the name it is registered under."""
    hyperparameters: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""
    checks = CHECKS

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        if not hasattr(cls, "method"):
            raise TypeError(f"{cls.__name__} names no method: write `method = MyMethod`")
        return check_method(cls.method, cls.hyperparameters)
