"""Provenance in groups."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..conftest import report_of

if TYPE_CHECKING:
    from ..conftest import Fabric

origin: Any = importlib.import_module("unlearnbench_dashboards.sections.provenance")


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
                "started": f"2026-01-0{r.seed + 1}T00:00:00.000+00:00",
                "interruptions": [{}] if r.seed == 1 else [],
                "novelty": {"inner": 3},
            },
        )
        for r in runs
    ]
    found = {title: dict(pairs) for title, pairs in origin.provenance_groups(report_of(runs))}
    assert found["Code, data and machine"] == {
        "git commit": "abc (no uncommitted changes in the package), "
        "abc (with uncommitted changes in the package)",
        "versions · torch": "2.0",
        "data": "d1",
        "host": "n0 … n4 (5 values)",
        "novelty · inner": "3",
    }
    spent = found["Time and memory"]
    assert spent["training, all runs"] == "40 s"
    assert spent["first started"] == "2026-01-01T00:00:00.000+00:00"
    assert spent["peak memory of a run"] == "100 to 104 MiB"
    assert spent["interruptions"] == "1, each resumed from a checkpoint"
    assert found["This sweep"]["seeds"] == "0 … 4 (5 values)"


def test_a_citation_identifies_the_result(fabric: Fabric) -> None:
    stored = {
        "git": {"commit": "abc", "dirty": True},
        "versions": {"unlearnbench": "0.1.0"},
        "data": "d1",
        "finished": "2026-01-02T03:04:05.000+00:00",
    }
    runs = [replace(fabric.run(seed=s), provenance=stored) for s in range(3)]
    first, second = (origin.citation(report_of(some, "a_b")) for some in (runs[:2], runs[1:]))
    assert first.startswith(
        "a_b, unlearnbench sweep: methods npo; date 2026-01-02; unlearnbench 0.1.0; "
        "commit abc (with uncommitted changes); profile tofu@"
    )
    assert "; data d1; records 2, " in first
    assert first != second, "a hash of the records' ids"
