"""Every metric is tried before any training; all faults are named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.runtime.deferred_warnings import drain

FILE = """\
import numpy as np
from unlearnbench.api import Metric

class Mine(Metric):
    label = "Mine"
    {roles}

    def per_example(self, seen):
        return {value}
"""
FORGET = 'roles = frozenset({"forget"})'


@pytest.fixture(autouse=True)
def _no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})


def test_built_in_metrics_are_defined_on_ordinary_observations() -> None:
    try_metrics(plan_of(TOFU))


@pytest.mark.parametrize(
    ("roles", "value", "message"),
    [
        (FORGET, "seen.lost", r"raised AttributeError: .*'lost'.*\(mine.py:9\)"),
        (FORGET, "seen.answer_loss * np.nan", "'mine' is undefined on ordinary observations of a"),
        (
            FORGET,
            "'text'",
            r"of metric Mine \(mine.py\) returned a value of type str",
        ),
        (
            "",
            "seen.answer_loss",
            "'mine' of mine.py has no `roles` that this benchmark's",
        ),
        ('roles = "forget"', "seen.answer_loss", "'mine': roles has 'e'; known: forget, retain"),
    ],
)
def test_a_fault_is_one_line_with_its_place(
    roles: str, value: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(FILE.format(roles=roles, value=value))
    registry.register_file(tmp_path / "mine.py")
    with pytest.raises(PluginError, match=message) as caught:
        try_metrics(plan_of(TOFU))
    drain()
    assert len(str(caught.value).splitlines()) == 1


def test_every_fault_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(FILE.format(roles=FORGET, value="None"))
        registry.register_file(tmp_path / f"{name}.py")
    with pytest.raises(PluginError) as caught:
        try_metrics(plan_of(TOFU))
    assert [line.count("returned None") for line in str(caught.value).splitlines()] == [1, 1]
