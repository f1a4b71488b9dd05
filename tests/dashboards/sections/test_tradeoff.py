"""The card of a run: its configuration."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..conftest import Fabric

details: Any = importlib.import_module("unlearnbench_dashboards.sections.tradeoff")


def test_equal_parts_of_configurations_are_stored_once(fabric: Fabric) -> None:
    runs = [fabric.run(seed=0, hyperparameters={"beta": 0.1}, rate=r) for r in (1e-4, 1e-3)]
    found = details.run_details(runs)
    titles = [[found["parts"][i][0] for i in found["runs"][r.id]] for r in runs]
    assert titles == [["Method", "Evaluation", "Data", "Run"]] * 2
    assert len(found["parts"]) == 5  # all but the first are shared
    assert ("beta", "0.1") in found["parts"][0][1]
