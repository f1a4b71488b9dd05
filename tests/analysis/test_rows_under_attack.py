"""The rows and records of a sweep under one attack."""

from __future__ import annotations

import pytest

from unlearnbench.analysis.rows_under_attack import find_variant, records_under, rows_under
from unlearnbench.errors import RecordError
from unlearnbench.results.table import attack_table, table

from .conftest import FAR, NEAR, REFERENCES, under_attack

RECORDS = under_attack([*REFERENCES, *NEAR], 2.0, "relearning@13")
UNDER = under_attack(RECORDS[:4], 1.0, "relearning@3")  # both references, and a run


def test_what_is_kept_is_that_of_the_plain_evaluation() -> None:
    plain, attacked = table([*RECORDS, *FAR]), attack_table([*RECORDS, *FAR])
    found = rows_under(plain, attacked, "relearning@13")
    assert {row.kind for row in found[:2]} == {"fine-tuned", "retain"}
    runs = [row for row in found if row.kind == "run"]
    assert [(row.family, row.epoch, row.kept) for row in runs] == [("near", 2, 0.80)] * 3
    before = {row.run_id: row.forgotten for row in plain if row.epoch == 2}
    assert all((row.forgotten or 0) < (before[row.run_id] or 0) for row in runs)


def test_evaluations_are_those_under_the_attack() -> None:
    by_kind = {one.id: one for one in records_under(RECORDS, "relearning@13")}
    plain = next(one for one in by_kind.values() if one.kind == "retain")
    assert not plain.evaluations, "the retain model without an attack is no reference here"
    run = by_kind[NEAR[0].id].evaluations
    assert (list(run), 1 in run, 2 in run) == ([2], False, True)
    assert run[2] is RECORDS[-3].attacked_evaluations[2, "relearning@13"]


def test_an_attack_stands_for_its_only_variant() -> None:
    attacked = attack_table(RECORDS)
    assert find_variant("relearning", attacked, "here") == "relearning@13"
    both = attack_table([*UNDER, *RECORDS[4:]])
    with pytest.raises(RecordError, match="has several points: relearning@3, relearning@13; name"):
        find_variant("relearning", both, "here")
    with pytest.raises(RecordError, match=r"here: no run under 'nf4'; there are: relearning@13$"):
        find_variant("nf4", attacked, "here")
