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
from unlearnbench.testing import loss_checks, metric_checks, needs_checks
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
    return TinyLab(method) if isinstance(method, Method) and method.needed().parts else None


_SUBJECTS: Mapping[Kind, Callable[[Any, str], Any]] = {
    "methods": _lab,
    "modifiers": TriedModifier,
    "metrics": lambda metric, _: metric,
    "benchmarks": TriedBenchmark,
    "attacks": TriedAttack,
}
"""Values of a plug-in and its name for the checks of each kind."""
# These modules are imported for the checks that they define, in this order.
_ = loss_checks, metric_checks, needs_checks


def example(
    plugin: type[Any] | str, settings: Mapping[str, Any] | None = None, kind: Kind = "methods"
) -> Any:
    """A plug-in with its defaults; required values come from a field's `examples`.

    Raises: PluginError where a value is missing or refused.
    """
    made = registry.load(kind, plugin) if isinstance(plugin, str) else plugin
    name = plugin if isinstance(plugin, str) else plugin.__name__
    values = {"source": name, **(settings or {})} if kind == "benchmarks" else settings or {}
    return example_of(made, values, name)


def check_plugin(
    kind: Kind,
    plugin: type[Any] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a plug-in (a class, or a registered name).

    Raises: PluginError for an unknown plug-in or check, or for refused values.
    """
    instance: HyperParameters = example(plugin, settings, kind)
    subject = _SUBJECTS[kind](instance, plugin if isinstance(plugin, str) else plugin.__name__)
    is_tried = isinstance(subject, TinyLab) and (not only or "fresh-process" in only)
    if is_tried and is_importable(type(instance)):
        subject.fresh = begin(step_numbers, instance)
    # On tensors this small, synchronising threads costs more than it saves.
    with set_torch_threads(1):
        return run_checks(SUITES[kind], instance, subject, only)


class Conformance:
    """Every check of a plug-in as a test: the base of the classes that authors derive theirs from.

    The checks run once for all tests of a class.
    """

    kind: ClassVar[Kind]
    settings: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""
    _found: ClassVar[Mapping[str, Outcome]]

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        return check_plugin(cls.kind, getattr(cls, cls.kind.removesuffix("s")), cls.settings)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test per check."""
        if "check" in metafunc.fixturenames:
            checks = SUITES[self.kind]
            metafunc.parametrize("check", checks, ids=[check.name for check in checks])

    def test_conforms(self, check: Check) -> None:
        """Assert what the check claims."""
        import pytest

        if "_found" not in vars(type(self)):
            type(self)._found = {result.check.name: result.outcome for result in self.results()}
        outcome = self._found[check.name]
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
