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
from unlearnbench.testing.attack_checks import ATTACK_CHECKS
from unlearnbench.testing.attack_conformance import AttackConformance, check_attack
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
    "example",
    "hopeless_set",
    "made_up_set",
    "perfect_set",
]
