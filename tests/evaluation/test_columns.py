"""What a column's name says: label, direction, order, with and without its metric."""

from __future__ import annotations

import math

from unlearnbench.api.metric import MetricColumn
from unlearnbench.evaluation.columns import column, filled_columns, known_columns, own_columns


def test_a_column_has_the_label_and_direction_that_its_metric_declares() -> None:
    rouge = MetricColumn("rouge_forget", "ROUGE-L, forget", "lower", set="forget")
    assert column("rouge_forget") == rouge
    assert column("exact_memorization_retain").better == "higher"
    assert column("log10_forget_quality").bounds == (-math.inf, 0.0)


def test_a_column_without_its_metric_has_its_name_in_words() -> None:
    unbounded = (-math.inf, math.inf)
    assert column("of_no_metric") == MetricColumn("of_no_metric", "Of no metric", None, unbounded)


def test_columns_with_numbers_come_in_the_order_of_a_table() -> None:
    first = next(name for name in known_columns() if name not in own_columns())
    rows = [{"b": None, "z": 1.0, "rouge_forget": None}, {"a": 0.0, first: 0.5, "b": None}]
    assert filled_columns(rows) == ("rouge_forget", first, "a", "z")
    assert filled_columns([]) == tuple(known_columns())[: len(own_columns())]
