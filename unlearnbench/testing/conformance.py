"""All checks on one method: from a test (`MethodConformance`) or a command (`check_method`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from torch.utils.benchmark import set_torch_threads

from unlearnbench.api import registry
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.config.plugin_settings import example as example_of
from unlearnbench.runtime.fresh_process import FreshError
from unlearnbench.testing import basics, fresh, invariance, reach
from unlearnbench.testing import declarations as contract
from unlearnbench.testing import loss_values as values
from unlearnbench.testing import scored_positions as positions
from unlearnbench.testing.check import Check, Conformance, Result, run_checks
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
    return example_of(kind, hyperparameters or {}, name, what="hyper-parameters")


def check_method(
    method: type[Method | Wrapper] | str,
    hyperparameters: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a method (a class, or a registered name).

    Raises: PluginError for an unknown method or check, or for refused values.
    """
    instance = example(method, hyperparameters)
    lab = TinyLab(instance) if isinstance(instance, Method) and instance.needed().parts else None
    if lab is not None and (not only or fresh.fresh.name in only):
        with suppress(FreshError, TypeError):  # the check itself reports the reason
            fresh.begin(lab)
    # On tensors this small, synchronising threads costs more than it saves.
    with set_torch_threads(1):
        return run_checks(CHECKS, instance, lab, only)


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
        return check_method(cls.named("method"), cls.hyperparameters)
