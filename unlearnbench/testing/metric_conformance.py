"""All checks on one metric: from a test (`MetricConformance`) or a command (`check_metric`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from unlearnbench.api import registry
from unlearnbench.api.metric import Metric, Summary
from unlearnbench.config.plugin_settings import example
from unlearnbench.testing.check import Conformance, Result, run_checks
from unlearnbench.testing.metric_checks import METRIC_CHECKS


def check_metric(
    metric: type[Metric | Summary] | str,
    settings: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
) -> Sequence[Result]:
    """Run all checks, or `only` those named, on a metric (a class, or a registered name).

    Raises: PluginError for an unknown metric or check, or for refused values.
    """
    kind = registry.load("metrics", metric) if isinstance(metric, str) else metric
    name = metric if isinstance(metric, str) else kind.__name__
    instance = example(kind, settings or {}, name)
    return run_checks(METRIC_CHECKS, instance, instance, only)


class MetricConformance(Conformance):
    """Every check as a test; derive a class, and name the metric.

    class TestMyMetric(MetricConformance):
        metric = MyMetric
    """

    metric: ClassVar[type[Metric | Summary] | str]
    """The class, or the name it is registered under."""
    checks = METRIC_CHECKS

    @classmethod
    def results(cls) -> Sequence[Result]:
        """Run all checks."""
        return check_metric(cls.named("metric"), cls.settings)
