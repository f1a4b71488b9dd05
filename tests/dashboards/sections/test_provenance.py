"""Provenance in groups."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unlearnbench.analysis.results import Results

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
    found = {
        title: dict(pairs) for title, pairs in origin.provenance_groups(Results.of(runs, name="x"))
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
        report = Results.of([replace(run, attacked=attacked)], name="x")
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
    report = Results.of(runs, name="a_b", config={"name": "a_b"})
    found = origin.citation(report)
    assert found.text == (
        "a_b: 2 runs of 1 method, unlearnbench sweep. Seeds: 0, 1. Date: 2026-01-02. "
        "unlearnbench: 0.1.0. Commit: abc with uncommitted changes. "
        f"Evaluation profile: {report.profile}. Data fingerprint: d1. "
        f"Records: {runs[0].id}, {runs[1].id}. Repeat: unlearnbench sweep a_b.yaml."
    )
    assert found.bibtex.startswith("@misc{a-b-2026,\n  title = {{a\\_b: 2 runs of 1 method")
    assert "@misc{unlearnbench,\n" in found.bibtex
    assert found.bibtex.count("{") == found.bibtex.count("}")
    shipped = Results.of(runs, name="quickstart", config={"name": "quickstart"})
    assert "Repeat: unlearnbench sweep quickstart." in origin.citation(shipped).text


def test_many_records_are_cited_by_a_digest_of_their_ids(fabric: Fabric) -> None:
    runs = [fabric.run(seed=s) for s in range(origin.LISTED + 1)]
    text = origin.citation(Results.of(runs, name="x")).text
    other = origin.citation(Results.of([*runs[1:], fabric.run(seed=99)], name="x")).text
    digest = [one.partition("sorted ids ")[2][:16] for one in (text, other)]
    assert "Records: 13, SHA-256 of their sorted ids" in text
    assert digest[0] != digest[1]
