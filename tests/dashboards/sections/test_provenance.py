"""Provenance in groups."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unlearnbench.reporting.report import make_report

if TYPE_CHECKING:
    from ..conftest import Fabric

data: Any = importlib.import_module("unlearnbench_dashboards.sections.provenance.data")


def test_values_are_grouped_and_have_units(fabric: Fabric) -> None:
    runs = [fabric.run(seed=s) for s in range(5)]
    runs = [
        replace(
            r,
            provenance={
                "git": {"commit": "abc", "dirty": r.seed == 0, "of": "package"},
                "versions": {"torch": "2.0"},
                "data": "d1",
                "host": f"n{r.seed}",
                "peak_memory_mib": 100 + r.seed,
                "peak_memory_of": "resident",
                "started": f"2026-01-0{r.seed + 1}T00:00:00.000+00:00",
                "interruptions": [{}] if r.seed == 1 else [],
                "novelty": {"inner": 3},
            },
        )
        for r in runs
    ]
    found = {
        title: dict(pairs) for title, pairs in data.provenance_groups(make_report(runs, name="x"))
    }
    assert found["Code"]["commit"] == (
        "abc (no uncommitted changes in the package), abc (with uncommitted changes in the package)"
    )
    assert found["Code"]["torch"] == "2.0"
    assert found["Data and models"] == {"data, hash": "d1"}
    assert found["Machine"]["host"] == "n0 … n4 (5 values)"
    spent = found["Time and memory"]
    assert spent["training, all runs"] == "40 s"
    assert spent["first started"] == "2026-01-01 00:00:00 UTC"
    assert spent["peak memory of a run"] == "100 to 104 MiB (resident)"
    assert spent["interruptions"] == "1, each resumed from a checkpoint"
    assert found["Also recorded"] == {"novelty · inner": "3"}
    assert found["This sweep"]["seeds"] == "0 … 4 (5 values)"


def test_time_of_attacks_is_apart(fabric: Fabric) -> None:
    run = fabric.run()
    under = (replace(run.epochs[-1], variant="relearning@13"),)

    def spent(attacked: Any) -> dict[str, str]:
        report = make_report([replace(run, attacked=attacked)], name="x")
        return dict(dict(data.provenance_groups(report))["Time and memory"])

    assert spent(under) == spent(()) | {"attacks, all models": "6 s"}
