"""The conformance suite: what every plug-in has to get right, checked in seconds.

    from unlearnbench.testing import MethodConformance
    from my_method import MyMethod

    class TestMyMethod(MethodConformance):
        method = MyMethod

`MetricConformance`, `BenchmarkConformance` and `AttackConformance` are the same for a metric, a
benchmark and an attack; `unlearnbench methods check NAME`, `metrics check`, `benchmarks check` and
`attacks check` do it at the command line.
Each check is there because a published harness had the bug that it finds.
"""

from unlearnbench.evaluation.made_up_sets import hopeless_set, made_up_set, perfect_set
from unlearnbench.testing.check import Check, Outcome, Result, Verdict
from unlearnbench.testing.conformance import (
    ATTACK_CHECKS,
    BENCHMARK_CHECKS,
    CHECKS,
    METRIC_CHECKS,
    AttackConformance,
    BenchmarkConformance,
    MethodConformance,
    MetricConformance,
    check_attack,
    check_benchmark,
    check_method,
    check_metric,
    check_plugin,
    example,
)

__all__ = [
    "ATTACK_CHECKS",
    "BENCHMARK_CHECKS",
    "CHECKS",
    "METRIC_CHECKS",
    "AttackConformance",
    "BenchmarkConformance",
    "Check",
    "MethodConformance",
    "MetricConformance",
    "Outcome",
    "Result",
    "Verdict",
    "check_attack",
    "check_benchmark",
    "check_method",
    "check_metric",
    "check_plugin",
    "example",
    "hopeless_set",
    "made_up_set",
    "perfect_set",
]
