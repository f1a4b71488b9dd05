"""Every metric is tried before any training; all faults are named at once."""

import pytest

from unlearnbench.api import registry
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import try_metrics
from unlearnbench.evaluation.summary import plan_of


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})


def test_built_in_metrics_are_defined_on_ordinary_observations() -> None:
    try_metrics(plan_of(TOFU))
