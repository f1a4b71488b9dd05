"""Every consumer of a headline, with one that is not TOFU's: no test, and lower is better."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.compare import Comparison, compare
from unlearnbench.analysis.comparison_text import compare_rule, verdict
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.selection import report_chosen
from unlearnbench.analysis.selection_rule import choose, describe_rule
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.base.errors import RecordError
from unlearnbench.config.search import SelectSettings
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record

MADE_UP = Headline(
    kept=HeadlineMetric("rouge_retain", "ROUGE-L, retain", "ROUGE-L"),
    forgotten=HeadlineMetric(
        "extraction_strength_forget", "Extraction strength, forget", "ES", better="lower"
    ),
)
METHODS = {
    "strong": ((0.80, 0.10), (0.81, 0.11), (0.79, 0.12)),
    "weak": ((0.82, 0.50), (0.81, 0.52), (0.80, 0.54)),
    "broken": ((0.05, 0.0), (0.06, 0.0), (0.05, 0.0)),
}
"""(ROUGE-L of the retain set, extraction strength of the forget set) by seed."""


STORED = BenchmarkSchema(
    name="made-up",
    roles={"forget": "forget", "retain": "retain"},
    references=frozenset({"start"}),
    headline=MADE_UP,
    plan=MetricPlan(
        (),
        {},
        (
            MetricColumn("rouge_retain", "ROUGE-L, retain", "higher", set="retain"),
            MetricColumn(
                "extraction_strength_forget", "Extraction strength, forget", "lower", set="forget"
            ),
        ),
        frozenset(MADE_UP.columns),
    ),
)


def record(name: str, seed: int, kept: float, forgotten: float, **more: Any) -> Record:
    numbers = {"rouge_retain": kept, "extraction_strength_forget": forgotten}
    made: dict[str, Any] = {
        "id": f"{name}-{seed}",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": name,
        "learning_rate": 1e-5,
        "seed": seed,
        "spec": {
            "data": {"source": "made-up"},
            "method": {"name": name, "hyperparameters": {}, "retain": None},
        },
        "status": "finished",
        "profile": "tofu@1",
        "epochs": (EpochResult(1, numbers, 1.0, 1.0),),
        "benchmark": STORED,
    }
    return Record(**{**made, **more})


START = replace(
    record("start", 0, 0.9, 0.95),
    kind="fine-tuned",
    method="fine-tuned",
    learning_rate=None,
    epochs=(EpochResult(0, {"rouge_retain": 0.9, "extraction_strength_forget": 0.95}, 0.0, 1.0),),
)
RECORDS = (
    START,
    *(record(name, seed, *at) for name, many in METHODS.items() for seed, at in enumerate(many)),
)
ROWS = table_of(RECORDS).rows


def checked(text: str) -> str:
    """The text, which names nothing of TOFU's headline."""
    assert not any(word in text for word in ("Forget Quality", "FQ", "Model Utility", "p = "))
    return text


def test_rows_have_the_headline_of_their_records() -> None:
    assert {row.headline for row in ROWS} == {MADE_UP}
    assert (ROWS[0].kept, ROWS[0].forgotten) == (0.9, 0.95)
    with pytest.raises(RecordError, match="ranked by different numbers do not compare"):
        table_of([*RECORDS, replace(RECORDS[1], id="other", spec={})])


def test_order_is_by_value_with_intervals_over_seeds() -> None:
    (panel,) = Results.of(RECORDS, name="").claims.panels
    assert [one.method for one in panel.methods] == ["strong", "weak", "broken"]
    assert [one.forgotten for one in panel.methods[:2]] == pytest.approx([0.11, 0.52])
    assert panel.methods[0].hypervolume == pytest.approx(0.8 * 0.84)
    assert panel.sensitivity is None, "no test, no power of one"
    assert panel.rivals is not None
    assert panel.rivals.apart == ("weak",)
    assert [one.place for one in panel.methods] == [1, 2, None]
    near = [record("near", s, 0.8, 0.10 + 0.01 * s) for s in range(3)]
    (panel,) = Results.of([*RECORDS, *near], name="").claims.panels
    assert (
        "In one place by the headline number (the difference is within seed noise): near and strong"
        in checked(" ".join(panel.sentences))
    )


def test_selection_prefers_low_values_and_names_the_columns() -> None:
    select = SelectSettings(seeds=(0,))
    choices = {one.method: one for one in choose(ROWS, select)}
    assert (choices["weak"].kept, choices["weak"].forgotten) == (0.82, 0.50)
    assert "no setting keeps" in choices["broken"].why_not
    found = report_chosen(choices["strong"], ROWS, ["strong-1", "strong-2"])
    assert found["extraction_strength_forget"] == 0.10
    assert found["reported"]["extraction_strength_forget"]["mean"] == pytest.approx(0.115)
    assert "lowest Extraction strength, forget" in checked(describe_rule(select, MADE_UP))
    area = SelectSettings(rule="hypervolume", reference=(0.1, 0.45), seeds=(0,))
    by_area = {one.method: one for one in choose(ROWS, area)}
    assert by_area["strong"].hypervolume == pytest.approx(0.7 * 0.35)
    assert by_area["weak"].why_not == "no setting is above (0.1, 0.45) in both"
    assert "better than (0.1, 0.45)" in checked(describe_rule(area, MADE_UP))


def compared(a: str, b: str, records: Sequence[Record] = RECORDS) -> Comparison:
    by_id: Mapping[str, Record] = {one.id: one for one in records}
    rows = table_of(records).rows

    def side(name: str) -> Contender:
        return Contender(name, tuple(row for row in rows if row.family == name), rows, by_id)

    return compare(side(a), side(b))


def test_methods_are_compared_over_seeds_where_there_is_no_test() -> None:
    found = compared("weak", "strong")
    (panel,) = found.panels
    assert panel.better is not None
    assert panel.better.name == "strong"
    text = checked(
        " ".join((*verdict(panel, "weak", "strong", 0), compare_rule(0.02, found.headline)))
    )
    assert "strong forgets more than weak at equal ROUGE-L" in text
    assert "weak 0.520, strong 0.110; lower is better." in text
    assert "The difference of 0.410 lies between" in text
    few = [one for one in RECORDS if one.seed < 2]
    (panel,) = compared("weak", "strong", few).panels
    assert panel.better is None, "two seeds give no interval"
    (panel,) = compared("weak", "strong", [one for one in RECORDS if one.seed < 1]).panels
    assert "at least three seeds" in " ".join(verdict(panel, "weak", "strong", 0))
