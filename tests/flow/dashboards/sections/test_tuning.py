"""The section on tuning: what it says of the trials."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from ....numbers.analysis.conftest import choosing

if TYPE_CHECKING:
    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.sections.tuning")
SECTION: Any = module.Tuning()


@pytest.mark.parametrize("has_defaults", [True, False])
def test_defaults_are_named_only_if_they_were_tried(fabric: Fabric, has_defaults: bool) -> None:
    """A random search and Optuna do not begin with them."""
    runs = [fabric.run("npo", seed=seed) for seed in range(2)]
    trial = {"untuned": True} if has_defaults else {}
    report = choosing(
        [fabric.reference("fine-tuned"), *runs],
        seeds=(0, 1),
        entries={runs[0].id: {"npo": trial}},
    )
    html = SECTION.render(report)
    assert "Each entry had the same number of trials on some seeds" in html
    assert ("its defaults were the first" in html) is has_defaults
    assert ("the choice and the untuned defaults were run again" in html) is has_defaults
