"""The section on tuning: what it says of the trials."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import report_of

if TYPE_CHECKING:
    from ..conftest import Fabric

module: Any = importlib.import_module("unlearnbench_dashboards.sections.tuning")
SECTION: Any = module.Tuning()


@pytest.mark.parametrize("has_defaults", [True, False])
def test_defaults_are_named_only_if_they_were_tried(fabric: Fabric, has_defaults: bool) -> None:
    """A random search and Optuna do not begin with them."""
    run = fabric.run("npo")
    numbers = {"model_utility": {"mean": 0.5}, "log10_forget_quality": {"mean": -3.0}}
    tuning = {"trials": 2, "failed": 0, "best_of": [-4.0, -3.0], "edges": {}, "tokens_back": 9}
    choice = {
        "model": run.model,
        "forget_fraction": run.forget_fraction,
        "method": "npo",
        "entry": "npo",
        "reported": numbers,
        "untuned": numbers if has_defaults else None,
        "tuning": tuning,
    }
    records = (fabric.reference("fine-tuned"), run)
    html = SECTION.render(report_of(records, selection={"choices": [choice]}))
    assert "Each entry had the same number of trials on some seeds" in html
    assert ("its defaults were the first" in html) is has_defaults
    assert ("the choice and the untuned defaults were run again" in html) is has_defaults
