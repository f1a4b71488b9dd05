"""A benchmark in a file outside the project: swept to the table, without a retain model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.main import main

RIDDLES = '''
"""Riddles: the first half is to be forgotten, and no model is trained without it."""

from pydantic import Field

from unlearnbench.api import (
    Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, Question, Split
)


class Riddles(Benchmark):
    """Sums in words."""

    roles = {"retain": "retain", "forget": "forget"}
    references = frozenset({"start"})
    headline = Headline(
        kept=HeadlineMetric("probability_retain", "Known riddles", "known"),
        forgotten=HeadlineMetric("exact_memorization_forget", "Solved", "solved", better="lower"),
    )
    rows: int = Field(default=8, ge=4, description="riddles in all")

    def metrics(self, profile):
        return (
            MetricUse("rouge", ("retain", "forget")),
            MetricUse("probability", ("retain", "forget")),
            MetricUse("exact-memorization", ("retain", "forget")),
        )

    def split_problem(self, fraction):
        return "" if fraction == 0.5 else f"half of the riddles is forgotten, got {fraction:g}"

    def load(self, fractions):
        rows = tuple(Question(f"What is {i} and {i}?", f"It is {2 * i}.") for i in range(self.rows))
        half = len(rows) // 2
        sets = {"retain": rows[half:], "forget": rows[:half]}
        split = Split(0.5, rows[:half], rows[half:], sets)
        others = tuple(Question(f"Say {i}.", f"{i}!") for i in range(4))
        return Dataset("riddles", rows, {0.5: split}, pretraining=others)
'''
CONFIG = """
name: own
data: {source: riddles, rows: 6}
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 300, hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16}
    preparation: {epochs: 1, base_epochs: 1, batch_size: 4}
forget_fractions: [0.5]
methods: [gradient-ascent]
learning_rates: [1.0e-3]
epochs: 1
training: {batch_size: 2}
tracking: {enabled: false}
"""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_benchmark_of_forty_lines_is_swept_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.chdir(tmp_path)
    Path("riddles.py").write_text(RIDDLES)
    Path("own.yaml").write_text(CONFIG)
    assert main(["run", "own.yaml", "--select", "0", "--plugin", "riddles.py"]) == 0
    assert main(["report", "runs/own"]) == 0
    with Path("runs/own/results.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["fine-tuned", "run"]
    for row in rows:
        for metric in ("rouge", "probability", "exact_memorization"):
            assert 0 <= float(row[f"{metric}_forget"]) <= 1
