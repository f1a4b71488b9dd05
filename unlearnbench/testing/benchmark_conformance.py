"""All checks on one benchmark: from a test (`BenchmarkConformance`) or by `check_benchmark`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Benchmark
from unlearnbench.config.plugin_settings import example
from unlearnbench.testing.benchmark_checks import BENCHMARK_CHECKS, TriedBenchmark
from unlearnbench.testing.check import Conformance, Result, run_checks


def check_benchmark(
    benchmark: type[Benchmark] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a benchmark (a class, or a registered name).

    Raises: PluginError for an unknown benchmark or check, or for refused values.
    """
    kind = registry.load("benchmarks", benchmark) if isinstance(benchmark, str) else benchmark
    name = benchmark if isinstance(benchmark, str) else kind.__name__
    instance = example(kind, {"source": name, **(settings or {})}, name)
    return run_checks(BENCHMARK_CHECKS, instance, TriedBenchmark(instance), only)


class BenchmarkConformance(Conformance):
    """Every check as a test; derive a class, and name the benchmark.

    class TestMyBenchmark(BenchmarkConformance):
        benchmark = MyBenchmark
    """

    benchmark: ClassVar[type[Benchmark] | str]
    """The class, or the name it is registered under."""
    checks = BENCHMARK_CHECKS

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        return check_benchmark(cls.named("benchmark"), cls.settings)
