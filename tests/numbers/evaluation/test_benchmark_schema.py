"""The benchmark of records: found by name, or drawn from what is stored."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.api import Benchmark, Dataset, Headline, HeadlineMetric, MetricUse
from unlearnbench.api.metric import Role
from unlearnbench.base.errors import PluginError
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.benchmark_schema import (
    KEY,
    BenchmarkSchema,
)
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record, read_records, write_record
from unlearnbench.results.table import to_csv

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


STORED = BenchmarkSchema.of(Poems(), TOFU, {})


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
        stored = BenchmarkSchema.of(benchmark, TOFU, {})
        text = json.dumps({KEY: stored.to_json()}, allow_nan=False)
        (tmp_path / "plan.json").write_text(text, encoding="utf-8")
        write_record(record(benchmark=None), tmp_path)
        (back,) = read_records(tmp_path)
        assert back.benchmark is not None
        assert back.benchmark.to_json() == stored.to_json()
        assert back.benchmark.columns == stored.columns
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    (early,) = read_records(tmp_path)
    with pytest.raises(PluginError, match="unknown benchmark 'poems'"):
        table_of([early])


def test_a_table_is_drawn_without_the_plug_in_and_warns_once() -> None:
    report = Results.of([record(), record(id="bb", seed=1)], name="x")
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
