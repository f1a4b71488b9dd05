"""The benchmark of records: found by name, or drawn from what is stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unlearnbench.api import Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, registry
from unlearnbench.api.metric import MetricColumn, Role
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError
from unlearnbench.evaluation.benchmark_schema import (
    KEY,
    StoredBenchmark,
    default_schema,
    filled_columns,
    metric_versions,
    recorded_schema,
    version_entry,
)
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.metrics.exact_memorization import ExactMemorization
from unlearnbench.reporting.report import make_report
from unlearnbench.results.records import EpochResult, Record, read_records, write_record
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


STORED = StoredBenchmark.of(Poems(), TOFU, {})


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
        "benchmark": STORED,
    }
    return Record(**of | changes)


def test_the_entry_in_a_plan_reads_back_with_infinite_bounds(tmp_path: Path) -> None:
    for benchmark in (Poems(), benchmark_named("tofu")):
        stored = StoredBenchmark.of(benchmark, TOFU, {})
        text = json.dumps({KEY: stored.to_json()}, allow_nan=False)
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")
        write_record(record(benchmark=None), tmp_path)
        (back,) = read_records(tmp_path)
        assert back.benchmark == stored
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    (early,) = read_records(tmp_path)
    with pytest.raises(PluginError, match="unknown benchmark 'poems'"):
        table([early])


def test_a_benchmark_is_found_by_the_name_and_settings_in_the_record() -> None:
    spec = {"source": "synthetic", "authors": 4, "a_setting_of_later": 1}
    for section, name in ((spec, "synthetic"), ({}, "")):
        found = recorded_schema(section, TOFU.id)
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


def test_a_plug_in_that_is_installed_comes_before_the_entry() -> None:
    with pytest.MonkeyPatch.context() as patch:
        file = registry._PluginFile  # pyright: ignore[reportPrivateUsage]
        patch.setattr(
            registry, "_files", {"poems": file(Path("poems.py"), (), "", "benchmarks", Poems)}
        )
        schema = recorded_schema({"source": "poems"}, TOFU.id)
        assert (schema.name, schema.missing) == ("poems", "")


def test_two_versions_of_a_metric_in_one_table_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(TOFU, Poems())
    early = record()
    assert mixed_versions([early], plan) == ""
    monkeypatch.setattr(ExactMemorization, "version", 2)
    entries = version_entry(Poems(), TOFU)
    assert entries["metric_versions"] == {"exact_memorization_gone": 2}
    assert metric_versions(plan)["rouge_gone"] == 1
    late = record(id="bb", seed=1, provenance=entries)
    assert mixed_versions([late], plan) == ""
    line = make_report([early, late], name="x").warnings[-1]
    assert "of a metric do not compare: exact_memorization_gone (1 and 2); evaluate again" in line


def test_a_column_has_the_label_and_direction_that_its_metric_declares() -> None:
    column = default_schema().column
    rouge = MetricColumn("rouge_forget", "ROUGE-L, forget", "lower", set="forget")
    assert column("rouge_forget") == rouge
    assert column("exact_memorization_retain").better == "higher"
    assert column("log10_forget_quality").bounds == (-math.inf, 0.0)


def test_a_column_without_its_metric_has_its_name_in_words() -> None:
    unbounded = (-math.inf, math.inf)
    column = default_schema().column("of_no_metric")
    assert column == MetricColumn("of_no_metric", "Of no metric", None, unbounded)


def test_columns_with_numbers_come_in_the_order_of_a_table() -> None:
    known = [*default_schema().columns]
    first = next(name for name in known if name not in default_schema().plan.own)
    rows = [{"b": None, "z": 1.0, "rouge_forget": None}, {"a": 0.0, first: 0.5, "b": None}]
    assert filled_columns(rows) == ("rouge_forget", first, "a", "z")
    assert filled_columns([]) == tuple(known[: len(default_schema().plan.own)])
