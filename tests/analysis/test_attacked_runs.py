"""Numbers before and after an attack, of the same rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.attacked_runs import attacked_runs, chosen_variant
from unlearnbench.analysis.meta_evaluation import AttackedRun
from unlearnbench.api.observations import Evaluation
from unlearnbench.errors import RecordError
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import table

from .conftest import GOAL, N, evaluation, off, reference, run

RELEARNED, NAME = "relearning@13", "probability_forget"


def forget(values: Any) -> Evaluation:
    """An evaluation with these probabilities of the answers, for the first questions alone."""
    n, whole = len(values), evaluation(GOAL)
    losses, rows = -np.log(np.array(values)), whole.sets["forget"]
    part = {
        name: column[:n]
        for name, column in vars(rows).items()
        if isinstance(column, tuple | np.ndarray)
    }
    seen = replace(rows, **{**part, "answer_loss": losses, "base_loss": losses})
    return replace(whole, sets={"forget": seen})


def attacked(record: Record, epoch: int, value: float, rows: int = 2) -> Record:
    """The record with a result under relearning, on its first rows."""
    result = EpochResult(epoch, {NAME: value}, 0.0, 1.0, RELEARNED)
    under = {(epoch, RELEARNED): forget([value] * rows)}
    results = (*record.attacked, result)
    return replace(
        record, attacked=results, attacked_evaluations={**record.attacked_evaluations, **under}
    )


def known(record: Record, epoch: int, few: float, others: float) -> Record:
    """The record where the first two questions have one probability, and all others another."""
    seen = forget([few] * 2 + [others] * (N - 2))
    return replace(record, evaluations={**record.evaluations, epoch: seen})


RETAIN = known(reference("retain", 0.9, GOAL), 0, 0.1, 0.7)
ALONE = replace(RETAIN, id="retain-under-relearning", epochs=(), evaluations={})
UNDER = attacked(ALONE, 0, 0.2)
START = reference("fine-tuned", 0.9, off(3.0))
RUN = known(known(run("npo", [(0.8, GOAL), (0.7, GOAL)]), 1, 0.5, 0.6), 2, 0.3, 0.6)


def only(*records: Record) -> AttackedRun:
    (found,) = attacked_runs(records, table(records))
    return found


def test_before_the_attack_counts_the_rows_that_it_is_evaluated_on() -> None:
    found = only(attacked(RUN, 2, 0.45), RETAIN, UNDER, START)
    assert found.variant == RELEARNED
    assert (found.row.epoch, found.row.kept, found.kept_at_start) == (2, 0.7, 0.9)
    numbers = (found.before, found.after, found.retain_before, found.retain_after)
    assert [one[NAME] for one in numbers] == pytest.approx([0.3, 0.45, 0.1, 0.2])


def test_of_several_attacked_epochs_the_last_counts() -> None:
    found = only(attacked(attacked(RUN, 1, 0.9), 2, 0.45), RETAIN, UNDER, START)
    assert (found.row.epoch, found.after[NAME]) == (2, 0.45)
    early = only(attacked(RUN, 1, 0.9), RETAIN, UNDER, START)
    assert [early.row.epoch, early.before[NAME]] == pytest.approx([1, 0.5])


def test_without_a_retain_model_under_the_attack_its_numbers_are_unknown() -> None:
    found = only(attacked(RUN, 2, 0.45), RETAIN, START)
    assert (found.retain_before, found.retain_after) == ({}, {})
    assert attacked_runs([RUN, RETAIN, START], table([RUN, RETAIN, START])) == ()


def test_nf4_is_the_variant_of_quantization_and_the_last_step_that_of_relearning() -> None:
    variants = ("quantization@nf4", "quantization@fp4", "relearning@1", "relearning@13", "template")
    assert chosen_variant(None, "quantization", variants) == "quantization@nf4"
    assert chosen_variant(None, "relearning", variants) == "relearning@13"
    assert chosen_variant("relearning@1", "relearning", variants) == "relearning@1"
    assert chosen_variant(None, "relearning", ()) == "relearning"
    with pytest.raises(RecordError, match=r"'relearning@2'; did you mean 'relearning@1"):
        chosen_variant("relearning@2", "relearning", variants)
