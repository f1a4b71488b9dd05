"""The conformance suite: what every method and metric has to get right, checked in seconds.

    from unlearnbench.testing import MethodConformance
    from my_method import MyMethod

    class TestMyMethod(MethodConformance):
        method = MyMethod

`MetricConformance` is the same for a metric; `unlearnbench methods check NAME` and `metrics check
NAME` do it at the command line. Each check is there because a
published harness had the bug that it finds.
"""

from unlearnbench.evaluation.made_up_sets import hopeless_set, made_up_set, perfect_set
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
    "CHECKS",
    "METRIC_CHECKS",
    "Check",
    "MethodConformance",
    "MetricConformance",
    "Outcome",
    "Result",
    "Verdict",
    "check_method",
    "check_metric",
    "example",
    "hopeless_set",
    "made_up_set",
    "perfect_set",
]
