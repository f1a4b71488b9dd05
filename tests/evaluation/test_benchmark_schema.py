"""The benchmark of records: found by name, or drawn from what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unlearnbench.api import Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, registry
from unlearnbench.api.metric import Role
from unlearnbench.config.benchmark_section import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import RecordError
from unlearnbench.evaluation.benchmark_schema import (
    metric_versions,
    recorded_schema,
    schema_entries,
    schema_with,
)
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.metrics.exact_memorization import ExactMemorization
from unlearnbench.reporting.report import make_report
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import mixed_versions, table, to_csv

HEADLINE = Headline(
    kept=HeadlineMetric("rouge_known", "Known poems", "known"),
    forgotten=HeadlineMetric("exact_memorization_gone", "Recited", "recited", better="lower"),
)


class Poems(Benchmark):
    """Poems."""

    roles: ClassVar[Mapping[str, Role]] = {"gone": "forget", "known": "retain"}
    references = frozenset({"start"})
    headline = HEADLINE
    source: str = "poems"

    def metrics(self, profile: Any) -> tuple[MetricUse, ...]:
        del profile
        return (MetricUse("rouge", ("gone", "known")), MetricUse("exact-memorization", ("gone",)))

    def load(self, fractions: Any) -> Dataset:
        raise NotImplementedError


NUMBERS = {
    "rouge_gone": 0.5,
    "rouge_known": 0.75,
    "exact_memorization_gone": 0.25,
    "of_theirs": 1.0,
}


def record(**changes: Any) -> Record:
    """A record of a run on poems, whose plug-in is not installed."""
    of: dict[str, Any] = {
        "id": "aa",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.5,
        "method": "npo",
        "learning_rate": 1e-4,
        "seed": 0,
        "spec": {"data": {"source": "poems"}},
        "status": "finished",
        "profile": TOFU.id,
        "epochs": (EpochResult(1, NUMBERS, 1.0, 1.0),),
        "provenance": schema_entries(Poems(), TOFU),
    }
    return Record(**of | changes)


def test_records_of_tofus_schema_carry_no_entry() -> None:
    for name in ("tofu", "synthetic"):
        assert schema_entries(benchmark_named(name), TOFU) == {}


def test_a_benchmark_is_found_by_the_name_and_settings_in_the_record() -> None:
    spec = {"data": {"source": "synthetic", "authors": 4, "a_setting_of_later": 1}}
    for section, name in ((spec, "synthetic"), ({}, "")):
        found = recorded_schema(section, {}, TOFU.id, ())
        assert (found.name, found.missing, found.headline.kept.column) == (
            name,
            "",
            "model_utility",
        )
        assert found.plan is plan_of(TOFU, benchmark_named(name or "tofu"))


def test_a_table_is_drawn_without_the_plug_in_and_warns_once() -> None:
    report = make_report([record(), record(id="bb", seed=1)], name="x")
    schema = report.schema
    assert (schema.name, schema.headline, schema.references) == (
        "poems",
        HEADLINE,
        frozenset({"start"}),
    )
    assert list(schema.roles) == ["gone", "known"]
    (line,) = report.warnings
    assert line.startswith("unknown benchmark 'poems'")
    assert "\n" not in line
    labels = {name: schema.column(name).label for name in NUMBERS}
    assert labels == {
        "rouge_gone": "ROUGE-L, gone",
        "rouge_known": "ROUGE-L, known",
        "exact_memorization_gone": "Exact memorization, gone",
        "of_theirs": "Of theirs",
    }
    assert schema.column("rouge_gone").better == "lower"
    assert [(row.kept, row.forgotten) for row in report.rows] == [(0.75, 0.25)] * 2
    head, *lines = to_csv(report.rows).splitlines()
    assert {*NUMBERS} <= {*head.split(",")}
    assert "model_utility" not in head
    assert len(lines) == 2


def test_the_names_of_columns_find_the_benchmark_of_a_csv() -> None:
    assert schema_with(("model_utility", *HEADLINE.columns)).headline == default()
    with pytest.MonkeyPatch.context() as patch:
        file = registry._PluginFile  # pyright: ignore[reportPrivateUsage]
        patch.setattr(
            registry, "_files", {"poems": file(Path("poems.py"), b"", "", "benchmarks", Poems)}
        )
        assert schema_with(NUMBERS).headline == HEADLINE
        schema = recorded_schema({"data": {"source": "poems"}}, {}, TOFU.id, ())
        assert (schema.name, schema.missing) == ("poems", "")
    assert schema_with(NUMBERS).headline == default(), "nothing is known of it"


def default() -> Headline:
    return benchmark_named("tofu").headline


def test_a_damaged_entry_is_named() -> None:
    broken = {"benchmark": {"roles": {"gone": "lost"}, "references": []}}
    with pytest.raises(RecordError, match=r"record aa: provenance\.benchmark\.roles\.gone: Input"):
        table([record(provenance=broken)])


def test_two_versions_of_a_metric_in_one_table_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(TOFU, Poems())
    early = record()
    assert mixed_versions([early], plan) == ""
    monkeypatch.setattr(ExactMemorization, "version", 2)
    entries = schema_entries(Poems(), TOFU)
    assert entries["metric_versions"] == {"exact_memorization_gone": 2}
    assert metric_versions(plan)["rouge_gone"] == 1
    late = record(id="bb", seed=1, provenance=entries)
    assert mixed_versions([late], plan) == ""
    line = make_report([early, late], name="x").warnings[-1]
    assert "of a metric do not compare: exact_memorization_gone (1 and 2); evaluate again" in line
