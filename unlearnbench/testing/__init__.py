"""The conformance suite: what every plug-in has to get right, checked in seconds.

    from unlearnbench.testing import MethodConformance
    from my_method import MyMethod

    class TestMyMethod(MethodConformance):
        method = MyMethod

`ModifierConformance`, `MetricConformance`, `BenchmarkConformance` and `AttackConformance` are the
same for other plug-ins; `unlearnbench methods check NAME` and its like do it at the command line.
Each check is there because a published harness had the bug that it finds.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from torch.utils.benchmark import set_torch_threads

from unlearnbench.api import registry
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.api.registry import Kind
from unlearnbench.config.entries import example as example_of
from unlearnbench.evaluation.made_up_sets import made_up_set as made_up_set
from unlearnbench.testing import loss_checks, metric_checks, needs_checks, prompt_checks
from unlearnbench.testing.attack_checks import TriedAttack
from unlearnbench.testing.benchmark_checks import TriedBenchmark
from unlearnbench.testing.check import SUITES as SUITES
from unlearnbench.testing.check import Check, Outcome, run_checks
from unlearnbench.testing.check import Result as Result
from unlearnbench.testing.declarations import is_importable
from unlearnbench.testing.extreme_sets import hopeless_set as hopeless_set
from unlearnbench.testing.extreme_sets import perfect_set as perfect_set
from unlearnbench.testing.fresh import begin
from unlearnbench.testing.modifier_checks import TriedModifier
from unlearnbench.testing.step_checks import step_numbers
from unlearnbench.testing.tiny_lab import TinyLab


def _lab(method: Method | Wrapper, _: str) -> TinyLab | None:
    """Return a lab to run a method in; None for a method that trains nothing."""
    if isinstance(method, Method) and method.needed().parts:
        return TinyLab(method)
    return None


def _metric_itself(metric: Any, _: str) -> Any:
    return metric


_SUBJECTS: Mapping[Kind, Callable[[Any, str], Any]] = {
    "methods": _lab,
    "modifiers": TriedModifier,
    "metrics": _metric_itself,
    "benchmarks": TriedBenchmark,
    "attacks": TriedAttack,
}
"""By kind, what the checks are run on: made from a plug-in with its settings, and its name."""
# These modules are imported for the checks that they define, in this order.
_ = loss_checks, metric_checks, needs_checks, prompt_checks


def example(
    plugin: type[Any] | str, settings: Mapping[str, Any] | None = None, kind: Kind = "methods"
) -> Any:
    """Return a plug-in with its defaults. Required values come from a field's `examples`.

    Args:
        plugin: A class, or the name of a registered plug-in.
        settings: In place of the defaults.
        kind: Of the plug-in.

    Raises:
        PluginError: If a value is missing or refused.
    """
    plugin_class = registry.load(kind, plugin) if isinstance(plugin, str) else plugin
    name = _name_of(plugin)
    values = dict(settings or {})
    if kind == "benchmarks":
        values = {"source": name, **values}
    return example_of(plugin_class, values, name)


def _name_of(plugin: type[Any] | str) -> str:
    return plugin if isinstance(plugin, str) else plugin.__name__


def check_plugin(
    kind: Kind,
    plugin: type[Any] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run the checks of a plug-in.

    Args:
        kind: Of the plug-in.
        plugin: A class, or the name of a registered plug-in.
        settings: In place of the defaults.
        only: Names of the checks to run. Empty means all.

    Raises:
        PluginError: If there is no such plug-in or check, or if a value is refused.
    """
    instance: HyperParameters = example(plugin, settings, kind)
    subject = _SUBJECTS[kind](instance, _name_of(plugin))
    needs_fresh_process = not only or "fresh-process" in only
    if isinstance(subject, TinyLab) and needs_fresh_process and is_importable(type(instance)):
        # It starts now, so that it works while the other checks run here.
        subject.fresh = begin(step_numbers, instance)
    # On tensors this small, synchronising threads costs more than it saves.
    with set_torch_threads(1):
        return run_checks(SUITES[kind], instance, subject, only)


class Conformance:
    """Base of the classes from which authors derive a test class for pytest.

    A test class has a test for each check. The checks run once for all tests of a class.
    """

    kind: ClassVar[Kind]
    settings: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""
    _outcomes: ClassVar[Mapping[str, Outcome]]
    """By name of the check. A class has it after its first test."""

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        return check_plugin(cls.kind, getattr(cls, cls.kind.removesuffix("s")), cls.settings)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Tell pytest to make a test for each check."""
        if "check" in metafunc.fixturenames:
            checks = SUITES[self.kind]
            metafunc.parametrize("check", checks, ids=[check.name for check in checks])

    def test_conforms(self, check: Check) -> None:
        """Assert what the check claims."""
        import pytest

        # Not inherited, because a derived class may check another plug-in.
        if "_outcomes" not in vars(type(self)):
            outcomes = {result.check.name: result.outcome for result in self.results()}
            type(self)._outcomes = outcomes
        outcome = self._outcomes[check.name]
        if outcome.verdict == "fault":
            raise AssertionError(
                f"{check.claim}\nseen  {outcome.seen}\nwhy   {check.why}\nfix   {check.fix}"
            )
        if outcome.verdict != "passed":
            pytest.skip(f"{outcome.verdict}: {outcome.seen}")


class MethodConformance(Conformance):
    """Every check as a test; derive a class, and name the method.

    class TestMyMethod(MethodConformance):
        method = MyMethod
    """

    kind = "methods"
    method: ClassVar[type[Any] | str]
    """The class, or the name it is registered under."""


class ModifierConformance(Conformance):
    """The same for a modifier."""

    kind = "modifiers"
    modifier: ClassVar[type[Any] | str]
    """The class, or the name it is registered under."""


class MetricConformance(Conformance):
    """The same for a metric."""

    kind = "metrics"
    metric: ClassVar[type[Any] | str]
    """The class, or the name it is registered under."""


class BenchmarkConformance(Conformance):
    """The same for a benchmark."""

    kind = "benchmarks"
    benchmark: ClassVar[type[Any] | str]
    """The class, or the name it is registered under."""


class AttackConformance(Conformance):
    """The same for an attack."""

    kind = "attacks"
    attack: ClassVar[type[Any] | str]
    """The class, or the name it is registered under."""
