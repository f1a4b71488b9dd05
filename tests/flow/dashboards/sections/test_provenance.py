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
                "peak_memory_of": "resident",
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
    assert spent["first started"] == "2026-01-01 00:00:00 UTC"
    assert spent["peak memory of a run"] == "100 to 104 MiB (resident)"
    assert spent["interruptions"] == "1, each resumed from a checkpoint"
    assert found["This sweep"]["seeds"] == "0 … 4 (5 values)"


def test_time_of_attacks_is_apart(fabric: Fabric) -> None:
    run = fabric.run()
    under = (replace(run.epochs[-1], variant="relearning@13"),)

    def spent(attacked: Any) -> dict[str, str]:
        report = report_of([replace(run, attacked=attacked)])
        return dict(dict(origin.provenance_groups(report))["Time and memory"])

    assert spent(under) == spent(()) | {"attacks, all models": "6 s"}


def test_a_citation_identifies_the_result(fabric: Fabric) -> None:
    stored = {
        "git": {"commit": "abc", "dirty": True},
        "versions": {"unlearnbench": "0.1.0"},
        "data": "d1",
        "finished": "2026-01-02T03:04:05.000+00:00",
    }
    runs = [replace(fabric.run(seed=s), provenance=stored) for s in range(2)]
    report = report_of(runs, "a_b", config={"name": "a_b"})
    title, facts = origin.citation(report)
    assert title == "a_b: 2 runs of 1 method, unlearnbench sweep"
    assert facts == {
        "Seeds": "0, 1",
        "Date": "2026-01-02",
        "unlearnbench": "0.1.0",
        "Commit": "abc (with uncommitted changes)",
        "Evaluation profile": report.profile,
        "Data fingerprint": "d1",
        "Records": f"{runs[0].id}, {runs[1].id}",
        "Repeat": "unlearnbench sweep a_b.yaml",
    }
    entry = origin.bibtex(title, facts)
    assert entry.startswith("@misc{a-b,\n  title = {{a\\_b: 2 runs of 1 method")
    assert "  year = {{2026}},\n" in entry
    assert entry.count("{") == entry.count("}")
    shipped = report_of(runs, "quickstart", config={"name": "quickstart"})
    assert origin.citation(shipped)[1]["Repeat"] == "unlearnbench sweep quickstart"


def test_many_records_are_cited_by_a_digest_of_their_ids(fabric: Fabric) -> None:
    runs = [fabric.run(seed=s) for s in range(origin.LISTED + 1)]
    cited, other = (
        origin.citation(report_of(some))[1]["Records"]
        for some in (runs, [*runs[1:], fabric.run(seed=99)])
    )
    assert cited.startswith("13, SHA-256 of their sorted ids ")
    assert cited != other
