"""Observations that a metric reads and that the records of a sweep lack."""

from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api.metric_engine import MetricPlan

from .conftest import pointed


def test_they_are_named_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of a set of texts follows from the seed of hashes, which each process draws."""
    unsorted = dict.fromkeys(("start_loss", "grad_norm")).keys()
    monkeypatch.setattr(MetricPlan, "extra", unsorted)
    config: dict[str, Any] = {"evaluation": {"metrics": {"fluency": {}}}}
    found = Results.of([pointed("a", [(0.5, -3.0)])], name="", config=config)
    (line,) = found.unobserved()
    assert "which lack grad_norm, start_loss; to make it" in line
