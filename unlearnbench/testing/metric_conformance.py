"""All checks on one metric: from a test (`MetricConformance`) or a command (`check_metric`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from unlearnbench.api import registry
from unlearnbench.api.metric import Metric, Summary
from unlearnbench.testing.check import (
    Check,
    Conformance,
    Outcome,
    Result,
    check_names,
    made,
    run_check,
)
from unlearnbench.testing.metric_checks import METRIC_CHECKS


def check_metric(
    metric: type[Metric | Summary] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a metric (a class, or a registered name).

    If one of the first checks fails, those after it are not run, and its result is included even
    if it was not named.

    Raises: PluginError for an unknown metric or check, or for refused values.
    """
    check_names(only, METRIC_CHECKS)
    kind = registry.load("metrics", metric) if isinstance(metric, str) else metric
    name = metric if isinstance(metric, str) else kind.__name__
    instance = made(kind, settings or {}, name, "settings")
    results: list[Result] = []
    failed, seen = "", dict[str, str]()
    for check in METRIC_CHECKS:
        selected = not only or check.name in only
        if failed:
            if selected:
                skipped = Outcome("not run", f"{failed!r} failed")
                results.append(Result(check, skipped, 0.0))
        elif selected or check.first:
            result = _run(check, instance, seen)
            faulty = result.outcome.verdict == "fault"
            failed = check.name if check.first and faulty else ""
            if selected or faulty:
                results.append(result)
    return results


def _run(check: Check, metric: Metric | Summary, seen: dict[str, str]) -> Result:
    begin = time.perf_counter()
    outcome = run_check(check, metric, type(metric), seen)
    return Result(check, outcome, time.perf_counter() - begin)


class MetricConformance(Conformance):
    """Every check as a test; derive a class, and name the metric.

    class TestMyMetric(MetricConformance):
        metric = MyMetric
    """

    metric: ClassVar[type[Metric | Summary] | str]
    """The class, or the name it is registered under."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """In place of the defaults."""
    checks = METRIC_CHECKS

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        if not hasattr(cls, "metric"):
            raise TypeError(f"{cls.__name__} names no metric: write `metric = MyMetric`")
        return check_metric(cls.metric, cls.settings)
