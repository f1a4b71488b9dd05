"""The conformance suite: what every plug-in has to get right, checked in seconds.

    from unlearnbench.testing import MethodConformance
    from my_method import MyMethod

    class TestMyMethod(MethodConformance):
        method = MyMethod

`MetricConformance` and `BenchmarkConformance` are the same for a metric and a benchmark;
`unlearnbench methods check NAME`, `metrics check` and `benchmarks check` do it at the command line.
Each check is there because a published harness had the bug that it finds.
"""

from unlearnbench.evaluation.made_up_sets import hopeless_set, made_up_set, perfect_set
from unlearnbench.testing.benchmark_checks import BENCHMARK_CHECKS
from unlearnbench.testing.benchmark_conformance import BenchmarkConformance, check_benchmark
from unlearnbench.testing.check import Check, Outcome, Result, Verdict
from unlearnbench.testing.conformance import (
    CHECKS,
    MethodConformance,
    check_method,
    example,
)
from unlearnbench.testing.metric_checks import METRIC_CHECKS
from unlearnbench.testing.metric_conformance import MetricConformance, check_metric

__all__ = [
    "BENCHMARK_CHECKS",
    "CHECKS",
    "METRIC_CHECKS",
    "BenchmarkConformance",
    "Check",
    "MethodConformance",
    "MetricConformance",
    "Outcome",
    "Result",
    "Verdict",
    "check_benchmark",
    "check_method",
    "check_metric",
    "example",
    "hopeless_set",
    "made_up_set",
    "perfect_set",
]
